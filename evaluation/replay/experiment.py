"""Runs the tasks of an experiment on emulated fabrics, one cluster after the other, and keeps what finishes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from speedwell.cluster import supervisor
from speedwell.cluster.errors import ClusterError
from speedwell.cluster.fabric_settings import DIRECTORY, read_settings
from speedwell.cluster.machine import busy_seconds, switch_cpu_seconds
from speedwell.evaluation.experiment import Choices, Experiment
from speedwell.evaluation.neighbours import introduce
from speedwell.evaluation.papers.mayflower import OTHER_METHODS
from speedwell.evaluation.papers.reads import Method, Task, summary
from speedwell.evaluation.replay.replay import Replayed, replay
from speedwell.evaluation.replay.scale import Scale, StoredFile, files_of
from speedwell.evaluation.replay.speedwell import Speedwell
from speedwell.evaluation.replay.system import Progress, SystemUnderTest
from speedwell.evaluation.results.results_file import ResultsFile
from speedwell.sim.errors import Overloaded
from speedwell.topo.emulation.settings import Settings
from speedwell.topo.fabric import Fabric

MOST_SWITCH_SHARE = 0.6
"""Of the machine's processors. Above it a run measures the processors, not the network."""

WARM_UP_BYTES = 64 << 10
WARM_UP_SECONDS = 60.0

System = Callable[[Scale, float], Any]
"""Given a scale and an over-subscription, a context manager of a running `SystemUnderTest`."""


def emulated_tasks(figure: Experiment, choices: Choices, runs: int, reads: int) -> list[Task]:
    """The figure's runs as the emulation makes them: fewer and shorter, ordered so that a cluster serves many.

    Of the methods those that the paper compares, as every run takes real time. All of them meet a seed's reads before
    the next seed begins, so an interrupted experiment compares what it has; each seed begins with another method.
    """
    chosen = [replace(task, reads=reads) for task in replace(figure, runs=runs, quick_runs=runs).tasks(choices)
              if task.method not in OTHER_METHODS and task.method.is_offered]
    turns = {method: number for number, method in enumerate(dict.fromkeys(task.method for task in chosen))}
    return sorted(chosen, key=lambda task: (
        task.oversubscription, task.seed, task.x, task.panel,
        (turns[task.method] - (task.seed - choices.seed)) % len(turns)))


def parameters(task: Task, scale: Scale) -> dict[str, Any]:
    """What identifies a run on the emulated fabric."""
    return {**task.parameters(), "scale": asdict(scale)}


def run_emulated(chosen: Sequence[Task], scale: Scale, results: ResultsFile, finished: Callable[[int], None],
                 progress: Progress, system: System) -> list[dict[str, Any]]:
    """Run what `results` does not have; returns all results in the order of the tasks.

    `finished` hears how many are done, `progress` what goes on. Raises ClusterError, EmulationError, and
    SimulationError for a workload that cannot be. Whatever happens, nothing is left running.
    """
    missing = [task for task in chosen if results.get(parameters(task, scale)) is None]
    done = len(chosen) - len(missing)
    finished(done)
    for oversubscription, group in groupby(missing, key=lambda task: task.oversubscription):
        with system(scale, oversubscription) as running:
            warm: set[Method] = set()
            for task in group:
                results.add(run_task(task, scale, running, progress, warm))
                done += 1
                finished(done)
    return [result for task in chosen if (result := results.get(parameters(task, scale))) is not None]


@contextmanager
def speedwell(scale: Scale, oversubscription: float, progress: Progress,
              directory: Path = DIRECTORY) -> Iterator[SystemUnderTest]:
    """A Speedwell cluster on the scale's fabric, its files in `directory`, for the time of the `with` block."""
    settings = read_settings(fabric=scale.fabric(oversubscription), directory=directory,
                             poll_interval_seconds=scale.poll_interval_seconds, queue_packets=scale.queue_packets)
    with ExitStack() as cleanup:
        description = supervisor.up(settings, progress)
        cleanup.callback(supervisor.down)
        introduce(settings.fabric, lambda host: int(description["hosts"][host]["pid"]))
        system = Speedwell(description, scale.poll_interval_seconds)
        cleanup.callback(system.close)
        yield system


def run_task(task: Task, scale: Scale, system: SystemUnderTest, progress: Progress,
             warm: set[Method]) -> dict[str, Any]:
    """One run as a JSON object, as the simulator's, in seconds of the paper's time.

    Under `machine` stands what the machine spent, under `seconds` every read's completion time in order of arrival,
    under `paths` the nodes that each of its parts crossed; nothing where the system does not say. Before the first
    run with a method, one that is not in `warm`, every host reads a file with it that does not count.
    """
    trace = scale.trace(task)
    fabric = scale.fabric(task.oversubscription)
    system.prepare(files_of(trace), progress)
    if task.method not in warm:
        warm_up(system, [host.name for host in fabric.hosts], task.method, progress)
        warm.add(task.method)
    system.settle()
    result: dict[str, Any] = {"task": parameters(task, scale)}
    meter = Meter()
    try:
        outcomes = replay(trace, system, task.method, len(fabric.hosts),
                          lambda ended: progress(f"{task.method.name}: {ended} of {len(trace)} reads have ended"))
    except Overloaded as error:
        warm.clear()        # the reading processes are new ones now
        return result | {"overloaded": str(error), "machine": {**meter.read(), **system.details()}}
    times = summary(outcomes, scale.host_bps)
    times["split_reads"] = sum(len(outcome.report.sources) > 1 for outcome in outcomes)
    return result | times | {name: times[name] * scale.speedup for name in ("mean_seconds", "p95_seconds",
                                                                            "bound_seconds", "p95_bound_seconds")} | {
        "machine": {**meter.read(), **_diligence(outcomes), **system.details()},
        "seconds": [round(outcome.seconds * scale.speedup, 4) for outcome in outcomes],
        "paths": _paths(outcomes, fabric),
    }


def warm_up(system: SystemUnderTest, hosts: Sequence[str], method: Method, progress: Progress) -> None:
    """Let every host read a small file from three others, far from each other. Raises ClusterError.

    A host's first read loads modules and opens connections to servers. For 64 hosts on one machine that takes seconds
    of its processors, as long as a short run.
    """
    count = len(hosts)
    files = [StoredFile(f"/warm-up/{host}", tuple(dict.fromkeys(
        hosts[(number + 1 + third * count // 3) % count] for third in range(3))), WARM_UP_BYTES)
        for number, host in enumerate(hosts)]
    system.prepare(files, progress)
    reads = [system.read(host, file, method) for host, file in zip(hosts, files, strict=True)]
    _, unfinished = wait(reads, WARM_UP_SECONDS)
    if unfinished:
        system.abandon()
        raise ClusterError(f"{len(unfinished)} of {len(reads)} first reads have not ended in {WARM_UP_SECONDS:g} s")
    for read in reads:
        read.result()


def _paths(outcomes: Sequence[Replayed], fabric: Fabric) -> list[list[list[str]]] | None:
    """Of each read, by the fabric's names. A part from a replica on the reader's own host crosses nothing."""
    if not all(outcome.report.paths for outcome in outcomes):
        return None
    names = {host.ip: host.name for host in fabric.hosts}
    return [[[names.get(node, node) for node in path] or [outcome.read.client] for path in outcome.report.paths]
            for outcome in outcomes]


def saturated(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs in which the switches took more of the processors than they may."""
    return [result for result in results if result["machine"]["switch_cpu_share"] > MOST_SWITCH_SHARE]


def _diligence(outcomes: Sequence[Replayed]) -> dict[str, Any]:
    """How well the replay itself did: reads that the controller did not place, and late starts (seconds)."""
    late = [outcome.late_seconds for outcome in outcomes]
    return {"not_steered": sum(not outcome.report.steered for outcome in outcomes),
            "late_mean_seconds": round(fmean(late), 5), "late_most_seconds": round(max(late), 5)}


class Meter:
    """Shares of the machine's processors since it was made."""

    def __init__(self) -> None:
        self._begin = (time.monotonic(), switch_cpu_seconds(), busy_seconds())

    def read(self) -> dict[str, float]:
        now = (time.monotonic(), switch_cpu_seconds(), busy_seconds())
        seconds, switches, busy = (end - begin for begin, end in zip(self._begin, now, strict=True))
        processors = seconds * (os.cpu_count() or 1)
        return {"switch_cpu_share": round(switches / processors, 4), "busy_share": round(busy / processors, 4),
                "run_seconds": round(seconds, 1)}


def manifest(scale: Scale) -> dict[str, Any]:
    """The part of the manifest that the emulation adds."""
    return {"scale": asdict(scale), "host_bps": scale.host_bps, "read_bytes": scale.read_bytes,
            "poll_interval_seconds": scale.poll_interval_seconds, "mtu_bytes": Settings().mtu,
            "most_switch_cpu_share": MOST_SWITCH_SHARE}
