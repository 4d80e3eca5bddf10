"""Experiments with coflows, played on an emulated fabric."""

from __future__ import annotations

import click

from speedwell.cluster.errors import ClusterError
from speedwell.evaluation.coflow_replay.experiment import (
    MOST_BUSY,
    CoflowScale,
    cpu_table,
    emulated_tasks,
    manifest,
    run_emulated,
    simulated_table,
)
from speedwell.evaluation.emulation import Emulation
from speedwell.evaluation.experiment import Choices, Experiment
from speedwell.evaluation.results.output import Output, finish, progress_bar
from speedwell.topo.emulation import EmulationError

HOST_MBPS = 20.0


def figure(name: str, experiment: Experiment, choices: Choices, wanted: Emulation, output: Output) -> None:
    """The figure's coflows, with files as much smaller as links are slower than the paper's. With a slowdown files
    are so much larger and come so much less often."""
    if wanted.reads:
        raise click.UsageError("--reads is of no use to coflows", click.get_current_context())
    scale = CoflowScale((wanted.host_mbps or HOST_MBPS) * 1e6, wanted.slowdown or 1.0)
    tasks = emulated_tasks(experiment, choices, wanted.runs or 1, wanted.coflows)
    results_file = output.open(experiment.manifest(name, "emulate", choices, tasks) | manifest(scale))
    failures: list[str] = []
    try:
        with progress_bar(name, len(tasks), output.directory) as (finished, say):
            results = run_emulated(tasks, scale, results_file, finished, say, failures.append)
    except (ClusterError, EmulationError) as error:
        raise click.ClickException(str(error)) from None
    if results:
        finish(experiment, results, output.directory)
        simulated_table(results).show()
        cpu_table(results).show()
    if too_much := [result for result in results if result["machine_busy"] > MOST_BUSY]:
        click.echo(f"speedwell: in {len(too_much)} runs the machine was busier than {MOST_BUSY:.0%}: they measure "
                   "the machine, not the network. Repeat with a lower --host-mbps.", err=True)
    if failures:
        raise click.ClickException(f"{len(failures)} of {len(tasks)} runs failed, {failures[0]}; --resume makes them "
                                   "again")
