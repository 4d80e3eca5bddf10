"""speedwell experiment sinbad-write, -imbalance, -storage, -load, -memory and -busiest: where replicas go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from evaluation.results.output import Output

NAMES = ("sinbad-write", "sinbad-imbalance", "sinbad-storage", "sinbad-load", "sinbad-memory", "sinbad-busiest")


def run(name: str, policies: tuple[str, ...], quick: bool, seed: int, output: Output, scheduler: str | None,
        trace: Path | None) -> None:
    """Run it, with `policies` as further methods; print the table and the paper's figures beside ours, and leave
    results.jsonl, table.csv, plot.png and manifest.json in `output`'s directory."""
    from evaluation.papers import sinbad
    from evaluation.papers.sinbad_paper import beside_the_paper
    from evaluation.results.engine import run_all
    from evaluation.results.output import finish, progress_bar

    figure = sinbad.FIGURES[name]
    figure = replace(figure, methods=(*figure.methods, *map(sinbad.method_of, policies)))
    tasks = sinbad.tasks(figure, quick, seed, trace)
    results_file = output.open(sinbad.manifest(name, quick, seed, tasks))
    with progress_bar(name, len(tasks), output.directory) as (finished, _):
        results = run_all(tasks, sinbad.run_task, results_file, finished, scheduler)
    finish(figure, results, output.directory)
    table = beside_the_paper(name, results)
    if table is not None:
        table.show()
    left = sum(result["reserved_after_a_minute"] for result in results)
    click.echo(f"Placements that are expected to run a minute after the last write: {left}")
