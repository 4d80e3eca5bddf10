"""Sinbad's evaluation (Chowdhury et al., SIGCOMM 2013, section 7): what each experiment compares, and a run.

The Facebook trace on 150 racks; every method meets the same writers, candidates and background.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from speedwell.cluster.tables import Table
from speedwell.controller.own_policies import POLICIES
from speedwell.controller.policy.placements.sinbad import MeasuredBy
from speedwell.controller.policy.registry import Kind
from speedwell.evaluation.experiment import Choices, Experiment, Result
from speedwell.evaluation.papers.sinbad_paper import beside_the_paper
from speedwell.evaluation.results.report import Measure
from speedwell.sim.coflow_trace import Coflow, CoflowTrace, FairRates, fair_rates, read_coflows
from speedwell.sim.errors import InvalidSetting
from speedwell.sim.fabric_network import network_of
from speedwell.sim.write_simulation import WriteSettings, WriteSimulation, Written
from speedwell.sim.write_workload import DRAIN_SECONDS, Writer, Writes, WriteWorkload, writes_of
from speedwell.topo.fabric import Fabric, spine_leaf

RACK_BPS = 2e9
HOSTS_PER_RACK = 10
DISK_BPS = 8 * 50e6
TRACE_SECONDS = 3600
DRAWS = 50
FILES_PER_SECOND, FILES_SHUFFLE_BPS = 8.0, 1e9
CHOSEN = {
    "outputs": "10.4 % of what a reducer receives: so 4 blocks of 256 MB come each second of the trace, as section "
               "7.2 says; the public trace has no outputs",
    "writers": "ten in a rack for each coflow; each begins at a moment drawn between the coflow's arrival and when "
               "the rack has all of its data, as the trace has no single tasks",
    "racks": "150, with 2 Gbit/s towards the core each (20 machines of 1 Gbit/s, 10:1) and 10 machines that write",
    "shuffle": "fair shares on at most 3/4 of a rack's link, computed beforehand and unaffected, as in section 7.2",
    "small writes": "blocks below 8 MiB are not placed by the load, and left out",
    "disks": "50 MB/s a machine (section 7.2)",
    "candidates": "the writer's machine and two of each rack, drawn anew for each block, the same for all methods",
    "default policy": "HDFS's: the writer's machine, another rack, that rack again",
    "runs": "each plays another part of the hour; all blocks that are asked for in it are written to their end",
    "64 hosts": "8 files a second, a third of what the disks write; beside them shuffles of 1 to 8 GB, each into one "
                "rack from four, which carry as much between racks as one copy of all files: writes are almost half "
                "of the paper's traffic between racks (abstract); a reducer receives 1 Gbit/s",
    "same": "within 5 % of the time with the default policy",
}
"""Where the paper, or the half of it that is at hand, is silent: what is taken here."""


@dataclass(frozen=True)
class WriteMethod:
    """A way to place replicas, under the name that tables give it. See `WriteSettings`."""

    name: str
    policy: str
    quantum_seconds: float = 0.0
    free_sources: bool = False
    free_destinations: bool = False
    sources: int = 1


HDFS = WriteMethod("HDFS", "hdfs")
SINBAD, PLUS = WriteMethod("Sinbad", "sinbad"), WriteMethod("sinbad-plus", "sinbad-plus")
QUANTUM = WriteMethod("Sinbad, q = 1 s", "sinbad", quantum_seconds=1.0)
BOUND = WriteMethod("Sinbad, sources limit nothing", "sinbad", free_sources=True)
FLOOR = WriteMethod("Sinbad, destinations limit nothing", "sinbad", free_destinations=True)
PLUS_SOURCES = WriteMethod("sinbad-plus, one of 8 sources", "sinbad-plus", sources=8)
RACK_AWARE = WriteMethod("Rack-aware", "rack-aware")


def method_of(policy: str) -> WriteMethod:
    """A placement policy under its own name. Raises UnknownPolicy."""
    return WriteMethod(policy, POLICIES.get(Kind.PLACEMENT, policy).name)


@dataclass(frozen=True)
class WritePoint:
    """Where an experiment looks: `x` is the place on its axis. With `files`, so many are placed on 64 hosts, and no
    trace is played."""

    name: str
    x: float = 0.0
    disk_bps: float = DISK_BPS
    speedup: float = 1.0
    window_seconds: float = 20.0
    files: int = 0


DISKS = WritePoint("disks of 50 MB/s")
MEMORY = WritePoint("memory", disk_bps=math.inf)
BUSIEST = WritePoint("64 hosts", files=10_000)


QUICK_WINDOW_SECONDS, QUICK_FILES = 10.0, 400


@dataclass(frozen=True)
class WriteTask:
    """One run. Equal tasks give equal results. `trace` is where the trace is; None where none is played."""

    point: WritePoint
    method: WriteMethod
    seed: int
    trace: Path | None

    def parameters(self) -> dict[str, Any]:
        """As plain JSON values."""
        point = asdict(self.point) | {"disk_bps": self.point.disk_bps if math.isfinite(self.point.disk_bps) else None}
        return {"point": self.point.name, "x": self.point.x, "workload": point, "method": asdict(self.method),
                "seed": self.seed, "trace": self.trace.name if self.trace else None}


def _task(point: WritePoint, method: WriteMethod, seed: int, choices: Choices) -> WriteTask:
    if choices.quick:
        point = replace(point, window_seconds=QUICK_WINDOW_SECONDS, files=min(point.files, QUICK_FILES))
    if choices.trace is None and not point.files:
        raise InvalidSetting("trace: name the file of a coflow-benchmark trace, such as FB2010-1Hr-150-0.txt of "
                             "https://github.com/coflow/coflow-benchmark; sinbad-busiest needs none")
    return WriteTask(point, method, seed, None if point.files else choices.trace)


def run_task(task: WriteTask) -> dict[str, Any]:
    """One run as a JSON object: see `summary`."""
    settings = WriteSettings(disk_bps=task.point.disk_bps, quantum_seconds=task.method.quantum_seconds,
                             free_sources=task.method.free_sources,
                             free_destinations=task.method.free_destinations, sources=task.method.sources)
    if task.trace is None:
        fabric, writes, settings = fabric_of(16, 4), _files(task.point.files, task.seed), replace(settings, offered=4)
    else:
        trace = _trace(task.trace)
        fabric, writes = fabric_of(trace.racks, HOSTS_PER_RACK), _writes(task.trace, task.point, task.seed)
    network = network_of(fabric)
    policy = POLICIES.make(Kind.PLACEMENT, task.method.policy, network,
                           Random(f"{task.method.name} {task.seed}"), MeasuredBy.SWITCHES)
    simulation = WriteSimulation(fabric, network, policy, settings, task.seed)
    written = simulation.run(writes)
    return {"task": task.parameters(), "reserved_after_a_minute": policy.reserved(simulation.fluid.now + 60.0),
            **summary(written, writes)}


def summary(written: Written, writes: Writes) -> dict[str, Any]:
    """What is kept of a run: times in seconds, of every block in the order of writers, and how even the load was."""
    blocks = sorted(written.blocks, key=lambda block: (block.writer, block.asked))
    seconds = [block.seconds for block in blocks]
    begin: dict[int, float] = {}
    end: dict[int, float] = {}
    for block in blocks:
        begin.setdefault(block.writer, block.asked)
        end[block.writer] = block.asked + block.seconds
    stored_bits: Counter[str] = Counter()
    stored_blocks: Counter[str] = Counter()
    for block in blocks:
        for host in block.hosts:
            rack = host.partition("h")[0]
            stored_bits[rack] += block.size_bits        # type: ignore[assignment]
            stored_blocks[rack] += 1
    racks = writes.shuffle.rates_bps.shape[1] // 2
    return {"mean_seconds": float(np.mean(seconds)), "p95_seconds": float(np.percentile(seconds, 95)),
            "writer_seconds": float(np.mean([end[writer] - begin[writer] for writer in end])),
            "cv_up": float(np.median(written.cv_up or [0.0])), "cv_down": float(np.median(written.cv_down or [0.0])),
            "busiest_over_mean": float(np.mean(written.busiest_over_mean or [1.0])),
            "least_over_mean": float(np.mean(written.least_over_mean or [1.0])),
            "busiest_gbps": float(np.mean(written.busiest_bps or [0.0])) / 1e9,
            "copies_between_racks": written.between_racks_bits / sum(block.size_bits for block in blocks),
            "rack_bytes_cv": _variation(stored_bits.values(), racks),
            "rack_blocks_cv": _variation(stored_blocks.values(), racks),
            "blocks": len(blocks), "seconds": [round(each, 4) for each in seconds],
            "job_megabytes": [round(writes.job_bits.get(writes.writers[block.writer].job, 0.0) / 8e6, 1)
                              for block in blocks]}


def _variation(values: Any, number: int) -> float:
    every = np.array([*values, *[0.0] * (number - len(values))], float)
    return float(every.std() / every.mean())


def fabric_of(racks: int, hosts_per_rack: int) -> Fabric:
    """Racks of machines of 1 Gbit/s below one core."""
    return spine_leaf(leaves=racks, spines=1, hosts_per_leaf=hosts_per_rack, host_bps=1e9,
                      oversubscription=hosts_per_rack * 1e9 / RACK_BPS)


@cache
def _trace(path: Path) -> CoflowTrace:
    return read_coflows(path)


@cache
def _writes(path: Path, point: WritePoint, seed: int) -> Writes:
    """Each seed plays another eighth of the hour, from a second on that it draws; again where nothing is written.

    Raises InvalidSetting for a trace in which nothing is.
    """
    hour = TRACE_SECONDS / point.speedup
    part = max(hour / 8 - point.window_seconds, 0.0)
    draw = Random(f"writes {seed}")
    for _ in range(DRAWS):
        begin = min((seed % 8) * hour / 8 + draw.uniform(0.0, part), hour - point.window_seconds)
        writes = writes_of(_trace(path), WriteWorkload(float(int(begin)), point.window_seconds, point.speedup,
                                                       writers_per_rack=HOSTS_PER_RACK), draw)
        if writes.writers:
            return writes
    raise InvalidSetting(f"trace: nothing is written in {DRAWS} parts of it")


def _files(number: int, seed: int) -> Writes:
    """So many files of 1 to 256 MB, log-uniform, by any machine; shuffles carry as much as one copy of them."""
    draw = Random(f"files {seed}")
    now, writers = 0.0, []
    for name in range(number):
        now += draw.expovariate(FILES_PER_SECOND)
        size_bits = 8e6 * 256 ** draw.random()
        writers.append(Writer(name, now, draw.randrange(16), draw.randrange(4), (size_bits,)))
    return Writes(tuple(writers), _shuffles(sum(writer.blocks_bits[0] for writer in writers), now, draw), {})


def _shuffles(bits: float, seconds: float, draw: Random) -> FairRates:
    """Shuffles of 1 to 8 GB, each into one of 16 racks from four others, which carry so much in so many seconds."""
    coflows: list[Coflow] = []
    while bits > 0:
        size_bits = 8e9 * 8 ** draw.random()
        reducer, *mappers = draw.sample(range(16), 5)
        coflows.append(Coflow(len(coflows), draw.uniform(0.0, seconds), tuple(mappers), ((reducer, size_bits),)))
        bits -= size_bits
    return fair_rates(CoflowTrace(16, tuple(coflows)), FILES_SHUFFLE_BPS, math.ceil(seconds) + DRAIN_SECONDS)


def _facts(tasks: Sequence[WriteTask]) -> Mapping[str, object]:
    return {"rack_bps": RACK_BPS, "workload": asdict(WriteWorkload(writers_per_rack=HOSTS_PER_RACK))}


def _beside(name: str, results: Sequence[Result]) -> Iterable[Table | str]:
    table = beside_the_paper(name, results, HDFS.name)
    if table is not None:
        yield table
    left = sum(result["reserved_after_a_minute"] for result in results)
    yield f"Placements that are expected to run a minute after the last write: {left}"


PALETTE = tuple(method.name for method in (HDFS, SINBAD, PLUS, RACK_AWARE, QUANTUM, BOUND, PLUS_SOURCES, FLOOR))
_MEANS = (Measure("mean_seconds", "block, mean s"), Measure("p95_seconds", "block, 95th percentile, s"),
          Measure("writer_seconds", "writer, mean s"))
_figure = partial(Experiment, base=HDFS.name, bounds={}, points=(DISKS,), methods=(HDFS, SINBAD, PLUS), runs=8,
                  task=_task, run=run_task, method_of=method_of, facts=_facts, chosen=CHOSEN, beside=_beside,
                  needs="--trace FILE",
                  palette=PALETTE)
EXPERIMENTS = {
    "sinbad-write": _figure(minutes=0.9, quick_minutes=0.1,
        title="Times of block writes (sections 7.2 and 7.3)", x_label="", measures=_MEANS,
        methods=(HDFS, RACK_AWARE, SINBAD, QUANTUM, PLUS, FLOOR, BOUND, PLUS_SOURCES),
        claims=("blocks 1.58 times as fast as by HDFS's rule, writers 1.39", "1.89 where sources limit nothing",
                "q = 1 s costs 20 %")),
    "sinbad-imbalance": _figure(minutes=0.2, quick_minutes=0.1,
        title="Imbalance of the racks' links (figure 8)", x_label="",
        measures=(Measure("cv_up", "median Cv, rack to core"), Measure("cv_down", "median Cv, core to rack")),
        claims=("medians of the coefficient of variation lower by 0.35 and 0.33",)),
    "sinbad-storage": _figure(minutes=0.8, quick_minutes=0.1,
        title="What racks store in the end (figure 10)", x_label="",
        measures=(Measure("rack_bytes_cv", "std / mean of bytes"), Measure("rack_blocks_cv", "std / mean of blocks")),
        points=(replace(DISKS, window_seconds=60.0),),
        claims=("EC2: 15.8 GB on machines of 92 GB, by HDFS's rule 6.7 GB: 0.17 and 0.07 of the mean",)),
    "sinbad-load": _figure(minutes=2, quick_minutes=0.1,
        title="Times of block writes by the jobs' arrival rate (figure 11)", x_label="arrival rate",
        measures=_MEANS[:1],
        points=tuple(WritePoint(f"{speedup:g} x", speedup, speedup=speedup) for speedup in (0.5, 1.0, 2.0)),
        quick_points=(1,), lines=True, claims=("improvements shrink as the network becomes more congested",)),
    "sinbad-memory": _figure(minutes=0.8, quick_minutes=0.1,
        title="Times of block writes without disks (section 7.6)", x_label="", measures=_MEANS, points=(MEMORY,),
        methods=(HDFS, SINBAD, PLUS, FLOOR, BOUND, PLUS_SOURCES),
        claims=("blocks 1.79 times as fast as by HDFS's rule, writers 1.4",)),
    "sinbad-busiest": _figure(minutes=1, quick_minutes=0.1,
        title="10,000 files of 1 to 256 MB on 64 hosts", x_label="", base=RACK_AWARE.name,
        methods=(RACK_AWARE, HDFS, SINBAD, PLUS), runs=4,
        points=(BUSIEST,), claims=(), needs="",
        measures=(Measure("busiest_over_mean", "busiest link into a rack / mean"),
                  Measure("least_over_mean", "the least with the same bytes"),
                  Measure("busiest_gbps", "busiest link into a rack, Gbit/s"),
                  Measure("copies_between_racks", "copies sent between racks"),
                  Measure("cv_up", "median Cv, rack to core"), Measure("cv_down", "median Cv, core to rack"),
                  Measure("mean_seconds", "file, mean s"))),
}
EXPERIMENTS["sinbad-write"] = replace(EXPERIMENTS["sinbad-write"],
                                      emulation="speedwell.evaluation.replay.writes:figure")
