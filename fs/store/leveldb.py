"""The store on disk: LevelDB, embedded in the process."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plyvel

from fs.errors import NoSpace, StorageFailed
from fs.store.interface import Batch

WRITE_BUFFER_BYTES = 8 << 20
BLOCK_CACHE_BYTES = 24 << 20
BLOOM_FILTER_BITS = 10


class LevelDBStore:
    """See `fs.store.interface.Store`.

    A written batch is in the operating system's hands when `write` returns, so it survives kill -9;
    with `sync` it is on the disk and survives a power failure, at the price of one fsync per batch.
    """

    def __init__(self, directory: Path, *, sync: bool = False) -> None:
        """Opens or makes the database; raises StorageFailed saying what is wrong with `directory`."""
        self._directory = directory
        self._sync = sync
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFailed(f"cannot make the directory {directory}: {error.strerror}") from error
        if not os.access(directory, os.W_OK | os.X_OK):
            raise StorageFailed(f"the directory {directory} is not writable")
        try:
            self._database: Any = plyvel.DB(
                str(directory), create_if_missing=True, write_buffer_size=WRITE_BUFFER_BYTES,
                lru_cache_size=BLOCK_CACHE_BYTES, bloom_filter_bits=BLOOM_FILTER_BITS)
        except plyvel.Error as error:
            raise self._opening_failed(error) from error

    def _opening_failed(self, error: Exception) -> StorageFailed:
        text = str(error)
        if "lock" in text.lower() and "LOCK" in text:
            return StorageFailed(f"the database in {self._directory} is in use by another process")
        return StorageFailed(f"cannot open the database in {self._directory}: {text}")

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._database.get(key)
        except (plyvel.Error, RuntimeError) as error:
            raise self._failed("read", error) from error
        return value

    def iterate(self, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        try:
            iterator = self._database.iterator(start=start, stop=stop)
        except (plyvel.Error, RuntimeError) as error:
            raise self._failed("read", error) from error
        return self._pairs(iterator)

    def _pairs(self, iterator: Any) -> Iterator[tuple[bytes, bytes]]:
        with iterator:
            try:
                yield from iterator
            except (plyvel.Error, RuntimeError) as error:
                raise self._failed("read", error) from error

    def write(self, batch: Batch) -> None:
        try:
            with self._database.write_batch(transaction=True, sync=self._sync) as changes:
                for key, value in batch.changes.items():
                    if value is None:
                        changes.delete(key)
                    else:
                        changes.put(key, value)
        except (plyvel.Error, RuntimeError) as error:
            raise self._failed("write", error) from error

    def close(self) -> None:
        self._database.close()

    def _failed(self, verb: str, error: Exception) -> StorageFailed | NoSpace:
        if self._database.closed:
            return StorageFailed("the store is closed")
        if "No space left" in str(error):
            return NoSpace(f"the disk of the database in {self._directory} is full")
        return StorageFailed(f"cannot {verb} the database in {self._directory}: {error}")
