"""How often each request came, how long it took, how many bytes it moved, and what went wrong.

Each thread counts for itself, as threads that share a counter wait for each other. Buckets of times are powers of two
of nanoseconds, which cost least to find.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate

FIRST_BIT, LAST_BIT = 14, 35
BOUNDS_SECONDS = tuple((1 << bit) / 1e9 for bit in range(FIRST_BIT, LAST_BIT))
"""The upper ends of the histogram's buckets, 16 us to 17 s; a last one has what took longer."""
TIME = 64
"""The index of the sum of times in a cell, after the counts of the times in ns by their number of bits."""

WAITS_FOR_OTHERS = frozenset(("setlk", "flock"))
"""Requests that last until another program gives a lock up: their time says nothing about the mount."""


@dataclass(frozen=True)
class Operation:
    """All requests of one kind so far: how many each bucket has, and the time of all."""

    buckets: tuple[int, ...]
    seconds: float

    @property
    def count(self) -> int:
        return sum(self.buckets)


@dataclass(slots=True)
class Served:
    """What one thread serves, and has served: `cells` by operation. `began_ns` is 0 between two requests, else by
    `time.perf_counter_ns`; `request` is libfuse's."""

    is_kept: bool = False
    request: int | None = None
    operation: str = ""
    began_ns: int = 0
    cells: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(_new_cell))
    errors: Counter[tuple[str, int]] = field(default_factory=Counter)
    read_bytes: int = 0
    written_bytes: int = 0

    @property
    def moved_bytes(self) -> int:
        return self.read_bytes + self.written_bytes


class Measures:
    """Of one mount."""

    def __init__(self) -> None:
        self._threads: list[Served] = []

    def add(self, thread: Served) -> None:
        self._threads.append(thread)

    def operations(self) -> dict[str, Operation]:
        """By name, those that there were."""
        sums: dict[str, list[int]] = {}
        for thread in tuple(self._threads):
            for operation, cell in thread.cells.copy().items():
                sums[operation] = [one + other for one, other in zip(sums.get(operation, _new_cell()), cell.copy(),
                                                                     strict=True)]
        return {operation: Operation((sum(cell[:FIRST_BIT + 1]), *cell[FIRST_BIT + 1:LAST_BIT],
                                      sum(cell[LAST_BIT:TIME])), cell[TIME] / 1e9)
                for operation, cell in sums.items()}

    def errors(self) -> Counter[tuple[str, int]]:
        """By operation and errno."""
        errors: Counter[tuple[str, int]] = Counter()
        for thread in tuple(self._threads):
            errors.update(thread.errors.copy())
        return errors

    def moved_bytes(self) -> tuple[int, int]:
        """Read and written."""
        threads = tuple(self._threads)
        return sum(thread.read_bytes for thread in threads), sum(thread.written_bytes for thread in threads)

    def is_served(self, operations: Set[str], but_for: Served) -> bool:
        """Whether another thread than that serves one of `operations` just now."""
        return any(thread.began_ns and thread.operation in operations and thread is not but_for
                   for thread in tuple(self._threads))

    def under_way_seconds(self) -> list[float]:
        """For how long each request is being served that is, but for those that wait for another program."""
        now_ns = time.perf_counter_ns()
        serving = [(thread.began_ns, thread.operation) for thread in tuple(self._threads)]
        return [max(0, now_ns - began_ns) / 1e9 for began_ns, operation in serving
                if began_ns and operation not in WAITS_FOR_OTHERS]


def quantile(buckets: Sequence[int], part: float) -> float:
    """How many seconds `part` (0 to 1) of the requests took at most, as Prometheus' histogram_quantile has it: evenly
    spread within a bucket, and the last bound for what took longer. 0 of none."""
    rank, below = part * sum(buckets), 0
    for index, up_to in enumerate(accumulate(buckets[:-1])):
        if up_to >= rank and up_to > below:
            lower = BOUNDS_SECONDS[index - 1] if index else 0.0
            return lower + (BOUNDS_SECONDS[index] - lower) * (rank - below) / (up_to - below)
        below = up_to
    return BOUNDS_SECONDS[-1] if rank > 0 else 0.0


def _new_cell() -> list[int]:
    return [0] * (TIME + 1)
