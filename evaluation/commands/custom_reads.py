"""Reads on any fabric: methods compared over arrival rates."""

from dataclasses import asdict, dataclass
from hashlib import sha256
from random import Random
from typing import Any

from speedwell.evaluation.papers.reads import Method, simulate
from speedwell.sim.simulation import Delays
from speedwell.sim.workload import Workload, generate
from speedwell.topo.fabric import Fabric


@dataclass(frozen=True)
class CustomTask:
    """One run. `fabric` is a description as JSON, so that the task can go to any machine."""

    fabric: str
    workload: Workload
    method: Method
    reads: int
    seed: int
    poll_seconds: float = Delays().poll_interval

    def parameters(self) -> dict[str, Any]:
        rate = self.workload.reads_per_server_second
        return {"point": f"{rate:g}", "x": rate, "method": asdict(self.method), "reads": self.reads,
                "seed": self.seed, "poll_seconds": self.poll_seconds,
                "workload": asdict(self.workload) | {"locality": list(self.workload.locality)},
                "fabric_sha256": sha256(self.fabric.encode()).hexdigest()}


def run_custom(task: CustomTask) -> dict[str, Any]:
    """See `sweep.simulate`."""
    fabric = Fabric.from_json(task.fabric)
    return {"task": task.parameters()} | simulate(fabric, task.workload, task.method, task.reads, task.seed,
                                                 Delays(poll_interval=task.poll_seconds))


def custom_tasks(fabric: Fabric, workloads: list[Workload], methods: list[Method], reads: int, runs: int,
                 seed: int, poll_seconds: float = Delays().poll_interval) -> list[CustomTask]:
    """All methods meet the same reads. Raises InvalidSetting, InvalidWorkload for what the fabric cannot carry."""
    Delays(poll_interval=poll_seconds)
    for workload in workloads:
        generate(workload, fabric, Random(seed))
    return [CustomTask(fabric.to_json(), workload, method, reads, seed + run, poll_seconds)
            for workload in workloads for method in methods for run in range(runs)]
