"""The tree of files and directories: making, removing and changing (`namespace.tree` says how)."""

import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from speedwell.fs import paths
from speedwell.fs.errors import (
    AlreadyExists,
    DeviceBusy,
    IsADirectory,
    NoSuchFile,
    NotADirectory,
    NotPermitted,
    QuotaExceeded,
    StaleEpoch,
    StaleFile,
    Superseded,
    TooManyLinks,
)
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.deletions import enqueue
from speedwell.fs.nameserver.namespace.extended_attributes import ExtendedAttributes
from speedwell.fs.nameserver.namespace.namespace_records import (
    DIRECTORY,
    REGULAR,
    ROOT_INODE,
    SYMBOLIC_LINK,
    Content,
    Inode,
)
from speedwell.fs.nameserver.namespace.renaming import Renaming
from speedwell.fs.nameserver.replicas.replica_set import Configuration, require_primary
from speedwell.fs.proto.speedwell_pb2 import TrashRecord
from speedwell.fs.store import Batch, end_of_prefix

MAX_LINKS = 65000

ContentFactory = Callable[[], Content]


class Namespace(Renaming, ExtendedAttributes):
    """Paths are in wire form (`speedwell.fs.paths`); `now_ns` is the time of the change."""

    # -------------------------------------------------------------- reading

    def content(self, number: int) -> Content | None:
        """Of an inode; None if it has none, or was removed."""
        try:
            return self.inode(number).content
        except NoSuchFile:
            return None

    def files_after(self, number: int, limit: int) -> tuple[list[tuple[int, Content]], int | None]:
        """The contents of files with inodes after `number`, found among `limit` inodes, and where to go on.

        None: there are no more.
        """
        found: list[tuple[int, Content]] = []
        start, stop = records.inode_key(number + 1), records.inode_key(2**64 - 1)
        for seen, (key, value) in enumerate(self._store.iterate(start, stop)):
            if seen == limit:
                return found, number
            number = records.inode_number(key)
            content = Inode.decode(number, value).content
            if content is not None:
                found.append((number, content))
        return found, None

    def names(self, path: bytes, after: bytes, limit: int) -> tuple[Inode, list[tuple[bytes, int, int]], bool]:
        """The directory, up to `limit` of its entries with names after `after`, in the order of their bytes, each
        with the kind and number of its inode, and whether there are more. Raises NoSuchFile, NotADirectory."""
        directory = self.lookup(path)
        if not directory.is_directory:
            raise NotADirectory(f"{paths.display(path)} is not a directory")
        prefix = records.dentry_key(directory.number, b"")
        start = prefix + after + b"\0" if after else prefix
        found = list(islice(self._store.iterate(start, end_of_prefix(prefix)), limit + 1))
        begin, more = len(prefix), len(found) > limit
        del found[limit:]
        inodes = records.decode_dentries([value for _, value in found])
        return directory, [(key[begin:], *inode) for (key, _), inode in zip(found, inodes, strict=True)], more

    # -------------------------------------------------------------- making

    def create(self, path: bytes, *, mode: int, uid: int, gid: int, exclusive: bool,
               new_content: ContentFactory, now_ns: int, umask: int = 0) -> tuple[Inode, bool]:
        """The file, and whether it was made; `new_content` is called only then.

        Raises AlreadyExists (exclusive, or a link or special file), IsADirectory, NoSuchFile, NotADirectory.
        """
        place = self._find(path)
        if place.inode is not None:
            if place.kind == DIRECTORY and not exclusive:
                raise IsADirectory(f"{paths.display(path)} is a directory")
            if exclusive or place.kind != REGULAR:
                raise AlreadyExists(f"{paths.display(path)} exists")
            return self._inode(place.inode), False
        superblock = self._superblock(place.parent)
        inode = Inode(self._new_number(superblock, place, REGULAR), REGULAR, mode, uid, gid, now_ns, now_ns, now_ns,
                      1, place.parent, new_content())
        self._add(place, inode, superblock, now_ns, umask=umask)
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
        place = self._find(path)
        if place.inode is not None:
            raise AlreadyExists(f"{paths.display(path)} exists")
        superblock = self._superblock(place.parent)
        inode = Inode(self._new_number(superblock, place, kind), kind, mode, uid, gid, now_ns, now_ns, now_ns, links,
                      place.parent, target=target, device=device)
        self._add(place, inode, superblock, now_ns, umask=umask)
        return inode

    def link(self, source: bytes, destination: bytes, *, now_ns: int) -> Inode:
        """Give a file another name.

        Raises NoSuchFile, NotADirectory, NotPermitted (a directory), AlreadyExists, TooManyLinks, CrossesQuota.
        """
        inode = self.lookup(source)
        if inode.is_directory:
            raise NotPermitted(f"{paths.display(source)} is a directory: it has one name only")
        if inode.link_count == 0:
            raise NoSuchFile(f"inode {inode.number} was removed")
        place = self._find(destination)
        if place.inode is not None:
            raise AlreadyExists(f"{paths.display(destination)} exists")
        self.refuse_link(inode, place.parent, destination)
        if inode.link_count >= MAX_LINKS:
            raise TooManyLinks(f"{paths.display(source)} has {inode.link_count} names already")
        inode.link_count += 1
        inode.ctime_ns = now_ns
        inode.parent = place.parent
        batch = Batch()
        self._put_inode(batch, inode)
        batch.put(records.dentry_key(place.parent, place.name), records.encode_dentry(inode.kind, inode.number))
        self._touch_parent(batch, place.parent, now_ns)
        self._write(batch)
        return inode

    # -------------------------------------------------------------- removing

    def remove_file(self, path: bytes, *, now_ns: int, session: int = 0) -> Inode:
        """Remove one name; returns the inode as it is then, with its remaining links.

        With the last name the file goes, and its content from its dataservers after the grace period; with a
        `session`, which has the file open, not before that session releases it.
        Raises NoSuchFile, NotADirectory, IsADirectory.
        """
        place = self._find(path)
        number = self._existing(place)
        if place.kind == DIRECTORY:
            raise IsADirectory(f"{paths.display(path)} is a directory")
        batch = Batch()
        superblock = self._superblock(place.parent)
        inode = self._inode(number)
        self._unlink(batch, superblock, inode, now_ns, session, place)
        batch.delete(records.dentry_key(place.parent, place.name))
        self._touch_parent(batch, place.parent, now_ns)
        self._write(batch, superblock)
        return inode

    def remove_directory(self, path: bytes, *, now_ns: int) -> Inode:
        """Returns the inode as it is then. Raises NoSuchFile, NotADirectory, DirectoryNotEmpty, DeviceBusy
        (the root)."""
        place = self._find(path)
        number = self._existing(place)
        if number == ROOT_INODE:
            raise DeviceBusy("the root directory cannot be removed")
        if place.kind != DIRECTORY:
            raise NotADirectory(f"{paths.display(path)} is not a directory")
        self._check_empty(path, number)
        batch = Batch()
        superblock = self._superblock(place.parent)
        inode = self._inode(number)
        self._let_go(batch, superblock, inode, now_ns, self._kept(place, now_ns))
        batch.delete(records.dentry_key(place.parent, place.name))
        self._touch_parent(batch, place.parent, now_ns, link_change=-1)
        self._write(batch, superblock)
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
            superblock = self._superblock()
            batch.delete(key)
            self._let_go(batch, superblock, self._inode(number), now_ns,
                         TrashRecord.FromString(kept) if kept else None)
            self._write(batch, superblock)
            dropped += 1
        return dropped

    def holders(self) -> set[int]:
        """The sessions that hold files without a name."""
        prefix = records.ORPHAN_PREFIX
        return {records.orphan_session(key) for key, _ in self._store.iterate(prefix, end_of_prefix(prefix))}

    # -------------------------------------------------------------- changing files

    def set_attributes(self, path: bytes, *, mode: int | None, uid: int | None, gid: int | None,
                       atime_ns: int | None, mtime_ns: int | None, now_ns: int) -> Inode:
        """Only what is not None changes. A new owner or group takes the setuid and setgid bits from a file, as
        on Linux. Raises NoSuchFile, NotADirectory."""
        inode = self.lookup(path)
        if (uid is not None or gid is not None) and not inode.is_directory:
            inode.mode &= ~(stat.S_ISUID | (stat.S_ISGID if inode.mode & stat.S_IXGRP else 0))
        if mode is not None:
            inode.change_mode(mode)
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
        self.refuse_in_trash(inode)
        batch = Batch()
        self._delete_later(batch, inode.content, now_ns)
        self._resize(batch, inode, new_content(inode.content))
        inode.mtime_ns = inode.ctime_ns = now_ns
        self._put_inode(batch, inode)
        self._write(batch)
        return inode

    def commit(self, number: int, file_id: bytes, size_bytes: int, *, mtime_ns: int | None, now_ns: int,
               origin: bytes = b"") -> Inode:
        """Publish a length that all replicas hold. Lengths never shrink; doing it again changes nothing. Nor does it
        where the file has a later version by now, which was made from all that was acknowledged. `origin` is that of
        the content `file_id`.

        Raises NoSuchFile (removed), StaleFile (another content), IsADirectory.
        """
        try:
            inode, content = self._content(number, file_id)
        except StaleFile:
            inode = self.inode(number)
            if inode.content is None or inode.content.origin != (origin or file_id):
                raise
            return inode
        if size_bytes > content.size_bytes:
            self._grow(inode, content, size_bytes, now_ns if mtime_ns is None else mtime_ns, now_ns)
        return inode

    def _grow(self, inode: Inode, content: Content, size_bytes: int, mtime_ns: int, now_ns: int) -> None:
        """Whatever the quota: these bytes were acknowledged."""
        batch = Batch()
        self._resize(batch, inode, replace(content, size_bytes=size_bytes))
        inode.mtime_ns, inode.ctime_ns = mtime_ns, now_ns
        self._put_inode(batch, inode)
        self._write(batch)

    def publish(self, number: int, base: bytes, base_size: int, file_id: bytes, size_bytes: int, *, epoch: int,
                mtime_ns: int | None, requester: int, now_ns: int, hole_bytes: int = 0) -> Inode:
        """Give a file the content `file_id` that was made from `base` when that had `base_size` bytes, as its primary
        asks for at `epoch`. The replicas are those of `base`. Doing it again changes nothing.

        Raises NoSuchFile (removed, or in the trash), IsADirectory; Superseded, StaleEpoch, QuotaExceeded (the new
        content is then deleted).
        """
        inode = self.inode(number)
        content = inode.content
        if content is None:
            raise IsADirectory(f"inode {number} is a directory")
        if content.file_id == file_id:
            return inode
        self.refuse_in_trash(inode)
        batch = Batch()
        try:
            if content.file_id != base or content.size_bytes > base_size:
                raise Superseded(f"inode {number} has a newer content")
            require_primary(Configuration(content.epoch, content.replicas), epoch, requester)
            self._delete_later(batch, content, now_ns)
            self._resize(batch, inode, replace(content, file_id=file_id, size_bytes=size_bytes, epoch=epoch + 1,
                                               hole_bytes=hole_bytes, origin=content.first_version), enforce=True)
        except (Superseded, StaleEpoch, QuotaExceeded):
            self._delete_now(replace(content, file_id=file_id), now_ns)
            raise
        inode.mtime_ns = now_ns if mtime_ns is None else mtime_ns
        inode.ctime_ns = now_ns
        self._put_inode(batch, inode)
        self._write(batch)
        return inode

    def _delete_now(self, content: Content, now_ns: int) -> None:
        """Nobody can have it open."""
        batch = Batch()
        enqueue(batch, content, content.replicas, self._due_ns(batch, now_ns, 0))
        self._write(batch)

    def configure(self, number: int, file_id: bytes,
                  change: Callable[[Configuration], Configuration]) -> tuple[Inode, Content]:
        """Put `change` of the content's configuration in its place.

        Raises NoSuchFile (removed), StaleFile (another content), IsADirectory, and what `change` raises.
        """
        inode, content = self._content(number, file_id)
        before = Configuration(content.epoch, content.replicas)
        after = change(before)
        if after != before:
            content.epoch, content.replicas = after.epoch, after.replicas
            self._write_inode(inode)
        return inode, content

    def _content(self, number: int, file_id: bytes) -> tuple[Inode, Content]:
        inode = self.inode(number)
        if inode.content is None:
            raise IsADirectory(f"inode {number} is a directory")
        if inode.content.file_id != file_id:
            raise StaleFile(f"inode {number} has a new content: open the file again")
        return inode, inode.content

    def accept_length(self, number: int, file_id: bytes, size_bytes: int, holders: Sequence[int], *,
                      now_ns: int) -> bool:
        """Make a file as short as what is left of it on `holders`, of which the first in the set becomes the primary;
        whether anything changed. A file that has grown or changed meanwhile is left alone."""
        value = self._store.get(records.inode_key(number))
        inode = Inode.decode(number, value) if value is not None else None
        content = inode.content if inode is not None else None
        if inode is None or content is None or content.file_id != file_id or size_bytes >= content.size_bytes:
            return False
        good = [replica for replica in content.replicas if replica in holders]
        if not good:
            return False
        rest = [replica for replica in content.replicas if replica not in good]
        batch = Batch()
        self._resize(batch, inode, replace(content, size_bytes=size_bytes, replicas=(*good, *rest),
                                           epoch=content.epoch + 1, hole_bytes=min(content.hole_bytes, size_bytes)))
        inode.mtime_ns = inode.ctime_ns = now_ns
        self._put_inode(batch, inode)
        self._write(batch)
        return True

    def repair_length(self, number: int, file_id: bytes, size_bytes: int, reporter: int, *,
                      now_ns: int) -> bool:
        """Take over a length that a replica reports and no client committed; whether anything changed.

        Reports about removed or replaced files are ignored, and those of dataservers that are not the
        primary: they may hold an append that was never acknowledged.
        """
        value = self._store.get(records.inode_key(number))
        if value is None:
            return False
        inode = Inode.decode(number, value)
        content = inode.content
        if content is None or content.file_id != file_id or content.replicas[:1] != (reporter,):
            return False
        if size_bytes <= content.size_bytes:
            return False
        self._grow(inode, content, size_bytes, now_ns, now_ns)
        return True
