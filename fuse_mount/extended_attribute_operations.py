"""Extended attributes (xattr(7)) of files and directories."""

import errno
import os

from fs import paths, units
from fs.errors import NoSuchAttribute
from fs.proto.speedwell_pb2 import DIRECTORY
from fuse_mount.door import Path, answers_errno
from fuse_mount.shared import SharedState

XATTR_CREATE = 1
XATTR_REPLACE = 2
# The kernel has checked who may use which before it asks (trusted. is for root, user. follows the permissions).
PREFIXES = (b"user.", b"trusted.", b"security.")
QUOTA = b"speedwell.quota"
# Labels of a security module that would have to be the same on every machine; `ls -l` asks for one per file,
# unless it is told that there are none.
NOT_SUPPORTED = (b"security.selinux",)


class ExtendedAttributeOperations(SharedState):
    """Names are bytes, or text from a library that decodes them."""

    @answers_errno
    def getxattr(self, path: Path, name: str | bytes, position: int = 0) -> bytes:
        if os.fsencode(name) == QUOTA:
            return self._quota(path)
        key = _supported(name)
        if not self._client.lookup(path).has_extended_attributes:
            raise NoSuchAttribute("the file has no attributes")
        value = self._metadata.list_extended_attributes(path).get(key)
        if value is None:
            raise NoSuchAttribute("the file has other attributes")
        return value

    def _quota(self, path: Path) -> bytes:
        """A line for each quota that holds here, the innermost first: EDQUOT alone does not name the directory."""
        raw = os.fsencode(path)
        is_directory = self._client.lookup(raw).type == DIRECTORY
        lines = []
        for quota in self._metadata.quotas(raw if is_directory else paths.parent(raw)):
            room = [f"{units.size(quota.used_bytes)} of {units.size(quota.max_bytes)}"] * quota.HasField("max_bytes")
            room += [f"{quota.used_files} of {quota.max_files} files and directories"] * quota.HasField("max_files")
            lines.append(quota.path + f": {', '.join(room)}".encode())
        if not lines:
            raise NoSuchAttribute("no quota holds here")
        return b"\n".join(lines)

    @answers_errno
    def listxattr(self, path: Path) -> list[str]:
        if not self._client.lookup(path).has_extended_attributes:
            return []
        names = self._metadata.list_extended_attributes(path)
        is_root = self._caller()[0] == 0
        return [os.fsdecode(name) for name in names if is_root or not name.startswith(b"trusted.")]

    @answers_errno
    def setxattr(self, path: Path, name: str | bytes, value: bytes, options: int, position: int = 0) -> int:
        self._metadata.set_extended_attribute(path, _supported(name), value, create=bool(options & XATTR_CREATE),
                                              replace=bool(options & XATTR_REPLACE))
        self._links.changed(self._client.lookup(path).inode)
        return 0

    @answers_errno
    def removexattr(self, path: Path, name: str | bytes) -> int:
        self._metadata.remove_extended_attribute(path, _supported(name))
        self._links.changed(self._client.lookup(path).inode)
        return 0


def _supported(name: str | bytes) -> bytes:
    key = os.fsencode(name)
    if not key.startswith(PREFIXES) or key in NOT_SUPPORTED:
        raise OSError(errno.EOPNOTSUPP, "no attributes of this kind")
    if key in PREFIXES:
        raise OSError(errno.EINVAL, "the attribute has no name after its prefix")
    return key
