"""What the commands share that run many simulations: progress, manifest, table and plot."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sim.experiments.report import Layout

Finished = Callable[[int], None]
Say = Callable[[str], None]


@contextmanager
def progress_bar(name: str, runs: int, output: Path) -> Iterator[tuple[Finished, Say]]:
    """Yields what is to hear how many runs are done, and what goes on. If they are interrupted, says what is kept."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("[dim]{task.fields[now]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(name, total=runs, now="")
        finished = 0

        def hear(done: int) -> None:
            nonlocal finished
            finished = done
            bar.update(task, completed=done)

        try:
            yield hear, lambda now: bar.update(task, now=now)
        except KeyboardInterrupt:
            bar.stop()
            click.echo(f"speedwell: {finished} of {runs} runs are kept in {output}; --resume goes on", err=True)
            raise


def write_manifest(output: Path, manifest: dict[str, object]) -> None:
    """The exact parameters beside the results, and the versions that made them."""
    from importlib.metadata import version

    versions = {"python": platform.python_version(),
                **{package: version(package) for package in ("speedwell", "numpy", "numba")}}
    output.mkdir(parents=True, exist_ok=True)
    (output / "manifest.json").write_text(json.dumps(manifest | {"versions": versions}, indent=2) + "\n")


def finish(layout: Layout, results: list[dict[str, Any]], output: Path) -> None:
    """Write the table and the plot, and print the table."""
    from cluster.commands.output import console
    from sim.experiments import report
    from sim.experiments.plot import plot

    rows = report.rows_of(results, layout)
    report.write_csv(rows, output / "table.csv", layout)
    plot(layout, rows, output / "plot.png")
    console().print(report.table_of(layout, rows))
    for reason in dict.fromkeys(result["overloaded"] for result in results if "overloaded" in result):
        click.echo(f"speedwell: a run was stopped: {reason}", err=True)
    click.echo(f"{output}: results.jsonl, table.csv, plot.png, manifest.json")
