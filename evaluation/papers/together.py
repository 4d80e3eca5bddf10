"""All five systems at once: every subset of them under one mixed load, and what each adds to the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from random import Random
from typing import Any

import numpy as np

from speedwell.cluster.tables import Table
from speedwell.controller.policy.registry import replica_policy_beside
from speedwell.evaluation.experiment import Choices, Experiment, Result
from speedwell.evaluation.results.report import Measure
from speedwell.evaluation.results.statistics import Estimate, mean_estimate, ratio_estimate
from speedwell.sim.errors import Overloaded
from speedwell.sim.mixed_load import Messages, Outcome, Systems, Transfer
from speedwell.sim.together import TogetherSimulation
from speedwell.sim.workload import Read, Workload, generate
from speedwell.topo.fabric import Fabric, three_tier

NAMES = ("reads", "coflows", "placements", "turns", "metadata")
ON = Systems()
KINDS = ("read", "write", "metadata", "short")
ALL, NOTHING = "all five", "nothing"
FANNED = 4
WARM_UP = 0.1
MOST_RUNNING = 25
"""Flows a host at once; more is an overload."""
CHOSEN = {
    "fabric": "three-tier, 2 pods of 2 racks of 4 hosts at 1 Gbit/s, 2:1 above racks and 2:1 above pods",
    "reads": "files of 64 MiB by Zipf's law, and a quarter as many requests that fetch 16 MiB of each of four files "
             "at once",
    "writes": "64 MiB, three replicas, half as many as reads; all hosts are candidates",
    "background": "64 MiB by TCP between two hosts, half as often as reads, told to nobody",
    "metadata": "1,600 requests a second of 0.5 ms; off: one nameserver beside the fabric; on: four stores in it",
    "short": "200 flows of 20 kB a second, two round trips each",
    "queues": "1 ms of the port, full where TCP is held back by the link; incast loses no packets",
    "policies": ", ".join(f"{name}: {policy}" for name, policy in asdict(ON).items()) +
                ", without coflows mayflower; off: nearest and ECMP, fair sharing, rack-aware",
}


@dataclass(frozen=True)
class Subset:
    """The systems that are on."""

    name: str
    on: tuple[str, ...]

    @property
    def systems(self) -> Systems:
        on = replace(ON, **{name: "" for name in NAMES if name not in self.on})
        return replace(on, reads=replica_policy_beside(on.coflows or None)) if on.reads else on


def _subset(on: tuple[str, ...]) -> Subset:
    return Subset({len(NAMES): ALL, 0: NOTHING}.get(len(on), " + ".join(on)), on)


SUBSETS = tuple(_subset(on) for number in range(len(NAMES), -1, -1) for on in combinations(NAMES, number))
NONE = SUBSETS[-1]
HALF = tuple(each for each in SUBSETS if len(each.on) % 2)
"""The half fraction 2^(5-1) with the defining relation I = ABCDE, resolution V (Montgomery, "Design and Analysis of
Experiments", section 8.2): all five, each three and each one. A system's effect is confounded with the interaction of
the other four, that of two with that of the other three."""


@dataclass(frozen=True)
class Point:
    """`rate` is reads per host and second, `size_bytes` that of a file, `files` how many of each kind there are."""

    name: str = "16 hosts"
    rate: float = 0.25
    seconds: float = 30.0
    pods: int = 2
    racks: int = 2
    hosts: int = 4
    host_bps: float = 1e9
    size_bytes: int = 64 << 20
    files: int = 200


SCALE = (Point(seconds=10.0), Point("one pod of 128 hosts", 0.25, 5.0, 1, 8, 16),
         Point("128 hosts in 8 pods", 0.25, 5.0, 8, 4, 4), Point("1,024 hosts in 8 pods", 0.25, 1.0, 8, 8, 16),
         Point("4,096 hosts in 16 pods", 0.25, 0.5, 16, 16, 16))


@dataclass(frozen=True)
class Task:
    """One run. Equal tasks give equal results."""

    point: Point
    method: Subset
    seed: int

    def parameters(self) -> dict[str, Any]:
        """As plain JSON values."""
        point = self.point
        return {"point": point.name, "x": point.pods * point.racks * point.hosts, "workload": asdict(self.point),
                "method": {"name": self.method.name, "on": list(self.method.on)}, "seed": self.seed}


def _task(point: Point, method: Subset, seed: int, choices: Choices) -> Task:
    return Task(replace(point, seconds=min(point.seconds, 10.0)) if choices.quick else point, method, seed)


def load(fabric: Fabric, point: Point, seed: int) -> list[Transfer]:
    """What is asked for, in order: the same whichever systems are on."""
    draw, size = Random(f"load {seed}"), 8.0 * point.size_bytes
    hosts = [host.name for host in fabric.hosts]
    found: list[Transfer] = []
    workload = Workload(reads_per_server_second=point.rate, files=point.files, read_bits=size)
    for read in generate(workload, fabric, draw):
        if read.arrival > point.seconds:
            break
        found.append(Transfer("read", read.arrival, (read,)))
    fanned = generate(replace(workload, reads_per_server_second=point.rate / FANNED, read_bits=size / FANNED), fabric,
                      draw)
    others = generate(workload, fabric, Random(f"files {seed}"))
    for read in fanned:
        if read.arrival > point.seconds:
            break
        of_files = [read.replicas, *(next(others).replicas for _ in range(FANNED - 1))]
        found.append(Transfer("read", read.arrival, tuple(
            Read(read.arrival, read.client, replicas, read.size_bits)
            for replicas in of_files if read.client not in replicas)))
    for kind in ("write", "background"):
        now = draw.expovariate(point.rate / 2 * len(hosts))
        while now < point.seconds:
            writer, client = draw.sample(hosts, 2)
            found.append(Transfer(kind, now, (), writer, client, size))
            now += draw.expovariate(point.rate / 2 * len(hosts))
    return sorted(found, key=lambda each: each.arrival)


def fabric(point: Point = Point()) -> Fabric:  # noqa: B008
    return three_tier(pods=point.pods, racks_per_pod=point.racks, hosts_per_rack=point.hosts, host_bps=point.host_bps,
                      oversubscription={"edge": 2.0, "aggregation": 2.0})


def run_task(task: Task) -> Result:
    """One run as a JSON object: mean, 95th and 99th percentile of each kind in milliseconds, the use of links,
    fairness between clients, and what each system's decisions cost: percent of a processor, and microseconds a call.
    The cost alone differs from run to run."""
    point, warm_up = task.point, WARM_UP * task.point.seconds
    built = fabric(point)
    simulation = TogetherSimulation(built, task.method.systems, task.seed, Messages(), warm_up_seconds=warm_up)
    try:
        outcome = simulation.play(load(built, point, task.seed), point.seconds, MOST_RUNNING * len(built.hosts))
    except Overloaded as error:
        return {"task": task.parameters(), "overloaded": str(error)}
    percent = {name: 100 * outcome.decided[name] / (point.seconds - warm_up) for name in NAMES[:-1]}
    found: dict[str, float] = {"inside_pods": simulation.inside_pods, "cpu": sum(percent.values()),
                               **{f"cpu_{name}": of for name, of in percent.items()},
                               **{f"us_{name}": 1e6 * outcome.decided[name] / max(outcome.decisions[name], 1)
                                  for name in percent}}
    return {"task": task.parameters(), **found, **summary(outcome, warm_up)}


def summary(outcome: Outcome, warm_up: float) -> dict[str, float]:
    """Mean, 95th and 99th percentile of each kind in milliseconds, of what came after so many seconds, the use of
    links, and fairness between clients."""
    found = {"link_use": outcome.link_use, "fairness": outcome.fairness}
    for kind in (*KINDS, "background"):
        ms = [1e3 * seconds for arrival, seconds in outcome.seconds[kind] if arrival >= warm_up]
        found |= {f"{kind}_mean": float(np.mean(ms)), f"{kind}_p95": float(np.percentile(ms, 95)),
                  f"{kind}_p99": float(np.percentile(ms, 99))}
    return found


def effects(name: str, results: Sequence[Result], design: Sequence[Subset] = SUBSETS) -> Iterable[Table | str]:
    """Main effects and interactions of two systems on the means, over the subsets of a design, and whether the goals
    are met."""
    runs = {(frozenset(each["task"]["method"]["on"]), each["task"]["seed"]): each for each in results
            if "overloaded" not in each}
    seeds = sorted({seed for _, seed in runs})
    if not seeds or any((frozenset(each.on), seed) not in runs for each in (*design, NONE) for seed in seeds):
        return
    of_design = {key: runs[key] for each in design for seed in seeds for key in [(frozenset(each.on), seed)]}
    terms = [*combinations(NAMES, 1), *combinations(NAMES, 2)]
    columns = ("of", *(f"{kind}, mean" for kind in KINDS))
    yield Table("What a system changes, over all that the others may be, and what two do to each other", columns,
                [(" x ".join(term), *(_percent(_effect(of_design, seeds, term, f"{kind}_mean")) for kind in KINDS))
                 for term in terms], columns[1:],
                "In the geometric mean, with 95 % intervals over seeds. Two systems that help each other have an "
                "interaction below 0; two that fight, above.")
    yield from goals(runs, seeds)


Runs = dict[tuple[frozenset[str], int], Result]


def _effect(runs: Runs, seeds: Sequence[int], term: Sequence[str], measure: str) -> Estimate:
    """The contrast of a factor, or of two, in logarithms."""
    of_seeds = []
    for seed in seeds:
        signed = [math.log(run[measure]) * math.prod(1 if name in on else -1 for name in term)
                  for (on, of), run in runs.items() if of == seed]
        of_seeds.append(2 * sum(signed) / len(signed))
    return mean_estimate(of_seeds)


def _percent(of_log: Estimate) -> str:
    value, low, high = (100 * math.expm1(each) for each in of_log)
    return f"{round(value):+d} %" + (f" [{round(low):+d}, {round(high):+d}]" if of_log.has_interval else "")


def goals(runs: Runs, seeds: Sequence[int]) -> Iterable[str]:
    """One line for each kind: the default against nothing, the best subset and each single system."""
    def ratio(kind: str, on: Iterable[str]) -> Estimate:
        """Of the default's mean to that of a subset."""
        return ratio_estimate(*([runs[frozenset(of), seed][f"{kind}_mean"] for seed in seeds] for of in (NAMES, on)))

    singles = dict.fromkeys(NAMES, 0)
    for kind in KINDS:
        best = max((each for each in SUBSETS if (frozenset(each.on), seeds[0]) in runs),
                   key=lambda each: ratio(kind, each.on).value)
        below = [name for name in NAMES if ratio(kind, (name,)).value < 1]
        for name in below:
            singles[name] += 1
        over, whole = ratio(kind, best.on), ratio(kind, ())
        yield (f"{kind}: all five take {_times(whole)} of what nothing takes; the best subset is {best.name}, of "
               f"which all five take {_times(over)}; below {', '.join(below) or 'none'} alone")
    yield "Kinds in which all five are below a single system: " + ", ".join(
        f"{name} {number}" for name, number in singles.items())


def _times(estimate: Estimate) -> str:
    interval = f" [{estimate.low:.2f}, {estimate.high:.2f}]" if estimate.has_interval else ""
    return f"{estimate.value:.2f}{interval}"


EXPERIMENTS = {
    "together": Experiment(
        title="Five systems as one: every subset under one mixed load", x_label="", base=ALL, bounds={},
        methods=SUBSETS, points=(Point(),), runs=6, quick_runs=2, task=_task, run=run_task, chosen=CHOSEN,
        measures=(*(Measure(f"{kind}_{which}", f"{kind}, {label}, ms") for kind in KINDS
                    for which, label in (("mean", "mean"), ("p95", "95th percentile"), ("p99", "99th percentile"))),
                  Measure("background_mean", "background, mean, ms"),
                  Measure("link_use", "use of links between switches"),
                  Measure("fairness", "fairness between clients (Jain's index of their rates)"),
                  Measure("cpu", "processor for decisions, %")),
        claims=("no subset better than all five by more than 3 % in a mean",
                "at least 30 % below nothing in reads and writes", "below each single system in two of four kinds"),
        claims_of="Goals",
        beside=effects, palette=tuple(each.name for each in SUBSETS), minutes=6, quick_minutes=0.6,
        emulation="speedwell.evaluation.replay.together:figure"),
    "together-scale": Experiment(
        title="What the decisions of all five cost, by hosts", x_label="hosts", base=ALL, bounds={}, lines=True,
        methods=SUBSETS[:1], points=SCALE, quick_points=(0, 1), runs=1, quick_runs=1, task=_task, run=run_task,
        chosen=CHOSEN | {"fabric": "three-tier at 1 Gbit/s, 2:1 above racks and 2:1 above pods, from empty",
                         "metadata": "1,600 requests a second of the whole fabric"},
        measures=(Measure("cpu", "processor for decisions, %"),
                  *(Measure(f"cpu_{name}", f"for {name}, %") for name in NAMES[:-1]),
                  *(Measure(f"us_{name}", f"a call for {name}, us") for name in NAMES[:-1]),
                  Measure("inside_pods", "flows inside a pod, part")),
        claims=("at 4,096 hosts one controller keeps up with this load",), claims_of="Goal", palette=(ALL,),
        minutes=4, quick_minutes=0.2),
}
