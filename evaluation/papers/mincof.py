"""Figures 6 to 9 of MinCOF's evaluation (Chiu et al., section IV): what each varies, and what a run does.

4 spines, 4 leaves, 16 hosts, 100 Mbit/s links, 64 coflows, everything as a ratio to Tailor: the paper draws ratios to
Varys with ECMP, but what it claims is how far MinCOF is below Tailor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np

from speedwell.controller.own_policies import POLICIES
from speedwell.controller.policy.coflows.coflow import CoflowScheduler
from speedwell.controller.policy.coflows.mincof import THRESHOLD_BYTES
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.registry import Kind
from speedwell.evaluation.experiment import Choices, Experiment
from speedwell.sim.coflow_bound import least_mean_seconds
from speedwell.sim.coflow_simulation import CoflowSimulation, Enforcement
from speedwell.sim.coflow_workload import CoflowWorkload, generate
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import Fabric, spine_leaf

LINK_BPS = 100e6
BASE = "Tailor"
CHOSEN = {
    "sizes of files (Fig. 5, only drawn)": "log-uniform from 2.5 MB, below which nothing is scheduled, to 50 MB, the "
                                           "largest that section IV-D names",
    "arrivals (Table II)": "gamma distributed intervals with the table's mean and standard deviation; "
                           "median 3.14 s (table: 3.06 s), mode 0 (table: 1.58 s)",
    "width": "section IV-C has coflows of exactly 4, 8, 12 or 16 flows: so many transfers, of one flow each",
    "size": "section IV-D has ranges as 4 x 10, 4 x 40 and 4 x 50 MB: 4 transfers of one flow each, of files from "
            "2.5 MB up to that",
    "blocking and background": "the workload of section IV-B: 3 to 12 transfers of 4 to 16 flows each",
    "blocking ratio (Fig. 8, only drawn)": "4 hosts' links to 4, 2 or 1 links to spines: so many spines are used",
    "background": "each coflow is background with the given probability; its completion does not count",
    "queues": "three with MinCOF, eight priorities with coflow-plus and Sincronia, on links between switches; rows "
              "'hosts enforce' have the same on hosts' own links, as host agents do, which the others share fairly; "
              "each priority has 2 % of a link for certain",
    "Varys": "rates are enforced at the hosts at once, without the overhead that the paper's testbed had",
    "Aalo": "ten queues that share hosts' links by the weights 10 to 1; its paper asks for falling ones",
    "meters": "TCP gets all of a metered rate; the paper's imitation with tc did not",
    "decisions": "MinCOF at arrivals and completions of coflows, as in its paper; coflow-plus a second later too, as "
                 "reports come; the others so and at the end of each flow",
    "Tailor": "a decision for each live coflow each time",
}
"""Where the paper is silent: what is taken here."""


@dataclass(frozen=True)
class CoflowMethod:
    """A way to schedule coflows, under the name that tables give it.

    `sliced`: links between switches have the policy's queues; `hosts_enforce`: host agents have them on hosts' own.
    """

    name: str
    policy: str
    sliced: bool = False
    hosts_enforce: bool = False


METHODS = (CoflowMethod("Varys + ECMP", "varys"), CoflowMethod(BASE, "tailor"), CoflowMethod("Rapier", "rapier"),
           CoflowMethod("MinCOF", "mincof", True), CoflowMethod("coflow-plus", "coflow-plus", True),
           CoflowMethod("Sincronia + ECMP", "sincronia", True), CoflowMethod("Aalo + ECMP", "aalo"),
           CoflowMethod("fair sharing + ECMP", "fair"),
           CoflowMethod("MinCOF, hosts enforce", "mincof", True, True),
           CoflowMethod("coflow-plus, hosts enforce", "coflow-plus", True, True),
           CoflowMethod("Sincronia, hosts enforce", "sincronia", True, True))


def method_of(policy: str) -> CoflowMethod:
    """A coflow policy under its own name. Raises UnknownPolicy."""
    found = POLICIES.get(Kind.COFLOW, policy)
    return CoflowMethod(policy, found.name, sliced=found.ranks_flows)


PAPERS = CoflowWorkload()


@dataclass(frozen=True)
class CoflowPoint:
    """Where a figure looks: `x` is the place on its axis."""

    name: str
    x: float
    workload: CoflowWorkload = PAPERS
    spines: int = 4
    background: float = 0.0


@dataclass(frozen=True)
class CoflowTask:
    """One run. Equal tasks give equal results."""

    point: CoflowPoint
    method: CoflowMethod
    seed: int

    def parameters(self) -> dict[str, Any]:
        """As plain JSON values."""
        workload = {key: list(value) if isinstance(value, tuple) else value
                    for key, value in asdict(self.point.workload).items()}
        return {"point": self.point.name, "x": self.point.x, "workload": workload, "spines": self.point.spines,
                "background": self.point.background, "method": asdict(self.method), "seed": self.seed}


def fabric_of(spines: int) -> Fabric:
    """4 leaves of 4 hosts; all links have the same rate, so fewer spines block more."""
    return spine_leaf(leaves=4, spines=spines, hosts_per_leaf=4, host_bps=LINK_BPS, oversubscription=4 / spines)


def _sizes(megabytes: float) -> CoflowWorkload:
    return CoflowWorkload(transfers=(4, 4), flows=(1, 1), file_bytes=(2.5e6, megabytes * 1e6))


QUICK_COFLOWS = 24


def _task(point: CoflowPoint, method: CoflowMethod, seed: int, choices: Choices) -> CoflowTask:
    if choices.quick:
        point = replace(point, workload=replace(point.workload, coflows=QUICK_COFLOWS))
    return CoflowTask(point, method, seed)


def run_task(task: CoflowTask) -> dict[str, Any]:
    """One run as a JSON object: mean and 95th percentile of the coflows' completion times in seconds, and more.

    `bound_seconds` is what no policy gets below on average. Background coflows do not count, in neither.
    """
    network = network_of(fabric_of(task.point.spines))
    coflows = generate(task.point.workload, network, Random(f"coflows {task.seed}"))
    draw = Random(f"background {task.seed}")
    background = frozenset(coflow.id for coflow in coflows if draw.random() < task.point.background)
    counted = [coflow for coflow in coflows if coflow.id not in background] or coflows
    simulation = CoflowSimulation(network, scheduler(task.method.policy, network),
                                  Enforcement(sliced=task.method.sliced, hosts_enforce=task.method.hosts_enforce))
    times = simulation.run(coflows, background)
    seconds = [times[coflow.id] for coflow in counted]
    return {"task": task.parameters(), "mean_seconds": float(np.mean(seconds)),
            "p95_seconds": float(np.percentile(seconds, 95)), "bound_seconds": least_mean_seconds(counted, network),
            "moved_flows": simulation.moves, "decisions": simulation.decisions, "counted": len(counted)}


def scheduler(policy: str, network: Network) -> CoflowScheduler:
    """Raises UnknownPolicy."""
    made: CoflowScheduler = POLICIES.make(Kind.COFLOW, policy, network, THRESHOLD_BYTES)
    return made


def _facts(tasks: Sequence[CoflowTask]) -> Mapping[str, object]:
    return {"fabric": "spine-leaf, 4 spines (fewer for other blocking ratios), 4 leaves of 4 hosts",
            "link_bps": LINK_BPS, "enforcement": asdict(Enforcement())}


_figure = partial(Experiment, seed=101, base=BASE, normalised=True, methods=METHODS, task=_task, run=run_task,
                  method_of=method_of, facts=_facts, chosen=CHOSEN, bounds={"mean_seconds": "bound_seconds"},
                  emulation="speedwell.evaluation.coflow_replay.emulation:figure",
                  palette=tuple(method.name for method in METHODS))
EXPERIMENTS = {
    "mincof-width": _figure(minutes=0.5, quick_minutes=0.1,
        title="Completion times by the coflows' width (figure 6)", x_label="flows in a coflow", runs=10,
        quick_points=(0, 1),
        claims=("MinCOF up to 9.81 % below Tailor, at 8 flows; both below Varys",),
        points=tuple(CoflowPoint(str(width), width, CoflowWorkload(transfers=(width, width), flows=(1, 1)))
                     for width in (4, 8, 12, 16))),
    "mincof-size": _figure(minutes=0.1, quick_minutes=0.1,
        title="Completion times by the coflows' size (figure 7)", x_label="size of a coflow", runs=10,
        quick_points=(0, 2), claims=("MinCOF up to 12.94 % below Tailor, at < 200 MB",),
        points=tuple(CoflowPoint(f"< {4 * megabytes} MB", 4.0 * megabytes, _sizes(megabytes))
                     for megabytes in (10, 40, 50))),
    "mincof-blocking": _figure(minutes=2.4, quick_minutes=0.3,
        title="Completion times by blocking ratio (figure 8)", x_label="links to hosts : links to spines", runs=5,
        quick_points=(0, 2),
        claims=("MinCOF up to 11.33 % below Tailor, at the lowest ratio",),
        points=tuple(CoflowPoint(f"{4 // spines}:1", 4 / spines, spines=spines) for spines in (4, 2, 1))),
    "mincof-background": _figure(minutes=3, quick_minutes=0.2,
        title="Completion times by background traffic (figure 9)", x_label="part of the coflows that is background",
        runs=5, quick_points=(0, 4),
        claims=("MinCOF up to 15.21 % below Tailor, at 50 %; Tailor saturates at 40 %",),
        points=tuple(CoflowPoint(f"{part} %", part, background=part / 100) for part in (10, 20, 30, 40, 50))),
}
