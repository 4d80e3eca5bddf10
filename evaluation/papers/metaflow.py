"""MetaFlow's evaluation (Sun et al., IEEE Transactions on Big Data 2016, section VII), simulated, ours beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from controller.policy.metadata.btree import Tree
from controller.policy.metadata.layout import Layout as Placed
from evaluation.results.report import Layout, Measure
from sim import metadata_simulation as metadata

LOAD = 0.1
"""Of the ideal rate, when latency is measured: a load that all but the coordinator carry."""
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
    "changes": "joins, leaves and kills at random among 48 hosts more than servers; a kill moves what a leave does",
}


@dataclass(frozen=True)
class Method:
    name: str


@dataclass(frozen=True)
class Point:
    """`ratio` is the throughput or latency of a look-up over that of the storage."""

    servers: int = 2000
    ratio: float = 1.0
    changes: int = 0


@dataclass(frozen=True, kw_only=True)
class MetadataFigure(Layout):
    base: str = "Hash mapping"
    bounds: Mapping[str, str] = field(default_factory=dict)
    lines: bool = True
    x_label: str = "servers"
    methods: tuple[str, ...] = metadata.METHODS
    points: tuple[Point, ...]
    run: Callable[[str, Point, int], dict[str, float]]
    runs: int = 3


def _throughput(method: str, point: Point, seed: int) -> dict[str, float]:
    each = 400 if method in ("MetaFlow", "Speedwell") else 40      # whose servers have unequal parts
    chains = metadata.visits(method, point.servers, point.ratio, each * point.servers, seed)
    ideal = point.servers / point.ratio
    return {"answered": metadata.most_answered(chains, point.servers, ideal) / ideal,
            "sustained": min(metadata.sustained(chains, point.servers) / ideal, 1.0)}


def _latency(method: str, point: Point, seed: int) -> dict[str, Any]:
    storage = 1 / point.ratio
    chains = metadata.visits(method, point.servers, storage, 50 * point.servers, seed)
    if metadata.sustained(chains, point.servers) < LOAD * point.servers / storage:
        return {"overloaded": f"{method} cannot carry {LOAD:.0%} of the ideal rate"}
    met = metadata.switches_met(method, point.servers, chains[0][:, -1], seed)
    seconds = metadata.latencies(chains, point.servers, LOAD, storage, met, seed)[len(met) // 10:]
    return {"mean_ms": 1e3 * float(seconds.mean()), "p99_ms": 1e3 * float(np.percentile(seconds, 99))}


def _cpu(method: str, point: Point, seed: int) -> dict[str, float]:
    _, costs = metadata.visits(method, point.servers, point.ratio, 20 * point.servers, seed)
    return {"not_storage": 100 * (1 - point.ratio * len(costs) / float(costs.sum())),
            "look_ups": float(costs.sum()) / len(costs)}


def _tables(method: str, point: Point, seed: int) -> dict[str, float]:
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
    sizes: dict[str, list[int]] = {"edge": [0], "aggregation": [0], "core": [0]}
    for switch, table in made.items():
        sizes[switch.rstrip("0123456789-")].append(len(table))
    loads: dict[str, int] = {}
    for block in system.blocks:
        loads[block.server] = loads.get(block.server, 0) + block.end - block.first
    return {f"{tier}_mean": sum(each) / max(len(each) - 1, 1) for tier, each in sizes.items()} | {
        f"{tier}_worst": max(each) for tier, each in sizes.items()} | {
        "busiest_over_mean": max(loads.values()) * len(loads) / (1 << 32), "moved": moved}


_SERVERS = (200, 1000, 2000)
FIGURES = {
    "metaflow-throughput": MetadataFigure(
        title="Throughput over the ideal (figure 13)", run=_throughput,
        measures=(Measure("answered", "answered / ideal"), Measure("sustained", "sustained / ideal")),
        points=tuple(Point(servers, ratio) for ratio in (1.0, 1.5, 2.0, 100.0) for servers in _SERVERS),
        claims=("ratio 1: MetaFlow 0.80 to 0.88, One-Hop 0.50 to 0.55, Chord 0.15 to 0.20",
                "ratio 2: 0.83 to 0.88, 0.64 to 0.70, 0.20 to 0.25")),
    "metaflow-latency": MetadataFigure(
        title="Latency (figure 15)", run=_latency,
        measures=(Measure("mean_ms", "mean, ms"), Measure("p99_ms", "99th percentile, ms")),
        points=tuple(Point(servers, ratio) for ratio in (1.0, 0.7, 0.5, 0.001) for servers in _SERVERS),
        claims=("over hash mapping at ratio 1: MetaFlow 1.4, One-Hop 2.0, Chord 7.0",
                "at 0.7 and 0.5: at most 1.05, at least 1.2, at least 1.5")),
    "metaflow-tables": MetadataFigure(
        title="Flow entries of a switch (figure 17)", run=_tables, base="MetaFlow",
        methods=("MetaFlow", SMALLEST, "Speedwell"),
        measures=(*(Measure(f"{tier}_{kind}", f"{tier}, {kind}") for tier in ("edge", "aggregation", "core")
                    for kind in ("mean", "worst")), Measure("busiest_over_mean", "busiest server / mean")),
        points=(*(Point(servers) for servers in _SERVERS), Point(2000, changes=500)),
        claims=("2,000 servers, means: edge 360, aggregation 395, core 278; a switch holds 2,048",)),
    "metaflow-cpu": MetadataFigure(
        title="Processor time that is not the storage's (figure 18)", run=_cpu, base="One-Hop",
        measures=(Measure("not_storage", "not storage, %"), Measure("look_ups", "a request, in look-ups")),
        points=tuple(Point(2000, ratio) for ratio in (1.0, 1.5, 2.0, 100.0)),
        claims=("Redis: MetaFlow up to 15 %, One-Hop 40 %, Chord 80 %", "LevelDB: MetaFlow below 10 %, One-Hop 30 "
                "(SSD) and 20 % (HDD)")),
}
QUICK_RUNS = 2


@dataclass(frozen=True)
class MetadataTask:
    """One run. Equal tasks give equal results."""

    figure: str
    point: Point
    method: Method
    seed: int

    def parameters(self) -> dict[str, Any]:
        """As plain JSON values."""
        point = self.point
        name = f"{point.servers} servers" + (f", {point.changes} changes" if point.changes else "")
        return {"panel": "" if self.figure == "metaflow-tables" else f"ratio {point.ratio:g}", "point": name,
                "x": point.servers, "workload": asdict(point), "method": asdict(self.method), "seed": self.seed}


def tasks(name: str, quick: bool, seed: int) -> list[MetadataTask]:
    """The runs of an experiment: the same seeds, so the same keys, for every method."""
    figure = FIGURES[name]
    points = [replace(point, servers=200, changes=min(point.changes, 20)) for point in figure.points[::3]] if quick \
        else figure.points
    return [MetadataTask(name, point, Method(method), seed + run) for point in dict.fromkeys(points)
            for run in range(QUICK_RUNS if quick else figure.runs) for method in figure.methods]


def run_task(task: MetadataTask) -> dict[str, Any]:
    """One run as a JSON object: its parameters, and the measures of its figure."""
    return {"task": task.parameters(), **FIGURES[task.figure].run(task.method.name, task.point, task.seed)}


def manifest(name: str, quick: bool, seed: int, runs: Sequence[MetadataTask]) -> dict[str, object]:
    """What was run, and what was taken where the paper is silent."""
    return {"experiment": name, "mode": "simulate", "quick": quick, "seed": seed, "runs": len(runs),
            "methods": list(FIGURES[name].methods), "points": [asdict(point) for point in dict.fromkeys(
                task.point for task in runs)], "chosen_where_the_paper_is_silent": CHOSEN}


def moved_keys(results: Sequence[Mapping[str, Any]]) -> str:
    """One line on what changes moved, in parts of what a server has in the mean; empty if nothing changed."""
    moved: dict[str, list[float]] = {}
    for result in results:
        if result["task"]["workload"]["changes"]:
            moved.setdefault(result["task"]["method"]["name"], []).append(result["moved"])
    return "Keys that one change moves, of a server's mean: " + ", ".join(
        f"{name} {sum(each) / len(each):.2f}" for name, each in moved.items()) if moved else ""
