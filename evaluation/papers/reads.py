"""Runs of reads in the simulator: what a task does, and what is kept of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Protocol

import numpy as np

from speedwell.controller.own_policies import POLICIES
from speedwell.controller.policy.reads.mayflower_plus import PATIENCE
from speedwell.controller.policy.registry import Kind
from speedwell.sim.clairvoyant import clairvoyant_mean_seconds
from speedwell.sim.errors import InvalidSetting, Overloaded
from speedwell.sim.on_time import clairvoyant_percentile_seconds
from speedwell.sim.simulation import Delays, Simulation
from speedwell.sim.workload import Read, Workload, generate
from speedwell.topo.fabric import Fabric, three_tier

AGGREGATION_RATIO = 4.0
HOST_BPS = 1e9


@dataclass(frozen=True)
class Method:
    """A way to place reads, under the name that the paper gives it."""

    name: str
    replica_policy: str
    path_policy: str
    parts: int = 1
    patience: float = PATIENCE
    revises: bool = True
    """Whether mayflower-plus may divide running reads anew. Like its `patience`, only the simulator can change it."""

    @property
    def is_offered(self) -> bool:
        """Whether the controller has it."""
        return self.revises and self.patience == PATIENCE


def method_of(text: str, parts: int) -> Method:
    """From `REPLICA-POLICY+PATH-POLICY`. Raises InvalidSetting."""
    replica, _, path = text.partition("+")
    replicas, paths = POLICIES.names(Kind.REPLICA), POLICIES.names(Kind.PATH)
    if replica in replicas and path not in paths:
        whole = " or ".join(f"{replica}+{each}" for each in paths)
        raise InvalidSetting(f"method: {text!r} lacks a path policy: {whole}")
    if replica not in replicas:
        raise InvalidSetting(f"method: {text!r} is not one of {', '.join(replicas)}, then +, then one of "
                             f"{', '.join(paths)}")
    if parts < 1:
        raise InvalidSetting(f"parts: must be at least 1, not {parts}")
    return Method(text, replica, path, parts)


def fabric_of(oversubscription: float, aggregation_ratio: float = AGGREGATION_RATIO,
              host_bps: float = HOST_BPS) -> Fabric:
    """The paper's 64 hosts (figure 3) with this core-to-rack ratio, of which `aggregation_ratio` is above the racks.

    Raises InvalidFabric.
    """
    ratios = {"edge": oversubscription / aggregation_ratio, "aggregation": aggregation_ratio}
    return three_tier(pods=4, racks_per_pod=4, hosts_per_rack=4, aggregations_per_pod=2, cores=2, host_bps=host_bps,
                      oversubscription=ratios)


@dataclass(frozen=True)
class Task:
    """One run: a point of a figure, a method and a seed. Equal tasks give equal results."""

    point: str
    x: float
    method: Method
    rate: float
    locality: tuple[float, float, float]
    oversubscription: float
    reads: int
    seed: int
    panel: str = ""
    aggregation_ratio: float = AGGREGATION_RATIO

    def parameters(self) -> dict[str, object]:
        """As plain JSON values."""
        return {**asdict(self), "locality": list(self.locality)}


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
