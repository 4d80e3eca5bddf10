"""The tree of files and directories over a key-value store.

Inode-based: a directory entry names an inode, so renaming a directory touches two entries whatever is
below it. Every operation reads, decides, and writes one batch: it happens whole or not at all. Time and
new contents are passed in; nothing here knows of dataservers beyond their numbers, of RPC, or of a clock.
One thread at a time (the service holds a lock).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fs import paths
from fs.errors import (
    AlreadyExists,
    DeviceBusy,
    DirectoryNotEmpty,
    InvalidArgument,
    IsADirectory,
    NoSuchFile,
    NotADirectory,
    StaleFile,
    StorageFailed,
    Superseded,
)
from fs.nameserver import records
from fs.nameserver.deletions import enqueue
from fs.nameserver.records import DIRECTORY, REGULAR, ROOT_INODE, Content, Inode, Superblock
from fs.store import Batch, Store, end_of_prefix

ContentFactory = Callable[[], Content]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a path leads: the directory that holds its last name, and what is there (None: nothing)."""

    path: bytes
    name: bytes
    parent: int
    inode: int | None
    kind: int | None
    ancestors: tuple[int, ...]  # inodes of the directories on the way, the root first, `parent` last


class Namespace:
    """Paths are in wire form (`fs.paths`); `now_ns` is the time of the change."""

    def __init__(self, store: Store, *, now_ns: int, deletion_grace_ns: int) -> None:
        """Opens the namespace in `store`, or makes an empty one with a root directory.

        Raises StorageFailed if the store holds something else.
        """
        self._store = store
        self._deletion_grace_ns = deletion_grace_ns
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
        return self._superblock().files

    @property
    def directory_count(self) -> int:
        """Including the root."""
        return self._superblock().directories

    # -------------------------------------------------------------- reading

    def lookup(self, path: bytes) -> Inode:
        """Raises NoSuchFile, NotADirectory."""
        place = self._find(path)
        return self._inode(self._existing(place))

    def inode(self, number: int) -> Inode:
        """Raises NoSuchFile if no file has that inode (any more)."""
        value = self._store.get(records.inode_key(number))
        if value is None:
            raise NoSuchFile(f"inode {number} does not exist (any more)")
        return Inode.decode(number, value)

    def list(self, path: bytes, after: bytes, limit: int) -> tuple[Inode, list[tuple[bytes, Inode]], bool]:
        """The directory, up to `limit` of its entries with names after `after`, in the order of their bytes,
        and whether there are more. Raises NoSuchFile, NotADirectory."""
        directory = self.lookup(path)
        if not directory.is_directory:
            raise NotADirectory(f"{paths.display(path)} is not a directory")
        prefix = records.dentry_key(directory.number, b"")
        start = prefix + after + b"\0" if after else prefix
        entries: list[tuple[bytes, Inode]] = []
        for key, value in self._store.iterate(start, end_of_prefix(prefix)):
            if len(entries) == limit:
                return directory, entries, True
            entries.append((records.dentry_name(key), self._inode(records.decode_dentry(value)[1])))
        return directory, entries, False

    # -------------------------------------------------------------- making

    def create(self, path: bytes, *, mode: int, uid: int, gid: int, exclusive: bool,
               new_content: ContentFactory, now_ns: int) -> tuple[Inode, bool]:
        """The file, and whether it was made; `new_content` is called only then.

        Raises AlreadyExists (exclusive), IsADirectory, NoSuchFile, NotADirectory.
        """
        place = self._find(path)
        if place.inode is not None:
            if exclusive:
                raise AlreadyExists(f"{paths.display(path)} exists")
            if place.kind == DIRECTORY:
                raise IsADirectory(f"{paths.display(path)} is a directory")
            return self._inode(place.inode), False
        superblock = self._superblock()
        inode = Inode(superblock.next_inode, REGULAR, mode, uid, gid, now_ns, now_ns, now_ns, 1, place.parent,
                      new_content())
        superblock.files += 1
        self._add(place, inode, superblock, now_ns)
        return inode, True

    def make_directory(self, path: bytes, *, mode: int, uid: int, gid: int, now_ns: int) -> Inode:
        """Raises AlreadyExists, NoSuchFile, NotADirectory."""
        place = self._find(path)
        if place.inode is not None:
            raise AlreadyExists(f"{paths.display(path)} exists")
        superblock = self._superblock()
        inode = Inode(superblock.next_inode, DIRECTORY, mode, uid, gid, now_ns, now_ns, now_ns, 2, place.parent)
        superblock.directories += 1
        self._add(place, inode, superblock, now_ns)
        return inode

    def _add(self, place: _Place, inode: Inode, superblock: Superblock, now_ns: int) -> None:
        batch = Batch()
        superblock.next_inode = inode.number + 1
        self._put_inode(batch, inode)
        batch.put(records.dentry_key(place.parent, place.name), records.encode_dentry(inode.kind, inode.number))
        self._touch_parent(batch, place.parent, now_ns, link_change=int(inode.is_directory))
        self._write(batch, superblock)

    # -------------------------------------------------------------- removing and renaming

    def remove_file(self, path: bytes, *, now_ns: int) -> None:
        """The content is deleted from its dataservers after the grace period.

        Raises NoSuchFile, NotADirectory, IsADirectory.
        """
        place = self._find(path)
        number = self._existing(place)
        if place.kind == DIRECTORY:
            raise IsADirectory(f"{paths.display(path)} is a directory")
        batch = Batch()
        superblock = self._superblock()
        self._discard(batch, superblock, self._inode(number), now_ns)
        batch.delete(records.dentry_key(place.parent, place.name))
        self._touch_parent(batch, place.parent, now_ns)
        self._write(batch, superblock)

    def remove_directory(self, path: bytes, *, now_ns: int) -> None:
        """Raises NoSuchFile, NotADirectory, DirectoryNotEmpty, DeviceBusy (the root)."""
        place = self._find(path)
        number = self._existing(place)
        if number == ROOT_INODE:
            raise DeviceBusy("the root directory cannot be removed")
        if place.kind != DIRECTORY:
            raise NotADirectory(f"{paths.display(path)} is not a directory")
        self._check_empty(path, number)
        batch = Batch()
        superblock = self._superblock()
        self._discard(batch, superblock, self._inode(number), now_ns)
        batch.delete(records.dentry_key(place.parent, place.name))
        self._touch_parent(batch, place.parent, now_ns, link_change=-1)
        self._write(batch, superblock)

    def rename(self, source: bytes, destination: bytes, *, no_replace: bool, now_ns: int) -> None:
        """As rename(2): what is at the destination is replaced in the same step.

        Raises NoSuchFile, NotADirectory, IsADirectory, DirectoryNotEmpty, AlreadyExists (no_replace),
        InvalidArgument (a directory into itself), DeviceBusy (the root).
        """
        old, new = self._find(source), self._find(destination)
        moved = self._existing(old)
        if ROOT_INODE in (moved, new.inode):
            raise DeviceBusy("the root directory cannot be renamed or replaced")
        if no_replace and new.inode is not None:
            raise AlreadyExists(f"{paths.display(destination)} exists")
        if moved in new.ancestors:
            raise InvalidArgument(f"destination: {paths.display(destination)} is inside the directory "
                                  f"{paths.display(source)} that is being renamed")
        if new.inode in old.ancestors:
            raise DirectoryNotEmpty(f"{paths.display(destination)} is not empty")
        if moved == new.inode:
            return
        self._check_replaceable(old, new)
        batch = Batch()
        superblock = self._superblock()
        if new.inode is not None:
            self._discard(batch, superblock, self._inode(new.inode), now_ns)
        inode = self._inode(moved)
        inode.ctime_ns = now_ns
        inode.parent = new.parent
        self._put_inode(batch, inode)
        batch.delete(records.dentry_key(old.parent, old.name))
        batch.put(records.dentry_key(new.parent, new.name), records.encode_dentry(inode.kind, moved))
        self._touch_renamed_parents(batch, old, new, now_ns)
        self._write(batch, superblock)

    def _check_replaceable(self, old: _Place, new: _Place) -> None:
        if new.inode is None:
            return
        if old.kind == DIRECTORY and new.kind != DIRECTORY:
            raise NotADirectory(f"{paths.display(new.path)} is not a directory, "
                                f"{paths.display(old.path)} is")
        if old.kind != DIRECTORY and new.kind == DIRECTORY:
            raise IsADirectory(f"{paths.display(new.path)} is a directory, {paths.display(old.path)} is not")
        if new.kind == DIRECTORY:
            self._check_empty(new.path, new.inode)

    def _touch_renamed_parents(self, batch: Batch, old: _Place, new: _Place, now_ns: int) -> None:
        moved_links = int(old.kind == DIRECTORY)
        gained_links = moved_links - int(new.kind == DIRECTORY)
        if old.parent == new.parent:
            self._touch_parent(batch, old.parent, now_ns, link_change=gained_links - moved_links)
        else:
            self._touch_parent(batch, old.parent, now_ns, link_change=-moved_links)
            self._touch_parent(batch, new.parent, now_ns, link_change=gained_links)

    # -------------------------------------------------------------- changing files

    def set_attributes(self, path: bytes, *, mode: int | None, uid: int | None, gid: int | None,
                       atime_ns: int | None, mtime_ns: int | None, now_ns: int) -> Inode:
        """Only what is not None changes. Raises NoSuchFile, NotADirectory."""
        inode = self.lookup(path)
        inode.mode = inode.mode if mode is None else mode
        inode.uid = inode.uid if uid is None else uid
        inode.gid = inode.gid if gid is None else gid
        inode.atime_ns = inode.atime_ns if atime_ns is None else atime_ns
        inode.mtime_ns = inode.mtime_ns if mtime_ns is None else mtime_ns
        inode.ctime_ns = now_ns
        self._write_inode(inode)
        return inode

    def truncate(self, path: bytes, *, new_content: Callable[[Content], Content], now_ns: int) -> Inode:
        """Gives the file the new content that `new_content` makes from the old one.

        Raises NoSuchFile, NotADirectory, IsADirectory.
        """
        inode = self.lookup(path)
        if inode.content is None:
            raise IsADirectory(f"{paths.display(path)} is a directory")
        batch = Batch()
        enqueue(batch, inode.content, inode.content.replicas, now_ns + self._deletion_grace_ns)
        inode.content = new_content(inode.content)
        inode.mtime_ns = inode.ctime_ns = now_ns
        self._put_inode(batch, inode)
        self._write(batch)
        return inode

    def commit(self, number: int, file_id: bytes, size_bytes: int, *, mtime_ns: int | None,
               failed_replicas: Iterable[int], now_ns: int) -> Inode:
        """Publish a length that all replicas except the failed ones hold. Lengths never shrink; failed
        replicas leave the set, except the last one. Doing it again changes nothing.

        Raises NoSuchFile (removed), StaleFile (another content), IsADirectory.
        """
        inode = self.inode(number)
        content = inode.content
        if content is None:
            raise IsADirectory(f"inode {number} is a directory")
        if content.file_id != file_id:
            raise StaleFile(f"inode {number} has a new content: open the file again")
        batch = Batch()
        failed = set(failed_replicas)
        kept = tuple(replica for replica in content.replicas if replica not in failed) or content.replicas[:1]
        shrunk, grown = kept != content.replicas, size_bytes > content.size_bytes
        if shrunk:
            dropped = [replica for replica in content.replicas if replica not in kept]
            enqueue(batch, content, dropped, now_ns + self._deletion_grace_ns)
            content.replicas = kept
        if grown:
            content.size_bytes = size_bytes
            inode.mtime_ns = now_ns if mtime_ns is None else mtime_ns
        if shrunk or grown:
            inode.ctime_ns = now_ns
            self._put_inode(batch, inode)
            self._write(batch)
        return inode

    def publish(self, number: int, base: bytes, base_size: int, file_id: bytes, size_bytes: int, *,
                mtime_ns: int | None, failed_replicas: Iterable[int], now_ns: int) -> Inode:
        """Give a file the content `file_id` that was made from `base` when that had `base_size` bytes. The
        replicas are those of `base` except the failed ones. Doing it again changes nothing.

        Raises NoSuchFile (removed), Superseded (the new content is then deleted), IsADirectory.
        """
        inode = self.inode(number)
        content = inode.content
        if content is None:
            raise IsADirectory(f"inode {number} is a directory")
        if content.file_id == file_id:
            return inode
        due_ns = now_ns + self._deletion_grace_ns
        batch = Batch()
        if content.file_id != base or content.size_bytes > base_size:
            self._write_deletion(batch, replace(content, file_id=file_id), now_ns)
            raise Superseded(f"inode {number} has a newer content")
        failed = set(failed_replicas)
        kept = tuple(replica for replica in content.replicas if replica not in failed) or content.replicas[:1]
        enqueue(batch, content, content.replicas, due_ns)
        inode.content = replace(content, file_id=file_id, size_bytes=size_bytes, replicas=kept)
        inode.mtime_ns = now_ns if mtime_ns is None else mtime_ns
        inode.ctime_ns = now_ns
        self._put_inode(batch, inode)
        self._write(batch)
        return inode

    def _write_deletion(self, batch: Batch, content: Content, due_ns: int) -> None:
        enqueue(batch, content, content.replicas, due_ns)
        self._write(batch)

    def repair_length(self, number: int, file_id: bytes, size_bytes: int, reporter: int, *,
                      now_ns: int) -> bool:
        """Take over a length that a replica reports and no client committed; whether anything changed.

        Reports about removed or replaced files, and from dataservers that are no replica, are ignored.
        """
        value = self._store.get(records.inode_key(number))
        if value is None:
            return False
        inode = Inode.decode(number, value)
        content = inode.content
        if content is None or content.file_id != file_id or reporter not in content.replicas:
            return False
        if size_bytes <= content.size_bytes:
            return False
        content.size_bytes = size_bytes
        inode.mtime_ns = inode.ctime_ns = now_ns
        self._write_inode(inode)
        return True

    # -------------------------------------------------------------- helpers

    def _find(self, path: bytes) -> _Place:
        """Raises NoSuchFile or NotADirectory if a directory on the way is missing or none."""
        names = paths.components(path)
        if not names:
            return _Place(path, b"", ROOT_INODE, ROOT_INODE, DIRECTORY, ())
        name = names.pop()
        parent = ROOT_INODE
        ancestors = [parent]
        get = self._store.get
        for depth, directory in enumerate(names):
            value = get(records.dentry_key(parent, directory))
            if value is None:
                raise NoSuchFile(f"{paths.display(b'/' + b'/'.join(names[:depth + 1]))} does not exist")
            kind, parent = records.decode_dentry(value)
            if kind != DIRECTORY:
                raise NotADirectory(
                    f"{paths.display(b'/' + b'/'.join(names[:depth + 1]))} is not a directory")
            ancestors.append(parent)
        value = get(records.dentry_key(parent, name))
        kind_, inode = records.decode_dentry(value) if value is not None else (None, None)
        return _Place(path, name, parent, inode, kind_, tuple(ancestors))

    def _existing(self, place: _Place) -> int:
        if place.inode is None:
            raise NoSuchFile(f"{paths.display(place.path)} does not exist")
        return place.inode

    def _inode(self, number: int) -> Inode:
        value = self._store.get(records.inode_key(number))
        if value is None:
            raise StorageFailed(f"the record of inode {number} is missing")
        return Inode.decode(number, value)

    def _check_empty(self, path: bytes, number: int) -> None:
        prefix = records.dentry_key(number, b"")
        if next(iter(self._store.iterate(prefix, end_of_prefix(prefix))), None) is not None:
            raise DirectoryNotEmpty(f"{paths.display(path)} is not empty")

    def _discard(self, batch: Batch, superblock: Superblock, inode: Inode, now_ns: int) -> None:
        """Drop an inode and queue its content for deletion."""
        batch.delete(records.inode_key(inode.number))
        if inode.content is None:
            superblock.directories -= 1
        else:
            superblock.files -= 1
            enqueue(batch, inode.content, inode.content.replicas, now_ns + self._deletion_grace_ns)

    def _touch_parent(self, batch: Batch, number: int, now_ns: int, *, link_change: int = 0) -> None:
        directory = self._inode(number)
        directory.mtime_ns = directory.ctime_ns = now_ns
        directory.link_count += link_change
        self._put_inode(batch, directory)

    def _put_inode(self, batch: Batch, inode: Inode) -> None:
        batch.put(records.inode_key(inode.number), inode.encode())

    def _write_inode(self, inode: Inode) -> None:
        batch = Batch()
        self._put_inode(batch, inode)
        self._write(batch)

    def _superblock(self) -> Superblock:
        """Read anew each time: after a failed write the store may hold more than was answered."""
        value = self._store.get(records.SUPERBLOCK_KEY)
        if value is None:
            raise StorageFailed("the record with the namespace's counters is missing")
        return Superblock.decode(value)

    def _write(self, batch: Batch, superblock: Superblock | None = None) -> None:
        if superblock is not None:
            batch.put(records.SUPERBLOCK_KEY, superblock.encode())
        self._store.write(batch)
