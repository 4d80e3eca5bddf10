"""What every operation on the namespace stands on: finding places, reading and writing inodes.

Inode-based: a directory entry names an inode, so renaming a directory touches two entries whatever is
below it. Every operation reads, decides, and writes one batch: it happens whole or not at all. Time and
new contents are passed in; nothing here knows of dataservers beyond their numbers, of RPC, or of a clock.
One thread at a time (the service holds a lock).
"""

import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from speedwell.fs import paths, slots
from speedwell.fs.errors import DirectoryNotEmpty, InvalidName, NoSuchFile, NotADirectory, StorageFailed
from speedwell.fs.nameserver.namespace import acls
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.deletions import enqueue
from speedwell.fs.nameserver.namespace.namespace_records import (
    DIRECTORY,
    ROOT_INODE,
    SYMBOLIC_LINK,
    Content,
    Inode,
    Superblock,
)
from speedwell.fs.nameserver.namespace.quotas import Quotas
from speedwell.fs.proto.speedwell_pb2 import InodeRecord
from speedwell.fs.store import Batch, Store, end_of_prefix

READ_FOR_EACH = 2
"""So many records are read together for each that is wanted: one by one takes three times as long."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads: the directory that holds its last name, and what is there (None: nothing). `directory` is
    that directory's record, if it was read."""

    path: bytes
    name: bytes
    parent: int
    inode: int | None
    kind: int | None
    directory: InodeRecord | None = None


class Tree:
    """Paths are in wire form (`speedwell.fs.paths`); `now_ns` is the time of the change."""

    def __init__(self, store: Store, *, now_ns: int, deletion_grace_ns: int,
                 age_ns: Callable[[int], int] = int, hashes: bool = False) -> None:
        """Opens the namespace in `store`, or makes an empty one with a root directory. `age_ns` says for a `now_ns`
        by which clock things are kept (`backup.namespace_age`); by default the same. New directories get a
        slot of their own if it `hashes` (`speedwell.fs.slots`).

        Raises StorageFailed if the store holds something else.
        """
        self._store = store
        self._deletion_grace_ns = deletion_grace_ns
        self._age_ns = age_ns
        self._hashes = hashes
        self.quotas = Quotas(store)
        if store.get(records.SUPERBLOCK_KEY) is not None:
            self._superblock()
            return
        if next(iter(store.iterate(b"")), None) is not None:
            raise StorageFailed("the database is not a namespace of Speedwell")
        batch = Batch()
        root = Inode(ROOT_INODE, DIRECTORY, 0o755, 0, 0, now_ns, now_ns, now_ns, 2, ROOT_INODE)
        self._put_inode(batch, root)
        self._write(batch, Superblock(ROOT_INODE + 1, files=0, directories=1))

    @property
    def file_count(self) -> int:
        return sum(superblock.files for superblock in self._superblocks())

    @property
    def directory_count(self) -> int:
        """Including the root."""
        return sum(superblock.directories for superblock in self._superblocks())

    @property
    def next_inode(self) -> int:
        """The number that the next file in slot 0 gets: all given out so far are below."""
        return self._superblock().next_inode

    def was_given(self, number: int) -> bool:
        """Whether a file may have that number. Asks another owner's record, which changes with each file made there,
        only where what is known of it says no."""
        key = records.superblock_key(slots.block_of(number))
        known = next(iter(self._store.iterate(key, key + b"\0")), None)
        local = number & slots.LOCAL_MASK
        return (known is not None and local < Superblock.decode(known[1]).next_inode) or (
            number < self.next_beside(number))

    def next_beside(self, number: int) -> int:
        """The number that the next file in the same slot gets."""
        return slots.beside(number, self._superblock(number).next_inode)

    def skip_inodes(self, next_inode: int) -> None:
        """Give out numbers from `next_inode` on only, in its block."""
        superblock = self._superblock(next_inode)
        superblock.next_inode = max(superblock.next_inode, next_inode & slots.LOCAL_MASK)
        self._write(Batch(), superblock)

    # -------------------------------------------------------------- reading

    def lookup(self, path: bytes) -> Inode:
        """The inode of a path, also of one that names an inode. Raises NoSuchFile, NotADirectory."""
        if paths.is_inode(path) and not paths.components(path):
            return self.inode(int(path[2:]))
        place = self._find(path)
        return self._inode(self._existing(place))

    def inode(self, number: int) -> Inode:
        """Raises NoSuchFile if no file has that inode (any more)."""
        value = self._store.get(records.inode_key(number))
        if value is None:
            raise NoSuchFile(f"inode {number} does not exist (any more)")
        return Inode.decode(number, value)

    def full_path(self, path: bytes) -> bytes:
        """A path from the root for one that begins at the inode of a directory."""
        number = paths.inode_number(path)
        if number is None:
            return path
        above, rest = self._path_of(number), path[path.index(b"/", 1):]
        return rest if above == paths.ROOT else above + rest

    # -------------------------------------------------------------- helpers

    def _find(self, path: bytes) -> Place:
        """Raises NoSuchFile or NotADirectory if a directory on the way is missing or none, InvalidName for an inode
        without a name."""
        names = paths.components(path)
        parent, record = paths.inode_number(path), None
        if parent is None:
            parent = ROOT_INODE
        elif names:
            record = self._directory(path, parent)
        if not names:
            if parent != ROOT_INODE:
                raise InvalidName(f"{paths.display(path)} has no name")
            return Place(path, b"", ROOT_INODE, ROOT_INODE, DIRECTORY)
        name = names.pop()
        get = self._store.get
        record = None if names else record
        for depth, directory in enumerate(names):
            value = get(records.dentry_key(parent, directory))
            if value is None:
                raise NoSuchFile(f"{paths.display(b'/' + b'/'.join(names[:depth + 1]))} does not exist")
            kind, parent = records.decode_dentry(value)
            if kind != DIRECTORY:
                raise NotADirectory(
                    f"{paths.display(b'/' + b'/'.join(names[:depth + 1]))} is not a directory")
        value = get(records.dentry_key(parent, name))
        kind_, inode = records.decode_dentry(value) if value is not None else (None, None)
        return Place(path, name, parent, inode, kind_, record)

    def _directory(self, path: bytes, number: int) -> InodeRecord:
        """Raises NoSuchFile (also for one in the trash), NotADirectory."""
        value = self._store.get(records.inode_key(number))
        if value is None:
            raise NoSuchFile(f"inode {number} does not exist (any more)")
        directory = records.parse_inode(number, value)
        if directory.type != DIRECTORY:
            raise NotADirectory(f"{paths.display(path)} is not in a directory")
        if not directory.link_count:
            raise NoSuchFile(f"{paths.display(path)}: the directory was removed")
        return directory

    def _way_up(self, directory: int) -> Iterator[int]:
        """A directory and those around it, the root last."""
        while directory != ROOT_INODE:
            yield directory
            directory = records.parse_inode(directory, self.record(directory)).parent
        yield ROOT_INODE

    def _path_of(self, directory: int) -> bytes:
        """Where a directory lies."""
        names = []
        while directory != ROOT_INODE:
            inode = records.parse_inode(directory, self._shown(directory) if self._hashes else self.record(directory))
            names.append(inode.name or self._name_of(directory, inode.parent))
            directory = inode.parent
        return b"/" + b"/".join(reversed(names))

    def _shown(self, number: int) -> bytes:
        """Its record as it is known here, whoever owns it: good enough for a path that somebody reads."""
        key = records.inode_key(number)
        return next((value for _, value in self._store.iterate(key, key + b"\0")), b"") or self.record(number)

    def _name_of(self, directory: int, parent: int) -> bytes:
        """Of one whose record an earlier version wrote."""
        prefix = records.dentry_key(parent, b"")
        for key, value in self._store.iterate(prefix, end_of_prefix(prefix)):
            if records.decode_dentry(value)[1] == directory:
                return records.dentry_name(key)
        raise NoSuchFile(f"directory {directory} was removed")

    @staticmethod
    def _put_at(inode: Inode, place: Place) -> None:
        inode.parent = place.parent
        if inode.is_directory:
            inode.name = place.name

    def _existing(self, place: Place) -> int:
        if place.inode is None:
            raise NoSuchFile(f"{paths.display(place.path)} does not exist")
        return place.inode

    def record(self, number: int) -> bytes:
        """What the store has of an inode that there is."""
        value = self._store.get(records.inode_key(number))
        if value is None:
            raise StorageFailed(f"the record of inode {number} is missing")
        return value

    def records(self, numbers: Sequence[int]) -> list[bytes]:
        """The same for several; those of files made one after the other lie side by side and are read together."""
        if not numbers or max(numbers) - min(numbers) >= len(numbers) * READ_FOR_EACH:
            return [self.record(number) for number in numbers]
        found = self._store.get_all([records.inode_key(number) for number in numbers])
        return [self.record(number) if value is None else value for number, value in zip(numbers, found, strict=True)]

    def _inode(self, number: int) -> Inode:
        return Inode.decode(number, self.record(number))

    def _inode_in(self, batch: Batch, number: int) -> Inode | None:
        """The inode as it will be after `batch`."""
        key = records.inode_key(number)
        value = batch.changes[key] if key in batch.changes else self._store.get(key)
        return None if value is None else Inode.decode(number, value)

    def _existing_in(self, batch: Batch, number: int) -> Inode:
        inode = self._inode_in(batch, number)
        if inode is None:
            raise StorageFailed(f"the record of inode {number} is missing")
        return inode

    def _check_empty(self, path: bytes, number: int) -> None:
        prefix = records.dentry_key(number, b"")
        if next(iter(self._store.iterate(prefix, end_of_prefix(prefix))), None) is not None:
            raise DirectoryNotEmpty(f"{paths.display(path)} is not empty")

    def _new_number(self, superblock: Superblock, place: Place, kind: int) -> int:
        local = superblock.next_inode
        superblock.next_inode += 1
        if not self._hashes or kind != DIRECTORY:
            return slots.beside(place.parent, local)
        number = slots.hashed(place.parent, place.name, local)
        return number if self._store.get(records.inode_key(number)) is None else self._new_number(
            superblock, place, kind)

    def _add(self, place: Place, inode: Inode, superblock: Superblock, now_ns: int,
             batch: Batch | None = None, umask: int | None = None) -> None:
        """Write a new inode and its name, with what is in `batch` already. In a directory with the setgid bit it
        belongs to the directory's group (a directory gets the bit too), as on Linux. What is made, with a `umask`,
        gets the directory's default access control list."""
        directory = place.directory or records.parse_inode(place.parent, self.record(place.parent))
        self._put_at(inode, place)
        if directory.mode & stat.S_ISGID:
            inode.gid = directory.gid
            if inode.is_directory:
                inode.mode |= stat.S_ISGID
        if umask is not None and inode.kind != SYMBOLIC_LINK:
            self._inherit(inode, directory, umask)
        batch = Batch() if batch is None else batch
        if directory.quota:
            inode.quota = directory.quota
            self.quotas.charge(batch, inode.quota, inode.size_bytes, 1)
        if inode.is_directory:
            superblock.directories += 1
            directory.link_count += 1
        else:
            superblock.files += 1
        self._put_inode(batch, inode)
        batch.put(records.dentry_key(place.parent, place.name), records.encode_dentry(inode.kind, inode.number))
        directory.mtime_ns = directory.ctime_ns = now_ns
        batch.put(records.inode_key(place.parent), directory.SerializeToString())
        self._write(batch, superblock)

    @staticmethod
    def _inherit(inode: Inode, directory: InodeRecord, umask: int) -> None:
        default = next((each.value for each in directory.extended_attributes if each.name == acls.DEFAULT), None)
        if default is None:
            inode.mode &= ~umask
            return
        inode.mode, access = acls.inherited(default, inode.mode)
        if access is not None:
            inode.extended_attributes[acls.ACCESS] = access
        if inode.is_directory:
            inode.extended_attributes[acls.DEFAULT] = default

    def _discard(self, batch: Batch, superblock: Superblock, inode: Inode, now_ns: int) -> None:
        """Drop an inode and queue its content for deletion."""
        self._uncount(batch, superblock, inode)
        self._drop(batch, inode, now_ns)

    def _uncount(self, batch: Batch, superblock: Superblock, inode: Inode) -> None:
        """It is none of the namespace's files and directories any more."""
        if inode.is_directory:
            superblock.directories -= 1
        else:
            superblock.files -= 1
        if inode.quota:
            self.quotas.charge(batch, inode.quota, -inode.size_bytes, -1)
            if inode.quota == inode.number:
                self.quotas.directory_removed(batch, inode.number)

    def _drop(self, batch: Batch, inode: Inode, now_ns: int) -> None:
        batch.delete(records.inode_key(inode.number))
        if inode.content is not None:
            self._delete_later(batch, inode.content, now_ns)

    def _delete_later(self, batch: Batch, content: Content, now_ns: int) -> None:
        """Queue a content that left the namespace: who has it open gets the grace period."""
        enqueue(batch, content, content.replicas, self._due_ns(batch, now_ns, self._deletion_grace_ns))

    def _due_ns(self, batch: Batch, now_ns: int, after_ns: int) -> int:
        """The age that the namespace has `after_ns` from now."""
        age_ns = self._age_ns(now_ns)
        batch.put(records.AGE_KEY, records.encode_age(age_ns))
        return age_ns + after_ns

    def _touch_parent(self, batch: Batch, number: int, now_ns: int, *, link_change: int = 0) -> None:
        directory = records.parse_inode(number, self.record(number))
        directory.mtime_ns = directory.ctime_ns = now_ns
        directory.link_count += link_change
        batch.put(records.inode_key(number), directory.SerializeToString())

    def _put_inode(self, batch: Batch, inode: Inode) -> None:
        batch.put(records.inode_key(inode.number), inode.encode())

    def _resize(self, batch: Batch, inode: Inode, content: Content, *, enforce: bool = False) -> None:
        """Put `content` in the place of the inode's. Raises QuotaExceeded if it is longer and `enforce`."""
        if inode.quota:
            self.quotas.charge(batch, inode.quota, content.size_bytes - inode.size_bytes, 0, enforce=enforce)
        inode.content = content

    def _write_inode(self, inode: Inode) -> None:
        batch = Batch()
        self._put_inode(batch, inode)
        self._write(batch)

    def _superblock(self, number: int = ROOT_INODE) -> Superblock:
        """Of the block of an inode. Read anew each time: after a failed write the store may hold more than was
        answered."""
        block = slots.block_of(number)
        value = self._store.get(records.superblock_key(block))
        if value is not None:
            return Superblock.decode(value, block)
        if not block:
            raise StorageFailed("the record with the namespace's counters is missing")
        return Superblock(1, 0, 0, block)

    def _superblocks(self) -> list[Superblock]:
        stop = end_of_prefix(records.SUPERBLOCK_KEY)
        return [Superblock.decode(value) for _, value in self._store.iterate(records.SUPERBLOCK_KEY, stop)]

    def _write(self, batch: Batch, superblock: Superblock | None = None) -> None:
        if superblock is not None:
            batch.put(records.superblock_key(superblock.block), superblock.encode())
        self._store.write(batch)
