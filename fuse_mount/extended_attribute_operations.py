"""Extended attributes (xattr(7)) of files and directories."""

import errno

from speedwell.fs import paths, units
from speedwell.fs.errors import NoSuchAttribute
from speedwell.fs.file_status import CAPABILITIES
from speedwell.fuse_mount.shared import SharedState

XATTR_CREATE = 1
XATTR_REPLACE = 2
# The kernel has checked who may use which before it asks (trusted. is for root, user. follows the permissions).
PREFIXES = (b"user.", b"trusted.", b"security.")
ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
QUOTA = b"speedwell.quota"
# Labels of a security module that would have to be the same on every machine; `ls -l` asks for one per file,
# unless it is told that there are none.
NOT_SUPPORTED = (b"security.selinux",)


class ExtendedAttributeOperations(SharedState):
    """Names have their prefix."""

    def getxattr(self, inode: int, name: bytes) -> bytes:
        path = paths.of_inode(inode)
        if name == QUOTA:
            return self._quota(path)
        self._require_supported(name)
        if not self._client.lookup(path).has_extended_attributes:
            raise NoSuchAttribute("the file has no attributes")
        value = self._metadata.list_extended_attributes(path).get(name)
        if value is None:
            raise NoSuchAttribute("the file has other attributes")
        return value

    def _quota(self, path: bytes) -> bytes:
        """A line for each quota that holds here, the innermost first: EDQUOT alone does not name the directory."""
        lines = []
        for quota in self._metadata.quotas(path):
            room = [f"{units.size(quota.used_bytes)} of {units.size(quota.max_bytes)}"] * quota.HasField("max_bytes")
            room += [f"{quota.used_files} of {quota.max_files} files and directories"] * quota.HasField("max_files")
            lines.append(quota.path + f": {', '.join(room)}".encode())
        if not lines:
            raise NoSuchAttribute("no quota holds here")
        return b"\n".join(lines)

    def listxattr(self, inode: int) -> bytes:
        """The names, each with a NUL behind it."""
        path = paths.of_inode(inode)
        if not self._client.lookup(path).has_extended_attributes:
            return b""
        is_root = self._kernel.caller()[0] == 0
        return b"".join(name + b"\0" for name in self._metadata.list_extended_attributes(path)
                        if is_root or not name.startswith(b"trusted."))

    def setxattr(self, inode: int, name: bytes, value: bytes, flags: int) -> None:
        self._require_supported(name)
        path = paths.of_inode(inode)
        clear_setgid = name in ACLS and not self._kernel.is_in_group(self._client.lookup(path).gid)
        self._metadata.set_extended_attribute(path, name, value, create=bool(flags & XATTR_CREATE),
                                              replace=bool(flags & XATTR_REPLACE), clear_setgid=clear_setgid)
        if name == CAPABILITIES:
            self._nodes.get(inode).may_be_capable = True

    def removexattr(self, inode: int, name: bytes) -> None:
        self._require_supported(name)
        self._metadata.remove_extended_attribute(paths.of_inode(inode), name)


    def _require_supported(self, name: bytes) -> None:
        if name in NOT_SUPPORTED or (not name.startswith(PREFIXES) and not (self._kernel.acls and name in ACLS)):
            raise OSError(errno.EOPNOTSUPP, "no attributes of this kind")
        if name in PREFIXES:
            raise OSError(errno.EINVAL, "the attribute has no name after its prefix")
