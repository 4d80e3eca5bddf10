"""Making a new version of a file from an old one.

The blocks that change go to a patch file of the new version's own, whatever else there is is shared with the
old one. The last block, if it is not full, is the new version's own in any case: appends will go there. The
version is made in a place where nobody looks and moved to its own when it is complete.
"""

import os
import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from speedwell.fs.checksums import BLOCK_BYTES, EMPTY, SUM_BYTES, block_sum, blocks_of, pack, unpack
from speedwell.fs.dataserver.disk import layout
from speedwell.fs.dataserver.disk.disk_errors import disk_error
from speedwell.fs.dataserver.disk.layout import HOLE, NATURAL, Run, Runs
from speedwell.fs.dataserver.disk.small_file import enlarge
from speedwell.fs.dataserver.disk.sparse import copy_sparse
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.disk.stored_file import StoredFile, patch_name
from speedwell.fs.dataserver.disk.version_file import write_meta

MAX_SOURCES = 12
"""So many patches, and chunk files of earlier versions, a version shares before small ones are joined: to link one
costs as much as to copy a block."""

JOINED_SOURCES = 8
JOINED_BLOCKS = 1024

ByteRange = tuple[int, int]
"""(offset of the first byte, offset after the last)"""


@dataclass(frozen=True)
class Change:
    """What makes the new version different: sizes in bytes, `ranges` get new bytes, `zeros` become zeros."""

    size: int
    keep: int
    ranges: list[ByteRange] = field(default_factory=list)
    zeros: list[ByteRange] = field(default_factory=list)


class VersionWriter:
    """Makes `file` with the content of `base` (as it was when `committed`) after `change`.

    `begin`, then `write` the bytes of the ranges in their order, then `prepare` and `commit`; or `abort`. These
    raise NoSpace and StorageFailed; only `abort` is useful then.
    """

    def __init__(self, store: FileStore, file: StoredFile, base: StoredFile | None, committed: tuple[int, int],
                 change: Change) -> None:
        self.file = file
        self._store = store
        self._base = base
        self._committed = committed
        self._change = change
        self._place, self._made_in = file.directory, file.made_in
        self._kept = min(committed[0], change.keep, change.size)
        self._own_start = change.size // BLOCK_BYTES
        self._dirty = self._dirty_intervals()
        self._firsts = [first for first, _ in self._dirty]
        self._positions = self._lay_out()
        self._patch_blocks = sum(min(end, self._own_start) - first for first, end in self._dirty
                                 if first < self._own_start)
        self._patch = -1
        self._at = 0          # index of the range that is being written
        self._written = 0     # bytes of it
        self._made = False

    def begin(self) -> None:
        """Make the directory, and in it the changed blocks as they are before the new bytes come."""
        directory = self.file.directory = self._made_in
        try:
            if self._base is not None and self._base.small:
                enlarge(self._base, self._committed[0])
            os.mkdir(directory)  # noqa: PTH102
            self._made = True
            if self._patch_blocks:
                self._patch = self._open_new(patch_name(self.file.generation))
                os.ftruncate(self._patch, self._patch_blocks * BLOCK_BYTES)
            for block in sorted(self._partial_blocks()):
                self._fill(block)
        except OSError as error:
            raise disk_error(error, f"cannot make {self.file.file_id}") from None

    def write(self, data: memoryview) -> None:
        """Take the next bytes."""
        ranges = self._change.ranges
        self.file.note_written(len(data))
        try:
            while data:
                begin, end = ranges[self._at]
                offset = begin + self._written
                part = data[:end - offset]
                self._put(offset, part)
                data = data[len(part):]
                self._written += len(part)
                if offset + len(part) == end:
                    self._at, self._written = self._at + 1, 0
        except OSError as error:
            raise disk_error(error, f"cannot write to {self.file.file_id}") from None

    def prepare(self) -> None:
        """Complete the version where nobody looks."""
        directory, file = self.file.directory, self.file
        try:
            file.runs = self._runs()
            tail = self._write_sums()
            file.committed = self._change.size, tail
            self._share()
            # An append to the old version whose answer was lost may be sent again, to the new one.
            appends = self._base.stored_appends() if self._base is not None else b""
            write_meta(f"{directory}/meta", file.description(), appends, file.runs)
        except OSError as error:
            raise disk_error(error, f"cannot complete {file.file_id}") from None
        self._close()

    def commit(self) -> None:
        """Put it in its place."""
        made_in, self.file.directory = self.file.directory, self._place
        try:
            self._store.adopt(self.file, made_in)
        except OSError as error:
            raise disk_error(error, f"cannot complete {self.file.file_id}") from None
        self._made = False

    @property
    def digest(self) -> int:
        """Of the sums of all blocks, once `prepare` has returned."""
        return self.file.digest(0, blocks_of(self.file.length), self.file.committed)

    def segments(self) -> Iterator[tuple[int, int, int]]:
        """Where the bytes of the ranges are, once `prepare` has returned, as `StoredFile.segments`."""
        for begin, end in self._change.ranges:
            yield from self.file.segments(begin, end - begin)

    def abort(self) -> None:
        """Leave no trace. Never raises."""
        self._close()
        if self._made:
            shutil.rmtree(self._made_in, ignore_errors=True)
            self._made = False

    # ------------------------------------------------------------------ which blocks change

    def _dirty_intervals(self) -> list[tuple[int, int]]:
        """Blocks (first, after the last) that are written anew, sorted and joined."""
        found = [(begin // BLOCK_BYTES, blocks_of(end)) for begin, end in self._change.ranges]
        edges = [edge for zeros in self._zeros() for edge in zeros if edge % BLOCK_BYTES]
        edges += [edge for edge in (self._kept, self._change.size) if edge % BLOCK_BYTES]
        found += [(edge // BLOCK_BYTES, edge // BLOCK_BYTES + 1) for edge in edges]
        joined: list[tuple[int, int]] = []
        for first, end in sorted(found):
            if joined and first <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((first, end))
        return joined

    def _zeros(self) -> list[ByteRange]:
        """The ranges that become zeros, as far as the old version has bytes there."""
        return [(begin, min(end, self._kept)) for begin, end in self._change.zeros if begin < self._kept]

    def _lay_out(self) -> list[int]:
        """For each dirty interval its first block in the patch file."""
        positions, position = [], 0
        for first, end in self._dirty:
            positions.append(position)
            position += end - first
        return positions

    def _partial_blocks(self) -> set[int]:
        """Blocks that keep some of their old bytes."""
        edges = [edge for pair in (*self._change.ranges, *self._zeros()) for edge in pair]
        edges += [self._kept, self._change.size]
        return {edge // BLOCK_BYTES for edge in edges if edge % BLOCK_BYTES}

    # ------------------------------------------------------------------ content

    def _fill(self, block: int) -> None:
        start = block * BLOCK_BYTES
        length = min(BLOCK_BYTES, self._change.size - start)
        data = bytearray(length)
        old = min(length, self._kept - start)
        if old > 0 and self._base is not None:
            # What is copied gets a new sum: a damaged block must not become a good one that way.
            data[:old] = self._base.verified_block(block, self._committed)[:old]
            for begin, end in self._zeros():
                if begin < start + old and end > start:
                    low, high = max(begin - start, 0), min(end - start, old)
                    data[low:high] = bytes(high - low)
        elif block < self._own_start:
            return  # the patch file has zeros there
        self._put(start, memoryview(data))

    def _put(self, offset: int, data: memoryview) -> None:
        """Write into the changed blocks."""
        border = self._own_start * BLOCK_BYTES
        if offset < border:
            part = data[:border - offset]
            self._write_all(self._patch, part, self._patch_offset(offset))
            data, offset = data[len(part):], offset + len(part)
        while data:
            number, start = divmod(offset, self.file.chunk_size)
            part = data[:self.file.chunk_size - start]
            descriptor = os.open(self.file.chunk(number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._write_all(descriptor, part, start)
            finally:
                os.close(descriptor)
            data, offset = data[len(part):], offset + len(part)

    def _patch_offset(self, offset: int) -> int:
        index = bisect_right(self._firsts, offset // BLOCK_BYTES) - 1
        return offset + (self._positions[index] - self._firsts[index]) * BLOCK_BYTES

    @staticmethod
    def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written

    # ------------------------------------------------------------------ where blocks lie

    def _runs(self) -> Runs:
        """All blocks before the own chunk files."""
        whole = self._kept // BLOCK_BYTES
        runs = layout.find(self._base.all_runs(self._committed[0]), 0, whole) if self._base else []
        if self._own_start > whole:
            runs.append(Run(whole, self._own_start - whole, 0, HOLE))
        holes = [(blocks_of(begin), end // BLOCK_BYTES) for begin, end in self._zeros()]
        runs = layout.overlaid(runs, [Run(first, end - first, 0, HOLE) for first, end in holes if end > first])
        generation = self.file.generation
        runs = layout.overlaid(runs, [
            Run(first, min(end, self._own_start) - first, generation, position)
            for (first, end), position in zip(self._dirty, self._positions, strict=True)
            if first < self._own_start])
        return self._without_small_sources(layout.find(runs, 0, self._own_start))

    def _without_small_sources(self, runs: Runs) -> Runs:
        """Copy the blocks of the smallest patches to the own one when there are too many files."""
        live: Counter[tuple[int, bool]] = Counter()
        for run in runs:
            if run.position != HOLE and (run.generation or run.position >= 0):
                live[run.generation, run.position == NATURAL] += run.blocks
        live.pop((self.file.generation, False), None)
        if len(live) <= MAX_SOURCES:
            return runs
        smallest = {source for source, blocks in live.most_common()[:-JOINED_SOURCES - 1:-1]
                    if blocks <= JOINED_BLOCKS}
        result: Runs = []
        for run in runs:
            is_copied = run.position != HOLE and (run.generation, run.position == NATURAL) in smallest
            layout.add(result, [self._copied(run) if is_copied else run])
        return result

    def _copied(self, run: Run) -> Run:
        assert self._base is not None
        if self._patch < 0:
            self._patch = self._open_new(patch_name(self.file.generation))
        position = self._patch_blocks
        self._patch_blocks += run.blocks
        data = memoryview(self._base.read(run.first * BLOCK_BYTES, run.blocks * BLOCK_BYTES))
        self._write_all(self._patch, data, position * BLOCK_BYTES)
        return Run(run.first, run.blocks, self.file.generation, position)

    def _share(self) -> None:
        """Link the files of the old version that the new one needs."""
        if self._base is None:
            return
        own = self.file.generation
        for name in self._base.names([run for run in self.file.runs if run.generation != own]):
            os.link(f"{self._base.directory}/{name}", f"{self.file.directory}/{name}")

    # ------------------------------------------------------------------ sums

    def _write_sums(self) -> int:
        """Write the sums of all blocks but the last; returns that of the last."""
        blocks = blocks_of(self._change.size)
        if not blocks:
            return EMPTY
        descriptor = self._open_new("sums")
        try:
            self._copy_sums(descriptor)
            os.ftruncate(descriptor, blocks * SUM_BYTES)
            for begin, end in self._zeros():
                first, after = blocks_of(begin), end // BLOCK_BYTES
                if after > first:
                    os.pwrite(descriptor, bytes((after - first) * SUM_BYTES), first * SUM_BYTES)
            for first, end in self._dirty:
                os.pwrite(descriptor, pack([self._sum(block) for block in range(first, end)]), first * SUM_BYTES)
            tail = unpack(os.pread(descriptor, SUM_BYTES, (blocks - 1) * SUM_BYTES))[0]
            os.ftruncate(descriptor, (blocks - 1) * SUM_BYTES)
        finally:
            os.close(descriptor)
        if blocks == 1:
            os.unlink(f"{self._made_in}/sums")  # noqa: PTH108
        return tail

    def _copy_sums(self, descriptor: int) -> None:
        whole = self._kept // BLOCK_BYTES
        last = blocks_of(self._committed[0]) - 1
        if self._base is None or not whole:
            return
        if last > 0:
            source = os.open(f"{self._base.directory}/sums", os.O_RDONLY | os.O_CLOEXEC)
            try:
                copy_sparse(source, descriptor, min(whole, last) * SUM_BYTES)
            finally:
                os.close(source)
        if whole > last:
            os.pwrite(descriptor, pack([self._committed[1]]), last * SUM_BYTES)

    def _sum(self, block: int) -> int:
        start = block * BLOCK_BYTES
        if block < self._own_start:
            data = os.pread(self._patch, BLOCK_BYTES, self._patch_offset(start))
        else:
            data = self.file.read(start, self._change.size - start)
        return block_sum(data)

    def _open_new(self, name: str) -> int:
        """A descriptor of an empty file of that name in the directory that is being made. Raises OSError."""
        path = f"{self._made_in}/{name}"
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def _close(self) -> None:
        descriptor, self._patch = self._patch, -1
        if descriptor >= 0:
            os.close(descriptor)
