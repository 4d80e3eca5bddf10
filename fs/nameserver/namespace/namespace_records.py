"""How the namespace lies in the store: keys and values (docs/reference/namespace-store.md has the table).

Integers in keys are big-endian, so that keys sort by their numbers. An inode's value is a message of
fs/proto/speedwell.proto: a field that is added there needs no other change of the format.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from google.protobuf.message import DecodeError

from speedwell.fs.errors import StorageFailed
from speedwell.fs.nameserver.namespace import acls
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.proto.speedwell_pb2 import ContentRecord, ExtendedAttribute, InodeRecord

FORMAT_VERSION = 2
ROOT_INODE = 1

REGULAR: int = pb.REGULAR
DIRECTORY: int = pb.DIRECTORY
SYMBOLIC_LINK: int = pb.SYMBOLIC_LINK
SPECIAL_KINDS: frozenset[int] = frozenset({pb.FIFO, pb.SOCKET, pb.CHARACTER_DEVICE, pb.BLOCK_DEVICE})

SUPERBLOCK_KEY = b"!"
DENTRY_PREFIX = b"d"
INODE_PREFIX = b"i"
DATASERVER_PREFIX = b"s"
DELETION_PREFIX = b"x"
ORPHAN_PREFIX = b"o"
LOCKS_PREFIX = b"l"
QUOTA_PREFIX = b"q"
TRASH_PREFIX = b"t"
TRASH_POLICY_PREFIX = b"p"
OUTCOME_PREFIX = b"r"
AGE_KEY = b"a"
ACLS_KEY = b"c"
TOKEN_KEYS_KEY = b"k"

KEPT_IN_MEMORY = DATASERVER_PREFIX + TOKEN_KEYS_KEY + TRASH_POLICY_PREFIX
"""Kinds of records of the owner of block 0 that all owners of a shared namespace keep in memory."""

_SUPERBLOCK = struct.Struct(">HQqq")
_AGE = struct.Struct(">Q")
_DENTRY_KEY = struct.Struct(">cQ")
_DENTRY = struct.Struct(">BQ")
_ORPHAN_KEY = struct.Struct(">cQQ")
_TRASH_KEY = struct.Struct(">cQQ")
_OUTCOME = struct.Struct(">Q")
_CLIENT_BYTES = 16
_CLIENT_FIELD = b"\xfa\x7f" + bytes([_CLIENT_BYTES])     # of protobuf: field 2047, bytes
_DELETION_KEY = struct.Struct(">cHQ16s")


def _number_in(key: bytes) -> int:
    """Of a key that is a prefix and a number."""
    number: int = _DENTRY_KEY.unpack(key)[1]
    return number


@dataclass(slots=True)
class Superblock:
    """Counters of a block (`speedwell.fs.slots`): `next_inode` is the next number without its slot; `files` and
    `directories` are those that were made in its directories less those that were removed there, which may be fewer
    than none: only the sum over all blocks counts."""

    next_inode: int
    files: int
    directories: int
    block: int = 0

    @property
    def key(self) -> bytes:
        return superblock_key(self.block)

    def encode(self) -> bytes:
        return _SUPERBLOCK.pack(FORMAT_VERSION, self.next_inode, self.files, self.directories)

    @classmethod
    def decode(cls, value: bytes, block: int = 0) -> "Superblock":
        if len(value) != _SUPERBLOCK.size:
            raise StorageFailed("the database is not a namespace of Speedwell")
        version, next_inode, files, directories = _SUPERBLOCK.unpack(value)
        if version != FORMAT_VERSION:
            raise StorageFailed(f"the namespace has format {version}, this nameserver reads {FORMAT_VERSION}: "
                                "start the version that wrote it (docs/upgrades.md)")
        return cls(next_inode, files, directories, block)


@dataclass(slots=True)
class Content:
    """What a regular file holds. `file_id` names the content, `replicas` are numbers of dataservers, the
    primary first; `epoch` counts the changes of `replicas`. `origin` is the content from which, version by
    version, this one was made; empty: from none."""

    file_id: bytes  # 16 bytes of a UUID
    chunk_size_bytes: int
    replication: int
    replicas: tuple[int, ...]
    size_bytes: int = 0
    epoch: int = 1
    hole_bytes: int = 0
    origin: bytes = b""

    @property
    def first_version(self) -> bytes:
        return self.origin or self.file_id

    def record(self) -> ContentRecord:
        return ContentRecord(file_id=self.file_id, size=self.size_bytes, chunk_size=self.chunk_size_bytes,
                             replication=self.replication, replicas=self.replicas,
                             epoch=self.epoch, hole_bytes=self.hole_bytes, origin=self.origin)

    @classmethod
    def of_record(cls, record: ContentRecord) -> "Content":
        return cls(record.file_id, record.chunk_size, record.replication, tuple(record.replicas), record.size,
                   record.epoch, record.hole_bytes, record.origin)


@dataclass(slots=True)
class Inode:
    """A file, directory, symbolic link or special file. Times in nanoseconds since the epoch."""

    number: int
    kind: int  # REGULAR, DIRECTORY, ...
    mode: int
    uid: int
    gid: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    link_count: int
    parent: int  # the directory that holds the name it got last; 0: it is in the trash
    content: Content | None = None  # of a regular file
    target: bytes = b""  # of a symbolic link
    device: int = 0  # of a device
    extended_attributes: dict[bytes, bytes] = field(default_factory=dict)
    quota: int = 0  # the innermost one it counts toward: the inode of the directory that was set on
    name: bytes = b""  # of a directory

    @property
    def key(self) -> bytes:
        return inode_key(self.number)

    @property
    def is_directory(self) -> bool:
        return self.kind == DIRECTORY

    @property
    def size_bytes(self) -> int:
        """What it counts for in a quota."""
        return 0 if self.content is None else self.content.size_bytes

    def change_mode(self, mode: int) -> None:
        """As chmod(2): with an access control list its mask changes, not what the owning group may."""
        self.mode = mode
        access = self.extended_attributes.get(acls.ACCESS)
        if access is not None:
            self.extended_attributes[acls.ACCESS] = acls.changed(access, mode)

    def encode(self) -> bytes:
        content = self.content
        return InodeRecord(
            type=self.kind, mode=self.mode, uid=self.uid, gid=self.gid,  # type: ignore[arg-type]
            atime_ns=self.atime_ns, mtime_ns=self.mtime_ns, ctime_ns=self.ctime_ns, link_count=self.link_count,
            parent=self.parent, device=self.device, target=self.target, quota=self.quota,
            name=self.name,
            content=None if content is None else content.record(),
            extended_attributes=[ExtendedAttribute(name=name, value=attribute)
                                 for name, attribute in self.extended_attributes.items()]).SerializeToString()

    @classmethod
    def decode(cls, number: int, value: bytes) -> "Inode":
        record = parse_inode(number, value)
        kind = record.type
        return cls(number, kind, record.mode, record.uid, record.gid, record.atime_ns, record.mtime_ns,
                   record.ctime_ns, record.link_count, record.parent,
                   Content.of_record(record.content) if kind == REGULAR else None, record.target, record.device,
                   {each.name: each.value for each in record.extended_attributes}, record.quota,
                   record.name)


def block_of_key(key: bytes) -> int:
    """Whose record it is. All that is not of an inode, a directory or a requester is the owner's of block 0."""
    has_number = key[:1] in DENTRY_PREFIX + INODE_PREFIX + OUTCOME_PREFIX + SUPERBLOCK_KEY and len(key) > 1
    return key[1] if has_number else 0


def superblock_key(block: int) -> bytes:
    """Of a block's counters."""
    return SUPERBLOCK_KEY + bytes([block]) if block else SUPERBLOCK_KEY


def parse_inode(number: int, value: bytes) -> InodeRecord:
    """Raises StorageFailed."""
    try:
        record = InodeRecord.FromString(value)
    except DecodeError as error:
        raise StorageFailed(f"the record of inode {number} is damaged") from error
    if not record.type:
        raise StorageFailed(f"the record of inode {number} is damaged")
    return record


def dentry_key(directory: int, name: bytes) -> bytes:
    return _DENTRY_KEY.pack(DENTRY_PREFIX, directory) + name


def dentry_directory(key: bytes) -> int:
    """The inode of the directory that an entry with this key is in."""
    directory: int = _DENTRY_KEY.unpack_from(key)[1]
    return directory


def dentry_name(key: bytes) -> bytes:
    return key[_DENTRY_KEY.size:]


def encode_dentry(kind: int, inode: int) -> bytes:
    return _DENTRY.pack(kind, inode)


def decode_dentry(value: bytes) -> tuple[int, int]:
    """(kind, inode)"""
    return _DENTRY.unpack(value)


def decode_dentries(values: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    """The same of many, each."""
    return _DENTRY.iter_unpack(b"".join(values))


def inode_key(inode: int) -> bytes:
    return _DENTRY_KEY.pack(INODE_PREFIX, inode)


def inode_number(key: bytes) -> int:
    """The inode whose record has that key."""
    return _number_in(key)


def dataserver_key(number: int) -> bytes:
    return DATASERVER_PREFIX + number.to_bytes(2, "big")


def deletion_key(dataserver: int, due_ns: int, file_id: bytes) -> bytes:
    return _DELETION_KEY.pack(DELETION_PREFIX, dataserver, max(due_ns, 0), file_id)


def deletion_file_id(key: bytes) -> bytes:
    return key[-16:]


def orphan_key(session: int, inode: int | None = None) -> bytes:
    """Of a file without a name that `session` has open, or the prefix of all of that session."""
    if inode is None:
        return _DENTRY_KEY.pack(ORPHAN_PREFIX, session)
    return _ORPHAN_KEY.pack(ORPHAN_PREFIX, session, inode)


def orphan_session(key: bytes) -> int:
    session: int = _ORPHAN_KEY.unpack(key)[1]
    return session


def orphan_inode(key: bytes) -> int:
    inode: int = _ORPHAN_KEY.unpack(key)[2]
    return inode


def locks_key(inode: int) -> bytes:
    """Of the locks on a file."""
    return _DENTRY_KEY.pack(LOCKS_PREFIX, inode)


def locks_inode(key: bytes) -> int:
    return _number_in(key)


def quota_key(directory: int) -> bytes:
    return _DENTRY_KEY.pack(QUOTA_PREFIX, directory)


def quota_directory(key: bytes) -> int:
    return _number_in(key)


def trash_policy_key(directory: int) -> bytes:
    return _DENTRY_KEY.pack(TRASH_POLICY_PREFIX, directory)


def trash_policy_directory(key: bytes) -> int:
    return _number_in(key)


def trash_key(due_ns: int, inode: int) -> bytes:
    """Of an inode that goes for good when the namespace has the age `due_ns`."""
    return _TRASH_KEY.pack(TRASH_PREFIX, max(due_ns, 0), inode)


def trash_place(key: bytes) -> tuple[int, int]:
    """(age of the namespace when it goes for good, inode)"""
    _, due_ns, inode = _TRASH_KEY.unpack(key)
    return due_ns, inode


def outcome_key(requester: int) -> bytes:
    """Of what a requester's last change was answered."""
    return _DENTRY_KEY.pack(OUTCOME_PREFIX, requester)


def outcome_requester(key: bytes) -> int:
    return _number_in(key)


def encode_outcome(sequence: int, reply: bytes, client: bytes = b"") -> bytes:
    """`client` (`client_digest`) was answered. It stands behind the reply as a field that no message has: an earlier
    version sends it along, and nobody looks at it."""
    return _OUTCOME.pack(sequence) + reply + (_CLIENT_FIELD + client if client else b"")


def decode_outcome(value: bytes) -> tuple[int, bytes, bytes]:
    """(sequence, reply, who was answered if that is known). Raises StorageFailed."""
    if len(value) < _OUTCOME.size:
        raise StorageFailed("the record of a change's outcome is damaged")
    sequence: int = _OUTCOME.unpack_from(value)[0]
    end = len(value) - len(_CLIENT_FIELD) - _CLIENT_BYTES
    if end >= _OUTCOME.size and value.startswith(_CLIENT_FIELD, end):
        return sequence, value[_OUTCOME.size:end], value[-_CLIENT_BYTES:]
    return sequence, value[_OUTCOME.size:], b""


@lru_cache(4096)
def client_digest(client: str) -> bytes:
    """Of the name of a client; nothing for one that is not known."""
    return blake2b(client.encode(), digest_size=_CLIENT_BYTES).digest() if client else b""


def encode_age(age_ns: int) -> bytes:
    """For how long the namespace has been served (`speedwell.fs.nameserver.backup.namespace_age`)."""
    return _AGE.pack(age_ns)


def decode_age(value: bytes) -> int:
    """Raises StorageFailed."""
    if len(value) != _AGE.size:
        raise StorageFailed("the record with the namespace's age is damaged")
    age_ns: int = _AGE.unpack(value)[0]
    return age_ns


def deletion_dataserver(key: bytes) -> int:
    return int.from_bytes(key[1:3], "big")
