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
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from crc32c import crc32c

from fs.checksums import SUM_BYTES, pack

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


Runs = list[Run]


def find(runs: Runs, first: int, end: int) -> Iterator[Run]:
    """The parts of `runs` that lie in the blocks from `first` up to `end`."""
    index = max(0, bisect_right(runs, first, key=lambda run: run.first) - 1)
    for run in islice(runs, index, None):
        if run.first >= end:
            return
        if run.first >= first and run.end <= end:
            yield run
        elif run.end > first:
            yield run.part(max(run.first, first), min(run.end, end))


def overlaid(runs: Runs, newer: Runs) -> Runs:
    """`runs` with `newer` (sorted, disjoint) in place of what they cover."""
    if not newer:
        return runs
    result: Runs = []
    done = 0  # blocks before it are in `result`
    last = runs[-1].end if runs else 0
    for run in newer:
        if run.first > done:
            result.extend(find(runs, done, run.first))
        result.append(run)
        done = run.end
    if done < last:
        result.extend(find(runs, done, last))
    return joined(result)


def joined(runs: Iterable[Run]) -> Runs:
    """The same with neighbours that continue each other made one."""
    result: Runs = []
    for run in runs:
        before = result[-1] if result else None
        # A version has hundreds of runs and few that continue the one before, nearly all of another generation.
        if before is not None and before.generation == run.generation and before.end == run.first and (
                before.position + before.blocks == run.position if run.position >= 0
                else before.position == run.position):
            result[-1] = before._replace(blocks=before.blocks + run.blocks)
        else:
            result.append(run)
    return result


def encode(runs: Runs) -> bytes:
    """The runs as they are stored, with their CRC at the end."""
    body = b"".join(_RECORD.pack(*run) for run in runs)
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
