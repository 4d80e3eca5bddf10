"""What stat(2) tells of a file, as FUSE has it on little-endian machines: `struct fuse_attr` of linux/fuse.h."""

import stat
import struct

from fs.proto import speedwell_pb2 as pb

STATUS = struct.Struct("<6Q10I")
PREFERRED_IO_BYTES = 128 * 1024  # what programs such as cp and cat take as their block
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
MASK = 2**64 - 1    # for times before 1970


def pack(attributes: pb.Attributes) -> bytes:
    """The STATUS of an inode."""
    times = [divmod(ns, NS) for ns in (attributes.atime_ns, attributes.mtime_ns, attributes.ctime_ns)]
    return STATUS.pack(
        attributes.inode, attributes.size, blocks(attributes.size, attributes.hole_bytes),
        *(seconds & MASK for seconds, _ in times), *(ns for _, ns in times),
        attributes.mode | TYPE_BITS[attributes.type], attributes.link_count, attributes.uid, attributes.gid,
        attributes.device & 0xFFFFFFFF, PREFERRED_IO_BYTES, 0)


def blocks(size_bytes: int, hole_bytes: int) -> int:
    """Of 512 bytes. Programs take 0 for a file without data; what is written in mappings is not known yet."""
    return max((size_bytes - hole_bytes + 511) // 512, min(8, size_bytes))
