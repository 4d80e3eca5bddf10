"""Sinbad's writes on an emulated fabric: files written by the real filesystem, beside reads and background traffic.

Each method meets the same writers, readers and background, in a cluster of its own whose controller places by it, and
which plays all of its runs: to start one takes as long as half a run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from statistics import fmean
from typing import Any

import click
import numpy as np

from speedwell.cluster.errors import ClusterError
from speedwell.cluster.tables import Table
from speedwell.evaluation.emulation import Emulation
from speedwell.evaluation.experiment import Choices, Experiment
from speedwell.evaluation.papers.mayflower import MAYFLOWER
from speedwell.evaluation.papers.sinbad import RACK_AWARE
from speedwell.evaluation.papers.sinbad_fabric import (
    CHOSEN,
    FLOOD_SECONDS,
    FLOOD_SHARE,
    HOST_MBPS,
    MEASURES,
    METHODS,
    OVERSUBSCRIPTION,
    QUICK_RUNS,
    QUICK_WRITES,
    RUNS,
    WRITES,
    Event,
    WriteTrace,
    events_of,
    fabric_of,
    stored_files,
)
from speedwell.evaluation.papers.sinbad_paper import beside_the_paper
from speedwell.evaluation.placement_trial import counted
from speedwell.evaluation.replay.clusters import play_all, running, warn_if_busy
from speedwell.evaluation.replay.experiment import Meter, warm_up
from speedwell.evaluation.replay.speedwell import Speedwell
from speedwell.evaluation.replay.system import ReadReport
from speedwell.evaluation.results.output import Output, finish

DRAIN_SECONDS = 300.0


def run_tasks(tasks: Sequence[WriteTrace], say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Play runs of one method in one cluster, whose controller places by it. Raises ClusterError, EmulationError."""
    method, fabric = tasks[0].method, fabric_of(tasks[0].host_bps)
    with running(say, fabric=fabric, coflows="fair", placement_policy=method.policy) as (cluster, system):
        system.prepare(stored_files(fabric), say)
        warm_up(system, [host.name for host in fabric.hosts], MAYFLOWER, say)
        for task in tasks:
            system.settle()
            placed_before, meter = counted(cluster.nameserver), Meter()
            reports = list(_play(events_of(task), system, task, say))
            machine = {**meter.read(), **system.details()}
            for event, _, _ in reports:
                if event.kind == "write":
                    system.remove(event.path)
            written = [report.finished - asked for event, asked, report in reports if event.kind == "write"]
            yield {"task": task.parameters(), "mean_seconds": fmean(written),
                   "p95_seconds": float(np.percentile(written, 95)), "seconds": [round(each, 3) for each in written],
                   "read_seconds": fmean(report.finished - asked for event, asked, report in reports
                                         if event.kind == "read"),
                   "placed": dict(Counter(counted(cluster.nameserver)) - Counter(placed_before)), "machine": machine}


def _play(events: Sequence[Event], system: Speedwell, task: WriteTrace,
          say: Callable[[str], None]) -> Iterator[tuple[Event, float, ReadReport]]:
    """Each event, when it was to begin on the monotonic clock, and what became of it."""
    origin = time.monotonic() + 0.5
    begun: list[tuple[Event, float, Future[ReadReport]]] = []
    hosts = {host.name: host.ip for host in fabric_of(task.host_bps).hosts}
    for number, event in enumerate(events):
        time.sleep(max(origin + event.at - time.monotonic(), 0.0))
        if event.kind == "flood":
            report = system.flood(event.host, hosts[event.to], FLOOD_SECONDS,
                                  FLOOD_SHARE * task.host_bps / OVERSUBSCRIPTION)
        elif event.file is not None:
            report = system.read(event.host, event.file, MAYFLOWER)
        else:
            report = system.write(event.host, event.path, event.size_bytes)
        begun.append((event, origin + event.at, report))
        say(f"{task.method.name}, seed {task.seed}: {number + 1} of {len(events)} transfers have begun")
    deadline = time.monotonic() + DRAIN_SECONDS
    for event, asked, report in begun:
        try:
            yield event, asked, report.result(max(deadline - time.monotonic(), 0.0))
        except TimeoutError:
            raise ClusterError(f"{DRAIN_SECONDS:g} s after the last began a {event.kind} has not ended") from None


def figure(name: str, experiment: Experiment, choices: Choices, wanted: Emulation, output: Output) -> None:
    """Times of writes by the method that places them."""
    if wanted.reads or wanted.coflows or wanted.slowdown:
        raise click.UsageError("--reads, --coflows and --slowdown are of no use to writes",
                               click.get_current_context())
    runs, writes = wanted.runs or (QUICK_RUNS if choices.quick else RUNS), QUICK_WRITES if choices.quick else WRITES
    tasks = [WriteTrace(method, choices.seed + run, writes, (wanted.host_mbps or HOST_MBPS) * 1e6)
             for method in METHODS for run in range(runs)]
    shown = replace(experiment, methods=METHODS, base=RACK_AWARE.name, measures=MEASURES, chosen=CHOSEN,
                    facts=lambda tasks: {}, claims=("block writes 1.3 times as fast on EC2 as by HDFS's rule",))
    results_file = output.open(shown.manifest(name, "emulate", choices, tasks))
    results = play_all(name, tasks, run_tasks, results_file, output.directory)
    finish(shown, results, output.directory, beside(name, results))
    warn_if_busy(results)


def beside(name: str, results: Sequence[dict[str, Any]]) -> Iterator[Table | str]:
    """The methods write by write, and whether the machine let the network decide."""
    table = beside_the_paper(f"{name} --emulate", results, RACK_AWARE.name)
    assert table is not None
    yield table
    busy = [result["machine"]["busy_share"] for result in results]
    placed = sum((Counter(result["placed"]) for result in results), Counter())
    yield (f"The machine was {min(busy):.0%} to {max(busy):.0%} busy. Who placed the files: "
           f"{', '.join(f'{who} {number}' for who, number in placed.items())}.")
