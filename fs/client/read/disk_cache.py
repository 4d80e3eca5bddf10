"""Blocks of files that were read, on the local disk.

What a content (file id) has at an offset never changes as long as it only grows, and a change anywhere else makes
another content; an operator who cuts a damaged file raises its epoch. So a block is right for ever under its content,
epoch and number. It ends with its sum, of which the name is a part: what is altered, torn or under another name is
never given out.
"""

import errno
import fcntl
import itertools
import logging
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from speedwell.fs.checksums import EMPTY, SUM_BYTES, Data, extended, pack
from speedwell.fs.client.metrics import Metrics
from speedwell.fs.client.names.cache_order import LeastRecentlyUsed
from speedwell.fs.errors import InvalidArgument

log = logging.getLogger(__name__)

BLOCK_BYTES = 256 << 10
DEFAULT_CAPACITY_BYTES = 10 << 30
DISK_BLOCK_BYTES = 4096
_KEY = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.\d+\.\d+")
_PARTIAL = re.compile(r"partial-\d+")


class DiskCache:
    """One process's cache in a directory of its own. Thread-safe. What goes wrong on the disk is counted in
    `cache_failures`, and the block is one that is not there."""

    def __init__(self, directory: Path, capacity_bytes: int, metrics: Metrics) -> None:
        """Takes over what another process left there. Raises InvalidArgument for a directory that is in use, others
        can enter, or cannot be made."""
        self._directory = directory
        self._metrics = metrics
        self._order = LeastRecentlyUsed(capacity_bytes)
        self._numbers = itertools.count()
        self._guard = threading.Lock()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._require_own()
                for key, size_bytes in self._found():
                    self._remove(self._order.add(key, size_bytes))
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise InvalidArgument(f"cache_directory: {directory}: {error.strerror}") from None

    def close(self) -> None:
        """Let another process have the directory. Safe to call again."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def __contains__(self, key: str) -> bool:
        return key in self._order

    def get(self, key: str) -> bytes | None:
        """What is kept of a block."""
        try:
            content = self._path(key).read_bytes()
            os.utime(self._path(key))   # the order that the next process begins with
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._failed("read", error)
            self._forget(key)
            return None
        block = content[:-SUM_BYTES]
        if content[-SUM_BYTES:] != _sum(key, block):
            self._metrics.add(cache_damaged=1)
            log.warning("the cached block %s has other bytes than were stored: it is fetched again", key)
            self._forget(key)
            return None
        with self._guard:
            self._order.use(key)
        return block

    def put(self, key: str, block: Data) -> None:
        """Keep a block, in place of others if need be."""
        partial = f"partial-{next(self._numbers)}"
        path, size_bytes = self._directory / partial, _on_disk(len(block) + SUM_BYTES)
        with self._guard:
            gone = self._order.add(partial, size_bytes)
        self._remove(gone)
        if partial in gone:
            return
        try:
            self._path(key).parent.mkdir(mode=0o700, exist_ok=True)
            with path.open("xb", buffering=0) as file:
                if file.write(block) != len(block) or file.write(_sum(key, block)) != SUM_BYTES:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with self._guard:
                path.rename(self._path(key))
                self._order.remove(partial)
                gone = self._order.add(key, size_bytes)
            self._remove(gone)
        except OSError as error:
            self._failed("written", error)
            with self._guard:
                self._order.remove(partial)
            with suppress(OSError):
                path.unlink()

    # ------------------------------------------------------------------ private

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / key

    def _require_own(self) -> None:
        status = os.fstat(self._lock)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise InvalidArgument(f"cache_directory: {self._directory} must be yours alone (chmod 700)")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgument(f"cache_directory: {self._directory} is in use by another mount; "
                                  "each needs its own") from None

    def _found(self) -> Iterator[tuple[str, int]]:
        """What is there, last used last; what an end in the middle left goes."""
        found = []
        for place, _, names in os.walk(self._directory):
            for name in names:
                path = Path(place, name)
                if _KEY.fullmatch(name) and path == self._path(name):
                    status = path.stat()
                    found.append((status.st_mtime_ns, name, _on_disk(status.st_size)))
                elif _PARTIAL.fullmatch(name) and path.parent == self._directory:
                    path.unlink()
        for _, key, size_bytes in sorted(found):
            yield key, size_bytes

    def _forget(self, key: str) -> None:
        with self._guard:
            self._remove([key])
            self._order.remove(key)

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            try:
                self._path(key).unlink(missing_ok=True)
            except OSError as error:
                self._failed("removed", error)

    def _failed(self, what: str, error: OSError) -> None:
        if not self._metrics.cache_failures:
            log.warning("a block of the cache %s cannot be %s: %s", self._directory, what, error.strerror)
        self._metrics.add(cache_failures=1)


def block_key(file_id: str, epoch: int, number: int) -> str:
    return f"{file_id}.{epoch}.{number}"


def _sum(key: str, block: Data) -> bytes:
    return pack([extended(extended(EMPTY, key.encode()), block)])


def _on_disk(size_bytes: int) -> int:
    return -(-size_bytes // DISK_BLOCK_BYTES) * DISK_BLOCK_BYTES
