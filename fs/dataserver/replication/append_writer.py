"""The bytes of one append on their way into a file."""

import contextlib
import os
from collections.abc import Iterator

from speedwell.fs.checksums import BLOCK_BYTES, EMPTY, SUM_BYTES, digest, extended, pack
from speedwell.fs.dataserver.disk.disk_errors import disk_error, write_at
from speedwell.fs.dataserver.disk.small_file import enlarge
from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.dataserver.disk.version_file import SMALL_BYTES, SMALL_DATA_AT

_ZEROS = bytes(BLOCK_BYTES)


class AppendWriter:
    """Bytes of one append behind a file's committed length; the caller has the file's turn.

    With `holes`, pieces of zeros become holes on the disk: for copies of what may be a sparse file. Ends with
    `commit`, which makes them part of the file, or `abort`, which leaves no trace. `prepare` does beforehand what
    of the commit can fail.
    """

    def __init__(self, file: StoredFile, *, holes: bool = False) -> None:
        self.file = file
        self._holes = holes
        self.offset, tail = file.committed
        self.end = self.offset
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
        self.file.note_written(len(data))
        try:
            if self.file.small and self._put_small(data):
                return
            while data:
                chunk, start = divmod(self.end, self.file.chunk_size)
                if chunk != self._chunk:
                    self._next_chunk(chunk)
                part = data[:self.file.chunk_size - start]
                if self._holes and is_zeros(part):
                    written = self._extend(start, len(part))
                else:
                    written = os.pwrite(self._descriptor, part, start)
                self.end += written
                data = data[written:]
        except OSError as error:
            raise disk_error(error, f"cannot write to {self.file.file_id}") from None

    @property
    def digest(self) -> int:
        """Of the sums of the blocks from the one on in which the append begins (`StoredFile.digest`)."""
        whole_before = bool(self.offset) and self.offset % BLOCK_BYTES == 0
        return digest(pack(self._sums[whole_before:]))

    def segments(self) -> Iterator[tuple[int, int, int]]:
        """Where the bytes of this append are, as `StoredFile.segments`."""
        return self.file.segments(self.offset, self.end - self.offset)

    def prepare(self) -> None:
        """Put everything on the disk that a commit needs, so that it fails for want of space here or never.

        Raises NoSpace or StorageFailed; only `abort` is useful then.
        """
        self._prepared = True
        try:
            self._close()
            if len(self._sums) > 1:
                first = (self.offset - 1) // BLOCK_BYTES if self.offset else 0
                path, begin = self.file.sums_place()
                write_at(path, begin + first * SUM_BYTES, pack(self._sums[:-1]), sync=False)
        except OSError as error:
            raise disk_error(error, f"cannot write to {self.file.file_id}") from None

    def commit(self) -> None:
        """Make the bytes visible. Raises StorageFailed, and they are not."""
        if not self._prepared:
            self.prepare()
        try:
            # Length and sum of the last block in one write: they agree whenever this process dies.
            self.file.write_head(self.end, self._sums[-1])
        except OSError as error:
            raise disk_error(error, f"cannot commit to {self.file.file_id}") from None
        self.file.committed = self.end, self._sums[-1]

    def abort(self) -> None:
        """Drop the bytes and give their space back. Never raises."""
        self._close()
        if self.file.small and self.end > self.offset:
            with contextlib.suppress(OSError):
                os.truncate(self.file.record, SMALL_DATA_AT + self.offset)
        for chunk in reversed(self._touched):
            kept = max(0, self.offset - chunk * self.file.chunk_size)
            with contextlib.suppress(OSError):
                if kept:
                    os.truncate(self.file.chunk(chunk), kept)
                else:
                    os.unlink(self.file.chunk(chunk))  # noqa: PTH108
        self._touched.clear()
        self.end = self.offset

    def _put_small(self, data: memoryview) -> bool:
        """Write to a small file; False if it has a directory now, as the bytes are too many. Raises OSError."""
        if self.end + len(data) > SMALL_BYTES:
            self._close()
            if self.end:
                self._touched.append(0)
            enlarge(self.file, self.end)
            return False
        if self._descriptor < 0:
            kept = self.file.descriptor
            self._descriptor = os.dup(kept) if kept >= 0 else os.open(self.file.record, os.O_WRONLY | os.O_CLOEXEC)
        while data:
            written = os.pwrite(self._descriptor, data, SMALL_DATA_AT + self.end)
            self.end += written
            data = data[written:]
        return True

    def _extend(self, start: int, count: int) -> int:
        """Make the chunk file `count` bytes longer than `start` with a hole there. Raises OSError."""
        os.ftruncate(self._descriptor, start)   # what an append that did not commit has left is no zeros
        os.ftruncate(self._descriptor, start + count)
        return count

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
        self._close()
        self._descriptor = os.open(self.file.chunk(chunk), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._chunk = chunk
        self._touched.append(chunk)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = self._chunk = -1


def is_zeros(data: memoryview) -> bool:
    """Whether all bytes are 0. A look at both ends spares most others the comparison."""
    return not data[0] and not data[-1] and not any(
        bytes(data[start:start + len(_ZEROS)]) != _ZEROS[:len(data) - start]
        for start in range(0, len(data), len(_ZEROS)))
