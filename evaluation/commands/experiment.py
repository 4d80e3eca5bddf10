"""speedwell experiment: the papers' evaluations, re-run."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from controller.policy_options import PolicyOption, policy_path_option
from evaluation.commands import metaflow_experiment, mincof_experiment, sinbad_experiment, xco_experiment
from evaluation.results.output import Output, existing_options
from fs.command_line import Number

if TYPE_CHECKING:
    from evaluation.papers.mayflower import Task
    from evaluation.replay.scale import Scale

WITH_HDFS = "mayflower-fig8"
FIGURES = ("mayflower-fig4", "mayflower-fig5", "mayflower-fig6", "mayflower-fig7", WITH_HDFS,
           "mayflower-readings", "mayflower-plus")
AGREEMENT = "mayflower-agreement"
HOST_MBPS = 8.0
QUICK_SPEEDUP = 4.0
AGREEMENT_SLOWDOWN = 2.0
"""With fewer frames to a file, TCP's way to a fair share is a part of the time that is compared."""

Say = Callable[[str], None]


@click.command()
@click.argument("name", type=click.Choice([*FIGURES, AGREEMENT, *mincof_experiment.NAMES, *sinbad_experiment.NAMES,
                                          *xco_experiment.NAMES, *metaflow_experiment.NAMES]),
                metavar="EXPERIMENT")
@click.option("--simulate/--emulate", default=True, help="In the flow-level simulator (default), or with the real "
              "filesystem and controller on an emulated fabric (as root).")
@click.option("--quick", is_flag=True, help="A first look: fewer runs, points and reads.")
@click.option("--policy", "policies", cls=PolicyOption, multiple=True, metavar="POLICY",
              help="Compare with this policy as well: REPLICA+PATH such as nearest+ecmp, for coflows one of "
              "{coflow}, for writes one of {placement}, for xco ones one of {timeslices}. May be repeated; in the "
              "simulator only.")
@click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="For sinbad experiments in the simulator: the coflow-benchmark trace whose jobs write.")
@policy_path_option
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the first run.")
@click.option("--runs", type=click.IntRange(1, 10), help="With --emulate: runs of each method at each point.  "
              "[default: 3; quick and coflows: 1]")
@click.option("--reads", type=click.IntRange(10, 100_000), help="With --emulate: reads of a run.  "
              "[default: 600; quick: 100]")
@click.option("--host-mbps", type=Number(1, 1000), help="With --emulate: rate of a host's link; files "
              f"shrink with it.  [default: {HOST_MBPS:g}; coflows: {mincof_experiment.HOST_MBPS:g}]")
@click.option("--slowdown", type=Number(1, 20), help="With --emulate: files grow by it and come so much "
              f"less often, so a file is more frames.  [default: 1; {AGREEMENT}: {AGREEMENT_SLOWDOWN:g}]")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Where results go; default: results/EXPERIMENT, with --emulate results/EXPERIMENT-emulated.")
@existing_options
@click.option("--scheduler", metavar="ADDRESS", help="Run on the workers of this Dask scheduler, not on all cores.")
def experiment(name: str, simulate: bool, quick: bool, policies: tuple[str, ...], trace: Path | None, seed: int,
               runs: int | None, reads: int | None, host_mbps: float | None, slowdown: float | None,
               output: Path | None, resume: bool, force: bool, scheduler: str | None) -> None:
    """Re-run an evaluation of the papers.

    EXPERIMENT is one of mayflower-fig4 to mayflower-fig8, mayflower-readings (what the text leaves open of figure
    7), mayflower-plus (what goes beyond the paper), or of MinCOF's figures 6 to 9: mincof-width, mincof-size,
    mincof-blocking and mincof-background, or Sinbad's: sinbad-write, -imbalance, -storage, -load and -memory, and
    sinbad-busiest (10,000 files on 64 hosts), or XCo's: xco-incast, -striped, -mixed, -short-flows, -rtt,
    -migration, -fairness, -conservation and -response, or MetaFlow's: metaflow-throughput, -latency, -tables and
    -cpu. Prints a table with 95 % confidence intervals (of ratios by Fieller's theorem), and leaves results.jsonl,
    table.csv, plot.png and manifest.json in DIR. An interrupted sweep keeps what has finished.

    mayflower-fig8 compares with HDFS: in the simulator a policy, with --emulate a real one, which takes Java.
    mayflower-agreement replays figure 4's reads on an emulated fabric, simulates the same, and compares.
    """
    from sim.errors import SimulationError

    is_coflows = name in mincof_experiment.NAMES
    if is_coflows and not simulate and reads:
        raise click.UsageError("--reads is of no use to coflows", click.get_current_context())
    if trace is not None and name not in sinbad_experiment.NAMES:
        raise click.UsageError("--trace goes with sinbad experiments", click.get_current_context())
    if policies and name in metaflow_experiment.NAMES:
        raise click.UsageError("--policy does not go with metaflow experiments", click.get_current_context())
    if not simulate and name in (*sinbad_experiment.NAMES, *xco_experiment.NAMES, *metaflow_experiment.NAMES):
        raise click.UsageError(f"{name} runs in the simulator only", click.get_current_context())
    emulate = not simulate or name == AGREEMENT
    if quick and slowdown is not None and not is_coflows:
        raise click.UsageError("--slowdown does not go with --quick, which makes files smaller",
                               click.get_current_context())
    if not emulate and (runs or reads or host_mbps or slowdown):
        raise click.UsageError("--runs, --reads, --host-mbps and --slowdown go with --emulate",
                               click.get_current_context())
    if scheduler is not None and emulate:
        raise click.UsageError(f"{name} runs on this machine only, without --scheduler", click.get_current_context())
    if emulate and policies:
        raise click.UsageError("--policy does not go with --emulate", click.get_current_context())
    if emulate:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))     # as Ctrl-C: stop the fabric, keep the results
    directory = output or Path("results") / (f"{name}-emulated" if not simulate else name)
    results = Output(directory, resume, force)
    try:
        if is_coflows and not simulate:
            mincof_experiment.emulate(name, quick, seed, runs or 1, host_mbps or mincof_experiment.HOST_MBPS,
                                      slowdown or 1.0, results)
            return
        if name in sinbad_experiment.NAMES:
            sinbad_experiment.run(name, policies, quick, seed, results, scheduler, trace)
            return
        if name in xco_experiment.NAMES:
            xco_experiment.run(name, policies, quick, seed, results, scheduler)
            return
        if name in metaflow_experiment.NAMES:
            metaflow_experiment.run(name, quick, seed, results, scheduler)
            return
        if is_coflows:
            mincof_experiment.run(name, policies, quick, seed, results, scheduler)
            return
        if not emulate:
            _simulate(name, policies, quick, seed, results, scheduler)
            return
        runs, reads = runs or (1 if quick else 3), reads or (100 if quick else 600)
        speedup = QUICK_SPEEDUP if quick else 1 / (slowdown or (AGREEMENT_SLOWDOWN if name == AGREEMENT else 1.0))
        _emulate(name, quick, seed, runs, reads, host_mbps or HOST_MBPS, speedup, results)
    except SimulationError as error:
        raise click.ClickException(str(error)) from None


# ------------------------------------------------------------------ simulated


def _simulate(name: str, policies: tuple[str, ...], quick: bool, seed: int, output: Output,
              scheduler: str | None) -> None:
    from evaluation.commands.custom_reads import method_of
    from evaluation.papers import mayflower
    from evaluation.papers.reads import run_task
    from evaluation.results.engine import run_all
    from evaluation.results.output import finish, progress_bar

    figure = mayflower.FIGURES[name]
    figure = replace(figure, methods=(*figure.methods, *(method_of(policy, 1) for policy in policies)))
    tasks = mayflower.tasks(figure, quick, seed)
    results_file = output.open(_manifest(name, "simulate", quick, seed, tasks) | _simulator())
    with progress_bar(name, len(tasks), output.directory) as (finished, _):
        results = run_all(tasks, run_task, results_file, finished, scheduler)
    finish(figure, results, output.directory)


def _simulator() -> dict[str, object]:
    from dataclasses import asdict

    from controller.policy.reads import mayflower_plus
    from evaluation.papers import mayflower
    from evaluation.papers import reads as sweep
    from sim.simulation import Delays
    from sim.workload import Workload

    return {"host_bps": mayflower.HOST_BPS, "workload": asdict(Workload()), "delays_seconds": asdict(Delays()),
            "warm_up": sweep.WARM_UP, "mayflower_plus": {
                "free": mayflower_plus.FREE, "patience": mayflower_plus.PATIENCE,
                "worth_seconds": mayflower_plus.WORTH_SECONDS}}


# ------------------------------------------------------------------- emulated


def _emulate(name: str, quick: bool, seed: int, runs: int, reads: int, host_mbps: float, speedup: float,
             output: Output) -> None:
    from cluster.errors import ClusterError
    from evaluation.hdfs.libraries import JavaMissing
    from evaluation.papers import mayflower
    from evaluation.replay.experiment import emulated_tasks
    from evaluation.replay.scale import Scale
    from evaluation.results.output import finish
    from topo.emulation import EmulationError

    figure = mayflower.FIGURES["mayflower-fig4" if name == AGREEMENT else name]
    try:
        scale = Scale(host_bps=host_mbps * 1e6, speedup=speedup)
        tasks = emulated_tasks(figure, quick, seed, runs, reads)
        results = _replay(name, quick, seed, tasks, scale, output)
    except JavaMissing as error:
        click.echo(f"{name} is skipped: {error}")
        return
    except (ClusterError, EmulationError) as error:
        raise click.ClickException(str(error)) from None
    if name == AGREEMENT:
        _compare(tasks, scale, output.directory)
    else:
        finish(figure, results, output.directory)
    _warn_of_saturation(results)


def _replay(name: str, quick: bool, seed: int, tasks: list[Task], scale: Scale,
            output: Output) -> list[dict[str, Any]]:
    from evaluation.replay import experiment as replayed
    from evaluation.results.output import progress_bar

    results_file = output.open(_manifest(name, "emulate", quick, seed, tasks) | replayed.manifest(scale))
    with progress_bar(name, len(tasks), output.directory) as (finished, say):
        system = _system(name, say)
        return replayed.run_emulated(tasks, scale, results_file, finished, say, system)


def _system(name: str, say: Say) -> Callable[[Scale, float], Any]:
    """What starts the system that the experiment measures. Raises JavaMissing or LibrariesUnavailable."""
    from functools import partial

    if name == WITH_HDFS:
        from evaluation.hdfs import libraries
        from evaluation.hdfs.beside import speedwell_and_hdfs

        return partial(speedwell_and_hdfs, progress=say, libraries=libraries.prepare(progress=say))
    from evaluation.replay.experiment import speedwell

    return partial(speedwell, progress=say)


def _compare(tasks: list[Task], scale: Scale, output: Path) -> None:
    from evaluation.replay import agreement
    from evaluation.results.results_file import ResultsFile

    delays = agreement.delays_at(scale)
    rows = agreement.compare(tasks, scale, ResultsFile(output / "results.jsonl", resume=True), delays)
    document = {**agreement.manifest(delays), "methods": [agreement.as_json(row) for row in rows]}
    (output / "agreement.json").write_text(json.dumps(document, indent=2) + "\n")
    agreement.table_of(rows).show()
    click.echo(f"{output}: results.jsonl, agreement.json, manifest.json")


def _warn_of_saturation(results: list[dict[str, Any]]) -> None:
    from evaluation.replay.experiment import MOST_SWITCH_SHARE, saturated

    worst = max((result["machine"]["switch_cpu_share"] for result in results), default=0.0)
    click.echo(f"ovs-vswitchd used at most {worst:.0%} of the processors in a run.")
    if too_much := saturated(results):
        click.echo(f"speedwell: in {len(too_much)} runs that was more than {MOST_SWITCH_SHARE:.0%}: they measure the "
                   "machine, not the network. Repeat with a lower --host-mbps.", err=True)


def _manifest(name: str, mode: str, quick: bool, seed: int, tasks: list[Task]) -> dict[str, object]:
    from dataclasses import asdict

    from evaluation.papers import mayflower

    points = {(task.panel, task.point, task.x, task.rate, task.locality, task.oversubscription,
               task.aggregation_ratio): None for task in tasks}
    return {
        "experiment": name, "mode": mode, "quick": quick, "seed": seed, "runs": len(tasks),
        "reads": tasks[0].reads,
        "methods": [asdict(method) for method in dict.fromkeys(task.method for task in tasks)],
        "fabric": "three-tier, 4 pods of 4 racks of 4 hosts, 2 aggregation switches in a pod, 2 core switches",
        "chosen_where_the_paper_is_silent": mayflower.CHOSEN,
        "points": [list(point) for point in points],
    }
