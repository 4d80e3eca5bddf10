"""The batches that a store has written, by number, for those who keep a copy of it.

A directory of segments of a fixed size, each mapped into memory while it is written: a record costs a copy and no
system call, and is in the operating system's hands at once, so it survives kill -9. Segments are made with their
space on the disk, so writing to one cannot fail. A segment is named for its first record's number.
"""

import errno
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from speedwell.fs.errors import NoSpace, StorageFailed
from speedwell.fs.store.change_encoding import HEAD_BYTES, MalformedRecord, decode_records, encode_record, record_head

SEGMENT_BYTES = 1 << 20
MAX_SEGMENTS = 128
"""128 MiB: who is further behind gets everything anew."""

MAX_PLACES = 64


class Journal:
    """Records with consecutive numbers. One writer; readers in any thread.

    `last` is the number of the last record, `first` that of the first one that is still there.
    """

    def __init__(self, directory: Path, *, last: int, segment_bytes: int = SEGMENT_BYTES,
                 max_segments: int = MAX_SEGMENTS) -> None:
        """Opens the journal, or makes one whose next record is `last` + 1. Raises StorageFailed, NoSpace."""
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._max_segments = max_segments
        self._starts: list[int] = []      # first record numbers of the segments
        self._written: mmap.mmap | None = None
        self._end = 0                     # bytes written in the last segment
        self._changed = threading.Lock()
        self._places: dict[int, tuple[int, int]] = {}   # where readers go on: behind record: segment, offset
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._starts = sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())
            self.last = last
            if self._starts:
                self._open_last()
        except OSError as error:
            raise self._failed(error) from error

    @property
    def first(self) -> int:
        return self._starts[0] if self._starts else self.last + 1

    def append(self, changes: bytes) -> int:
        """Write the next record; returns its number. Raises NoSpace, StorageFailed: then nothing is written."""
        record = encode_record(self.last + 1, changes)
        if self._written is None or self._end + len(record) > len(self._written):
            self._begin_segment(len(record))
        assert self._written is not None
        self._written[self._end:self._end + len(record)] = record
        self._end += len(record)
        self.last += 1
        return self.last

    def take_back(self, last: int) -> None:
        """Forget the record after `last`, if there is one: it is the last."""
        if self.last <= last:
            return
        with self._changed:
            assert self._written is not None and self.last == last + 1
            position = self._position(self._written, self.last)
            self._places.clear()
            self._written[position:self._end] = bytes(self._end - position)
            self._end = position
            self.last = last

    def read(self, after: int, until: int, limit_bytes: int) -> bytes | None:
        """Records behind number `after` up to number `until`: as many as fit into `limit_bytes`, one at least if
        there is one. None if the first of them is not there any more. Raises StorageFailed."""
        if after >= until:
            return b""
        with self._changed:
            place = self._places.pop(after, None) or self._place_of(after + 1)
            last_end = self._end if self._starts and place and place[0] == self._starts[-1] else None
        if place is None:
            return None
        start, begin = place
        try:
            data = self._bytes(start, begin, limit_bytes if last_end is None else min(limit_bytes, last_end - begin))
            end, number = 0, after
            while number < until:
                sequence, size = record_head(data, end)
                if sequence != number + 1:
                    break
                if end + size > len(data):
                    if end:
                        break
                    data = self._bytes(start, begin, size)   # one record that is larger than the limit
                end, number = end + size, sequence
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error) from error
        if number == after:
            if last_end is None and self._place_of(after + 1, behind=start):
                with self._changed:
                    self._places[after] = (after + 1, 0)   # the next one is in the next segment
                return self.read(after, until, limit_bytes)
            return None
        with self._changed:
            while len(self._places) >= MAX_PLACES:
                self._places.pop(next(iter(self._places)))
            self._places[number] = (start, begin + end)
        return data[:end]

    def records(self, after: int) -> Iterator[tuple[int, bytes]]:
        """(number, changes) of the records behind `after`. Raises MalformedRecord, StorageFailed."""
        while after < self.last:
            data = self.read(after, self.last, self._segment_bytes)
            if not data:
                raise MalformedRecord(f"record {after + 1} of the journal in {self._directory} is missing")
            for number, changes in decode_records(data):
                yield number, changes
                after = number

    def start_anew(self, last: int) -> None:
        """Forget everything; the next record is `last` + 1. Raises StorageFailed."""
        self._close_segment()
        while self._starts:
            self._drop_first()
        self._places.clear()
        self.last = last

    def close(self) -> None:
        """Safe to call again."""
        self._close_segment()

    # ------------------------------------------------------------------ private

    def _place_of(self, number: int, behind: int = -1) -> tuple[int, int] | None:
        """Segment, after the one that begins with `behind`, and offset of a record. Raises OSError."""
        start = max((start for start in self._starts if start <= number), default=None)
        if start is None or start <= behind:
            return None
        try:
            return start, self._position(self._path(start).read_bytes(), number)
        except FileNotFoundError:
            return None

    def _bytes(self, start: int, offset: int, count: int) -> bytes:
        descriptor = os.open(self._path(start), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, count, offset)
        finally:
            os.close(descriptor)

    def _path(self, start: int) -> Path:
        return self._directory / f"{start:020d}"

    def _open_last(self) -> None:
        """Find the end of what a process wrote before. What follows a damaged record is cut off."""
        start = self._starts[-1]
        descriptor = os.open(self._path(start), os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            self._written = mmap.mmap(descriptor, size) if size else None
        finally:
            os.close(descriptor)
        self._end, self.last = 0, start - 1
        if self._written is None:
            self._path(start).unlink()   # a crash while it was made
            self._starts.pop()
            if self._starts:
                self._open_last()
            return
        data = self._written[:]
        while True:
            sequence, size = record_head(data, self._end)
            if sequence != self.last + 1 or self._end + size > len(data):
                break
            try:
                list(decode_records(data[self._end:self._end + size]))
            except MalformedRecord:
                break
            self._end, self.last = self._end + size, sequence
        if any(data[self._end:]):
            self._written[self._end:] = bytes(len(data) - self._end)

    def _begin_segment(self, needed_bytes: int) -> None:
        self._close_segment()
        path = self._path(self.last + 1)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                size = max(self._segment_bytes, needed_bytes + HEAD_BYTES)
                os.posix_fallocate(descriptor, 0, size)
                self._written = mmap.mmap(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise self._failed(error) from error
        self._end = 0
        with self._changed:
            self._starts.append(self.last + 1)
        while len(self._starts) > self._max_segments:
            self._drop_first()

    def _close_segment(self) -> None:
        written, self._written = self._written, None
        if written is not None:
            written.close()

    def _drop_first(self) -> None:
        with self._changed:
            start = self._starts.pop(0)
        try:
            self._path(start).unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(error) from error

    def _position(self, data: "bytes | mmap.mmap", number: int) -> int:
        """Where the record `number` begins, which is in this segment or would follow its last."""
        view = memoryview(data)
        try:
            position = 0
            while True:
                sequence, size = record_head(view, position)
                if not sequence or sequence >= number:
                    return position
                position += size
        finally:
            view.release()

    def _failed(self, error: OSError) -> StorageFailed | NoSpace:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NoSpace(f"the disk of the journal in {self._directory} is full")
        return StorageFailed(f"the journal in {self._directory}: {error.strerror}")
