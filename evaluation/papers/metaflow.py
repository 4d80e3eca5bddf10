"""MetaFlow's evaluation (Sun et al., IEEE Transactions on Big Data 2016, section VII), simulated, ours beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np

from speedwell.controller.policy.metadata.btree import Tree
from speedwell.controller.policy.metadata.layout import Layout as Placed
from speedwell.controller.policy.metadata.tables import switch_of
from speedwell.evaluation.experiment import Choices, Experiment, Result
from speedwell.evaluation.results.report import Measure
from speedwell.sim import metadata_simulation as metadata

LOAD = 0.1
"""Of the ideal rate, when latency is measured: a load that all but the coordinator carry."""
DFS_LOAD = 0.25
"""Of the ideal rate, beside the files of `metaflow-dfs`: a load that all but the coordinator carry."""
DFS_SERVERS, DFS_BYTES, DFS_BPS = 10, 100e9, 1e9
SMALLEST = "MetaFlow, smallest tables"
CHOSEN = {
    "requests": "20 % get and 80 % put of 250 and 290 bytes cost a server the same, as the paper's ratios have no "
                "other; keys are spread evenly",
    "throughput": "`answered`: the most that is answered at any offered rate up to the ideal one, when servers drop "
                  "what is too much; `sustained`: the rate at which the busiest server has just enough to do",
    "latency": f"Poisson arrivals at {LOAD:.0%} of the ideal rate, first come first served",
    "translation": f"{metadata.NAT:.3f} look-ups a request, the paper's 15 % beside Redis; by MetaFlow alone",
    "Chord": "half the binary logarithm of the servers, as its own paper says; MetaFlow's says the whole",
    "owners": "the comparators' servers have equal parts of the keys, which real rings have not",
    "tree": f"grown by {metadata.KEYS_PER_SERVER} random keys a server, the fullest split first; where a rack has no "
            "idle server, the nearest",
    "files": f"one after the other, each after its record, at {DFS_BPS / 1e9:g} Gbit/s; beside {DFS_LOAD:.0%} of "
             f"what {DFS_SERVERS} metadata servers carry; 100 storage servers have no queue; no MySQL, whose "
             "slowness hides all look-ups",
    "changes": "joins, leaves and kills at random among 48 hosts more than servers; a kill moves what a leave does",
}


@dataclass(frozen=True)
class Method:
    name: str


@dataclass(frozen=True)
class Point:
    """`ratio` is the throughput or latency of a look-up over that of the storage; `file_bytes` is the size of
    a file."""

    servers: int = 2000
    ratio: float = 1.0
    changes: int = 0
    file_bytes: int = 0


Measured = Callable[[str, Point, int], dict[str, Any]]
"""Measures a method at a point with a seed."""
QUICK_SERVERS = 200


def throughput(method: str, point: Point, seed: int) -> dict[str, float]:
    each = 400 if method in ("MetaFlow", "Speedwell") else 40      # whose servers have unequal parts
    chains = metadata.visits(method, point.servers, point.ratio, each * point.servers, seed)
    ideal = point.servers / point.ratio
    return {"answered": metadata.most_answered(chains, point.servers, ideal) / ideal,
            "sustained": min(metadata.sustained(chains, point.servers) / ideal, 1.0)}


def latency(method: str, point: Point, seed: int, load: float = LOAD, each: int = 50) -> dict[str, Any]:
    storage = 1 / point.ratio
    chains = metadata.visits(method, point.servers, storage, each * point.servers, seed)
    if metadata.sustained(chains, point.servers) < load * point.servers / storage:
        return {"overloaded": f"{method} cannot carry {load:.0%} of the ideal rate"}
    met = metadata.switches_met(method, point.servers, chains[0][:, -1], seed)
    seconds = metadata.latencies(chains, point.servers, load, storage, met, seed)[len(met) // 10:]
    return {"mean_ms": 1e3 * float(seconds.mean()), "p99_ms": 1e3 * float(np.percentile(seconds, 99))}


def cpu(method: str, point: Point, seed: int) -> dict[str, float]:
    _, costs = metadata.visits(method, point.servers, point.ratio, 20 * point.servers, seed)
    return {"not_storage": 100 * (1 - point.ratio * len(costs) / float(costs.sum())),
            "look_ups": float(costs.sum()) / len(costs)}


def tables(method: str, point: Point, seed: int) -> dict[str, float]:
    system: Tree | Placed = metadata.layout(point.servers) if method == "Speedwell" \
        else metadata.tree(point.servers, seed)
    moved = 0.0
    if point.changes:
        hosts = point.servers + 48
        if method != "Speedwell":
            system = metadata.tree(point.servers, seed, 48)
        after = metadata.changed(system, hosts, point.changes, Random(seed))
        system, moved = after.system, after.moved
    made = metadata.smallest_tables(system) if method == SMALLEST and isinstance(system, Tree) \
        else metadata.tables_of(system)
    entries: dict[str, int] = {}
    for name, table in made.items():
        entries[switch_of(name)] = entries.get(switch_of(name), 0) + len(table)
    sizes: dict[str, list[int]] = {"edge": [0], "aggregation": [0], "core": [0]}
    for switch, number in entries.items():
        sizes[switch.rstrip("0123456789-")].append(number)
    loads: dict[str, int] = {}
    for block in system.blocks:
        loads[block.server] = loads.get(block.server, 0) + block.end - block.first
    return {f"{tier}_mean": sum(each) / max(len(each) - 1, 1) for tier, each in sizes.items()} | {
        f"{tier}_worst": max(each) for tier, each in sizes.items()} | {
        "busiest_over_mean": max(loads.values()) * len(loads) / (1 << 32), "moved": moved}


def dfs(method: str, point: Point, seed: int) -> dict[str, Any]:
    found = latency(method, replace(point, servers=DFS_SERVERS), seed, DFS_LOAD, 5000)
    if "overloaded" in found:
        return found
    file_seconds = found["mean_ms"] / 1e3 + 8 * point.file_bytes / DFS_BPS
    return {"seconds": DFS_BYTES / point.file_bytes * file_seconds, "file_ms": 1e3 * file_seconds}


@dataclass(frozen=True)
class MetadataTask:
    """One run. Equal tasks give equal results."""

    measured: Measured
    point: Point
    method: Method
    seed: int

    def parameters(self) -> dict[str, Any]:
        """As plain JSON values."""
        point = self.point
        name = f"files of {point.file_bytes >> 10} KiB" if point.file_bytes else \
            f"{point.servers} servers" + (f", {point.changes} changes" if point.changes else "")
        return {"panel": "" if self.measured is tables else f"ratio {point.ratio:g}", "point": name,
                "x": point.file_bytes or point.servers, "workload": asdict(point), "method": asdict(self.method),
                "seed": self.seed}


def _run_task(task: MetadataTask) -> Result:
    """One run as a JSON object: its parameters, and what is measured."""
    return {"task": task.parameters(), **task.measured(task.method.name, task.point, task.seed)}


def _task(measured: Measured, point: Point, method: Method, seed: int, choices: Choices) -> MetadataTask:
    if choices.quick and not point.file_bytes:
        point = replace(point, servers=QUICK_SERVERS, changes=min(point.changes, 20))
    return MetadataTask(measured, point, method, seed)


def moved_keys(name: str, results: Sequence[Result]) -> Iterable[str]:
    """One line on what changes moved, in parts of what a server has in the mean; none if nothing changed."""
    moved: dict[str, list[float]] = {}
    for result in results:
        if result["task"]["workload"]["changes"]:
            moved.setdefault(result["task"]["method"]["name"], []).append(result["moved"])
    return ["Keys that one change moves, of a server's mean: " + ", ".join(
        f"{name} {sum(each) / len(each):.2f}" for name, each in moved.items())] if moved else []


_SERVERS = (200, 1000, 2000)
_figure = partial(Experiment, base="Hash mapping", bounds={}, lines=True, x_label="servers",
                  quick_points=(0, 3, 6, 9), methods=tuple(map(Method, metadata.METHODS)), runs=3, run=_run_task,
                  chosen=CHOSEN, beside=moved_keys,
                  palette=(*metadata.METHODS, SMALLEST),
                  emulation="speedwell.evaluation.lookups.experiment.figure")
EXPERIMENTS = {
    "metaflow-throughput": _figure(minutes=1.4, quick_minutes=0.1,
        title="Throughput over the ideal (figure 13)", task=partial(_task, throughput),
        measures=(Measure("answered", "answered / ideal"), Measure("sustained", "sustained / ideal")),
        points=tuple(Point(servers, ratio) for ratio in (1.0, 1.5, 2.0, 100.0) for servers in _SERVERS),
        claims=("ratio 1: MetaFlow 0.80 to 0.88, One-Hop 0.50 to 0.55, Chord 0.15 to 0.20",
                "ratio 2: 0.83 to 0.88, 0.64 to 0.70, 0.20 to 0.25")),
    "metaflow-latency": _figure(minutes=1, quick_minutes=0.1,
        title="Latency (figure 15)", task=partial(_task, latency),
        measures=(Measure("mean_ms", "mean, ms"), Measure("p99_ms", "99th percentile, ms")),
        points=tuple(Point(servers, ratio) for ratio in (1.0, 0.7, 0.5, 0.001) for servers in _SERVERS),
        claims=("over hash mapping at ratio 1: MetaFlow 1.4, One-Hop 2.0, Chord 7.0",
                "at 0.7 and 0.5: at most 1.05, at least 1.2, at least 1.5")),
    "metaflow-tables": _figure(minutes=0.2, quick_minutes=0.1,
        title="Flow entries of a switch (figure 17)", task=partial(_task, tables), base="MetaFlow",
        methods=tuple(map(Method, ("MetaFlow", SMALLEST, "Speedwell"))), quick_points=(0, 3),
        measures=(*(Measure(f"{tier}_{kind}", f"{tier}, {kind}") for tier in ("edge", "aggregation", "core")
                    for kind in ("mean", "worst")), Measure("busiest_over_mean", "busiest server / mean")),
        points=(*(Point(servers) for servers in _SERVERS), Point(2000, changes=500)),
        papers={("", "2000 servers", "MetaFlow", f"{tier}_mean"): value
                for tier, value in (("edge", 360.0), ("aggregation", 395.0), ("core", 278.0))},
        claims=("2,000 servers, means: edge 360, aggregation 395, core 278; a switch holds 2,048",)),
    "metaflow-cpu": _figure(minutes=0.1, quick_minutes=0.1,
        title="Processor time that is not the storage's (figure 18)", task=partial(_task, cpu), base="One-Hop",
        measures=(Measure("not_storage", "not storage, %"), Measure("look_ups", "a request, in look-ups")),
        points=tuple(Point(2000, ratio) for ratio in (1.0, 1.5, 2.0, 100.0)), quick_points=(0, 3),
        claims=("Redis: MetaFlow up to 15 %, One-Hop 40 %, Chord 80 %", "LevelDB: MetaFlow below 10 %, One-Hop 30 "
                "(SSD) and 20 % (HDD)")),
    "metaflow-dfs": _figure(minutes=0.1, quick_minutes=0.1,
        title="Writing 100 GB of files (figure 20)", task=partial(_task, dfs), x_label="bytes of a file",
        measures=(Measure("seconds", "all files, s"), Measure("file_ms", "a file, ms")),
        points=tuple(Point(DFS_SERVERS, file_bytes=each) for each in (64 << 10, 256 << 10, 16 << 20, 64 << 20)),
        quick_points=(0, 2), claims=("64 KB: 6,800 s by MetaFlow, 7,500 by One-Hop, 8,500 by Chord",
                                     "16 and 64 MB: no difference")),
}
