"""MetaFlow's experiments with real servers and clients on an emulated fabric.

Each server has a processor of a stated speed, as each link has a stated rate, so that twice as many servers carry
twice as much on a machine that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import click
import numpy as np

from speedwell.evaluation.emulation import Emulation
from speedwell.evaluation.experiment import Choices, Experiment
from speedwell.evaluation.lookups.fabric import LookupFabric, running
from speedwell.evaluation.lookups.load import Load, Outcome
from speedwell.evaluation.papers.metaflow import DFS_LOAD, LOAD, Method, Point
from speedwell.evaluation.replay.clusters import play_all
from speedwell.evaluation.results.output import Output, finish
from speedwell.evaluation.results.report import Measure

HOST_MBPS = 20.0
UNITS_PER_SECOND = 40.0
"""What a server's processor does in a second; a look-up takes one unit."""
WARM_SECONDS, SECONDS = 3.0, 12.0
CLIENTS_PER_SERVER = 32
"""So that hardly a server is ever without a request."""
CPU_REQUESTS = 2000
DFS_SERVERS = 4
DFS_BYTES = 24 << 20
"""Of all files; written by STREAMS on each client host."""
STREAMS = 4
METHODS = tuple(map(Method, ("Hash mapping", "MetaFlow", "Speedwell", "One-Hop", "Chord", "Central coordinator")))
CHOSEN = {
    "fabric": f"16 hosts for servers and 8 with clients, in 4 racks of 2 pods, links of {HOST_MBPS:g} Mbit/s",
    "servers": f"each does {UNITS_PER_SECOND:g} units a second, one thing after the other: a look-up is 1, a "
               "record the ratio; LevelDB without fsync",
    "throughput": f"{CLIENTS_PER_SERVER} clients a server, each of which asks again when it is answered; "
                  f"{SECONDS:g} s",
    "latency": f"Poisson arrivals at {LOAD:.0%} of the ideal rate",
    "MetaFlow": "its tree's blocks and its NAT agents (iptables, conntrack), in our tables; the cost that the paper "
                "gives its agents is not added",
    "cpu": f"{CPU_REQUESTS} requests with connections of their own, servers as fast as they are; processor time of "
           "the servers' processes and of the whole machine, emulated switches and clients included",
    "dfs": f"{DFS_BYTES >> 20} MiB in files of one size by {STREAMS} writers on each of 8 hosts, {DFS_SERVERS} "
           f"metadata servers and 12 storage servers, {DFS_LOAD:.0%} of what the metadata servers carry beside; no "
           "MySQL, whose slowness hides all look-ups",
}
THROUGHPUT_POINTS = (Point(4), Point(8), Point(16), Point(8, 2.0))
DFS_SIZES = (64 << 10, 1 << 20, 4 << 20)


@dataclass(frozen=True)
class LookupTask:
    """One run of an experiment. Equal tasks ask for the same."""

    experiment: str
    point: Point
    method: Method
    seed: int

    def parameters(self) -> dict[str, Any]:
        """As plain JSON values."""
        point = self.point
        shown = f"files of {point.file_bytes >> 10} KiB" if point.file_bytes else f"{point.servers} servers"
        return {"experiment": self.experiment, "panel": f"ratio {point.ratio:g}", "point": shown,
                "x": point.file_bytes or point.servers, "workload": asdict(point), "method": asdict(self.method),
                "seed": self.seed}


def throughput(fabric: LookupFabric, task: LookupTask) -> dict[str, Any]:
    point = task.point
    fabric.serve(task.method.name, point.servers, point.ratio, UNITS_PER_SECOND)
    hosts, ideal = fabric.serving_ips, point.servers * UNITS_PER_SECOND / point.ratio
    each = CLIENTS_PER_SERVER * point.servers // len(fabric.client_hosts)
    outcomes = fabric.ask(lambda number, begin: Load(
        task.method.name, hosts, each, task.seed * 100 + number, begin, WARM_SECONDS + SECONDS, WARM_SECONDS))
    return {"answered": sum(outcome.answered for outcome in outcomes) / SECONDS / ideal}


def latency(fabric: LookupFabric, task: LookupTask) -> dict[str, Any]:
    point, storage = task.point, 1 / task.point.ratio
    fabric.serve(task.method.name, point.servers, storage, UNITS_PER_SECOND)
    hosts, per_second = fabric.serving_ips, LOAD * point.servers * UNITS_PER_SECOND / storage
    outcomes = fabric.ask(lambda number, begin: Load(
        task.method.name, hosts, 16, task.seed * 100 + number, begin, WARM_SECONDS + SECONDS, WARM_SECONDS,
        per_second / len(fabric.client_hosts)))
    seconds = _seconds(outcomes)
    return {"mean_ms": 1e3 * fmean(seconds), "p99_ms": 1e3 * float(np.percentile(seconds, 99))}


def cpu(fabric: LookupFabric, task: LookupTask) -> dict[str, Any]:
    fabric.serve(task.method.name, task.point.servers, task.point.ratio)
    hosts, clients = fabric.serving_ips, len(fabric.client_hosts)
    fabric.ask(lambda number, begin: Load(task.method.name, hosts, 1, number, begin, 60.0, requests=25, keep=False))
    before = fabric.server_cpu_seconds(), fabric.machine_busy_seconds()
    outcomes = fabric.ask(lambda number, begin: Load(
        task.method.name, hosts, 2, task.seed * 100 + number, begin, 600.0, requests=CPU_REQUESTS // clients,
        keep=False))
    after = fabric.server_cpu_seconds(), fabric.machine_busy_seconds()
    answered = sum(outcome.answered for outcome in outcomes)
    return {"server_ms": 1e3 * (after[0] - before[0]) / answered,
            "machine_ms": 1e3 * (after[1] - before[1]) / answered,
            "messages": sum(outcome.messages for outcome in outcomes) / answered}


def tables(fabric: LookupFabric, task: LookupTask) -> dict[str, Any]:
    fabric.serve("Speedwell", task.point.servers)
    found = fabric.entries()
    key = "ours" if task.method.name == "Speedwell" else "paper"
    sizes = {tier: [entries[key] for name, entries in found.items() if name.startswith(tier)]
             or [entries[key] for name, entries in found.items() if tier in name]
             for tier in ("edge", "agg", "core")}
    return {f"{tier}_worst": float(max(each)) for tier, each in sizes.items()}


def dfs(fabric: LookupFabric, task: LookupTask) -> dict[str, Any]:
    point = task.point
    fabric.serve(task.method.name, DFS_SERVERS, 1.0, UNITS_PER_SECOND)
    hosts, clients = fabric.serving_ips, len(fabric.client_hosts)
    storage = fabric.start_storage(DFS_SERVERS)
    files = DFS_BYTES // point.file_bytes
    with fabric.background(Load(task.method.name, hosts, 64, task.seed, 0.0, 600.0,
                                per_second=DFS_LOAD * DFS_SERVERS * UNITS_PER_SECOND)):
        begun = []

        def writers(number: int, begin: float) -> Load:
            begun.append(begin)
            own = files // clients + (number < files % clients)
            return Load(task.method.name, hosts, min(STREAMS, own) or 1, task.seed * 100 + number, begin, 600.0,
                        requests=own, file_bytes=point.file_bytes, storage=storage)

        outcomes = fabric.ask(writers)
    return {"seconds": max(outcome.ended for outcome in outcomes) - begun[0],
            "file_ms": 1e3 * fmean(_seconds(outcomes))}


def _seconds(outcomes: Sequence[Outcome]) -> list[float]:
    return [seconds for outcome in outcomes for seconds in outcome.seconds]


Measured = Callable[[LookupFabric, LookupTask], dict[str, Any]]
MEASURED: dict[str, tuple[Measured, tuple[Point, ...], tuple[Method, ...], tuple[Measure, ...]]] = {
    "metaflow-throughput": (throughput, THROUGHPUT_POINTS, METHODS, (Measure("answered", "answered / ideal"),)),
    "metaflow-latency": (latency, (Point(8), Point(16), Point(8, 0.5)), METHODS[:-1], (
        Measure("mean_ms", "mean, ms"), Measure("p99_ms", "99th percentile, ms"))),
    "metaflow-cpu": (cpu, (Point(4),), METHODS, (
        Measure("server_ms", "servers, ms a request"), Measure("machine_ms", "whole machine, ms a request"),
        Measure("messages", "messages a request"))),
    "metaflow-tables": (tables, (Point(4), Point(8), Point(16)), (Method("MetaFlow"), Method("Speedwell")), tuple(
        Measure(f"{tier}_worst", f"{tier}, worst") for tier in ("edge", "agg", "core"))),
    "metaflow-dfs": (dfs, tuple(Point(DFS_SERVERS, file_bytes=each) for each in DFS_SIZES), METHODS[:-1], (
        Measure("seconds", "all files, s"), Measure("file_ms", "a file, ms"))),
}


def play(tasks: Sequence[LookupTask], say: Callable[[str], None], host_bps: float) -> Iterator[dict[str, Any]]:
    """Raises ClusterError, EmulationError."""
    with running(say, host_bps) as fabric:
        for task in tasks:
            shown = task.parameters()
            say(f"{shown['method']['name']}, {shown['point']}, {shown['panel']}")
            yield {"task": shown, **MEASURED[task.experiment][0](fabric, task)}


def figure(name: str, experiment: Experiment, choices: Choices, wanted: Emulation, output: Output) -> None:
    """One of the experiments, as `speedwell experiment NAME --emulate` has it."""
    if wanted.reads or wanted.coflows or wanted.slowdown:
        raise click.UsageError("--reads, --coflows and --slowdown are of no use to requests for metadata",
                               click.get_current_context())
    _, points, methods, measures = MEASURED[name]
    tasks = [LookupTask(name, point, method, choices.seed + run) for run in range(wanted.runs or 1)
             for method in methods for point in (points[:1] if choices.quick else points)]
    base = methods[0].name
    shown = replace(experiment, methods=methods, points=points, measures=measures, base=base, chosen=CHOSEN,
                    papers={}, beside=lambda name, results: ())
    results_file = output.open(shown.manifest(name, "emulate", choices, tasks))
    host_bps = (wanted.host_mbps or HOST_MBPS) * 1e6

    def play_some(some: Sequence[LookupTask], say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
        return play(some, say, host_bps)

    results = play_all(name, tasks, play_some, results_file, output.directory)
    finish(shown, results, output.directory)
