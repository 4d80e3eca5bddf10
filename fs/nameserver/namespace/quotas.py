"""Setting quotas, and moving what counts toward one under another.

What a directory holds when its quota is set is counted in steps, between which requests are answered: each entry is
counted in the batch that marks it, so that the counters are the sum of what is marked at any time. New entries are
marked by the directory they are made in. Where it had come to is not stored: what is marked already is passed over.
"""

from dataclasses import dataclass
from itertools import islice

from speedwell.fs import paths
from speedwell.fs.errors import CrossesQuota, DeviceBusy, NotADirectory
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.namespace.namespace_records import Inode
from speedwell.fs.nameserver.namespace.quota_accounting import QuotaAccounting
from speedwell.fs.nameserver.namespace.tree import Place, Tree
from speedwell.fs.proto.speedwell_pb2 import QuotaRecord
from speedwell.fs.store import Batch, Store

ENTRIES_PER_STEP = 500
"""Requests wait meanwhile: some milliseconds."""

MAX_MOVED = 1000
"""A directory with more below it does not move from quota to quota: rename fails as between filesystems, and mv(1)
copies it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may lie in a directory, with everything below it. None: as much as wants to."""

    size_bytes: int | None = None
    files: int | None = None


@dataclass(slots=True)
class Counting:
    """Directories to look at, each with the name up to which that is done, for the quota on inode `quota`."""

    directories: list[tuple[int, bytes]]
    quota: int


class Quotas:
    """The directories that quotas are set on, and what counts toward which."""

    def __init__(self, store: Store, tree: Tree, accounting: QuotaAccounting) -> None:
        self._store = store
        self._tree = tree
        self._accounting = accounting
        self._counting: Counting | None = None

    # -------------------------------------------------------------- set and asked for

    def set(self, path: bytes, limits: Limits) -> Inode:
        """Put limits on a directory, at once on what is made from now on; `count` counts the rest.

        Raises NoSuchFile, NotADirectory, DeviceBusy (what another quota is set on is still being counted).
        """
        directory = self._tree.lookup(path)
        if not directory.is_directory:
            raise NotADirectory(f"{paths.display(path)} is not a directory")
        record = self._accounting.find(directory.number)
        batch = Batch()
        if record is None:
            self._resume_counting()
            if self._counting is not None:
                raise DeviceBusy("another directory's quota is still being counted: try again")
            record = QuotaRecord(above=directory.quota, counting=True)
            self._accounting.put(batch, directory.number, record)
            self._accounting.move(batch, directory.quota, directory.number, 0, 1)
            record = self._accounting.get(directory.number, batch)
            directory.quota = directory.number
            batch.put(directory.key, directory.encode())
        _limit(record, limits)
        record.path = path
        self._accounting.put(batch, directory.number, record)
        self._accounting.any = True   # before the write: one that fails may have happened all the same
        self._store.write(batch)
        return directory

    def clear(self, path: bytes) -> bool:
        """Take the limits away; whether there were any. Raises NoSuchFile, NotADirectory."""
        directory = self._tree.lookup(path)
        record = self._accounting.find(directory.number) if directory.is_directory else None
        if record is None or not _is_limited(record):
            return False
        _limit(record, Limits())
        batch = Batch()
        self._accounting.put(batch, directory.number, record)
        self._store.write(batch)
        return True

    def of(self, path: bytes) -> list[QuotaRecord]:
        """The limited quotas that `path` and what is made in it count toward, the innermost first; each with the path
        that its directory has now. Raises NoSuchFile, NotADirectory."""
        inode = self._tree.lookup(path)
        found = []
        for number, record in self._accounting.chain(inode.quota):
            if _is_limited(record):
                record.path = self._tree.path_of(number)
                found.append(record)
        return found

    def limited(self) -> list[QuotaRecord]:
        """All limited ones, with the paths their directories had when they were set or renamed last."""
        limited = [record for _, record in self._accounting.all() if _is_limited(record)]
        return sorted(limited, key=lambda record: record.path)

    # -------------------------------------------------------------- counting what was there before

    def _resume_counting(self) -> None:
        """Begin a count, or go on with one that a restart or a failure ended."""
        if self._counting is None and self._accounting.any:
            number = next((number for number, record in self._accounting.all() if record.counting), None)
            if number is not None:
                self._counting = Counting([(number, b"")], number)

    def count(self, entries: int = ENTRIES_PER_STEP) -> bool:
        """One step of the count; whether there was one to do."""
        self._resume_counting()
        counting = self._counting
        if counting is None:
            return False
        batch = Batch()
        self._counting = None   # if anything fails, the next step begins anew
        more = self._count(counting, batch, entries)
        record = self._accounting.find(counting.quota, batch)
        if not more and record is not None:
            record.counting = False
            self._accounting.put(batch, counting.quota, record)
        self._store.write(batch)
        self._counting = counting if more else None
        return True

    def _count(self, counting: Counting, batch: Batch, entries: int) -> bool:
        """Whether there may be more."""
        record = self._accounting.find(counting.quota)
        if record is None or record.removed:
            return False
        while counting.directories and entries > 0:
            directory, after = counting.directories.pop()
            inode = self._tree.inode_in(batch, directory)
            if inode is None or inode.quota != counting.quota:
                continue   # removed or moved away meanwhile
            found = list(islice(self._tree.entries(directory, after), entries))
            if len(found) == entries:
                counting.directories.append((directory, records.dentry_name(found[-1][0])))
            entries -= len(found)
            for _, value in found:
                number = records.decode_dentry(value)[1]
                if self._mark(batch, number, record.above, counting.quota):
                    counting.directories.append((number, b""))
        return bool(counting.directories)

    def _mark(self, batch: Batch, number: int, old: int, new: int) -> bool:
        """Have an entry count toward `new` if it counted toward `old`; whether to look at what is below it."""
        inode = self._tree.existing_in(batch, number)
        if inode.is_directory and inode.quota == inode.number:
            inner = self._accounting.get(inode.number, batch)
            if inner.above == old:
                self._move_quota(batch, inode.number, inner, new, enforce=False)
            return False
        if inode.quota == old:
            self._requota(batch, inode, new, enforce=False)
        return inode.is_directory and inode.quota == new

    # -------------------------------------------------------------- renaming

    def requota_renamed(self, batch: Batch, inode: Inode, old: Place, new: Place) -> None:
        """Count a renamed file or directory where it goes. `inode` is written by the caller.

        Raises QuotaExceeded; CrossesQuota if it has names elsewhere, or too much below it.
        """
        if not self._accounting.any:
            return
        target = self._tree.existing_in(batch, new.parent).quota
        if inode.is_directory and inode.quota == inode.number:
            record = self._accounting.get(inode.number, batch)
            if record.above != target:
                self._refuse_counting(record, old.path)
                self._move_quota(batch, inode.number, record, target)
            record = self._accounting.get(inode.number, batch)
            record.path = self._tree.full_path(new.path)
            self._accounting.put(batch, inode.number, record)
        elif inode.quota != target:
            self._requota_tree(batch, inode, target, old.path)

    def refuse_exchange(self, old: Place, new: Place) -> None:
        """Raises CrossesQuota unless both can swap their places without changing what counts where."""
        if self._accounting.any and self._tree.existing(old.parent).quota != self._tree.existing(new.parent).quota:
            raise CrossesQuota(f"{paths.display(old.path)} and {paths.display(new.path)} count toward different "
                               "quotas: they cannot be exchanged")

    def refuse_link(self, inode: Inode, directory: int, path: bytes) -> None:
        """Raises CrossesQuota if a file would have names under different quotas."""
        if self._accounting.any and inode.quota != self._tree.existing(directory).quota:
            raise CrossesQuota(f"{paths.display(path)} counts toward another quota than the file: no link")

    def _requota_tree(self, batch: Batch, top: Inode, target: int, path: bytes) -> None:
        waiting, moved = [top], 0
        while waiting:
            inode = waiting.pop()
            moved += 1
            if moved > MAX_MOVED:
                raise CrossesQuota(f"{paths.display(path)} has more than {MAX_MOVED} files below it and would count "
                                   "toward another quota: copy it")
            if inode.is_directory and inode.quota == inode.number:
                record = self._accounting.get(inode.number, batch)
                self._refuse_counting(record, path)
                self._move_quota(batch, inode.number, record, target)
                continue
            if not inode.is_directory and inode.link_count > 1:
                raise CrossesQuota(f"{paths.display(path)} is or holds a file with several names, which would count "
                                   "toward another quota: copy it")
            self._requota(batch, inode, target)
            if inode.is_directory:
                for _, value in self._tree.entries(inode.number):
                    waiting.append(self._tree.existing_in(batch, records.decode_dentry(value)[1]))
                    if len(waiting) + moved > MAX_MOVED + 1:
                        break

    def _requota(self, batch: Batch, inode: Inode, quota: int, *, enforce: bool = True) -> None:
        self._accounting.move(batch, inode.quota, quota, inode.size_bytes, 1, enforce=enforce)
        inode.quota = quota
        batch.put(inode.key, inode.encode())

    def _move_quota(self, batch: Batch, directory: int, record: QuotaRecord, above: int, *,
                    enforce: bool = True) -> None:
        """Put a quota, with all that counts toward it, below another."""
        self._accounting.move(batch, record.above, above, record.used_bytes, record.used_files, enforce=enforce)
        record.above = above
        self._accounting.put(batch, directory, record)

    @staticmethod
    def _refuse_counting(record: QuotaRecord, path: bytes) -> None:
        if record.counting:
            raise CrossesQuota(f"{paths.display(path)}: what lies there is still being counted: try again later")


def _limit(record: QuotaRecord, limits: Limits) -> None:
    for field, limit in (("max_bytes", limits.size_bytes), ("max_files", limits.files)):
        if limit is None:
            record.ClearField(field)
        else:
            setattr(record, field, limit)


def _is_limited(record: QuotaRecord) -> bool:
    return record.HasField("max_bytes") or record.HasField("max_files")
