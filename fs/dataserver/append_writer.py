"""The bytes of one append on their way into a file."""

import contextlib
import errno
import os
from collections.abc import Iterator

from fs.checksums import BLOCK_BYTES, EMPTY, SUM_BYTES, extended, pack
from fs.dataserver.store import disk_error
from fs.dataserver.stored_file import StoredFile, head


class AppendWriter:
    """Bytes of one append behind a file's committed length; the caller has the file's turn.

    Ends with `commit`, which makes them part of the file, or `abort`, which leaves no trace. `prepare` does
    beforehand what of the commit can fail.
    """

    def __init__(self, file: StoredFile, sync: bool = False) -> None:
        self.file = file
        self.offset, tail = file.committed
        self.end = self.offset
        self._sync = sync
        self._descriptor = -1
        self._chunk = -1
        self._touched: list[int] = []
        self._prepared = False
        # The sums of the block in which the committed bytes end, and of all after it.
        self._sums: list[int] = [tail] if self.offset else []
        self._room = -self.offset % BLOCK_BYTES     # bytes that the last of them still takes

    def write(self, data: memoryview) -> None:
        """Add bytes. Raises NoSpace or StorageFailed; only `abort` is useful then."""
        self._sum(data)
        try:
            while data:
                chunk, start = divmod(self.end, self.file.chunk_size)
                if chunk != self._chunk:
                    self._next_chunk(chunk)
                written = os.pwrite(self._descriptor, data[:self.file.chunk_size - start], start)
                self.end += written
                data = data[written:]
        except OSError as error:
            raise disk_error(error, f"cannot write to {self.file.file_id}") from None

    def segments(self) -> Iterator[tuple[int, int, int]]:
        """Where the bytes of this append are, as `StoredFile.segments`."""
        return self.file.segments(self.offset, self.end - self.offset)

    def prepare(self) -> None:
        """Put everything on the disk that a commit needs, so that it fails for want of space here or never.

        Raises NoSpace or StorageFailed; only `abort` is useful then.
        """
        self._prepared = True
        try:
            if self._sync and self._descriptor >= 0:
                os.fsync(self._descriptor)
            self._close()
            if len(self._sums) > 1:
                first = (self.offset - 1) // BLOCK_BYTES if self.offset else 0
                _write_at(f"{self.file.directory}/sums", pack(self._sums[:-1]), first * SUM_BYTES, self._sync)
        except OSError as error:
            raise disk_error(error, f"cannot write to {self.file.file_id}") from None

    def commit(self) -> None:
        """Make the bytes visible. Raises StorageFailed, and they are not."""
        if not self._prepared:
            self.prepare()
        try:
            # Length and sum of the last block in one write: they agree whenever this process dies.
            _write_at(f"{self.file.directory}/meta", head(self.end, self._sums[-1]), 0, self._sync, create=False)
            if self._sync:
                sync_directory(self.file.directory)
        except OSError as error:
            raise disk_error(error, f"cannot commit to {self.file.file_id}") from None
        self.file.committed = self.end, self._sums[-1]

    def abort(self) -> None:
        """Drop the bytes and give their space back. Never raises."""
        self._close()
        for chunk in reversed(self._touched):
            kept = max(0, self.offset - chunk * self.file.chunk_size)
            with contextlib.suppress(OSError):
                if kept:
                    os.truncate(self.file.chunk(chunk), kept)
                else:
                    os.unlink(self.file.chunk(chunk))  # noqa: PTH108
        self._touched.clear()
        self.end = self.offset

    def _sum(self, data: memoryview) -> None:
        while data:
            if not self._room:
                self._sums.append(EMPTY)
                self._room = BLOCK_BYTES
            part = data[:self._room]
            self._sums[-1] = extended(self._sums[-1], part)
            self._room -= len(part)
            data = data[len(part):]

    def _next_chunk(self, chunk: int) -> None:
        if self._sync and self._descriptor >= 0:
            os.fsync(self._descriptor)
        self._close()
        self._descriptor = os.open(self.file.chunk(chunk), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._chunk = chunk
        self._touched.append(chunk)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = self._chunk = -1


def sync_directory(directory: str) -> None:
    """Force the names in a directory to the disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_at(path: str, data: bytes, offset: int, sync: bool, create: bool = True) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
    try:
        if os.pwrite(descriptor, data, offset) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
