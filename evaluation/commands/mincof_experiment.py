"""speedwell experiment mincof-width, -size, -blocking and -background: coflows, simulated or emulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from evaluation.papers.mincof import CoflowFigure
    from evaluation.results.output import Output

NAMES = ("mincof-width", "mincof-size", "mincof-blocking", "mincof-background")
HOST_MBPS = 20.0


def run(name: str, policies: tuple[str, ...], quick: bool, seed: int, output: Output,
        scheduler: str | None) -> None:
    """Run it, with `policies` as further methods; print the table, and leave results.jsonl, table.csv, plot.png and
    manifest.json in `output`'s directory."""
    from evaluation.papers import mincof
    from evaluation.results.engine import run_all
    from evaluation.results.output import finish, progress_bar

    figure = mincof.FIGURES[name]
    figure = replace(figure, methods=(*figure.methods, *map(mincof.method_of, policies)))
    tasks = mincof.tasks(figure, quick, seed)
    results_file = output.open(mincof.manifest(name, quick, seed, tasks))
    with progress_bar(name, len(tasks), output.directory) as (finished, _):
        results = run_all(tasks, mincof.run_task, results_file, finished, scheduler)
    finish(figure, results, output.directory)


def emulate(name: str, quick: bool, seed: int, runs: int, host_mbps: float, slowdown: float,
            output: Output) -> None:
    """The same on an emulated fabric, with files as much smaller as its links are slower, and `slowdown` times as
    large, which come so much less often."""
    from cluster.errors import ClusterError
    from evaluation.coflow_replay.experiment import CoflowScale, emulated_tasks, manifest, run_emulated
    from evaluation.papers import mincof
    from evaluation.results.output import progress_bar
    from topo.emulation import EmulationError

    figure, scale = mincof.FIGURES[name], CoflowScale(host_mbps * 1e6, slowdown)
    tasks = emulated_tasks(figure, quick, seed, runs)
    results_file = output.open(mincof.manifest(name, quick, seed, tasks) | manifest(scale))
    failures: list[str] = []
    try:
        with progress_bar(name, len(tasks), output.directory) as (finished, say):
            results = run_emulated(tasks, scale, results_file, finished, say, failures.append)
    except (ClusterError, EmulationError) as error:
        raise click.ClickException(str(error)) from None
    if results:
        _show(figure, results, output.directory)
    if failures:
        raise click.ClickException(f"{len(failures)} of {len(tasks)} runs failed, {failures[0]}; --resume makes them "
                                   "again")


def _show(figure: CoflowFigure, results: list[dict[str, Any]], output: Path) -> None:
    from evaluation.coflow_replay.experiment import MOST_BUSY, cpu_table, simulated_table
    from evaluation.results.output import finish

    finish(figure, results, output)
    simulated_table(results).show()
    cpu_table(results).show()
    if too_much := [result for result in results if result["machine_busy"] > MOST_BUSY]:
        click.echo(f"speedwell: in {len(too_much)} runs the machine was busier than {MOST_BUSY:.0%}: they measure "
                   "the machine, not the network. Repeat with a lower --host-mbps.", err=True)
