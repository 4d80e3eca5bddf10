"""speedwell experiment mayflower-plus: what its ideas bring, and how far it is from the best."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sim.experiments.plus import PlusTask

NAME = "mayflower-plus"


def run(quick: bool, seed: int, output: Path, resume: bool) -> None:
    """Run it, print the table, and leave results.jsonl, table.csv, plot.png and manifest.json in `output`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from cluster.commands.output import console
    from sim.experiments import plus

    tasks = plus.tasks(quick, seed)
    output.mkdir(parents=True, exist_ok=True)
    (output / "manifest.json").write_text(json.dumps(_manifest(quick, seed, tasks), indent=2) + "\n")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        runs = bar.add_task(NAME, total=len(tasks))
        results = plus.run_all(tasks, output / "results.jsonl", resume,
                               lambda done: bar.update(runs, completed=done))
    rows = plus.rows_of(results)
    plus.write_csv(rows, output / "table.csv")
    plus.plot(rows, output / "plot.png")
    console().print(plus.table_of(rows))
    click.echo(f"{output}: results.jsonl, table.csv, plot.png, manifest.json")


def _manifest(quick: bool, seed: int, tasks: list[PlusTask]) -> dict[str, object]:
    from dataclasses import asdict
    from importlib.metadata import version

    from controller.policy import mayflower_plus
    from sim.experiments import plus
    from sim.simulation import Delays

    return {
        "experiment": NAME, "mode": "simulate", "quick": quick, "seed": seed, "runs": len(tasks),
        "reads": tasks[0].reads, "rates": {str(task.rate): plus.RATES[task.rate] for task in tasks},
        "variants": [asdict(variant) for variant in plus.VARIANTS],
        "fabric": "three-tier, 4 pods of 4 racks of 4 hosts, 2 aggregation switches in a pod, 2 core switches",
        "oversubscription": plus.OVERSUBSCRIPTION,
        "host_bps": plus.HOST_BPS, "workload": asdict(plus.workload(tasks[0].rate)),
        "delays_seconds": asdict(Delays()), "warm_up": plus.WARM_UP, "free": mayflower_plus.FREE,
        "patience": mayflower_plus.PATIENCE, "worth_seconds": mayflower_plus.WORTH_SECONDS,
        "versions": {"python": platform.python_version(),
                     **{package: version(package) for package in ("speedwell", "numpy", "numba")}},
    }
