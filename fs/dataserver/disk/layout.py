"""Where the blocks of a version lie: runs of blocks in files that versions share.

A version of a file is never changed except by appends to its end, so a new version shares the files of the old
one (as hard links) and adds what is different. Its content is a list of runs, sorted, each of neighbouring
blocks:

- natural: in the chunk files, at the offset that the block has in its chunk. A version's own chunk files
  bear its generation (`1`, `2` in generation 0, `1.3` in generation 3);
- in a patch file (`p3`), from a block of it on;
- a hole: zeros that take no space.
"""

import struct
from bisect import bisect_left, bisect_right
from itertools import starmap
from operator import itemgetter
from typing import NamedTuple

from crc32c import crc32c

from speedwell.fs.checksums import BLOCK_BYTES, SUM_BYTES, blocks_of, pack

NATURAL = -1
HOLE = -2
_RECORD = struct.Struct(">QQIq")


class Run(NamedTuple):
    """`blocks` blocks from block `first` of the version on.

    `position` is their first block in the patch file of `generation`, or NATURAL (the chunk files of
    `generation`), or HOLE.
    """

    first: int
    blocks: int
    generation: int
    position: int

    @property
    def end(self) -> int:
        return self.first + self.blocks

    def part(self, first: int, end: int) -> "Run":
        """The part of the run from block `first` up to `end`, which are inside it."""
        position = self.position + (first - self.first) if self.position >= 0 else self.position
        return Run(first, end - first, self.generation, position)

    def goes_on_in(self, other: "Run") -> bool:
        """Whether `other` begins where the run ends, in the version and in the file."""
        position = self.position + self.blocks if self.position >= 0 else self.position
        return self.end == other.first and self.generation == other.generation and position == other.position


Runs = list[Run]
_FIRST = itemgetter(0)


def find(runs: Runs, first: int, end: int) -> Runs:
    """The parts of `runs` that lie in the blocks from `first` up to `end`."""
    if first >= end:
        return []
    low = max(0, bisect_right(runs, first, key=_FIRST) - 1)
    found = runs[low:bisect_left(runs, end, lo=low, key=_FIRST)]
    if found and found[0].end <= first:
        del found[0]
    if found and found[0].first < first:
        found[0] = found[0].part(first, found[0].end)
    if found and found[-1].end > end:
        found[-1] = found[-1].part(found[-1].first, end)
    return found


def overlaid(runs: Runs, newer: Runs) -> Runs:
    """`runs` with `newer` (sorted, disjoint) in place of what they cover, neighbours that continue each other as one
    where they are so in `runs`."""
    result: Runs = []
    done = 0  # blocks before it are in `result`
    for run in newer:
        if run.first > done:
            add(result, find(runs, done, run.first))
        add(result, [run])
        done = run.end
    add(result, find(runs, done, runs[-1].end if runs else 0))
    return result


def add(runs: Runs, more: Runs) -> None:
    """Put `more` at the end of `runs`; if the first of them continues what is there, the two become one."""
    if runs and more and runs[-1].goes_on_in(more[0]):
        runs[-1] = runs[-1]._replace(blocks=runs[-1].blocks + more[0].blocks)
        more = more[1:]
    runs.extend(more)


def hole_bytes(runs: Runs, length: int) -> int:
    """How many of the first `length` bytes are in holes."""
    return sum(min(run.end * BLOCK_BYTES, length) - run.first * BLOCK_BYTES
               for run in find(runs, 0, blocks_of(length)) if run.position == HOLE)


def encode(runs: Runs) -> bytes:
    """The runs as they are stored, with their CRC at the end."""
    body = b"".join(starmap(_RECORD.pack, runs))
    return body + pack([crc32c(body)])


def decode(data: bytes) -> Runs:
    """Raises ValueError for anything but what `encode` makes."""
    body, total = data[:-SUM_BYTES], data[-SUM_BYTES:]
    if len(body) % _RECORD.size or pack([crc32c(body)]) != total:
        raise ValueError("the map of blocks is damaged")
    runs = [Run._make(record) for record in _RECORD.iter_unpack(body)]
    done = 0
    for run in runs:
        if run.first != done or run.blocks < 1 or run.position < HOLE:
            raise ValueError("the map of blocks has a gap")
        done = run.end
    return runs
