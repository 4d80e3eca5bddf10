"""Extended attributes of files and directories (xattr(7)). They lie in the inode's record."""

from fs import paths
from fs.errors import AlreadyExists, NoSpace, NoSuchAttribute
from fs.nameserver.records import Inode
from fs.nameserver.tree import Tree

MAX_TOTAL_BYTES = 128 * 1024
"""Names and values of one inode: room for one value of the largest size that Linux allows, and more."""


class ExtendedAttributes(Tree):
    """Names are bytes with their prefix (`user.` and so on), values are any bytes."""

    def set_extended_attribute(self, path: bytes, name: bytes, value: bytes, *, now_ns: int, create: bool = False,
                               replace: bool = False) -> Inode:
        """Raises NoSuchFile, NotADirectory, AlreadyExists (`create`), NoSuchAttribute (`replace`), NoSpace."""
        inode = self.lookup(path)
        attributes = inode.extended_attributes
        if create and name in attributes:
            raise AlreadyExists(f"{paths.display(path)} has the attribute {paths.display(name)}")
        if replace and name not in attributes:
            raise _missing(path, name)
        attributes[name] = value
        if sum(len(each) + len(attributes[each]) for each in attributes) > MAX_TOTAL_BYTES:
            raise NoSpace(f"the attributes of {paths.display(path)} would have more than {MAX_TOTAL_BYTES} bytes")
        inode.ctime_ns = now_ns
        self._write_inode(inode)
        return inode

    def remove_extended_attribute(self, path: bytes, name: bytes, *, now_ns: int) -> Inode:
        """Raises NoSuchFile, NotADirectory, NoSuchAttribute."""
        inode = self.lookup(path)
        if inode.extended_attributes.pop(name, None) is None:
            raise _missing(path, name)
        inode.ctime_ns = now_ns
        self._write_inode(inode)
        return inode


def _missing(path: bytes, name: bytes) -> NoSuchAttribute:
    return NoSuchAttribute(f"{paths.display(path)} has no attribute {paths.display(name)}")
