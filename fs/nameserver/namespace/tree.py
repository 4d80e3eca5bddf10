"""What every operation on the namespace stands on: finding places, reading and writing inodes.

Inode-based: a directory entry names an inode, so renaming a directory touches two entries whatever is
below it. Every operation reads, decides, and writes one batch: it happens whole or not at all. Time and
new contents are passed in; nothing here knows of dataservers beyond their numbers, of RPC, or of a clock.
One thread at a time (the service holds a lock).
"""

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from speedwell.fs import paths, slots
from speedwell.fs.errors import DirectoryNotEmpty, InvalidName, NoSuchFile, NotADirectory, StorageFailed
from speedwell.fs.nameserver.namespace import acls
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace_records import (
    DIRECTORY,
    ROOT_INODE,
    SYMBOLIC_LINK,
    Inode,
    Superblock,
)
from speedwell.fs.nameserver.namespace.quota_accounting import QuotaAccounting
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

    def must_exist(self) -> int:
        """The inode that is there. Raises NoSuchFile."""
        if self.inode is None:
            raise NoSuchFile(f"{paths.display(self.path)} does not exist")
        return self.inode

    def hold(self, inode: Inode) -> None:
        """`inode` is there from now on."""
        inode.parent = self.parent
        if inode.is_directory:
            inode.name = self.name


class Tree:
    """Paths are in wire form (`speedwell.fs.paths`)."""

    def __init__(self, store: Store, accounting: QuotaAccounting, *, hashes: bool) -> None:
        """New directories get a slot of their own if it `hashes` (`speedwell.fs.slots`)."""
        self._store = store
        self._accounting = accounting
        self._hashes = hashes

    # -------------------------------------------------------------- reading

    def lookup(self, path: bytes) -> Inode:
        """The inode of a path, also of one that names an inode. Raises NoSuchFile, NotADirectory."""
        if paths.is_inode(path) and not paths.components(path):
            return self.inode(int(path[2:]))
        return self.existing(self.find(path).must_exist())

    def inode(self, number: int) -> Inode:
        """Raises NoSuchFile if no file has that inode (any more)."""
        value = self._store.get(records.inode_key(number))
        if value is None:
            raise NoSuchFile(f"inode {number} does not exist (any more)")
        return Inode.decode(number, value)

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

    def names(self, path: bytes, after: bytes, limit: int) -> tuple[Inode, list[tuple[bytes, int, int]], bool]:
        """The directory, up to `limit` of its entries with names after `after`, in the order of their bytes, each
        with the kind and number of its inode, and whether there are more. Raises NoSuchFile, NotADirectory."""
        directory = self.lookup(path)
        if not directory.is_directory:
            raise NotADirectory(f"{paths.display(path)} is not a directory")
        found = list(islice(self.entries(directory.number, after), limit + 1))
        begin, more = len(records.dentry_key(directory.number, b"")), len(found) > limit
        del found[limit:]
        inodes = records.decode_dentries([value for _, value in found])
        return directory, [(key[begin:], *inode) for (key, _), inode in zip(found, inodes, strict=True)], more

    def full_path(self, path: bytes) -> bytes:
        """A path from the root for one that begins at the inode of a directory."""
        number = paths.inode_number(path)
        if number is None:
            return path
        above, rest = self.path_of(number), path[path.index(b"/", 1):]
        return rest if above == paths.ROOT else above + rest

    # -------------------------------------------------------------- for those that change it

    def find(self, path: bytes) -> Place:
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

    def way_up(self, directory: int) -> Iterator[int]:
        """A directory and those around it, the root last."""
        while directory != ROOT_INODE:
            yield directory
            directory = records.parse_inode(directory, self.record(directory)).parent
        yield ROOT_INODE

    def path_of(self, directory: int) -> bytes:
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
        for key, value in self.entries(parent):
            if records.decode_dentry(value)[1] == directory:
                return records.dentry_name(key)
        raise NoSuchFile(f"directory {directory} was removed")

    def entries(self, directory: int, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The records of a directory's entries with names after `after`, in the order of their bytes."""
        prefix = records.dentry_key(directory, b"")
        return self._store.iterate(prefix + after + b"\0" if after else prefix, end_of_prefix(prefix))

    def existing(self, number: int) -> Inode:
        return Inode.decode(number, self.record(number))

    def inode_in(self, batch: Batch, number: int) -> Inode | None:
        """The inode as it will be after `batch`."""
        key = records.inode_key(number)
        value = batch.changes[key] if key in batch.changes else self._store.get(key)
        return None if value is None else Inode.decode(number, value)

    def existing_in(self, batch: Batch, number: int) -> Inode:
        inode = self.inode_in(batch, number)
        if inode is None:
            raise StorageFailed(f"the record of inode {number} is missing")
        return inode

    def check_empty(self, path: bytes, number: int) -> None:
        if next(self.entries(number), None) is not None:
            raise DirectoryNotEmpty(f"{paths.display(path)} is not empty")

    def new_number(self, superblock: Superblock, place: Place, kind: int) -> int:
        local = superblock.next_inode
        superblock.next_inode += 1
        if not self._hashes or kind != DIRECTORY:
            return slots.beside(place.parent, local)
        number = slots.hashed(place.parent, place.name, local)
        return number if self._store.get(records.inode_key(number)) is None else self.new_number(
            superblock, place, kind)

    def add(self, place: Place, inode: Inode, superblock: Superblock, now_ns: int,
            batch: Batch | None = None, umask: int | None = None) -> None:
        """Write a new inode and its name, with what is in `batch` already. In a directory with the setgid bit it
        belongs to the directory's group (a directory gets the bit too), as on Linux. What is made, with a `umask`,
        gets the directory's default access control list."""
        directory = place.directory or records.parse_inode(place.parent, self.record(place.parent))
        place.hold(inode)
        if directory.mode & stat.S_ISGID:
            inode.gid = directory.gid
            if inode.is_directory:
                inode.mode |= stat.S_ISGID
        if umask is not None and inode.kind != SYMBOLIC_LINK:
            self._inherit(inode, directory, umask)
        batch = Batch() if batch is None else batch
        if directory.quota:
            inode.quota = directory.quota
            self._accounting.charge(batch, inode.quota, inode.size_bytes, 1)
        if inode.is_directory:
            superblock.directories += 1
            directory.link_count += 1
        else:
            superblock.files += 1
        batch.put(inode.key, inode.encode())
        batch.put(records.dentry_key(place.parent, place.name), records.encode_dentry(inode.kind, inode.number))
        directory.mtime_ns = directory.ctime_ns = now_ns
        batch.put(records.inode_key(place.parent), directory.SerializeToString())
        batch.put(superblock.key, superblock.encode())
        self._store.write(batch)

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

    def touch(self, batch: Batch, number: int, now_ns: int, *, link_change: int = 0) -> None:
        """An entry of the directory has changed."""
        directory = records.parse_inode(number, self.record(number))
        directory.mtime_ns = directory.ctime_ns = now_ns
        directory.link_count += link_change
        batch.put(records.inode_key(number), directory.SerializeToString())

    def write(self, inode: Inode) -> None:
        """That change alone."""
        batch = Batch()
        batch.put(inode.key, inode.encode())
        self._store.write(batch)
