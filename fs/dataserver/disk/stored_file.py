"""One version of a file as it lies on a dataserver's disk.

Its directory holds the chunk files, `sums` (the sums of all blocks but the last, if there are any) and `meta`: the
description, the appends, and where the blocks of a version made from another one lie (`record`, `layout`). `meta`
begins with the committed length as 20 digits, the sum of the last block as 8 and the CRC of both, overwritten in
place by one write when an append commits; so data, sums and length agree whenever a process dies. The rest of it
has a CRC too. Bytes and sums beyond the committed length are leftovers of an append that did not commit: nobody
reads them, the next append overwrites them. A small file has all this in one file of the disk.
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from crc32c import crc32c

from speedwell.fs.checksums import (
    BLOCK_BYTES,
    EMPTY,
    SUM_BYTES,
    block_sum,
    blocks_of,
    digest,
    digest_of_zeros,
    pack,
    unpack,
)
from speedwell.fs.dataserver.disk import layout
from speedwell.fs.dataserver.disk.disk_errors import put
from speedwell.fs.dataserver.disk.layout import HOLE, NATURAL, Run, Runs
from speedwell.fs.dataserver.disk.sparse import ZEROS_BYTES, data_in, zeros
from speedwell.fs.dataserver.disk.version_file import (
    APPENDS_AT,
    DESCRIPTION_BYTES,
    MAP_AT,
    SMALL_APPENDS_AT,
    SMALL_DATA_AT,
    SMALL_DESCRIPTION_BYTES,
    SMALL_SUFFIX,
    SMALL_SUMS_AT,
)
from speedwell.fs.dataserver.replication.append_log import LOG_BYTES
from speedwell.fs.dataserver.replication.ordering import Ordering
from speedwell.fs.errors import NoSuchFile, StorageFailed
from speedwell.fs.group_commit import GroupCommit

LENGTH_DIGITS = 20
SEALED_BYTES = LENGTH_DIGITS + 10    # of the head, before its CRC
HEAD_BYTES = SEALED_BYTES + 9
SUMS_AT_ONCE = 32768

Piece = tuple[str, int, int]
"""(name of a file in the version's directory, offset in it, bytes); no name: zeros."""

_PAGE = bytes(4096)


def _nobody(_: int) -> None:
    """Nobody wants to know."""


@dataclass
class StoredFile:
    """One file id, that is one version of a file, on this server; `turn` is held by its appender.

    `runs` say where its first blocks lie; all blocks after them lie in its own chunk files, those of
    `generation`, which counts how many versions one after the other it was made from.
    """

    file_id: str
    directory: str
    inode: int
    path: bytes
    chunk_size: int
    generation: int = 0
    runs: Runs = field(default_factory=list)
    committed: tuple[int, int] = (0, EMPTY)
    """Length in bytes and sum of the last block, which change together."""
    small: bool = False
    """Whether it has no directory, but one file beside it."""
    descriptor: int = -1
    """Of a small file that has just been made, for those who made it; -1: it has to be opened."""
    users: int = 0
    note_written: Callable[[int], None] = _nobody
    """Told how many bytes are written to its disk."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    synced_length: int = 0
    """So many bytes are on the disk for sure."""
    names_synced: bool = False
    syncing: GroupCommit = field(default_factory=GroupCommit)
    ordering: Ordering = field(init=False)

    def __post_init__(self) -> None:
        self.ordering = Ordering(self.appends_place, self.write_appends)

    @property
    def length(self) -> int:
        """The committed length in bytes."""
        return self.committed[0]

    @property
    def own_start(self) -> int:
        """The first block that lies in chunk files of this version alone."""
        return self.runs[-1].end if self.runs else 0

    @property
    def made_in(self) -> str:
        """Where its directory is made before it has its place."""
        return f"{os.path.dirname(os.path.dirname(self.directory))}/making/{self.file_id}"  # noqa: PTH120

    # ------------------------------------------------------------------ where bytes are

    @property
    def record(self) -> str:
        """The path of the file that begins with the description."""
        return self.record_of(self.small)

    def record_of(self, small: bool) -> str:
        """The same if the file is a small one, or is not."""
        return self._small_record if small else f"{self.directory}/meta"

    def write_head(self, length: int, tail: int) -> None:
        """Write the committed length and the sum of the last block. Raises OSError, also if the file was deleted."""
        self._write(self.record, 0, [(0, head(length, tail))])

    def write_appends(self, parts: Iterable[tuple[int, bytes]]) -> None:
        """Write (offset, bytes) where the appends are written down. Raises OSError, also if the file was deleted."""
        path, start = self.appends_place()
        self._write(path, start, parts)

    def _write(self, path: str, start: int, parts: Iterable[tuple[int, bytes]]) -> None:
        kept = self.descriptor if path.endswith(SMALL_SUFFIX) else -1
        descriptor = kept if kept >= 0 else os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for offset, data in parts:
                put(descriptor, data, start + offset)
        finally:
            if kept < 0:
                os.close(descriptor)

    @property
    def _small_record(self) -> str:
        # Whoever needs an offset too looks at `small` once: it may change between two looks.
        return self.directory + SMALL_SUFFIX

    def sums_place(self) -> tuple[str, int]:
        """The path of the file with the sums, and the offset of the first of them."""
        return (self._small_record, SMALL_SUMS_AT) if self.small else (f"{self.directory}/sums", 0)

    def appends_place(self) -> tuple[str, int]:
        """The path of the file with the appends, and where they begin."""
        return (self._small_record, SMALL_APPENDS_AT) if self.small else (f"{self.directory}/meta", APPENDS_AT)

    def stored_appends(self) -> bytes:
        """What is written down of the appends, mostly without the zeros at its end. Raises OSError."""
        path, start = self.appends_place()
        data = _content(path, LOG_BYTES, start)
        end = len(data)
        while data[max(0, end - len(_PAGE)):end] == _PAGE:
            end -= len(_PAGE)
        return data[:end]

    def located(self, name: str, start: int) -> tuple[str, int]:
        """Where byte `start` of a file that `pieces` names lies: a path, and the offset in that file."""
        return (self._small_record, SMALL_DATA_AT + start) if self.small else (f"{self.directory}/{name}", start)

    def chunk(self, number: int) -> str:
        """The path of this version's own chunk file `number`, counted from 0."""
        return f"{self.directory}/{chunk_name(number, self.generation)}"

    def all_runs(self, length: int) -> Runs:
        """Where the first `length` bytes lie, those in the own chunk files included."""
        end, start = blocks_of(length), self.own_start
        if end <= start:
            return layout.find(self.runs, 0, end)
        runs = self.runs.copy()
        layout.add(runs, [Run(start, end - start, self.generation, NATURAL)])
        return runs

    def pieces(self, offset: int, length: int) -> Iterator[Piece]:
        """The files that hold the range, in order."""
        stop = offset + length
        for run in layout.find(self.runs, offset // BLOCK_BYTES, blocks_of(stop)) if self.runs else ():
            begin, end = max(offset, run.first * BLOCK_BYTES), min(stop, run.end * BLOCK_BYTES)
            if run.position == NATURAL:
                yield from self._natural(begin, end, run.generation)
            elif run.position == HOLE:
                yield "", begin, end - begin
            else:
                start = (run.position - run.first) * BLOCK_BYTES + begin
                yield patch_name(run.generation), start, end - begin
            offset = end
        if offset < stop:
            yield from self._natural(offset, stop, self.generation)

    def segments(self, offset: int, length: int) -> Iterator[tuple[int, int, int]]:
        """(descriptor, offset in it, bytes) for the files that hold the range, in order.

        The descriptor is open until the next step. Raises StorageFailed if a file is missing or short.
        """
        for name, start, count in self.pieces(offset, length):
            if not name:
                for _ in range(count // ZEROS_BYTES):
                    yield zeros(), 0, ZEROS_BYTES
                if count % ZEROS_BYTES:
                    yield zeros(), 0, count % ZEROS_BYTES
                continue
            descriptor, start = self._open(name, start)
            try:
                if os.fstat(descriptor).st_size < start + count:
                    raise StorageFailed(f"chunk {name} of {self.file_id} is shorter than the file's length")
                yield descriptor, start, count
            finally:
                os.close(descriptor)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes before the committed length, not compared with their sums. Raises StorageFailed."""
        parts = []
        for descriptor, start, count in self.segments(offset, length):
            while count:
                part = os.pread(descriptor, count, start)
                if not part:
                    raise StorageFailed(f"{self.file_id} ends early")
                parts.append(part)
                start += len(part)
                count -= len(part)
        return b"".join(parts)

    def names(self, runs: Runs) -> set[str]:
        """The files that `runs` lie in."""
        found = {patch_name(generation) for generation in {run.generation for run in runs if run.position >= 0}}
        for run in runs:
            if run.position == NATURAL:
                first = run.first * BLOCK_BYTES // self.chunk_size
                last = (min(run.end * BLOCK_BYTES, self.length) - 1) // self.chunk_size
                found.update(chunk_name(number, run.generation) for number in range(first, last + 1))
        return found

    # ------------------------------------------------------------------ sums

    def sums(self, first: int, end: int, committed: tuple[int, int]) -> bytes:
        """The packed sums of the blocks from `first` up to `end`, when `committed` was so.

        Raises StorageFailed.
        """
        length, tail = committed
        last = blocks_of(length) - 1
        stored = self._stored_sums(first, min(end, last)) if first < min(end, last) else b""
        return stored + pack([tail]) if first <= last < end else stored

    def digest(self, first: int, end: int, committed: tuple[int, int]) -> int:
        """One number for the sums of the blocks from `first` up to `end`: replicas that hold the same have the same.
        Raises StorageFailed."""
        total, done = 0, first
        for start, stop in self.summed(first, end, blocks_of(committed[0]) - 1):
            total = digest_of_zeros((start - done) * SUM_BYTES, total)
            for part in parts(start, stop):
                total = digest(self.sums(*part, committed), total)
            done = stop
        return digest_of_zeros((end - done) * SUM_BYTES, total)

    def verified_block(self, number: int, committed: tuple[int, int]) -> bytes:
        """A block's bytes up to the committed length. Raises StorageFailed if they are not what was written."""
        start = number * BLOCK_BYTES
        data = self.read(start, min(BLOCK_BYTES, committed[0] - start))
        if unpack(self.sums(number, number + 1, committed)) != (block_sum(data),):
            raise StorageFailed(f"block {number} of {self.file_id} is damaged")
        return data

    def summed(self, first: int, end: int, last: int) -> Iterator[tuple[int, int]]:
        """Of many blocks those whose sums the disk does not hold as holes, and the last of the file: the first, and
        the one after the last of each piece. Raises StorageFailed."""
        if end - first <= SUMS_AT_ONCE:
            yield first, end
            return
        path, begin = self.sums_place()
        stop = begin + min(end, last) * SUM_BYTES
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                if os.fstat(file.fileno()).st_size < stop:
                    raise StorageFailed(f"sums of {self.file_id} are cut off")
                for data, hole in data_in(file.fileno(), begin + first * SUM_BYTES, stop):
                    yield (data - begin) // SUM_BYTES, (hole - begin) // SUM_BYTES
        except OSError as error:
            raise StorageFailed(f"sums of {self.file_id}: {error.strerror}") from None
        if end > last:
            yield last, end

    def _stored_sums(self, first: int, end: int) -> bytes:
        wanted = (end - first) * SUM_BYTES
        was = self.record
        path, begin = self.sums_place()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                stored = os.pread(descriptor, wanted, begin + first * SUM_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            if self.record != was:
                return self._stored_sums(first, end)
            raise StorageFailed(f"sums of {self.file_id}: {error.strerror}") from None
        if len(stored) != wanted:
            raise StorageFailed(f"sums of {self.file_id} are cut off")
        return stored

    # ------------------------------------------------------------------ meta

    def description(self) -> bytes:
        """The content of `meta`."""
        rest = {"file_id": self.file_id, "inode": self.inode, "path": os.fsdecode(self.path),
                "chunk_size": self.chunk_size, "generation": self.generation, "mapped": bool(self.runs)}
        text = json.dumps(rest).encode("ascii")
        return head(*self.committed) + text + b" %08x\n" % crc32c(text)

    # ------------------------------------------------------------------ private

    def _natural(self, begin: int, end: int, generation: int) -> Iterator[Piece]:
        while begin < end:
            number, start = divmod(begin, self.chunk_size)
            count = min(end - begin, self.chunk_size - start)
            yield chunk_name(number, generation), start, count
            begin += count

    def _open(self, name: str, start: int) -> tuple[int, int]:
        was = self.record
        path, offset = self.located(name, start)
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC), offset
        except OSError as error:
            if self.record != was:  # it moved between the look and the open
                return self._open(name, start)
            raise StorageFailed(f"chunk {name} of {self.file_id}: {error.strerror}") from None


def load(file_id: str, directory: str) -> StoredFile:
    """Read a version's description. Raises NoSuchFile if there is none, StorageFailed if it is damaged."""
    small = False
    try:
        try:
            text = _content(f"{directory}/meta", DESCRIPTION_BYTES)
        except FileNotFoundError:
            text = _content(directory + SMALL_SUFFIX, SMALL_DESCRIPTION_BYTES)
            small = True
    except FileNotFoundError:
        raise NoSuchFile(f"this dataserver has no file {file_id}") from None
    except OSError as error:
        raise StorageFailed(f"meta of {file_id}: {error.strerror}") from None
    if not text:
        raise NoSuchFile(f"this dataserver has no file {file_id}")  # a crash while the file was made
    if not small:
        with contextlib.suppress(OSError):
            os.unlink(directory + SMALL_SUFFIX)  # noqa: PTH108 - a crash while the file got its directory
    try:
        committed = int(text[:LENGTH_DIGITS]), int(text[LENGTH_DIGITS:SEALED_BYTES], 16)
        described, _, total = text[HEAD_BYTES:].rstrip(b"\0\n").rpartition(b" ")
        if head(*committed) != text[:HEAD_BYTES] or crc32c(described) != int(total, 16):
            raise ValueError("it does not match its checksum")
        rest = json.loads(described)
        file = StoredFile(file_id, directory, int(rest["inode"]), os.fsencode(rest["path"]), int(rest["chunk_size"]),
                          int(rest["generation"]), committed=committed, small=small)
        if rest["mapped"]:
            file.runs = layout.decode(_content(f"{directory}/meta", -1, MAP_AT))
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise StorageFailed(f"meta of {file_id} is damaged: {error}") from None
    return file


def head(length: int, tail: int) -> bytes:
    """The first bytes of `meta`, which change with every commit."""
    start = b"%020d %08x " % (length, tail)
    return start + b"%08x\n" % crc32c(start)


def chunk_name(number: int, generation: int) -> str:
    """Chunks are counted from 1 in names, as in the paper."""
    return f"{number + 1}.{generation}" if generation else str(number + 1)


def patch_name(generation: int) -> str:
    return f"p{generation}"


def parts(first: int, end: int) -> Iterator[tuple[int, int]]:
    """So many blocks that their sums fit into memory at once, one part after the other."""
    return ((start, min(end, start + SUMS_AT_ONCE)) for start in range(first, end, SUMS_AT_ONCE))


def _content(path: str, limit: int, start: int = 0) -> bytes:
    """At most `limit` bytes of a file (-1: all) from offset `start` on. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size if limit < 0 else limit, start)
    finally:
        os.close(descriptor)
