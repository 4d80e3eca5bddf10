"""The namespace: the parts that it is made of, and making, removing and renaming what is in it (`tree` says how)."""

import stat
from collections.abc import Callable, Iterable

from speedwell.fs import paths
from speedwell.fs.errors import (
    AlreadyExists,
    DeviceBusy,
    DirectoryNotEmpty,
    InvalidArgument,
    IsADirectory,
    NoSuchFile,
    NotADirectory,
    NotPermitted,
    StorageFailed,
    TooManyLinks,
)
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.contents import Contents
from speedwell.fs.nameserver.namespace.deletions import Deletions
from speedwell.fs.nameserver.namespace.extended_attributes import ExtendedAttributes
from speedwell.fs.nameserver.namespace.namespace_records import (
    DIRECTORY,
    REGULAR,
    ROOT_INODE,
    SYMBOLIC_LINK,
    Content,
    Inode,
    Superblock,
)
from speedwell.fs.nameserver.namespace.quota_accounting import QuotaAccounting
from speedwell.fs.nameserver.namespace.quotas import Quotas
from speedwell.fs.nameserver.namespace.superblocks import Superblocks
from speedwell.fs.nameserver.namespace.trash import Trash
from speedwell.fs.nameserver.namespace.tree import Place, Tree
from speedwell.fs.proto.speedwell_pb2 import TrashRecord
from speedwell.fs.store import Batch, Store, end_of_prefix

MAX_LINKS = 65000


class Namespace:
    """Paths are in wire form (`speedwell.fs.paths`); `now_ns` is the time of the change."""

    def __init__(self, store: Store, *, now_ns: int, deletion_grace_ns: int,
                 age_ns: Callable[[int], int] = int, hashes: bool = False) -> None:
        """Opens the namespace in `store`, or makes an empty one with a root directory. `age_ns` says for a `now_ns`
        by which clock things are kept (`backup.namespace_age`); by default the same. `hashes` is that of the `Tree`.

        Raises StorageFailed if the store holds something else.
        """
        self._store = store
        self.accounting = QuotaAccounting(store)
        self.superblocks = Superblocks(store)
        self._open(now_ns)
        deletions = Deletions(deletion_grace_ns, age_ns)
        self.tree = Tree(store, self.accounting, hashes=hashes)
        self.trash = Trash(store, self.tree, self.superblocks, self.accounting, deletions)
        self.quotas = Quotas(store, self.tree, self.accounting)
        self.contents = Contents(store, self.tree, self.accounting, deletions)
        self.extended_attributes = ExtendedAttributes(store, self.tree)

    def _open(self, now_ns: int) -> None:
        if self._store.get(records.SUPERBLOCK_KEY) is not None:
            self.superblocks.of(ROOT_INODE)
            return
        if next(iter(self._store.iterate(b"")), None) is not None:
            raise StorageFailed("the database is not a namespace of Speedwell")
        batch = Batch()
        root = Inode(ROOT_INODE, DIRECTORY, 0o755, 0, 0, now_ns, now_ns, now_ns, 2, ROOT_INODE)
        superblock = Superblock(ROOT_INODE + 1, files=0, directories=1)
        batch.put(root.key, root.encode())
        batch.put(superblock.key, superblock.encode())
        self._store.write(batch)

    # -------------------------------------------------------------- making

    def create(self, path: bytes, *, mode: int, uid: int, gid: int, exclusive: bool,
               new_content: Callable[[], Content], now_ns: int, umask: int = 0) -> tuple[Inode, bool]:
        """The file, and whether it was made; `new_content` is called only then.

        Raises AlreadyExists (exclusive, or a link or special file), IsADirectory, NoSuchFile, NotADirectory.
        """
        place = self.tree.find(path)
        if place.inode is not None:
            if place.kind == DIRECTORY and not exclusive:
                raise IsADirectory(f"{paths.display(path)} is a directory")
            if exclusive or place.kind != REGULAR:
                raise AlreadyExists(f"{paths.display(path)} exists")
            return self.tree.existing(place.inode), False
        superblock = self.superblocks.of(place.parent)
        inode = Inode(self.tree.new_number(superblock, place, REGULAR), REGULAR, mode, uid, gid,
                      now_ns, now_ns, now_ns, 1, place.parent, new_content())
        self.tree.add(place, inode, superblock, now_ns, umask=umask)
        return inode, True

    def make_directory(self, path: bytes, *, mode: int, uid: int, gid: int, now_ns: int, umask: int = 0) -> Inode:
        """Raises AlreadyExists, NoSuchFile, NotADirectory."""
        return self._make(path, DIRECTORY, mode, uid, gid, now_ns, links=2, umask=umask)

    def make_symbolic_link(self, path: bytes, target: bytes, *, uid: int, gid: int, now_ns: int) -> Inode:
        """Raises AlreadyExists, NoSuchFile, NotADirectory."""
        return self._make(path, SYMBOLIC_LINK, 0o777, uid, gid, now_ns, target=target)

    def make_special(self, path: bytes, kind: int, *, mode: int, uid: int, gid: int, device: int,
                     now_ns: int, umask: int = 0) -> Inode:
        """A fifo, socket or device. Raises AlreadyExists, NoSuchFile, NotADirectory."""
        return self._make(path, kind, mode, uid, gid, now_ns, device=device, umask=umask)

    def _make(self, path: bytes, kind: int, mode: int, uid: int, gid: int, now_ns: int, *, links: int = 1,
              target: bytes = b"", device: int = 0, umask: int = 0) -> Inode:
        place = self.tree.find(path)
        if place.inode is not None:
            raise AlreadyExists(f"{paths.display(path)} exists")
        superblock = self.superblocks.of(place.parent)
        inode = Inode(self.tree.new_number(superblock, place, kind), kind, mode, uid, gid,
                      now_ns, now_ns, now_ns, links, place.parent, target=target, device=device)
        self.tree.add(place, inode, superblock, now_ns, umask=umask)
        return inode

    def link(self, source: bytes, destination: bytes, *, now_ns: int) -> Inode:
        """Give a file another name.

        Raises NoSuchFile, NotADirectory, NotPermitted (a directory), AlreadyExists, TooManyLinks, CrossesQuota.
        """
        inode = self.tree.lookup(source)
        if inode.is_directory:
            raise NotPermitted(f"{paths.display(source)} is a directory: it has one name only")
        if inode.link_count == 0:
            raise NoSuchFile(f"inode {inode.number} was removed")
        place = self.tree.find(destination)
        if place.inode is not None:
            raise AlreadyExists(f"{paths.display(destination)} exists")
        self.quotas.refuse_link(inode, place.parent, destination)
        if inode.link_count >= MAX_LINKS:
            raise TooManyLinks(f"{paths.display(source)} has {inode.link_count} names already")
        inode.link_count += 1
        inode.ctime_ns = now_ns
        inode.parent = place.parent
        batch = Batch()
        batch.put(inode.key, inode.encode())
        batch.put(records.dentry_key(place.parent, place.name), records.encode_dentry(inode.kind, inode.number))
        self.tree.touch(batch, place.parent, now_ns)
        self._store.write(batch)
        return inode

    # -------------------------------------------------------------- removing

    def remove_file(self, path: bytes, *, now_ns: int, session: int = 0) -> Inode:
        """Remove one name; returns the inode as it is then, with its remaining links.

        With the last name the file goes, and its content from its dataservers after the grace period; with a
        `session`, which has the file open, not before that session releases it.
        Raises NoSuchFile, NotADirectory, IsADirectory.
        """
        place = self.tree.find(path)
        number = place.must_exist()
        if place.kind == DIRECTORY:
            raise IsADirectory(f"{paths.display(path)} is a directory")
        batch = Batch()
        superblock = self.superblocks.of(place.parent)
        inode = self.tree.existing(number)
        self.trash.unlink(batch, superblock, inode, now_ns, session, place)
        batch.delete(records.dentry_key(place.parent, place.name))
        self.tree.touch(batch, place.parent, now_ns)
        batch.put(superblock.key, superblock.encode())
        self._store.write(batch)
        return inode

    def remove_directory(self, path: bytes, *, now_ns: int) -> Inode:
        """Returns the inode as it is then. Raises NoSuchFile, NotADirectory, DirectoryNotEmpty, DeviceBusy
        (the root)."""
        place = self.tree.find(path)
        number = place.must_exist()
        if number == ROOT_INODE:
            raise DeviceBusy("the root directory cannot be removed")
        if place.kind != DIRECTORY:
            raise NotADirectory(f"{paths.display(path)} is not a directory")
        self.tree.check_empty(path, number)
        batch = Batch()
        superblock = self.superblocks.of(place.parent)
        inode = self.tree.existing(number)
        self.trash.let_go(batch, superblock, inode, now_ns, self.trash.kept(place, now_ns))
        batch.delete(records.dentry_key(place.parent, place.name))
        self.tree.touch(batch, place.parent, now_ns, link_change=-1)
        batch.put(superblock.key, superblock.encode())
        self._store.write(batch)
        inode.link_count = 0
        return inode

    def release(self, session: int, now_ns: int, inodes: Iterable[int] | None = None) -> int:
        """Drop the files without a name that `session` held: those of `inodes`, or all. Returns how many."""
        if inodes is None:
            prefix = records.orphan_key(session)
            inodes = [records.orphan_inode(key) for key, _ in self._store.iterate(prefix, end_of_prefix(prefix))]
        dropped = 0
        for number in inodes:
            key = records.orphan_key(session, number)
            kept = self._store.get(key)
            if kept is None:
                continue
            batch = Batch()
            superblock = self.superblocks.of(ROOT_INODE)
            batch.delete(key)
            self.trash.let_go(batch, superblock, self.tree.existing(number), now_ns,
                              TrashRecord.FromString(kept) if kept else None)
            batch.put(superblock.key, superblock.encode())
            self._store.write(batch)
            dropped += 1
        return dropped

    def holders(self) -> set[int]:
        """The sessions that hold files without a name."""
        prefix = records.ORPHAN_PREFIX
        return {records.orphan_session(key) for key, _ in self._store.iterate(prefix, end_of_prefix(prefix))}

    # -------------------------------------------------------------- renaming

    def rename(self, source: bytes, destination: bytes, *, no_replace: bool, now_ns: int,
               exchange: bool = False, session: int = 0) -> Inode | None:
        """As rename(2): what is at the destination is replaced in the same step, or with `exchange` gets the
        source's name. Returns the file that lost the destination's name, if any; with a `session` it is held
        for that (`Namespace.remove_file`).

        Raises NoSuchFile, NotADirectory, IsADirectory, DirectoryNotEmpty, AlreadyExists (no_replace),
        InvalidArgument (a directory into itself), DeviceBusy (the root), QuotaExceeded, CrossesQuota.
        """
        old, new = self.tree.find(source), self.tree.find(destination)
        moved = old.must_exist()
        if ROOT_INODE in (moved, new.inode):
            raise DeviceBusy("the root directory cannot be renamed or replaced")
        if no_replace and new.inode is not None:
            raise AlreadyExists(f"{paths.display(destination)} exists")
        if exchange:
            self._exchange(old, new, now_ns)
            return None
        if old.kind == DIRECTORY and moved in self.tree.way_up(new.parent):
            raise InvalidArgument(f"{paths.display(destination)} is inside the directory {paths.display(source)} "
                                  "that is being renamed")
        if new.inode is not None and new.kind == DIRECTORY and new.inode in self.tree.way_up(old.parent):
            raise DirectoryNotEmpty(f"{paths.display(destination)} is not empty")
        if moved == new.inode:
            return None
        self._check_replaceable(old, new)
        batch = Batch()
        superblock = self.superblocks.of(old.parent)
        replaced = None if new.inode is None else self.tree.existing(new.inode)
        if replaced is not None and replaced.is_directory:
            self.trash.let_go(batch, superblock, replaced, now_ns)
            replaced.link_count = 0
        elif replaced is not None:
            self.trash.unlink(batch, superblock, replaced, now_ns, session)
        inode = self.tree.existing(moved)
        inode.ctime_ns = now_ns
        new.hold(inode)
        self.quotas.requota_renamed(batch, inode, old, new)
        batch.put(inode.key, inode.encode())
        batch.delete(records.dentry_key(old.parent, old.name))
        batch.put(records.dentry_key(new.parent, new.name), records.encode_dentry(inode.kind, moved))
        is_directory = int(old.kind == DIRECTORY)
        self._touch_both(batch, old, new, now_ns, lost=is_directory, gained=is_directory - int(new.kind == DIRECTORY))
        batch.put(superblock.key, superblock.encode())
        self._store.write(batch)
        return replaced

    def _exchange(self, old: Place, new: Place, now_ns: int) -> None:
        first, second = self.tree.existing(old.must_exist()), self.tree.existing(new.must_exist())
        if (first.is_directory and first.number in self.tree.way_up(new.parent)) or (
                second.is_directory and second.number in self.tree.way_up(old.parent)):
            raise InvalidArgument(f"one of {paths.display(old.path)} and {paths.display(new.path)} "
                                  "is inside the other")
        if first.number == second.number:
            return
        self.quotas.refuse_exchange(old, new)
        batch = Batch()
        for inode, place in ((first, new), (second, old)):
            inode.ctime_ns = now_ns
            place.hold(inode)
            batch.put(inode.key, inode.encode())
            batch.put(records.dentry_key(place.parent, place.name),
                      records.encode_dentry(inode.kind, inode.number))
        gained = int(first.is_directory) - int(second.is_directory)
        self._touch_both(batch, old, new, now_ns, lost=gained, gained=gained)
        self._store.write(batch)

    def _check_replaceable(self, old: Place, new: Place) -> None:
        if new.inode is None:
            return
        if old.kind == DIRECTORY and new.kind != DIRECTORY:
            raise NotADirectory(f"{paths.display(new.path)} is not a directory, "
                                f"{paths.display(old.path)} is")
        if old.kind != DIRECTORY and new.kind == DIRECTORY:
            raise IsADirectory(f"{paths.display(new.path)} is a directory, {paths.display(old.path)} is not")
        if new.kind == DIRECTORY:
            self.tree.check_empty(new.path, new.inode)

    def _touch_both(self, batch: Batch, old: Place, new: Place, now_ns: int, *, lost: int, gained: int) -> None:
        """The directory of `old` lost so many sub-directories, that of `new` gained so many."""
        if old.parent == new.parent:
            self.tree.touch(batch, old.parent, now_ns, link_change=gained - lost)
        else:
            self.tree.touch(batch, old.parent, now_ns, link_change=-lost)
            self.tree.touch(batch, new.parent, now_ns, link_change=gained)

    # -------------------------------------------------------------- changing

    def set_attributes(self, path: bytes, *, mode: int | None, uid: int | None, gid: int | None,
                       atime_ns: int | None, mtime_ns: int | None, now_ns: int) -> Inode:
        """Only what is not None changes. A new owner or group takes the setuid and setgid bits from a file, as
        on Linux. Raises NoSuchFile, NotADirectory."""
        inode = self.tree.lookup(path)
        if (uid is not None or gid is not None) and not inode.is_directory:
            inode.mode &= ~(stat.S_ISUID | (stat.S_ISGID if inode.mode & stat.S_IXGRP else 0))
        if mode is not None:
            inode.change_mode(mode)
        inode.uid = inode.uid if uid is None else uid
        inode.gid = inode.gid if gid is None else gid
        inode.atime_ns = inode.atime_ns if atime_ns is None else atime_ns
        inode.mtime_ns = inode.mtime_ns if mtime_ns is None else mtime_ns
        inode.ctime_ns = now_ns
        self.tree.write(inode)
        return inode
