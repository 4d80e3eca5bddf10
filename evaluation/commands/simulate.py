"""speedwell simulate: reads on a described fabric, placed by the controller's policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from speedwell.controller.policy_options import PolicyOption, policy_path_option
from speedwell.evaluation.results.output import Output, existing_options
from speedwell.fs.command_line import Number

if TYPE_CHECKING:
    from speedwell.evaluation.commands.custom_reads import CustomTask
    from speedwell.topo.fabric import Fabric


@click.command()
@click.option("--fabric", "spec", metavar="SPEC", help="A fabric's JSON file, or for example spine-leaf,leaves=8; "
              "default: the 64 hosts of Mayflower's evaluation.")
@click.option("--method", "methods", multiple=True, default=("mayflower+mayflower", "nearest+ecmp"),
              show_default=True, metavar="REPLICA+PATH", cls=PolicyOption,
              help="Replica policy ({replica}) and path policy ({path}); may be repeated. Ratios are to the first.")
@policy_path_option
@click.option("--parts", type=click.IntRange(1), default=1, show_default=True,
              help="Replicas that a read may take at once.")
@click.option("--rate", "rates", type=Number(0, min_open=True), multiple=True, default=(0.07,), show_default=True,
              help="Reads per server and second; may be repeated.")
@click.option("--locality", type=(float, float, float), default=(0.5, 0.3, 0.2), show_default=True,
              help="Probabilities of a client in the primary's rack, in its pod, elsewhere.")
@click.option("--files", type=click.IntRange(1), default=2000, show_default=True,
              help="How many files; their popularity is Zipf's with exponent 1.1.")
@click.option("--read-mib", type=Number(0, min_open=True),
              help="Size of a read.  [default: 256 where hosts have 1 Gbit/s, and so much less as their slowest link "
              "has]")
@click.option("--poll-seconds", type=Number(0, min_open=True), default=1.0, show_default=True,
              help="Between two looks at the switches' counters.")
@click.option("--reads", type=click.IntRange(10), default=1000, show_default=True, help="Reads of a run.")
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True, help="Runs per method and rate.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the first run.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              default=Path("results/simulate"), show_default=True, help="Where results go.")
@existing_options
@click.option("--scheduler", metavar="ADDRESS", help="Run on the workers of this Dask scheduler, not on all cores.")
def simulate(spec: str | None, methods: tuple[str, ...], parts: int, rates: tuple[float, ...],
             locality: tuple[float, float, float], files: int, read_mib: float | None, poll_seconds: float,
             reads: int, runs: int, seed: int, output: Path, resume: bool, force: bool,
             scheduler: str | None) -> None:
    """Simulate reads on a fabric of any size.

    Prints a table of completion times by method and arrival rate, with 95 % confidence intervals, and leaves
    results.jsonl, table.csv, plot.png and manifest.json in DIR. A run whose network is left overloaded is stopped,
    and the table says so.
    """
    from speedwell.controller.policy.errors import PolicyError
    from speedwell.evaluation.commands.custom_reads import custom_tasks
    from speedwell.evaluation.papers.reads import method_of
    from speedwell.sim.errors import SimulationError
    from speedwell.sim.workload import Workload, mayflower_read_bits
    from speedwell.topo.fabric import InvalidFabric

    try:
        fabric = _fabric(spec)
        read_bits = mayflower_read_bits(fabric) if read_mib is None else read_mib * 2**20 * 8
        workloads = [Workload(rate, locality, files, read_bits=read_bits) for rate in dict.fromkeys(rates)]
        chosen = [method_of(method, parts) for method in dict.fromkeys(methods)]
        tasks = custom_tasks(fabric, workloads, chosen, reads, runs, seed, poll_seconds)
        _run(tasks, fabric, Output(output, resume, force), scheduler)
    except (SimulationError, PolicyError, InvalidFabric) as error:
        raise click.ClickException(str(error)) from None


def _fabric(spec: str | None) -> Fabric:
    from speedwell.evaluation.papers.reads import fabric_of
    from speedwell.topo.fabric_spec import parse_fabric

    return fabric_of(8.0) if spec is None else parse_fabric(spec)


def _run(tasks: list[CustomTask], fabric: Fabric, output: Output, scheduler: str | None) -> None:
    from dataclasses import asdict

    from speedwell.evaluation.commands.custom_reads import run_custom
    from speedwell.evaluation.papers.reads import WARM_UP
    from speedwell.evaluation.results.engine import run_all
    from speedwell.evaluation.results.output import finish, progress_bar
    from speedwell.evaluation.results.report import Layout
    from speedwell.sim.simulation import Delays

    rates = {task.workload.reads_per_server_second for task in tasks}
    shown: dict[str, Any] = {"title": f"Completion times, {fabric.name}, {len(fabric.hosts)} hosts", "claims": (),
                             "x_label": "reads per server and second", "base": tasks[0].method.name,
                             "lines": len(rates) > 1}
    results_file = output.open({"layout": shown, "fabric": "fabric.json",
                                "runs": [task.parameters() for task in tasks],
                                "delays_seconds": asdict(Delays(poll_interval=tasks[0].poll_seconds)),
                                "warm_up": WARM_UP}, {"fabric.json": fabric.to_json()})
    with progress_bar("simulate", len(tasks), output.directory) as (finished, _):
        results = run_all(tasks, run_custom, results_file, finished, scheduler)
    finish(Layout(**shown), results, output.directory)
