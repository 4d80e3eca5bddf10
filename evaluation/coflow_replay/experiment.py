"""MinCOF's figures on the emulated fabric: the simulated experiments' tasks, played instead."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import numpy as np

from speedwell.cluster.tables import Table
from speedwell.controller.policy.coflows.coflow import Coflow
from speedwell.controller.policy.coflows.mincof import THRESHOLD_BYTES
from speedwell.evaluation.coflow_replay.replay import (
    BEST_EFFORT_PACKETS,
    HOST_QUEUE_PACKETS,
    LEAST_BURST_BYTES,
    MTU_BYTES,
    QUEUE_PACKETS,
    ReplayFailed,
    ReplaySettings,
    replay,
)
from speedwell.evaluation.experiment import Choices, Experiment
from speedwell.evaluation.papers.mincof import LINK_BPS, METHODS, CoflowTask, fabric_of, run_task
from speedwell.evaluation.results.results_file import ResultsFile
from speedwell.evaluation.results.statistics import ratio_estimate
from speedwell.sim.coflow_bound import least_mean_seconds
from speedwell.sim.coflow_workload import generate
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import Fabric, spine_leaf

EMULATED = ("varys", "fair", "tailor", "mincof", "coflow-plus")
QUEUES = {"mincof": "mincof", "coflow-plus": "priorities"}
PACED = ("varys",)
"""Their rates are kept by the hosts."""
MOST_BUSY = 0.9
"""A run in which the machine is busier measured the machine."""
QUICK_COFLOWS, QUICK_INTERVALS = 8, 0.4
"""A quick run has so many coflows, at so much of the paper's intervals: 20 s and a little more."""


@dataclass(frozen=True)
class CoflowScale:
    """The emulated testbed beside the paper's: files shrink with the links, so times stay. With a `slowdown` files
    are so much larger, so of more frames, and come so much less often; times measured are divided by it again."""

    host_bps: float
    slowdown: float = 1.0

    @property
    def of_sizes(self) -> float:
        return self.host_bps / LINK_BPS * self.slowdown


def emulated_tasks(figure: Experiment, choices: Choices, runs: int, coflows: int | None = None) -> list[CoflowTask]:
    """The runs of a figure, each of so many `coflows`, for the methods that are played."""
    methods = tuple(method for method in METHODS if method.policy in EMULATED)
    chosen = replace(figure, methods=methods, runs=runs, quick_runs=runs).tasks(choices)
    return [_played(task, choices.quick, coflows) for task in chosen]


def _played(task: CoflowTask, quick: bool, coflows: int | None) -> CoflowTask:
    workload, intervals = task.point.workload, QUICK_INTERVALS if quick else 1.0
    return replace(task, point=replace(task.point, workload=replace(
        workload, coflows=coflows or (QUICK_COFLOWS if quick else workload.coflows),
        interval_mean_seconds=intervals * workload.interval_mean_seconds,
        interval_deviation_seconds=intervals * workload.interval_deviation_seconds)))


def run_emulated(chosen: Sequence[CoflowTask], scale: CoflowScale, results: ResultsFile,
                 finished: Callable[[int], None], say: Callable[[str], None],
                 failed: Callable[[str], None]) -> list[dict[str, Any]]:
    """Play what `results` does not have. `failed` hears of runs that came to nothing; the others go on.

    Raises ClusterError or EmulationError if no run can be made; what has ended is kept.
    """
    for done, task in enumerate(chosen):
        finished(done)
        if results.get(_parameters(task, scale)) is None:
            try:
                results.add(_run(task, scale, say))
            except ReplayFailed as error:
                failed(f"{task.point.name}, {task.method.name}, seed {task.seed}: {error}")
    finished(len(chosen))
    return [result for task in chosen if (result := results.get(_parameters(task, scale))) is not None]


def manifest(scale: CoflowScale) -> dict[str, Any]:
    """The part of the manifest that the emulation adds."""
    return {"mode": "emulate", "link_bps": scale.host_bps, "slowdown": scale.slowdown,
            "mtu_bytes": MTU_BYTES, "queue_packets": QUEUE_PACKETS, "host_queue_packets": HOST_QUEUE_PACKETS,
            "best_effort_packets": BEST_EFFORT_PACKETS, "meter_min_burst_bytes": LEAST_BURST_BYTES,
            "paced_at_hosts": list(PACED), "queues": QUEUES}


def _parameters(task: CoflowTask, scale: CoflowScale) -> dict[str, Any]:
    return task.parameters() | asdict(scale) | {"mtu_bytes": MTU_BYTES, "queue_packets": QUEUE_PACKETS}


def _run(task: CoflowTask, scale: CoflowScale, say: Callable[[str], None]) -> dict[str, Any]:
    """As the simulator's, with how long each coflow took, in the order of arrival, what the simulator says, and the
    part of the machine that was busy."""
    fabric = _slower(fabric_of(task.point.spines), task.point.spines, scale.host_bps)
    paper = generate(task.point.workload, network_of(fabric_of(task.point.spines)), Random(f"coflows {task.seed}"))
    draw = Random(f"background {task.seed}")
    background = {str(coflow.id) for coflow in paper if draw.random() < task.point.background}
    coflows = [_scaled(coflow, scale.of_sizes) for coflow in paper]
    policy = task.method.policy
    with tempfile.TemporaryDirectory(prefix="speedwell-coflows-") as name:
        played = replay(coflows, ReplaySettings(
            fabric, Path(name), policy, QUEUES.get(policy, "none"), THRESHOLD_BYTES * scale.of_sizes, background,
            scale.slowdown, paced=policy in PACED, hosts_enforce=task.method.hosts_enforce), say)
    counted = [coflow for coflow in paper if str(coflow.id) not in background] or paper
    seconds = [played.seconds[str(coflow.id)] / scale.slowdown for coflow in counted]
    return {"task": _parameters(task, scale), "mean_seconds": fmean(seconds),
            "p95_seconds": float(np.percentile(seconds, 95)),
            "bound_seconds": least_mean_seconds(counted, network_of(fabric_of(task.point.spines))),
            "counted": len(counted),
            "seconds": [round(each, 3) for each in seconds], "simulated_seconds": run_task(task)["mean_seconds"],
            "switch_cpu": {name: round(share, 4) for name, share in played.switch_cpu.items()},
            "machine_busy": round(played.machine_busy, 4), "congestion_control": played.congestion_control}


def cpu_table(results: Sequence[dict[str, Any]]) -> Table:
    """What each switch took of a processor in a method's runs, on average, and how busy the machine was."""
    switches = list(dict.fromkeys(name for result in results for name in result["switch_cpu"]))
    rows = []
    for names, runs in _groups(results).items():
        shares = (fmean(run["switch_cpu"][switch] for run in runs) if switch in runs[0]["switch_cpu"] else None
                  for switch in switches)
        rows.append((*names, *("" if share is None else f"{share:.1%}" for share in shares),
                     f"{fmean(run['machine_busy'] for run in runs):.0%}"))
    return Table("Processor time of the switches, % of a processor", ("point", "method", *switches, "machine"), rows,
                 (*switches, "machine"))


def simulated_table(results: Sequence[dict[str, Any]]) -> Table:
    """Means beside those that the simulator has for the same coflows, and the coflow that took longest: one that
    stood still shows there."""
    columns = ("point", "method", "mean, s", "simulated, s", "/ simulated", "slowest coflow, s")
    rows = []
    for names, runs in _groups(results).items():
        means, simulated = ([run[name] for run in runs] for name in ("mean_seconds", "simulated_seconds"))
        ratio = ratio_estimate(means, simulated).of_positive()
        interval = f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.has_interval else ""
        rows.append((*names, f"{fmean(means):.2f}", f"{fmean(simulated):.2f}", f"{ratio.value:.2f}{interval}",
                     f"{max(max(run['seconds']) for run in runs):.1f}"))
    return Table("Beside the simulator", columns, rows, columns[2:],
                 "In brackets the 95 % confidence interval of the ratio over runs (Fieller's theorem).")


def _groups(results: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Runs by point and method."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["task"]["point"], result["task"]["method"]["name"]), []).append(result)
    return groups


def _slower(fabric: Fabric, spines: int, host_bps: float) -> Fabric:
    leaves = len({switch.name for switch in fabric.switches if switch.tier == "edge"})
    return spine_leaf(leaves=leaves, spines=spines, hosts_per_leaf=len(fabric.hosts) // leaves, host_bps=host_bps,
                      oversubscription=4 / spines)


def _scaled(coflow: Coflow, scale: float) -> Coflow:
    return replace(coflow, flows=tuple(replace(flow, remaining_bytes=flow.remaining_bytes * scale)
                                       for flow in coflow.flows))
