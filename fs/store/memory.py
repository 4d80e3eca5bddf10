"""A store in memory, for tests and throw-away namespaces."""

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from speedwell.fs.errors import StorageFailed
from speedwell.fs.store.contract import Batch


class MemoryStore:
    """See `speedwell.fs.store.contract.Store`."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._lock = threading.Lock()
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        self._check_open()
        return self._values.get(key)

    def get_all(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return [self.get(key) for key in keys]

    def iterate(self, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        with self._lock:
            end = len(self._keys) if stop is None else bisect_left(self._keys, stop)
            keys = self._keys[bisect_left(self._keys, start):end]
            return iter([(key, self._values[key]) for key in keys])

    def write(self, batch: Batch) -> None:
        self._check_open()
        with self._lock:
            for key, value in batch.changes.items():
                if value is not None:
                    if key not in self._values:
                        insort(self._keys, key)
                    self._values[key] = value
                elif self._values.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]

    def sync(self) -> None:
        """There is no disk."""

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StorageFailed("the store is closed")
