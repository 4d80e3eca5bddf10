"""speedwell experiment xco-incast, -striped, -mixed, -short-flows, -rtt, -migration, -fairness, -conservation and
-response: who may send when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evaluation.results.output import Output

NAMES = ("xco-incast", "xco-striped", "xco-mixed", "xco-short-flows", "xco-rtt", "xco-migration", "xco-fairness",
         "xco-conservation", "xco-response")


def run(name: str, policies: tuple[str, ...], quick: bool, seed: int, output: Output, scheduler: str | None) -> None:
    """Run it, with `policies` as further methods; print the table and the paper's figures beside ours, and leave
    results.jsonl, table.csv, plot.png and manifest.json in `output`'s directory."""
    from evaluation.papers import xco
    from evaluation.results.engine import run_all
    from evaluation.results.output import finish, progress_bar

    figure = xco.FIGURES[name]
    figure = replace(figure, methods=(*figure.methods, *map(xco.method_of, policies)))
    tasks = xco.tasks(figure, quick, seed)
    results_file = output.open(xco.manifest(name, quick, seed, tasks))
    with progress_bar(name, len(tasks), output.directory) as (finished, _):
        results = run_all(tasks, xco.run_task, results_file, finished, scheduler)
    finish(figure, results, output.directory)
    table = xco.beside_the_paper(name, results)
    if table is not None:
        table.show()
