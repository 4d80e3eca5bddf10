"""Runs the tasks of an experiment on all cores; keeps what has finished if it is interrupted."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np

from sim.clairvoyant import clairvoyant_mean_seconds
from sim.errors import Overloaded
from sim.experiments.mayflower import EDGE_RATIO, HOST_BPS, Task
from sim.experiments.results_file import ResultsFile
from sim.simulation import Simulation
from sim.workload import Read, Workload, generate
from topo.fabric import three_tier


class Finished(Protocol):
    """A read that has ended: its completion time, and when each part of it ended if there was more than one."""

    @property
    def read(self) -> Read: ...
    @property
    def seconds(self) -> float: ...
    @property
    def part_ends(self) -> Sequence[float]: ...


WARM_UP = 0.1
"""The part of the reads at the start that does not count: the network is still emptier than later."""


def run_task(task: Task) -> dict[str, Any]:
    """One run as a JSON object: parameters, and mean and 95th percentile of the completion times in seconds.

    A run that overloads the network has the reason under `overloaded` instead.
    """
    fabric = three_tier(pods=4, racks_per_pod=4, hosts_per_rack=4, aggregations_per_pod=2, cores=2, host_bps=HOST_BPS,
                        oversubscription={"edge": EDGE_RATIO, "aggregation": task.oversubscription / EDGE_RATIO})
    workload = Workload(reads_per_server_second=task.rate, locality=task.locality)
    method = task.method
    simulation = Simulation(fabric, method.replica_policy, method.path_policy, Random(task.seed), parts=method.parts)
    result: dict[str, Any] = {"task": task.parameters()}
    try:
        outcomes = simulation.run(generate(workload, fabric, Random(f"reads {task.seed}")), task.reads)
    except Overloaded as error:
        return result | {"overloaded": str(error)}
    return result | summary(outcomes, HOST_BPS)


def summary(outcomes: Sequence[Finished], host_bps: float) -> dict[str, Any]:
    """What is kept of a run whose reads these are, in order of arrival: times in seconds."""
    counted = outcomes[int(WARM_UP * len(outcomes)):]
    seconds = [outcome.seconds for outcome in counted]
    apart = [max(outcome.part_ends) - min(outcome.part_ends) for outcome in counted if len(outcome.part_ends) > 1]
    return {
        "mean_seconds": float(np.mean(seconds)), "p95_seconds": float(np.percentile(seconds, 95)),
        "bound_seconds": clairvoyant_mean_seconds([outcome.read for outcome in counted], host_bps),
        "split_reads": len(apart), "parts_apart_seconds": float(np.mean(apart)) if apart else None,
    }


def run_sweep(tasks: Sequence[Task], results_file: Path, resume: bool,
              finished: Callable[[int], None]) -> list[dict[str, Any]]:
    """Run what `results_file` (JSON lines) does not have yet, adding each result as it comes.

    `finished` hears how many are done. Raises InvalidSetting if the file exists and `resume` is not set.
    """
    results = ResultsFile(results_file, resume)
    missing = [task for task in tasks if results.get(task.parameters()) is None]
    done = len(tasks) - len(missing)
    finished(done)
    if missing:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(max_workers=min(os.cpu_count() or 1, len(missing)), mp_context=context)
        try:
            for future in as_completed([pool.submit(run_task, task) for task in missing]):
                results.add(future.result())
                done += 1
                finished(done)
        finally:
            pool.shutdown(cancel_futures=True)
    return [result for task in tasks if (result := results.get(task.parameters())) is not None]
