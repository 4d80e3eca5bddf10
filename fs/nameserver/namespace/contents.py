"""The contents of regular files: which one a file has, how long it is, and who holds it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from speedwell.fs import paths
from speedwell.fs.errors import IsADirectory, NoSuchFile, QuotaExceeded, StaleEpoch, StaleFile, Superseded
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.deletions import Deletions
from speedwell.fs.nameserver.namespace.namespace_records import Content, Inode
from speedwell.fs.nameserver.namespace.quota_accounting import QuotaAccounting
from speedwell.fs.nameserver.namespace.trash import refuse_in_trash
from speedwell.fs.nameserver.namespace.tree import Tree
from speedwell.fs.nameserver.replicas.replica_set import Configuration, require_primary
from speedwell.fs.store import Batch, Store


class Contents:
    """`now_ns` is the time of the change."""

    def __init__(self, store: Store, tree: Tree, accounting: QuotaAccounting, deletions: Deletions) -> None:
        self._store = store
        self._tree = tree
        self._accounting = accounting
        self._deletions = deletions

    def of(self, number: int) -> Content | None:
        """Of an inode; None if it has none, or was removed."""
        try:
            return self._tree.inode(number).content
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

    def truncate(self, path: bytes, *, new_content: Callable[[Content], Content], now_ns: int) -> Inode:
        """Gives the file the new content that `new_content` makes from the old one.

        Raises NoSuchFile, NotADirectory, IsADirectory.
        """
        inode = self._tree.lookup(path)
        if inode.content is None:
            raise IsADirectory(f"{paths.display(path)} is a directory")
        refuse_in_trash(inode)
        batch = Batch()
        self._deletions.later(batch, inode.content, now_ns)
        self._resize(batch, inode, new_content(inode.content))
        inode.mtime_ns = inode.ctime_ns = now_ns
        batch.put(inode.key, inode.encode())
        self._store.write(batch)
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
            inode = self._tree.inode(number)
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
        batch.put(inode.key, inode.encode())
        self._store.write(batch)

    def publish(self, number: int, base: bytes, base_size: int, file_id: bytes, size_bytes: int, *, epoch: int,
                mtime_ns: int | None, requester: int, now_ns: int, hole_bytes: int = 0) -> Inode:
        """Give a file the content `file_id` that was made from `base` when that had `base_size` bytes, as its primary
        asks for at `epoch`. The replicas are those of `base`. Doing it again changes nothing.

        Raises NoSuchFile (removed, or in the trash), IsADirectory; Superseded, StaleEpoch, QuotaExceeded (the new
        content is then deleted).
        """
        inode = self._tree.inode(number)
        content = inode.content
        if content is None:
            raise IsADirectory(f"inode {number} is a directory")
        if content.file_id == file_id:
            return inode
        refuse_in_trash(inode)
        batch = Batch()
        try:
            if content.file_id != base or content.size_bytes > base_size:
                raise Superseded(f"inode {number} has a newer content")
            require_primary(Configuration(content.epoch, content.replicas), epoch, requester)
            self._deletions.later(batch, content, now_ns)
            self._resize(batch, inode, replace(content, file_id=file_id, size_bytes=size_bytes, epoch=epoch + 1,
                                               hole_bytes=hole_bytes, origin=content.first_version), enforce=True)
        except (Superseded, StaleEpoch, QuotaExceeded):
            batch = Batch()
            self._deletions.now(batch, replace(content, file_id=file_id), now_ns)
            self._store.write(batch)
            raise
        inode.mtime_ns = now_ns if mtime_ns is None else mtime_ns
        inode.ctime_ns = now_ns
        batch.put(inode.key, inode.encode())
        self._store.write(batch)
        return inode

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
            self._tree.write(inode)
        return inode, content

    def _content(self, number: int, file_id: bytes) -> tuple[Inode, Content]:
        inode = self._tree.inode(number)
        if inode.content is None:
            raise IsADirectory(f"inode {number} is a directory")
        if inode.content.file_id != file_id:
            raise StaleFile(f"inode {number} has a new content: open the file again")
        return inode, inode.content

    def accept_length(self, number: int, file_id: bytes, size_bytes: int, holders: Sequence[int], *,
                      now_ns: int) -> bool:
        """Make a file as short as what is left of it on `holders`, of which the first in the set becomes the primary;
        whether anything changed. A file that has grown or changed meanwhile is left alone."""
        try:
            inode, content = self._content(number, file_id)
        except (NoSuchFile, IsADirectory, StaleFile):
            return False
        good = [replica for replica in content.replicas if replica in holders]
        if size_bytes >= content.size_bytes or not good:
            return False
        rest = [replica for replica in content.replicas if replica not in good]
        batch = Batch()
        self._resize(batch, inode, replace(content, size_bytes=size_bytes, replicas=(*good, *rest),
                                           epoch=content.epoch + 1, hole_bytes=min(content.hole_bytes, size_bytes)))
        inode.mtime_ns = inode.ctime_ns = now_ns
        batch.put(inode.key, inode.encode())
        self._store.write(batch)
        return True

    def repair_length(self, number: int, file_id: bytes, size_bytes: int, reporter: int, *,
                      now_ns: int) -> bool:
        """Take over a length that a replica reports and no client committed; whether anything changed.

        Reports about removed or replaced files are ignored, and those of dataservers that are not the
        primary: they may hold an append that was never acknowledged.
        """
        try:
            inode, content = self._content(number, file_id)
        except (NoSuchFile, IsADirectory, StaleFile):
            return False
        if content.replicas[:1] != (reporter,) or size_bytes <= content.size_bytes:
            return False
        self._grow(inode, content, size_bytes, now_ns, now_ns)
        return True

    def _resize(self, batch: Batch, inode: Inode, content: Content, *, enforce: bool = False) -> None:
        """Put `content` in the place of the inode's. Raises QuotaExceeded if it is longer and `enforce`."""
        if inode.quota:
            self._accounting.charge(batch, inode.quota, content.size_bytes - inode.size_bytes, 0, enforce=enforce)
        inode.content = content
