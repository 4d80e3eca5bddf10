"""Runs the tasks of an experiment on all cores; keeps what has finished if it is interrupted."""

import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from sim.clairvoyant import clairvoyant_mean_seconds
from sim.errors import InvalidSetting, Overloaded
from sim.experiments.mayflower import EDGE_RATIO, HOST_BPS, Task
from sim.simulation import Simulation
from sim.workload import Workload, generate
from topo.fabric import three_tier

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
    counted = outcomes[int(WARM_UP * task.reads):]
    seconds = [outcome.seconds for outcome in counted]
    apart = [max(outcome.part_ends) - min(outcome.part_ends) for outcome in counted if len(outcome.part_ends) > 1]
    return result | {
        "mean_seconds": float(np.mean(seconds)), "p95_seconds": float(np.percentile(seconds, 95)),
        "bound_seconds": clairvoyant_mean_seconds([outcome.read for outcome in counted], HOST_BPS),
        "split_reads": len(apart), "parts_apart_seconds": float(np.mean(apart)) if apart else None,
    }


def run_sweep(tasks: Sequence[Task], results_file: Path, resume: bool,
              finished: Callable[[int], None]) -> list[dict[str, Any]]:
    """Run what `results_file` (JSON lines) does not have yet, adding each result as it comes.

    `finished` hears how many are done. Raises InvalidSetting if the file exists and `resume` is not set.
    """
    if results_file.exists() and not resume:
        raise InvalidSetting(f"{results_file} exists: give --resume to go on with it, or another --output")
    done = _read(results_file)
    missing = [task for task in tasks if _key(task.parameters()) not in done]
    finished(len(tasks) - len(missing))
    if missing:
        _drop_torn_line(results_file)
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(max_workers=min(os.cpu_count() or 1, len(missing)), mp_context=context)
        try:
            futures = [pool.submit(run_task, task) for task in missing]
            with results_file.open("a") as file:
                for future in as_completed(futures):
                    result = future.result()
                    file.write(json.dumps(result) + "\n")
                    file.flush()
                    done[_key(result["task"])] = result
                    finished(len([task for task in tasks if _key(task.parameters()) in done]))
        finally:
            pool.shutdown(cancel_futures=True)
    return [done[_key(task.parameters())] for task in tasks]


def _read(results_file: Path) -> dict[str, dict[str, Any]]:
    if not results_file.exists():
        return {}
    results = {}
    for line in results_file.read_text().splitlines():
        try:
            result = json.loads(line)
        except ValueError:
            continue                     # the last line of a run that was killed while writing
        results[_key(result["task"])] = result
    return results


def _drop_torn_line(results_file: Path) -> None:
    """A killed run may have left half a line, which would spoil the next one."""
    if results_file.exists():
        text = results_file.read_text()
        results_file.write_text(text[: text.rfind("\n") + 1])


def _key(parameters: dict[str, object]) -> str:
    return json.dumps(parameters, sort_keys=True)
