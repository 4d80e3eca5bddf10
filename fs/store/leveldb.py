"""The store on disk: LevelDB, embedded in the process."""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import plyvel

from speedwell.fs.errors import DatabaseDamaged, NoSpace, StorageFailed
from speedwell.fs.group_commit import GroupCommit
from speedwell.fs.store.contract import Batch
from speedwell.fs.store.leveldb_log import check_records

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 8 << 20
BLOCK_CACHE_BYTES = 24 << 20
BLOOM_FILTER_BITS = 10
RECOVERY_BYTES = 4 * WRITE_BUFFER_BYTES
"""Free space that opening needs to bring the log into a table, with room to go on."""


class LevelDBStore:
    """See `speedwell.fs.store.contract.Store`.

    A written batch is in the operating system's hands when `write` returns, so it survives kill -9;
    with `sync` it is on the disk and survives a power failure, at the price of one fsync per batch.

    After a failed write (a full disk) nothing is written to the same log: LevelDB could not read what comes
    after a torn record. The store serves reads, and the first write after there is space again opens the
    database anew; that write fails too, as the caller's view may be older than the disk's.

    Everything read from the disk is compared with its checksums; what differs is DatabaseDamaged.
    """

    def __init__(self, directory: Path, *, sync: bool = False, create: bool = True,
                 write_buffer_bytes: int = WRITE_BUFFER_BYTES, block_cache_bytes: int = BLOCK_CACHE_BYTES) -> None:
        """Opens the database, or makes it unless `create` is False. Raises StorageFailed saying what is wrong with
        `directory`, DatabaseDamaged if that is what the database is, or if it is not there with `create` False."""
        self._directory = directory
        self._sync = sync
        self._create = create
        self._write_buffer_bytes = write_buffer_bytes
        self._block_cache_bytes = block_cache_bytes
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFailed(f"cannot make the directory {directory}: {error.strerror}") from error
        if not os.access(directory, os.W_OK | os.X_OK):
            raise StorageFailed(f"the directory {directory} is not writable")
        self._write_failed = False
        self._syncing = GroupCommit()
        self._database = self._open()

    def _open(self) -> Any:
        created = self._create and not any(self._directory.glob("[CM0-9]*"))   # CURRENT, MANIFEST, tables, logs
        try:
            if not created:
                self._check_manifest()
            return plyvel.DB(
                str(self._directory), create_if_missing=created, paranoid_checks=True,
                write_buffer_size=self._write_buffer_bytes, lru_cache_size=self._block_cache_bytes,
                bloom_filter_bits=BLOOM_FILTER_BITS)
        except (plyvel.Error, OSError) as error:
            raise self._opening_failed(error) from error

    def _check_manifest(self) -> None:
        """LevelDB takes a cut-off end of the list of its tables for a crash and goes on without it. It writes the
        list with fsync, so that is damage. Raises DatabaseDamaged, OSError."""
        try:
            name = (self._directory / "CURRENT").read_text("ascii").removesuffix("\n")
            check_records((self._directory / name).read_bytes())
        except FileNotFoundError as error:
            raise DatabaseDamaged(f"the database in {self._directory} is damaged: {error.filename} is missing"
                                  ) from None
        except ValueError as error:
            raise DatabaseDamaged(f"the database in {self._directory} is damaged: the list of its tables: {error}"
                                  ) from None

    def _opening_failed(self, error: Exception) -> StorageFailed:
        text = str(error)
        if "lock" in text.lower() and "LOCK" in text:
            return StorageFailed(f"the database in {self._directory} is in use by another process")
        if _is_damage(error):
            return DatabaseDamaged(f"the database in {self._directory} is damaged: {text}")
        return StorageFailed(f"cannot open the database in {self._directory}: {text}")

    @property
    def write_failed(self) -> bool:
        """Whether a write failed and the database was not opened again since."""
        return self._write_failed

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._database.get(key, verify_checksums=True)
        except (plyvel.Error, RuntimeError) as error:
            raise self._failed("read", error) from error
        return value

    def get_all(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        found = dict(self.iterate(min(keys), max(keys) + b"\0")) if keys else {}
        return [found.get(key) for key in keys]

    def iterate(self, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return self._iterate(start, stop, include_value=True)

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return self._iterate(start, stop, include_value=False)

    def _iterate(self, start: bytes, stop: bytes | None, include_value: bool) -> Iterator[Any]:
        try:
            iterator = self._database.iterator(start=start, stop=stop, include_value=include_value,
                                               verify_checksums=True)
        except (plyvel.Error, RuntimeError) as error:
            raise self._failed("read", error) from error
        return self._read(iterator)

    def _read(self, iterator: Any) -> Iterator[Any]:
        with iterator:
            try:
                yield from iterator
            except (plyvel.Error, RuntimeError) as error:
                raise self._failed("read", error) from error

    def write(self, batch: Batch) -> None:
        if self._write_failed:
            self._recover()
        try:
            with self._database.write_batch(transaction=True, sync=self._sync) as changes:
                for key, value in batch.changes.items():
                    if value is None:
                        changes.delete(key)
                    else:
                        changes.put(key, value)
        except (plyvel.Error, RuntimeError) as error:
            self._write_failed = not self._database.closed
            raise self._failed("write", error) from error

    def sync(self) -> None:
        # LevelDB forces its tables to the disk by itself; a log that it deletes meanwhile is in one.
        self._syncing.share(self._sync_logs)

    def _sync_logs(self) -> None:
        try:
            for log_file in self._directory.glob("*.log"):
                with contextlib.suppress(FileNotFoundError):
                    descriptor = os.open(log_file, os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        os.fdatasync(descriptor)
                    finally:
                        os.close(descriptor)
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StorageFailed(f"cannot force the database in {self._directory} to the disk: {error.strerror}"
                                ) from error

    def _recover(self) -> None:
        """Open the database anew. Always raises: NoSpace while there is too little, StorageFailed then."""
        free_bytes = shutil.disk_usage(self._directory).free
        if free_bytes < RECOVERY_BYTES:
            raise NoSpace(f"the disk of the database in {self._directory} is full: {free_bytes >> 20} MiB are "
                          f"free, {RECOVERY_BYTES >> 20} are needed")
        self._database.close()
        self._database = self._open()
        self._write_failed = False
        log.warning("the database in %s was opened again after a failed write", self._directory)
        raise StorageFailed(f"the database in {self._directory} has just recovered from a failed write: "
                            "try again")

    def close(self) -> None:
        self._database.close()

    def _failed(self, verb: str, error: Exception) -> StorageFailed | NoSpace:
        if self._database.closed:
            return StorageFailed("the store is closed")
        if "No space left" in str(error):
            return NoSpace(f"the disk of the database in {self._directory} is full")
        if _is_damage(error):
            return DatabaseDamaged(f"the database in {self._directory} is damaged: {error}")
        return StorageFailed(f"cannot {verb} the database in {self._directory}: {error}")


def _is_damage(error: Exception) -> bool:
    """Whether the database, not the disk or its use, is what is wrong. A table that is missing is an IO error that
    names it; so is one whose footer points to a place that no file has."""
    text = str(error)
    return (isinstance(error, plyvel.CorruptionError) or "Corruption" in text or "does not exist" in text
            or (any(reason in text for reason in ("No such file", "Invalid argument"))
                and any(part in text for part in (".ldb", ".sst", ".log", "MANIFEST"))))
