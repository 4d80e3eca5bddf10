"""Experiments with reads, played on an emulated fabric."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from speedwell.cluster.errors import ClusterError
from speedwell.evaluation.emulation import Emulation
from speedwell.evaluation.experiment import Choices, Experiment
from speedwell.evaluation.hdfs import libraries
from speedwell.evaluation.hdfs.beside import speedwell_and_hdfs
from speedwell.evaluation.papers.reads import Task
from speedwell.evaluation.replay import agreement as agreeing
from speedwell.evaluation.replay.experiment import (
    MOST_SWITCH_SHARE,
    System,
    emulated_tasks,
    manifest,
    run_emulated,
    saturated,
    speedwell,
)
from speedwell.evaluation.replay.scale import Scale
from speedwell.evaluation.replay.system import Progress
from speedwell.evaluation.results.output import Output, finish, progress_bar
from speedwell.evaluation.results.results_file import ResultsFile
from speedwell.topo.emulation import EmulationError

HOST_MBPS = 8.0
QUICK_SPEEDUP = 4.0
AGREEMENT_SLOWDOWN = 2.0
"""With fewer frames to a file, TCP's way to a fair share is a part of the time that is compared."""


def figure(name: str, experiment: Experiment, choices: Choices, wanted: Emulation, output: Output) -> None:
    """The figure's reads with the real filesystem."""
    _, _, results = _played(name, experiment, choices, wanted, output, _speedwell)
    finish(experiment, results, output.directory)
    _warn_of_saturation(results)


def beside_hdfs(name: str, experiment: Experiment, choices: Choices, wanted: Emulation, output: Output) -> None:
    """The same beside a real HDFS. Says so and does nothing where there is no Java."""
    try:
        _, _, results = _played(name, experiment, choices, wanted, output, _speedwell_and_hdfs)
    except libraries.JavaMissing as error:
        click.echo(f"{name} is skipped: {error}")
        return
    finish(experiment, results, output.directory)
    _warn_of_saturation(results)


def agreement(name: str, experiment: Experiment, choices: Choices, wanted: Emulation, output: Output) -> None:
    """The reads emulated and simulated, and how far the two are apart."""
    tasks, scale, results = _played(name, experiment, choices, wanted, output, _speedwell, AGREEMENT_SLOWDOWN)
    delays = agreeing.delays_at(scale)
    rows = agreeing.compare(tasks, scale, ResultsFile(output.directory / "results.jsonl", resume=True), delays)
    document = {**agreeing.manifest(delays), "methods": [agreeing.as_json(row) for row in rows]}
    (output.directory / "agreement.json").write_text(json.dumps(document, indent=2) + "\n")
    agreeing.table_of(rows).show()
    click.echo(f"{output.directory}: results.jsonl, agreement.json, manifest.json")
    _warn_of_saturation(results)


def _played(name: str, experiment: Experiment, choices: Choices, wanted: Emulation, output: Output,
            system_of: Callable[[Progress], System],
            slowdown: float = 1.0) -> tuple[list[Task], Scale, list[dict[str, Any]]]:
    if wanted.coflows:
        raise click.UsageError("--coflows is of no use to reads", click.get_current_context())
    if choices.quick and wanted.slowdown is not None:
        raise click.UsageError("--slowdown does not go with --quick, which makes files smaller",
                               click.get_current_context())
    speedup = QUICK_SPEEDUP if choices.quick else 1 / (wanted.slowdown or slowdown)
    runs, reads = wanted.runs or (1 if choices.quick else 3), wanted.reads or (100 if choices.quick else 600)
    try:
        scale = Scale(host_bps=(wanted.host_mbps or HOST_MBPS) * 1e6, speedup=speedup)
        tasks = emulated_tasks(experiment, choices, runs, reads)
        results_file = output.open(experiment.manifest(name, "emulate", choices, tasks) | manifest(scale))
        with progress_bar(name, len(tasks), output.directory) as (finished, say):
            return tasks, scale, run_emulated(tasks, scale, results_file, finished, say, system_of(say))
    except libraries.JavaMissing:
        raise
    except (ClusterError, EmulationError) as error:
        raise click.ClickException(str(error)) from None


def _speedwell(say: Progress) -> System:
    return partial(speedwell, progress=say)


def _speedwell_and_hdfs(say: Progress) -> System:
    return partial(speedwell_and_hdfs, progress=say, libraries=libraries.prepare(progress=say))


def _warn_of_saturation(results: Sequence[dict[str, Any]]) -> None:
    worst = max((result["machine"]["switch_cpu_share"] for result in results), default=0.0)
    click.echo(f"ovs-vswitchd used at most {worst:.0%} of the processors in a run.")
    if too_much := saturated(results):
        click.echo(f"speedwell: in {len(too_much)} runs that was more than {MOST_SWITCH_SHARE:.0%}: they measure the "
                   "machine, not the network. Repeat with a lower --host-mbps.", err=True)
