"""speedwell experiment mincof-width, -size, -blocking and -background: coflows in the simulator."""

from __future__ import annotations

from pathlib import Path

NAMES = ("mincof-width", "mincof-size", "mincof-blocking", "mincof-background")


def run(name: str, quick: bool, seed: int, output: Path, resume: bool, scheduler: str | None) -> None:
    """Run it, print the table, and leave results.jsonl, table.csv, plot.png and manifest.json in `output`."""
    from cluster.commands.sweeping import finish, progress_bar, write_manifest
    from sim.experiments import mincof
    from sim.experiments.engine import run_all
    from sim.experiments.results_file import ResultsFile

    figure = mincof.FIGURES[name]
    tasks = mincof.tasks(figure, quick, seed)
    results_file = ResultsFile(output / "results.jsonl", resume)
    write_manifest(output, mincof.manifest(name, quick, seed, tasks))
    with progress_bar(name, len(tasks), output) as (finished, _):
        results = run_all(tasks, mincof.run_task, results_file, finished, scheduler)
    finish(figure, results, output)
