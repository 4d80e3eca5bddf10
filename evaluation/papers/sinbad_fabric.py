"""Sinbad's writes on four racks, beside reads by Mayflower and datagrams: emulated, and the same simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import fmean
from typing import Any

import numpy as np

from speedwell.cluster.tables import Table
from speedwell.evaluation.experiment import Choices, Experiment
from speedwell.evaluation.papers.sinbad import PALETTE, PLUS, RACK_AWARE, SINBAD, WriteMethod, method_of
from speedwell.evaluation.papers.sinbad_paper import beside_the_paper
from speedwell.evaluation.replay.scale import StoredFile
from speedwell.evaluation.results.report import Measure
from speedwell.fs.limits import LEAST_ADVISED_BYTES
from speedwell.sim.floods import Flood, FloodedSimulation
from speedwell.sim.mixed_load import Messages, Systems, Transfer
from speedwell.sim.workload import Read
from speedwell.topo.fabric import Fabric, spine_leaf

HOST_MBPS = 40.0
"""A write of 8 to 16 MiB then takes about as long as the paper's 256 MB at 1 Gbit/s."""
RACKS, HOSTS_PER_RACK, OVERSUBSCRIPTION = 4, 4, 2.0
WRITES, QUICK_WRITES = 26, 8
RUNS, QUICK_RUNS = 3, 1
READ_BYTES, STORED_FILES = 4 << 20, 24
FLOOD_SECONDS, FLOOD_SHARE = 15.0, 0.75
WRITE_SHARE, READ_SHARE = 0.15, 0.1
"""Of what all hosts' links carry."""
METHODS = (RACK_AWARE, SINBAD, PLUS)
MEASURES = (Measure("mean_seconds", "write, mean s"), Measure("p95_seconds", "write, 95th percentile, s"),
            Measure("read_seconds", "read, mean s"))
CHOSEN = {
    "fabric": f"{RACKS} racks of {HOSTS_PER_RACK} hosts below one core, {OVERSUBSCRIPTION:g}:1",
    "writes": f"of 8 to 16 MiB, log-uniform, by any host, three replicas: {WRITE_SHARE:.0%} of what hosts' links "
              "carry",
    "reads": f"of {READ_BYTES >> 20} MiB with Mayflower's replica and path: {READ_SHARE:.0%}",
    "background": f"datagrams from one rack to another, drawn anew each {FLOOD_SECONDS:g} s: {FLOOD_SHARE:.0%} of a "
                  "rack's link",
    "reports": "writes are reported, so the controller hears of their ends; nobody schedules them",
}


@dataclass(frozen=True)
class WriteTrace:
    """One run. Equal tasks ask for the same."""

    method: WriteMethod
    seed: int
    writes: int
    host_bps: float

    def parameters(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "point": "", "x": 0.0}


@dataclass(frozen=True)
class Event:
    """What begins at a time, in seconds: a `host` writes a file or reads it, or floods the host `to`."""

    at: float
    kind: str
    host: str
    size_bytes: int = 0
    file: StoredFile | None = None
    path: str = ""
    to: str = ""


def fabric_of(host_bps: float) -> Fabric:
    """Raises InvalidFabric."""
    return spine_leaf(leaves=RACKS, spines=1, hosts_per_leaf=HOSTS_PER_RACK, host_bps=host_bps,
                      oversubscription=OVERSUBSCRIPTION)


def events_of(task: WriteTrace) -> list[Event]:
    """What happens in a run, in order, whatever the method."""
    fabric, draw = fabric_of(task.host_bps), Random(f"emulated writes {task.seed}")
    hosts = [host.name for host in fabric.hosts]
    racks = [hosts[first:first + HOSTS_PER_RACK] for first in range(0, len(hosts), HOSTS_PER_RACK)]
    all_bps = task.host_bps * len(hosts)
    write_bits = 8 * LEAST_ADVISED_BYTES * 1.44 * 2       # the mean between 1 and 2 times as long; two copies travel
    now, writes = 0.0, list[Event]()
    while len(writes) < task.writes:
        now += draw.expovariate(WRITE_SHARE * all_bps / write_bits)
        writes.append(Event(now, "write", draw.choice(hosts), round(LEAST_ADVISED_BYTES * 2 ** draw.random()),
                            path=f"/written-{task.seed}-{len(writes)}"))
    end, now, reads = now, 0.0, []
    while (now := now + draw.expovariate(READ_SHARE * all_bps / (8 * READ_BYTES))) < end:
        file = draw.choice(stored_files(fabric))
        reader = draw.choice([host for host in hosts if host not in file.replicas])
        reads.append(Event(now, "read", reader, READ_BYTES, file))
    floods = [Event(FLOOD_SECONDS * number, "flood", source, to=target)
              for number in range(int(end / FLOOD_SECONDS) + 1)
              for pair in [draw.sample(racks, 2)] for source, target in zip(*pair, strict=True)]
    return sorted([*writes, *reads, *floods], key=lambda event: event.at)


def stored_files(fabric: Fabric) -> list[StoredFile]:
    """What is read, the same in all runs; three replicas on any hosts."""
    draw = Random("stored files")
    return [StoredFile(f"/stored/{number}", tuple(draw.sample([host.name for host in fabric.hosts], 3)), READ_BYTES)
            for number in range(STORED_FILES)]


def run_task(task: WriteTrace) -> dict[str, Any]:
    """One run in the simulator, as a JSON object. Times in seconds."""
    systems = Systems(reads="mayflower", coflows="", placements=task.method.policy, turns="", metadata="")
    simulation = FloodedSimulation(fabric_of(task.host_bps), systems, task.seed,
                                   Messages(metadata_rate=0.0, short_rate=0.0))
    events = events_of(task)
    outcome = simulation.play([_transfer(event, task) for event in events], events[-1].at + 1.0)
    seconds = {kind: [taken for _, taken in sorted(outcome.seconds[kind])] for kind in ("write", "read")}
    return {"task": task.parameters(), "mean_seconds": fmean(seconds["write"]),
            "p95_seconds": float(np.percentile(seconds["write"], 95)), "read_seconds": fmean(seconds["read"]),
            "seconds": [round(each, 3) for each in seconds["write"]]}


def _transfer(event: Event, task: WriteTrace) -> Transfer:
    if event.kind == "flood":
        return Flood("flood", event.at, writer=event.host, client=event.to, seconds=FLOOD_SECONDS,
                     rate_bps=FLOOD_SHARE * task.host_bps / OVERSUBSCRIPTION)
    if event.file is not None:
        return Transfer("read", event.at, (Read(event.at, event.host, event.file.replicas, 8.0 * event.size_bytes),))
    return Transfer("write", event.at, writer=event.host, size_bits=8.0 * event.size_bytes)


def _task(point: None, method: WriteMethod, seed: int, choices: Choices) -> WriteTrace:
    return WriteTrace(method, seed, QUICK_WRITES if choices.quick else WRITES, HOST_MBPS * 1e6)


def beside(name: str, results: Sequence[dict[str, Any]]) -> list[Table | str]:
    """The methods write by write."""
    table = beside_the_paper(name, results, RACK_AWARE.name)
    return [] if table is None else [table]


EXPERIMENTS = {
    "sinbad-fabric": Experiment(
        title="The writes of sinbad-write --emulate, simulated", x_label="", measures=MEASURES, methods=METHODS,
        base=RACK_AWARE.name, bounds={}, points=(None,), runs=60, task=_task, run=run_task, method_of=method_of,
        chosen=CHOSEN, beside=beside, claims=("block writes 1.3 times as fast on EC2 as by HDFS's rule",),
        palette=PALETTE, minutes=0.8, quick_minutes=0.1),
}
