"""speedwell experiment metaflow-throughput, -latency, -tables and -cpu: how a key's metadata server is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from evaluation.results.output import Output

NAMES = ("metaflow-throughput", "metaflow-latency", "metaflow-tables", "metaflow-cpu")


def run(name: str, quick: bool, seed: int, output: Output, scheduler: str | None) -> None:
    """Run it, print the tables, and leave results.jsonl, table.csv, plot.png and manifest.json in `output`'s
    directory."""
    from evaluation.papers import metaflow
    from evaluation.results.engine import run_all
    from evaluation.results.output import finish, progress_bar

    tasks = metaflow.tasks(name, quick, seed)
    results_file = output.open(metaflow.manifest(name, quick, seed, tasks))
    with progress_bar(name, len(tasks), output.directory) as (finished, _):
        results = run_all(tasks, metaflow.run_task, results_file, finished, scheduler)
    finish(metaflow.FIGURES[name], results, output.directory)
    if moved := metaflow.moved_keys(results):
        click.echo(moved)
