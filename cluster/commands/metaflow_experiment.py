"""speedwell experiment metaflow-throughput, -latency, -tables and -cpu: how a key's metadata server is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from cluster.commands.sweeping import Output

NAMES = ("metaflow-throughput", "metaflow-latency", "metaflow-tables", "metaflow-cpu")


def run(name: str, quick: bool, seed: int, output: Output, scheduler: str | None) -> None:
    """Run it, print the tables, and leave results.jsonl, table.csv, plot.png and manifest.json in `output`'s
    directory."""
    from cluster.commands.sweeping import finish, progress_bar
    from sim.experiments import metaflow
    from sim.experiments.engine import run_all

    tasks = metaflow.tasks(name, quick, seed)
    results_file = output.open(metaflow.manifest(name, quick, seed, tasks))
    with progress_bar(name, len(tasks), output.directory) as (finished, _):
        results = run_all(tasks, metaflow.run_task, results_file, finished, scheduler)
    finish(metaflow.FIGURES[name], results, output.directory)
    if moved := metaflow.moved_keys(results):
        click.echo(moved)
