"""What stat(2) tells of a file, as FUSE has it on little-endian machines: `struct fuse_attr` of linux/fuse.h."""

import stat
import struct

from speedwell.fs.proto import speedwell_pb2 as pb

STATUS = struct.Struct("<3Q3q10I")
MODE_AND_LINKS = struct.Struct("<60xII20x")   # of a STATUS
PREFERRED_IO_BYTES = 128 * 1024  # what programs such as cp and cat take as their block
LISTED_BYTES = 256 * 1024   # what the C library takes to list a directory, and the kernel asks for: 1,638 short names
SPECIAL_KINDS: dict[int, int] = {
    stat.S_IFIFO: pb.FIFO, stat.S_IFSOCK: pb.SOCKET, stat.S_IFCHR: pb.CHARACTER_DEVICE,
    stat.S_IFBLK: pb.BLOCK_DEVICE,
}
TYPE_BITS: dict[int, int] = {
    pb.REGULAR: stat.S_IFREG, pb.DIRECTORY: stat.S_IFDIR, pb.SYMBOLIC_LINK: stat.S_IFLNK,
    **{kind: bits for bits, kind in SPECIAL_KINDS.items()},
}
SET_ID_BITS = stat.S_ISUID | stat.S_ISGID
CAPABILITIES = b"security.capability"
"""The extended attribute with those of a program."""

NS = 10**9


def pack(inode: int, attributes: pb.Attributes | pb.InodeRecord, size_bytes: int, hole_bytes: int, mtime_ns: int,
         ctime_ns: int) -> bytes:
    """The STATUS of an inode, with a length and times that may be newer than its attributes."""
    # Programs take 0 blocks for a file without data; what is written in mappings is not known yet.
    blocks = max((size_bytes - hole_bytes + 511) // 512, min(8, size_bytes))
    accessed, accessed_ns = divmod(attributes.atime_ns, NS)
    modified, modified_ns = divmod(mtime_ns, NS)
    changed, changed_ns = divmod(ctime_ns, NS)
    return STATUS.pack(
        inode, size_bytes, blocks, accessed, modified, changed, accessed_ns, modified_ns, changed_ns,
        attributes.mode | TYPE_BITS[attributes.type], attributes.link_count, attributes.uid, attributes.gid,
        attributes.device & 0xFFFFFFFF, LISTED_BYTES if attributes.type == pb.DIRECTORY else PREFERRED_IO_BYTES, 0)
