"""The mixed load of `together` with the real filesystem on an emulated fabric, a half of all subsets and nothing.

Each subset has a cluster of its own, whose controller has those systems on; it plays all seeds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from statistics import fmean
from typing import Any

import click

from speedwell.cluster.errors import ClusterError
from speedwell.cluster.fabric import FabricCluster
from speedwell.cluster.fabric_settings import with_all_systems
from speedwell.cluster.machine import cpu_seconds
from speedwell.cluster.tables import Table
from speedwell.evaluation.emulation import Emulation
from speedwell.evaluation.experiment import Choices, Experiment
from speedwell.evaluation.papers.mayflower import MAYFLOWER
from speedwell.evaluation.papers.reads import Method
from speedwell.evaluation.papers.together import (
    CHOSEN,
    HALF,
    KINDS,
    NONE,
    SUBSETS,
    WARM_UP,
    Point,
    Subset,
    Task,
    effects,
    fabric,
    load,
    summary,
)
from speedwell.evaluation.replay.clusters import play_all, running, warn_if_busy
from speedwell.evaluation.replay.experiment import Meter, warm_up
from speedwell.evaluation.replay.scale import StoredFile, file_of, files_of
from speedwell.evaluation.replay.speedwell import Speedwell
from speedwell.evaluation.replay.system import ReadReport
from speedwell.evaluation.results.output import Output, finish
from speedwell.evaluation.results.report import Measure
from speedwell.fs.limits import LEAST_ADVISED_BYTES
from speedwell.sim.mixed_load import Outcome, Transfer
from speedwell.topo.fabric import Fabric

HOST_MBPS, SECONDS, QUICK_SECONDS, RUNS = 20.0, 30.0, 10.0, 3
FILES = 16
LOOK_UPS, SHORT_FLOWS, SHORT_BYTES = 40.0, 20.0, 20_000
FLOOD_SHARE = 0.5
DRAIN_SECONDS = 180.0
METHODS, QUICK_METHODS = (*HALF, NONE), (SUBSETS[0], NONE)
NEAREST_ECMP = Method("Nearest ECMP", "nearest", "ecmp")
ROLES = {"controller": ("controller", "timeslices"), "hosts": ("agent-", "dataserver-", "metadata-")}
MEASURES = (*(Measure(f"{kind}_{which}", f"{kind}, {label}, ms") for kind in KINDS
              for which, label in (("mean", "mean"), ("p95", "95th percentile"), ("p99", "99th percentile"))),
            Measure("background_mean", "background, mean, ms"), Measure("link_use", "use of links between switches"),
            Measure("fairness", "fairness between clients (Jain's index of their rates)"),
            Measure("cpu_controller", "controller and scheduler of turns, % of a processor"),
            Measure("cpu_hosts", "servers and agents of all hosts, % of a processor"))
EMULATED = {
    "design": "half of the 32 subsets, 2^(5-1) with I = ABCDE, resolution V: a system's effect is confounded with "
              "the interaction of the other four, that of two with that of the other three; and nothing",
    "reads": f"files of 8 MiB by Zipf's law over {FILES}, and a quarter as many requests that fetch 2 MiB of each of "
             "four files at once, each file a coflow of its own",
    "writes": "8 MiB, three replicas, half as many as reads; all hosts are candidates",
    "background": f"8 MiB between two hosts, half as often as reads, by TCP and as datagrams at {FLOOD_SHARE:.0%} of "
                  "a host's link in turn, told to nobody",
    "metadata": f"{LOOK_UPS:g} look-ups a second, which load no server; off: at the nameserver, beside the fabric; "
                "on: four stores in it",
    "short": f"{SHORT_FLOWS:g} flows of 20 kB a second over new connections",
    "queues": "those of the emulation",
}


@dataclass(frozen=True)
class Event:
    """What begins at a time, in seconds: it has ended when all its reports are there. `client` has its bytes."""

    at: float
    kind: str
    client: str
    size_bits: float
    begins: tuple[Callable[[], Future[ReadReport]], ...]


def point_of(host_mbps: float, quick: bool = False) -> Point:
    """As loaded as the simulated one, with files as long as the least that are placed by the load."""
    simulated, host_bps = Point(), host_mbps * 1e6
    slower = LEAST_ADVISED_BYTES / host_bps / (simulated.size_bytes / simulated.host_bps)
    return replace(simulated, name="16 hosts", rate=simulated.rate / slower, files=FILES, host_bps=host_bps,
                   size_bytes=LEAST_ADVISED_BYTES, seconds=QUICK_SECONDS if quick else SECONDS)


def settings_of(subset: Subset, on: Fabric) -> dict[str, Any]:
    """Of a cluster on a fabric. Reads say themselves whether they are steered."""
    wanted = with_all_systems(on)
    found = {name: wanted[setting] for name, setting in (
        ("coflows", "coflows"), ("placements", "placement_policy"), ("turns", "host_agents"),
        ("metadata", "metadata_stores")) if name in subset.on}
    settings = {"placement_policy": found.get("placements", "rack-aware"), "coflows": found.get("coflows"),
                "host_agents": found.get("turns"), "metadata_stores": found.get("metadata", 0)}
    return settings if "reads" in subset.on else settings | {"replica_policy": "nearest", "path_policy": "ecmp"}


def run_tasks(tasks: Sequence[Task], say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Play runs of one subset in one cluster. Raises ClusterError, EmulationError."""
    subset, on = tasks[0].method, fabric(tasks[0].point)
    method = MAYFLOWER if "reads" in subset.on else NEAREST_ECMP
    with running(say, fabric=on, **settings_of(subset, on)) as (cluster, system):
        names = [host.name for host in on.hosts]
        for number, task in enumerate(tasks):
            transfers = load(on, task.point, task.seed)
            files = files_of([read for transfer in transfers for read in transfer.reads])
            system.prepare(files, say)
            system.put_records(names[0], files)
            if not number:
                warm_up(system, names, method, say)
                _meet(on, files, system)
            system.settle()
            events = [*_transfers(transfers, task, on, system, method),
                      *_messages(task, on, files, system)]
            meter = Meter()
            with _Usage(cluster, system) as usage:
                outcome = _play(events, lambda now, task=task: say(      # type: ignore[misc]
                    f"{task.method.name}, seed {task.seed}: {now}"))
            machine, outcome.link_use = {**meter.read(), **system.details()}, fmean(usage.links)
            for transfer_number, transfer in enumerate(transfers):
                if transfer.kind == "write":
                    system.remove(_written(task, transfer_number))
            yield {"task": task.parameters(), **usage.cpu, **summary(outcome, WARM_UP * task.point.seconds),
                   "machine": machine}


def _meet(on: Fabric, files: Sequence[StoredFile], system: Speedwell) -> None:
    """Have every host know every other's hardware address, and the servers of records. Raises ClusterError."""
    for host in on.hosts:
        for begun in (*(system.send(host.name, other.ip, 1) for other in on.hosts if other is not host),
                      *(system.look_up(host.name, file.path) for file in files[:FILES])):
            begun.result(DRAIN_SECONDS)


def _transfers(transfers: Sequence[Transfer], task: Task, on: Fabric, system: Speedwell,
               method: Method) -> Iterator[Event]:
    address = {host.name: host.ip for host in on.hosts}
    rate_bps = FLOOD_SHARE * task.point.host_bps
    for number, each in enumerate(transfers):
        kind, size_bytes = each.kind, task.point.size_bytes
        if kind == "read":
            yield Event(each.arrival, kind, each.reads[0].client, sum(read.size_bits for read in each.reads), tuple(
                partial(system.read, read.client, file_of(read), method) for read in each.reads))
            continue
        if kind == "write":
            begin = partial(system.write, each.writer, _written(task, number), size_bytes)
        elif number % 2:
            begin = partial(system.send, each.writer, address[each.client], size_bytes)
        else:
            kind = "flood"
            begin = partial(system.flood, each.writer, address[each.client], each.size_bits / rate_bps, rate_bps)
        yield Event(each.arrival, kind, each.writer, each.size_bits, (begin,))


def _messages(task: Task, on: Fabric, files: Sequence[StoredFile], system: Speedwell) -> Iterator[Event]:
    draw = Random(f"emulated messages {task.seed}")
    for kind, rate in (("metadata", LOOK_UPS), ("short", SHORT_FLOWS)):
        now = draw.expovariate(rate)
        while now < task.point.seconds:
            client, other = draw.sample(on.hosts, 2)
            begin = (partial(system.look_up, client.name, draw.choice(files).path) if kind == "metadata" else
                     partial(system.send, client.name, other.ip, SHORT_BYTES))
            yield Event(now, kind, client.name, 0.0, (begin,))
            now += draw.expovariate(rate)


def _written(task: Task, number: int) -> str:
    return f"/written-{task.seed}-{number}"


def _play(events: Sequence[Event], say: Callable[[str], None]) -> Outcome:
    """Raises ClusterError."""
    outcome, origin = Outcome(), time.monotonic() + 0.5
    begun: list[tuple[Event, Sequence[Future[ReadReport]]]] = []
    for event in sorted(events, key=lambda event: event.at):
        time.sleep(max(origin + event.at - time.monotonic(), 0.0))
        begun.append((event, [begin() for begin in event.begins]))
        say(f"{event.at:.0f} s")
    deadline = time.monotonic() + DRAIN_SECONDS
    for event, reports in begun:
        try:
            finished = max(each.result(max(deadline - time.monotonic(), 0.0)).finished for each in reports)
        except TimeoutError:
            raise ClusterError(f"{DRAIN_SECONDS:g} s after the last began a {event.kind} has not ended") from None
        seconds = finished - origin - event.at
        outcome.seconds[event.kind].append((event.at, seconds))
        if event.kind in ("read", "write", "background"):
            outcome.bits[event.client] += event.size_bits
            outcome.waited[event.client] += seconds
    return outcome


class _Usage:
    """What of links between switches and of processors is used within a `with` block. `cpu` in percent of one."""

    def __init__(self, cluster: FabricCluster, system: Speedwell) -> None:
        self.links, self.cpu = list[float](), dict[str, float]()
        self._pids = {role: [record.pid for record in cluster.processes.running() if record.name.startswith(names)]
                      for role, names in ROLES.items()}
        self._system, self._ended = system, threading.Event()
        self._looking = threading.Thread(target=self._look)

    def __enter__(self) -> _Usage:
        self._begin, self._before = time.monotonic(), self._seconds()
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._looking.join()
        passed = time.monotonic() - self._begin
        self.cpu = {f"cpu_{role}": 100 * (now - self._before[role]) / passed for role, now in self._seconds().items()}

    def _seconds(self) -> dict[str, float]:
        return {role: cpu_seconds(pids) for role, pids in self._pids.items()}

    def _look(self) -> None:
        while not self._ended.wait(1.0):
            self.links.append(self._system.link_use())


def figure(name: str, experiment: Experiment, choices: Choices, wanted: Emulation, output: Output) -> None:
    """Times under each subset of a half fraction and under nothing."""
    if wanted.reads or wanted.slowdown:
        raise click.UsageError("--reads and --slowdown are of no use to together", click.get_current_context())
    runs, methods = wanted.runs or (1 if choices.quick else RUNS), QUICK_METHODS if choices.quick else METHODS
    point = point_of(wanted.host_mbps or HOST_MBPS, choices.quick)
    tasks = [Task(point, method, choices.seed + run) for method in methods for run in range(runs)]
    shown = replace(experiment, methods=methods, measures=MEASURES, chosen=CHOSEN | EMULATED)
    results = play_all(name, tasks, run_tasks, output.open(shown.manifest(name, "emulate", choices, tasks)),
                       output.directory)
    finish(shown, results, output.directory, beside(name, results))
    warn_if_busy(results)


def beside(name: str, results: Sequence[dict[str, Any]]) -> Iterator[Table | str]:
    """Effects and goals, and whether the machine let the network decide."""
    yield from effects(name, results, HALF)
    busy = [result["machine"]["busy_share"] for result in results]
    yield f"The machine was {min(busy):.0%} to {max(busy):.0%} busy."
