"""speedwell experiment: the papers' evaluations, re-run."""

import json
import platform
import sys
from pathlib import Path

import click

from cluster.commands import plus_experiment

SIMULATED = ("mayflower-fig4", "mayflower-fig5", "mayflower-fig6", "mayflower-fig7")
NOT_BUILT = ("mayflower-fig8",)


@click.command()
@click.argument("name", type=click.Choice([*SIMULATED, plus_experiment.NAME, *NOT_BUILT]), metavar="EXPERIMENT")
@click.option("--simulate/--emulate", default=True, help="In the flow-level simulator (default), or on Mininet.")
@click.option("--quick", is_flag=True, help="A first look within a minute: fewer runs, points and reads.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the first run.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Where results go; default: results/EXPERIMENT.")
@click.option("--resume", is_flag=True, help="Go on with what DIR has.")
def experiment(name: str, simulate: bool, quick: bool, seed: int, output: Path | None, resume: bool) -> None:
    """Re-run an evaluation of the papers.

    EXPERIMENT is mayflower-fig4, mayflower-fig5, mayflower-fig6, mayflower-fig7, or mayflower-plus (what goes beyond
    the paper). Prints a table with 95 % confidence intervals (of ratios by Fieller's theorem), and leaves
    results.jsonl, table.csv, plot.png and manifest.json in DIR. An interrupted sweep keeps what has finished.
    """
    if name in NOT_BUILT:
        raise click.ClickException(f"{name} compares with a real HDFS on the emulated fabric: not available yet")
    if not simulate:
        raise click.ClickException(f"{name} is not available on the emulated fabric yet: use --simulate")
    from sim.errors import SimulationError

    directory = output or Path("results") / name
    try:
        if name == plus_experiment.NAME:
            plus_experiment.run(quick, seed, directory, resume)
        else:
            _run(name, quick, seed, directory, resume)
    except SimulationError as error:
        raise click.ClickException(str(error)) from None


def _run(name: str, quick: bool, seed: int, output: Path, resume: bool) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from cluster.commands.output import console
    from sim.experiments import mayflower, report
    from sim.experiments.sweep import run_sweep

    figure = mayflower.FIGURES[name]
    tasks = mayflower.tasks(figure, quick, seed)
    output.mkdir(parents=True, exist_ok=True)
    (output / "manifest.json").write_text(json.dumps(_manifest(name, quick, seed, len(tasks)), indent=2) + "\n")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        runs = bar.add_task(name, total=len(tasks))
        results = run_sweep(tasks, output / "results.jsonl", resume, lambda done: bar.update(runs, completed=done))
    rows = report.rows_of(results)
    report.write_csv(rows, output / "table.csv")
    report.plot(figure, rows, output / "plot.png")
    console().print(report.table_of(figure, rows))
    click.echo(f"{output}: results.jsonl, table.csv, plot.png, manifest.json")


def _manifest(name: str, quick: bool, seed: int, runs: int) -> dict[str, object]:
    from dataclasses import asdict
    from importlib.metadata import version

    from sim.experiments import mayflower, sweep
    from sim.simulation import Delays
    from sim.workload import Workload

    return {
        "experiment": name, "mode": "simulate", "quick": quick, "seed": seed, "runs": runs,
        "fabric": "three-tier, 4 pods of 4 racks of 4 hosts, 2 aggregation switches in a pod, 2 core switches",
        "host_bps": mayflower.HOST_BPS, "edge_oversubscription": mayflower.EDGE_RATIO,
        "workload": asdict(Workload()), "delays_seconds": asdict(Delays()), "warm_up": sweep.WARM_UP,
        "chosen_where_the_paper_is_silent": ["reads_per_server_second of figures 4, 5 and 7", "files",
                                             "split of the over-subscription over the tiers", "poll_interval"],
        "points": [list(point) for point in mayflower.FIGURES[name].points],
        "versions": {"python": platform.python_version(),
                     **{package: version(package) for package in ("speedwell", "numpy", "numba")}},
    }
