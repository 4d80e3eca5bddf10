"""Which blocks of a file the disk holds as holes: they take no space, and need not be read to be verified."""

from collections.abc import Iterator
from itertools import chain, starmap

from speedwell.fs.checksums import BLOCK_BYTES, blocks_of, unpack
from speedwell.fs.dataserver.disk import layout
from speedwell.fs.dataserver.disk.layout import HOLE, Run
from speedwell.fs.dataserver.disk.sparse import data_in
from speedwell.fs.dataserver.disk.stored_file import StoredFile, parts
from speedwell.fs.errors import StorageFailed


def blocks_to_verify(file: StoredFile, committed: tuple[int, int]) -> Iterator[int]:
    """The blocks up to the committed length that can be damaged: not those in holes whose sums are those of
    zeros. So a sparse file of a terabyte is verified in moments."""
    for run in file.all_runs(committed[0]):
        if run.position == HOLE:
            yield from _not_summed_as_zeros(file, run.first, run.end, committed)
        else:
            yield from chain.from_iterable(starmap(range, _in_use(file, run, committed)))


def holes(file: StoredFile, offset: int) -> Iterator[tuple[int, int]]:
    """Where bytes from `offset` on are zeros that take no space: begin and end of each. Raises StorageFailed."""
    committed = file.committed
    begin = offset
    for run in layout.find(file.all_runs(committed[0]), offset // BLOCK_BYTES, blocks_of(committed[0])):
        for first, end in _in_use(file, run, committed) if run.position != HOLE else ():
            if first * BLOCK_BYTES > begin:
                yield begin, first * BLOCK_BYTES
            begin = max(begin, end * BLOCK_BYTES)
    if begin < committed[0]:
        yield begin, committed[0]


def _in_use(file: StoredFile, run: Run, committed: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """The blocks of a run but those that the disk holds as holes and whose sums are those of zeros."""
    done = run.first
    for first, end in _on_disk(file, run, committed[0]):
        yield from ((block, block + 1) for block in _not_summed_as_zeros(file, done, first, committed))
        yield max(done, first), end
        done = max(done, end)
    yield from ((block, block + 1) for block in _not_summed_as_zeros(file, done, run.end, committed))


def _on_disk(file: StoredFile, run: Run, length: int) -> Iterator[tuple[int, int]]:
    """The blocks of a run that the disk does not hold as holes: the first, and the one after the last."""
    at = run.first * BLOCK_BYTES
    try:
        for descriptor, start, count in file.segments(at, min(run.end * BLOCK_BYTES, length) - at):
            for data, hole in data_in(descriptor, start, start + count):
                yield (at + data - start) // BLOCK_BYTES, blocks_of(at + hole - start)
            at += count
    except (OSError, StorageFailed):
        yield at // BLOCK_BYTES, run.end    # each of these blocks tells what is wrong with it


def _not_summed_as_zeros(file: StoredFile, first: int, end: int, committed: tuple[int, int]) -> Iterator[int]:
    try:
        pieces = list(file.summed(first, end, blocks_of(committed[0]) - 1))
    except StorageFailed:
        pieces = [(first, end)]
    for start, stop in chain.from_iterable(starmap(parts, pieces)):
        try:
            sums = file.sums(start, stop, committed)
        except StorageFailed:
            yield from range(start, stop)
            continue
        if sums.count(0) < len(sums):
            yield from (start + index for index, total in enumerate(unpack(sums)) if total)
