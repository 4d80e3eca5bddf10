"""How the namespace lies in the store: keys and compact values (docs/nameserver.md has the table).

All integers are big-endian, so that keys sort by their numbers.
"""

import struct
from dataclasses import dataclass

from fs.errors import StorageFailed

FORMAT_VERSION = 1
ROOT_INODE = 1

REGULAR = 1
DIRECTORY = 2

SUPERBLOCK_KEY = b"!"
_DENTRY_PREFIX = b"d"
_INODE_PREFIX = b"i"
DATASERVER_PREFIX = b"s"
_DELETION_PREFIX = b"x"

_SUPERBLOCK = struct.Struct(">HQQQ")
_DENTRY_KEY = struct.Struct(">cQ")
_DENTRY = struct.Struct(">BQ")
_HEAD = struct.Struct(">BHIIqqqI")
_CONTENT = struct.Struct(">QQ16sB")
_DELETION_KEY = struct.Struct(">cHQ16s")


@dataclass(slots=True)
class Superblock:
    """Counters of the whole namespace, one record."""

    next_inode: int
    files: int
    directories: int

    def encode(self) -> bytes:
        return _SUPERBLOCK.pack(FORMAT_VERSION, self.next_inode, self.files, self.directories)

    @classmethod
    def decode(cls, value: bytes) -> "Superblock":
        if len(value) != _SUPERBLOCK.size:
            raise StorageFailed("the database is not a namespace of Speedwell")
        version, next_inode, files, directories = _SUPERBLOCK.unpack(value)
        if version != FORMAT_VERSION:
            raise StorageFailed(f"the namespace has format {version}, this nameserver reads {FORMAT_VERSION}")
        return cls(next_inode, files, directories)


@dataclass(slots=True)
class Content:
    """What a regular file holds. `file_id` names the content, `replicas` are numbers of dataservers."""

    file_id: bytes  # 16 bytes of a UUID
    chunk_size_bytes: int
    replication: int
    replicas: tuple[int, ...]
    size_bytes: int = 0


@dataclass(slots=True)
class Inode:
    """A file (with `content`) or a directory (without). Times in nanoseconds since the epoch."""

    number: int
    mode: int
    uid: int
    gid: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    link_count: int
    content: Content | None

    @property
    def is_directory(self) -> bool:
        return self.content is None

    @property
    def kind(self) -> int:
        return DIRECTORY if self.content is None else REGULAR

    def encode(self) -> bytes:
        head = _HEAD.pack(self.kind, self.mode, self.uid, self.gid, self.atime_ns, self.mtime_ns,
                          self.ctime_ns, self.link_count)
        content = self.content
        if content is None:
            return head
        return b"".join((head,
                         _CONTENT.pack(content.size_bytes, content.chunk_size_bytes, content.file_id,
                                       content.replication),
                         struct.pack(f">{len(content.replicas)}H", *content.replicas)))

    @classmethod
    def decode(cls, number: int, value: bytes) -> "Inode":
        try:
            kind, mode, uid, gid, atime_ns, mtime_ns, ctime_ns, link_count = _HEAD.unpack_from(value)
            inode = cls(number, mode, uid, gid, atime_ns, mtime_ns, ctime_ns, link_count, None)
            if kind == DIRECTORY:
                return inode
            size_bytes, chunk_size_bytes, file_id, replication = _CONTENT.unpack_from(value, _HEAD.size)
            tail = value[_HEAD.size + _CONTENT.size:]
            replicas = struct.unpack(f">{len(tail) // 2}H", tail)
        except struct.error as error:
            raise StorageFailed(f"the record of inode {number} is damaged") from error
        inode.content = Content(file_id, chunk_size_bytes, replication, replicas, size_bytes)
        return inode


def dentry_key(directory: int, name: bytes) -> bytes:
    return _DENTRY_KEY.pack(_DENTRY_PREFIX, directory) + name


def dentry_name(key: bytes) -> bytes:
    return key[_DENTRY_KEY.size:]


def encode_dentry(kind: int, inode: int) -> bytes:
    return _DENTRY.pack(kind, inode)


def decode_dentry(value: bytes) -> tuple[int, int]:
    """(kind, inode)"""
    kind, inode = _DENTRY.unpack(value)
    return kind, inode


def inode_key(inode: int) -> bytes:
    return _DENTRY_KEY.pack(_INODE_PREFIX, inode)


def dataserver_key(number: int) -> bytes:
    return DATASERVER_PREFIX + number.to_bytes(2, "big")


def deletion_key(dataserver: int, due_ns: int, file_id: bytes) -> bytes:
    return _DELETION_KEY.pack(_DELETION_PREFIX, dataserver, max(due_ns, 0), file_id)


def deletion_file_id(key: bytes) -> bytes:
    return key[-16:]
