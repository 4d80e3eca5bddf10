"""What was written to a file anywhere but at its end and is not published yet.

The bytes lie at their own offsets in a sparse temporary file without a name, so their number is bounded by the
disk, not by memory, and nothing is left of them when the process dies.
"""

import errno
import os
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from speedwell.fs.client.change.version import Changes
from speedwell.fs.client.read.reader import Reader
from speedwell.fs.wire.channel import Channel

MAX_INTERVALS = 16384
"""So many scattered writes are published before more are taken."""


class Source(Enum):
    """Where the bytes of an interval are."""

    STAGED = "staged"
    ZEROS = "zeros"
    BASE = "base"
    GONE = "gone"
    """Beyond what is left of the base: zeros, unless another mount has made the base longer."""


class Interval(NamedTuple):
    """Bytes from offset `begin` up to `end`."""

    begin: int
    end: int
    source: Source


class Staging:
    """Changes to a version of `base_size` bytes. One thread at a time. Raises OSError of the temporary file."""

    def __init__(self, base_size: int, directory: str | None) -> None:
        self._file = tempfile.TemporaryFile(dir=directory, prefix="speedwell-", buffering=0)  # noqa: SIM115
        self._descriptor = self._file.fileno()
        self.begin_again(base_size)

    def begin_again(self, base_size: int) -> None:
        """Take changes to another version, and none of those before: cheaper than to make another file."""
        os.ftruncate(self._descriptor, 0)
        self.size = self._keep = base_size  # bytes of the base from `_keep` on are gone
        self._cut = False
        # From each of the offsets `_begins` on, up to the next, the bytes are in the one of `_sources`.
        self._begins, self._sources = [0, base_size], [Source.BASE, Source.GONE]

    @property
    def staged_bytes(self) -> int:
        """The space that what was written takes."""
        return os.fstat(self._descriptor).st_blocks * 512

    @property
    def is_full(self) -> bool:
        """Whether it should be published before more is written."""
        return len(self._begins) >= 2 * MAX_INTERVALS

    def write(self, offset: int, data: memoryview | bytes) -> int:
        """Write `data` at `offset`; returns its length."""
        view = memoryview(data)
        at = offset
        while view:
            written = os.pwrite(self._descriptor, view, at)
            view, at = view[written:], at + written
        if at > offset:
            self._set(offset, at, Source.STAGED)
            self.size = max(self.size, at)
        return at - offset

    def zero(self, begin: int, end: int) -> None:
        """Make the bytes from `begin` up to `end` zeros, as far as the file goes."""
        end = min(end, self.size)
        if begin < end:
            self._set(begin, end, Source.ZEROS)

    def resize(self, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        if size < self.size:
            self._keep = min(self._keep, size)
            self._set(size, self.size, Source.GONE)
            self._cut = True
        self.size = size

    def pieces(self, begin: int, end: int) -> Iterator[Interval]:
        """Where the bytes from `begin` up to `end` (or the end of the file) are, in order."""
        end = min(end, self.size)
        index = bisect_right(self._begins, begin)
        while begin < end:
            stop = min([end, *self._begins[index:index + 1]])
            source = self._sources[index - 1]
            yield Interval(begin, stop, Source.ZEROS if source is Source.GONE else source)
            begin, index = stop, index + 1

    def data(self, reader: Reader, offset: int) -> Iterator[tuple[int, int]]:
        """What is not in holes from `offset` on, of what this makes of what is read: begin and end of each."""
        for piece in self.pieces(offset, self.size):
            if piece.source is Source.STAGED:
                yield piece.begin, piece.end
            elif piece.source is Source.BASE:
                for begin, end in reader.data(piece.begin):
                    if begin >= piece.end:
                        break
                    yield begin, min(end, piece.end)

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` with staged bytes."""
        while view:
            count = os.preadv(self._descriptor, [view], offset)
            if not count:
                raise OSError("the staging file ends early")
            view, offset = view[count:], offset + count

    def changes(self) -> Changes:
        """Everything as one change of the base. It stays valid until the next call that changes something."""
        runs = list(zip(pairwise(self._begins), self._sources, strict=False))   # but for the last
        staged, zeros = ([run for run, source in runs if source is of] for of in (Source.STAGED, Source.ZEROS))

        def send(channel: Channel) -> None:
            for begin, end in staged:
                channel.send_file(self._descriptor, begin, end - begin)

        if self._cut:
            return Changes(staged, send, zeros, size=self.size, keep=self._keep)
        return Changes(staged, send, zeros, reach=self.size)  # another mount may have made the file longer

    def close(self) -> None:
        """Give the space back."""
        self._file.close()

    # ------------------------------------------------------------------ private

    def _set(self, begin: int, end: int, source: Source) -> None:
        """Let these bytes be there; neighbours from the same source become one."""
        first, last = bisect_left(self._begins, begin), bisect_right(self._begins, end)
        runs = [(begin, source), (end, self._sources[last - 1])]
        before = self._sources[first - 1] if first else None
        kept = [(at, of) for (at, of), left in zip(runs, (before, source), strict=True) if of is not left]
        self._begins[first:last] = [at for at, _ in kept]
        self._sources[first:last] = [of for _, of in kept]


def seek(data: Iterator[tuple[int, int]], offset: int, whence: int) -> int:
    """The next byte of `data`, or with SEEK_HOLE the next that is none. Raises OSError(ENXIO): there is no data."""
    position = offset
    for begin, end in data:
        if whence == os.SEEK_DATA:
            return begin
        if begin > position:
            break
        position = end
    if whence == os.SEEK_DATA:
        raise OSError(errno.ENXIO, "there are only holes up to the end")
    return position
