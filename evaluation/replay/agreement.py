"""Whether the simulator and the emulation agree: the same traces, at the same scale, in both.

The simulator is given what the emulated network and installation are known or measured to be: the part of a link's
rate that is left for a file's bytes, and the delays of a decision. Nothing is fitted to the times compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from random import Random
from statistics import fmean
from typing import Any

from speedwell.cluster.tables import Table
from speedwell.controller.policy.reads.selection import PLUS
from speedwell.evaluation.papers.reads import WARM_UP, Task
from speedwell.evaluation.replay.experiment import parameters
from speedwell.evaluation.replay.scale import Scale
from speedwell.evaluation.results.results_file import ResultsFile
from speedwell.evaluation.results.statistics import Estimate, ratio_estimate
from speedwell.sim.given_paths import completion_seconds
from speedwell.sim.simulation import Delays, Simulation
from speedwell.sim.workload import Read
from speedwell.topo.emulation.settings import Settings

ETHERNET_HEADER_BYTES = 14
IP_AND_TCP_HEADER_BYTES = 20 + 20 + 12      # with TCP's time stamps
SIMULATIONS = 5
"""Of each trace, with other random choices of the policies (client ports, so ECMP's paths)."""

BATCH_READS = 20
"""Reads that follow each other count by their mean as one sample: those that run together share links, so single
reads are not independent."""

AIM = 0.15


@dataclass(frozen=True)
class Agreement:
    """One method: mean completion times in seconds, of all runs together.

    `ratio` is the simulated mean over the emulated one, with the interval that the same batches of reads give.
    `same_paths` is the mean in a network of fluid flows over the paths that the emulation's reads took: it differs
    from `emulated` by what TCP, the switches and hosts do, and from `simulated` by what was chosen. None where the
    paths are not known, or changed under way.
    """

    method: str
    reads: int
    emulated: float
    simulated: float
    simulated_low: float
    simulated_high: float
    ratio: Estimate
    same_paths: float | None = None

    @property
    def difference(self) -> float:
        """Of the simulated mean from the emulated one, as a part of it."""
        return self.ratio.value - 1


def wire_factor(mtu: int = Settings().mtu) -> float:
    """Bytes that a shaped link counts for each byte of a file, in full frames of TCP over Ethernet."""
    return (mtu + ETHERNET_HEADER_BYTES) / (mtu - IP_AND_TCP_HEADER_BYTES)


def delays_at(scale: Scale) -> Delays:
    """The controller's delays at the scale."""
    return Delays(poll_interval=scale.poll_interval_seconds)


def manifest(delays: Delays) -> dict[str, Any]:
    """What the simulations were given."""
    return {"wire_factor": wire_factor(), "delays_seconds": asdict(delays), "simulations": SIMULATIONS, "aim": AIM}


def compare(tasks: Sequence[Task], scale: Scale, results: ResultsFile, delays: Delays) -> list[Agreement]:
    """Simulate what has been emulated; tasks without a result, or whose network was overloaded, are left out."""
    rows = []
    for method in dict.fromkeys(task.method for task in tasks):
        emulated: list[float] = []
        simulated: list[list[float]] = [[] for _ in range(SIMULATIONS)]
        same_paths: list[float] = []
        for task in [task for task in tasks if task.method == method]:
            result = results.get(parameters(task, scale))
            if result is None or "seconds" not in result:
                continue
            emulated += _counted(result["seconds"])
            for number, means in enumerate(simulated):
                means += _counted(simulate(task, scale, delays, number))
            if result.get("paths") and method.replica_policy != PLUS:
                same_paths += _counted(on_paths(task, scale, delays, result["paths"]))
        if emulated:
            row = agreement_of(method.name, emulated, simulated)
            rows.append(replace(row, same_paths=fmean(same_paths) if len(same_paths) == len(emulated) else None))
    return rows


def agreement_of(method: str, emulated: Sequence[float], simulated: Sequence[Sequence[float]]) -> Agreement:
    """Compare the times of the same reads in the emulation and in each of the simulations."""
    means = [fmean(times) for times in simulated]
    of_each_read = [fmean(times) for times in zip(*simulated, strict=True)]
    ratio = ratio_estimate(_batches(of_each_read), _batches(emulated)).of_positive()
    return Agreement(method, len(emulated), fmean(emulated), fmean(means), min(means), max(means), ratio)


def simulate(task: Task, scale: Scale, delays: Delays, number: int) -> list[float]:
    """Completion times of a task's reads in the simulator, at the scale, in order of arrival.

    Raises Overloaded. `number` chooses among the random choices of the policies.
    """
    fabric = scale.fabric(task.oversubscription)
    method = task.method
    reads = _reads(task, scale)
    simulation = Simulation(fabric, method.replica_policy, method.path_policy, Random(f"{task.seed} {number}"),
                            delays, parts=method.parts)
    return [outcome.seconds * scale.speedup for outcome in simulation.run(iter(reads), len(reads))]


def on_paths(task: Task, scale: Scale, delays: Delays, paths: Sequence[Sequence[Sequence[str]]]) -> list[float]:
    """Completion times of a task's reads as fluid flows over these paths, at the scale, in order of arrival."""
    seconds = completion_seconds(scale.fabric(task.oversubscription), _reads(task, scale), paths, delays.decision)
    return [each * scale.speedup for each in seconds]


def _reads(task: Task, scale: Scale) -> list[Read]:
    return [replace(read, size_bits=read.size_bits * wire_factor()) for read in scale.trace(task)]


def table_of(rows: Sequence[Agreement]) -> Table:
    columns = ("method", "reads", "emulated, s", "simulated, s", "difference", "same paths, s")
    caption = (f"Aim: at most {AIM:.0%} apart. In brackets the lowest and highest of {SIMULATIONS} simulations with "
               "other client ports and random choices; of the difference the 95 % confidence interval by Fieller's "
               f"theorem over batches of {BATCH_READS} reads. Last the mean of fluid flows over the very paths that "
               "the emulation's reads took.")
    return Table("Mean completion times, emulated and simulated", columns, [_cells(row) for row in rows], columns[1:],
                 caption)


def _cells(row: Agreement) -> tuple[str, ...]:
    difference = f"{row.difference:+.1%}"
    if row.ratio.has_interval:
        difference += f" [{row.ratio.low - 1:+.1%}, {row.ratio.high - 1:+.1%}]"
    return (row.method, str(row.reads), f"{row.emulated:.3f}",
            f"{row.simulated:.3f} [{row.simulated_low:.3f}, {row.simulated_high:.3f}]", difference,
            "" if row.same_paths is None else f"{row.same_paths:.3f}")


def _counted(seconds: Sequence[float]) -> Sequence[float]:
    return seconds[int(WARM_UP * len(seconds)):]


def _batches(seconds: Sequence[float]) -> list[float]:
    """Means of as equal batches as there are, of at least BATCH_READS reads if there are so many."""
    count = max(1, len(seconds) // BATCH_READS)
    ends = [round(number * len(seconds) / count) for number in range(count + 1)]
    return [fmean(seconds[begin:end]) for begin, end in pairwise(ends)]


def as_json(row: Agreement) -> dict[str, Any]:
    """One method as a JSON object."""
    ratio = row.ratio._asdict() if row.ratio.has_interval else {"value": row.ratio.value, "low": None, "high": None}
    return {**asdict(row), "ratio": ratio, "difference": row.difference}
