"""Runs of reads in the simulator: what a task does, and what is kept of it."""

from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

import numpy as np

from evaluation.papers.mayflower import Method, Task, fabric_of
from sim.clairvoyant import clairvoyant_mean_seconds
from sim.errors import Overloaded
from sim.on_time import clairvoyant_percentile_seconds
from sim.simulation import Delays, Simulation
from sim.workload import Read, Workload, generate
from topo.fabric import Fabric


class Finished(Protocol):
    """A read that has ended: its completion time, and when each part of it ended if there was more than one."""

    @property
    def read(self) -> Read: ...
    @property
    def seconds(self) -> float: ...
    @property
    def part_ends(self) -> Sequence[float]: ...


WARM_UP = 0.1
"""The part of the reads at the start that does not count: the network is still emptier than later."""


def run_task(task: Task) -> dict[str, Any]:
    """One run of a figure as a JSON object: its parameters, and what `simulate` gives."""
    fabric = fabric_of(task.oversubscription, task.aggregation_ratio)
    workload = Workload(reads_per_server_second=task.rate, locality=task.locality)
    return {"task": task.parameters()} | simulate(fabric, workload, task.method, task.reads, task.seed)


def simulate(fabric: Fabric, workload: Workload, method: Method, reads: int, seed: int,
             delays: Delays | None = None) -> dict[str, Any]:
    """Mean and 95th percentile of the completion times in seconds, and more: see `summary`.

    A run that overloads the network has the reason under `overloaded` instead. Raises InvalidWorkload.
    """
    simulation = Simulation(fabric, method.replica_policy, method.path_policy, Random(seed), delays, method.parts,
                            patience=method.patience, revises=method.revises)
    try:
        outcomes = simulation.run(generate(workload, fabric, Random(f"reads {seed}")), reads)
    except Overloaded as error:
        return {"overloaded": str(error)}
    return summary(outcomes, fabric.ports(fabric.hosts[0].name)[0].capacity_bps)


def summary(outcomes: Sequence[Finished], host_bps: float) -> dict[str, Any]:
    """What is kept of a run whose reads these are, in order of arrival: times in seconds."""
    counted = outcomes[int(WARM_UP * len(outcomes)):]
    seconds, reads = [outcome.seconds for outcome in counted], [outcome.read for outcome in counted]
    apart = [max(outcome.part_ends) - min(outcome.part_ends) for outcome in counted if len(outcome.part_ends) > 1]
    return {
        "mean_seconds": float(np.mean(seconds)), "p95_seconds": float(np.percentile(seconds, 95)),
        "bound_seconds": clairvoyant_mean_seconds(reads, host_bps),
        "p95_bound_seconds": clairvoyant_percentile_seconds(reads, host_bps),
        "split_reads": len(apart), "parts_apart_seconds": float(np.mean(apart)) if apart else None,
    }
