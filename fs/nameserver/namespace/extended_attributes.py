"""Extended attributes of files and directories (xattr(7)). They lie in the inode's record."""

import stat

from speedwell.fs import paths
from speedwell.fs.errors import AlreadyExists, InvalidArgument, NoSpace, NoSuchAttribute
from speedwell.fs.nameserver.namespace import acls
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace_records import SYMBOLIC_LINK, Inode
from speedwell.fs.nameserver.namespace.tree import Tree
from speedwell.fs.store import Batch, Store

MAX_TOTAL_BYTES = 128 * 1024
"""Names and values of one inode: room for one value of the largest size that Linux allows, and more."""


class ExtendedAttributes:
    """Names are bytes with their prefix (`user.` and so on), values are any bytes."""

    def __init__(self, store: Store, tree: Tree) -> None:
        self._store = store
        self._tree = tree

    def set(self, path: bytes, name: bytes, value: bytes, *, now_ns: int, create: bool = False,
            replace: bool = False, clear_setgid: bool = False) -> Inode:
        """An access control list changes the mode too, with `clear_setgid` also that bit. Raises NoSuchFile,
        NotADirectory, AlreadyExists (`create`), NoSuchAttribute (`replace`), NoSpace, InvalidArgument."""
        inode = self._tree.lookup(path)
        attributes = inode.extended_attributes
        if create and name in attributes:
            raise AlreadyExists(f"{paths.display(path)} has the attribute {paths.display(name)}")
        if replace and name not in attributes:
            raise _missing(path, name)
        attributes[name] = value
        batch = Batch()
        if name in acls.NAMES:
            _apply(inode, name, value, clear_setgid=clear_setgid)
            batch.put(records.ACLS_KEY, b"")
        if sum(len(each) + len(attributes[each]) for each in attributes) > MAX_TOTAL_BYTES:
            raise NoSpace(f"the attributes of {paths.display(path)} would have more than {MAX_TOTAL_BYTES} bytes")
        inode.ctime_ns = now_ns
        batch.put(inode.key, inode.encode())
        self._store.write(batch)
        return inode

    @property
    def has_acls(self) -> bool:
        """Whether an access control list was set some time."""
        return self._store.get(records.ACLS_KEY) is not None

    def remove(self, path: bytes, name: bytes, *, now_ns: int) -> Inode:
        """Raises NoSuchFile, NotADirectory, NoSuchAttribute."""
        inode = self._tree.lookup(path)
        if inode.extended_attributes.pop(name, None) is None:
            raise _missing(path, name)
        inode.ctime_ns = now_ns
        self._tree.write(inode)
        return inode


def _apply(inode: Inode, name: bytes, value: bytes, *, clear_setgid: bool) -> None:
    entries = acls.decode(value)
    if inode.kind == SYMBOLIC_LINK or (name == acls.DEFAULT and not inode.is_directory):
        raise InvalidArgument(f"inode {inode.number}: {paths.display(name)} goes with directories"
                              + ", files and devices" * (name == acls.ACCESS))
    if name == acls.ACCESS:
        inode.mode = inode.mode & ~(0o777 | (stat.S_ISGID if clear_setgid else 0)) | acls.mode_of(entries)
        if not acls.is_extended(entries):
            del inode.extended_attributes[name]


def _missing(path: bytes, name: bytes) -> NoSuchAttribute:
    return NoSuchAttribute(f"{paths.display(path)} has no attribute {paths.display(name)}")
