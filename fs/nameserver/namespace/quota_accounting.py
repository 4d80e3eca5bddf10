"""How much may lie below a directory: limits, and counters that every change keeps right.

Each inode names the innermost quota it counts toward (`Inode.quota`, the inode of the directory the quota was set
on; 0: none) and gets it from the directory it is made in, as with project quotas of ext4 and XFS. A quota knows the
one around it, so a change is counted in a few records whatever the depth. The counters lie in the batch of the
change itself: they are right after any crash. An inode counts from when it is made until its record goes, so also
while it is open without a name; the directory with the quota counts too.

A quota that was cleared goes on counting, without limits, until its directory is removed.
"""

from collections.abc import Iterator

from speedwell.fs import paths, units
from speedwell.fs.errors import QuotaExceeded, StorageFailed
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.proto.speedwell_pb2 import QuotaRecord
from speedwell.fs.store import Batch, Store, end_of_prefix


class QuotaAccounting:
    """Usage and limits of one namespace. One thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.any = next(self.all(), None) is not None
        """False: no inode counts toward a quota."""

    def all(self) -> Iterator[tuple[int, QuotaRecord]]:
        """(inode of the directory, its quota)"""
        stop = end_of_prefix(records.QUOTA_PREFIX)
        for key, value in self._store.iterate(records.QUOTA_PREFIX, stop):
            yield records.quota_directory(key), QuotaRecord.FromString(value)

    def find(self, directory: int, batch: Batch | None = None) -> QuotaRecord | None:
        """The quota set on `directory`, as it will be after `batch`."""
        key = records.quota_key(directory)
        value = batch.changes[key] if batch is not None and key in batch.changes else self._store.get(key)
        return None if value is None else QuotaRecord.FromString(value)

    def get(self, directory: int, batch: Batch | None = None) -> QuotaRecord:
        """Raises StorageFailed if there is none: an inode names it."""
        record = self.find(directory, batch)
        if record is None:
            raise StorageFailed(f"the record of the quota on inode {directory} is missing")
        return record

    def chain(self, quota: int, batch: Batch | None = None) -> list[tuple[int, QuotaRecord]]:
        """All quotas that what has `quota` counts toward, the innermost first."""
        found: list[tuple[int, QuotaRecord]] = []
        while quota:
            found.append((quota, self.get(quota, batch)))
            quota = found[-1][1].above
        return found

    def room(self, quota: int) -> int | None:
        """Bytes that may be added before a limit is reached; None: no limit."""
        rooms = [max(0, record.max_bytes - record.used_bytes) for _, record in self.chain(quota)
                 if record.HasField("max_bytes")]
        return min(rooms, default=None)

    def charge(self, batch: Batch, quota: int, size_bytes: int, files: int, *, enforce: bool = True) -> None:
        """Count what is added (or taken away, below zero) under `quota` in `batch`.

        Raises QuotaExceeded where something grows beyond its limit, unless it has happened already (not
        `enforce`).
        """
        self._add(batch, self.chain(quota, batch), size_bytes, files, enforce)

    def move(self, batch: Batch, old: int, new: int, size_bytes: int, files: int, *, enforce: bool = True) -> None:
        """Count under `new` what was counted under `old`. Raises QuotaExceeded if `enforce`."""
        before, after = self.chain(old, batch), self.chain(new, batch)
        stays = {number for number, _ in before} & {number for number, _ in after}
        self._add(batch, [each for each in before if each[0] not in stays], -size_bytes, -files, False)
        self._add(batch, [each for each in after if each[0] not in stays], size_bytes, files, enforce)

    def put(self, batch: Batch, directory: int, record: QuotaRecord) -> None:
        batch.put(records.quota_key(directory), record.SerializeToString())

    def directory_removed(self, batch: Batch, directory: int) -> None:
        """The quota goes with its directory; something may count toward it still, which is open without a name."""
        record = self.find(directory, batch)
        if record is None:
            return
        record.ClearField("max_bytes")
        record.ClearField("max_files")
        record.removed = True
        self._put_or_drop(batch, directory, record)

    def _add(self, batch: Batch, chain: list[tuple[int, QuotaRecord]], size_bytes: int, files: int,
             enforce: bool) -> None:
        for number, record in chain:
            record.used_bytes += size_bytes
            record.used_files += files
            if enforce:
                _check(record, size_bytes, files)
            self._put_or_drop(batch, number, record)

    def _put_or_drop(self, batch: Batch, directory: int, record: QuotaRecord) -> None:
        if record.removed and not record.used_files:
            batch.delete(records.quota_key(directory))
        else:
            self.put(batch, directory, record)


def _check(record: QuotaRecord, size_bytes: int, files: int) -> None:
    where = f"the quota on {paths.display(record.path)}"
    if size_bytes > 0 and record.HasField("max_bytes") and record.used_bytes > record.max_bytes:
        raise QuotaExceeded(f"{where} allows {units.size(record.max_bytes)}, this would be "
                            f"{units.size(record.used_bytes - record.max_bytes)} too much")
    if files > 0 and record.HasField("max_files") and record.used_files > record.max_files:
        raise QuotaExceeded(f"{where} allows {record.max_files} files and directories, this would make it "
                            f"{record.used_files}")
