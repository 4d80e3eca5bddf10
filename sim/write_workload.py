"""Writes of a cluster that runs the jobs of a coflow trace (Chowdhury et al., "Sinbad", SIGCOMM 2013, section 7).

The shuffle is the background: its rates are computed beforehand and do not change with what is written, as in the
paper. A task writes what it puts out once it has its data, in blocks, one after the other. The public trace says
nothing of outputs and knows racks only; what is taken instead stands in `speedwell.evaluation.papers.sinbad.CHOSEN`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from speedwell.sim.coflow_trace import CoflowTrace, FairRates, fair_rates
from speedwell.sim.errors import InvalidWorkload

BITS_PER_BYTE = 8
DRAIN_SECONDS = 600
"""The shuffle is known for so long after the last second in which writes begin; then it goes on as in the last."""


@dataclass(frozen=True)
class WriteWorkload:
    """`begin_seconds` and `window_seconds` say which part of the trace is played; jobs come `speedup` times as fast.

    The shuffle takes at most `shuffle_bps` of a rack's link, either way. Raises InvalidWorkload, naming the field.
    """

    begin_seconds: float = 0.0
    window_seconds: float = 300.0
    speedup: float = 1.0
    shuffle_bps: float = 1.5e9
    block_bytes: float = 256e6
    least_block_bytes: float = 8 * 2**20
    output_share: float = 0.104
    writers_per_rack: int = 10

    def __post_init__(self) -> None:
        for name in ("window_seconds", "speedup", "shuffle_bps", "block_bytes", "output_share", "writers_per_rack"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidWorkload(f"{name}: must be a positive number, not {value!r}")


@dataclass(frozen=True, slots=True)
class Writer:
    """A task that writes blocks one after the other from `start` on; `host` is its machine's number in the rack."""

    job: int
    start: float
    rack: int
    host: int
    blocks_bits: tuple[float, ...]


@dataclass(frozen=True)
class Writes:
    """What is written in the window, and what the racks carry beside it. Times count from the window's begin."""

    writers: tuple[Writer, ...]
    shuffle: FairRates
    job_bits: dict[int, float]


def writes_of(trace: CoflowTrace, workload: WriteWorkload, generator: Random) -> Writes:
    """The writers that begin within the window. The reducers of a rack end one by one, at moments that `generator`
    draws between the coflow's arrival and when the rack has all of its data."""
    begin, end = workload.begin_seconds, workload.begin_seconds + workload.window_seconds
    faster = CoflowTrace(trace.racks, tuple(
        replace(coflow, arrival_seconds=coflow.arrival_seconds / workload.speedup) for coflow in trace.coflows
        if coflow.arrival_seconds / workload.speedup < end + DRAIN_SECONDS))
    rates = fair_rates(faster, workload.shuffle_bps, math.ceil(end + DRAIN_SECONDS))
    writers = []
    for coflow in faster.coflows:
        for rack, bits in coflow.reducers:
            whole = rates.finished_seconds.get((coflow.number, rack))
            if whole is None or whole < begin or coflow.arrival_seconds >= end:
                continue
            for host, blocks in enumerate(_shared(workload, bits * workload.output_share, generator)):
                start = generator.uniform(coflow.arrival_seconds, whole)
                if blocks and begin <= start < end:
                    writers.append(Writer(coflow.number, start - begin, rack, host, blocks))
    jobs = {coflow.number: workload.output_share * sum(bits for _, bits in coflow.reducers)
            for coflow in faster.coflows}
    return Writes(tuple(sorted(writers, key=lambda writer: writer.start)),
                  FairRates(rates.rates_bps[int(begin):], rates.finished_seconds), jobs)


def _shared(workload: WriteWorkload, bits: float, generator: Random) -> Sequence[tuple[float, ...]]:
    """The blocks of a rack's output, dealt to its writers; without those that are too small to ask for."""
    block_bits = workload.block_bytes * BITS_PER_BYTE
    number = math.ceil(bits / block_bits)
    blocks = [block_bits] * (number - 1) + [bits - (number - 1) * block_bits]
    shares: list[list[float]] = [[] for _ in range(workload.writers_per_rack)]
    first = generator.randrange(workload.writers_per_rack)
    for index, block in enumerate(blocks):
        if block >= workload.least_block_bytes * BITS_PER_BYTE:
            shares[(first + index) % workload.writers_per_rack].append(block)
    return [tuple(share) for share in shares]
