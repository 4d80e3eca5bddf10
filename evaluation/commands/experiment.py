"""speedwell experiment: the papers' evaluations, re-run."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from speedwell.controller.policy_options import PolicyOption, policy_path_option
from speedwell.evaluation.emulation import Emulation
from speedwell.evaluation.results.output import Output, existing_options
from speedwell.fs.command_line import Number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from speedwell.evaluation.experiment import Choices, Experiment

ALL = "all"
_WITH_EMULATE = "--runs, --reads, --coflows, --host-mbps and --slowdown go with --emulate"


class ExperimentName(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """An experiment, or `all`. Only its own module is imported."""

    name = "experiment"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        from speedwell.evaluation.experiment import named
        from speedwell.sim.errors import SimulationError

        try:
            if value == ALL or named(value) is not None:
                return str(value)
        except SimulationError as error:
            self.fail(str(error), parameter, context)
        self.fail(f"there is no experiment {value!r}: `speedwell experiment --list` shows all", parameter, context)

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """What is told when none is named."""
        return "`speedwell experiment --list` shows all."

    def shell_complete(self, context: click.Context, parameter: click.Parameter,
                       incomplete: str) -> list[CompletionItem]:
        from speedwell.evaluation.experiment import all_experiments

        return [CompletionItem(name, help=experiment.title) for name, experiment in all_experiments().items()
                if name.startswith(incomplete)]


def _print_list(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from speedwell.evaluation.listing import table
        from speedwell.sim.errors import SimulationError

        try:
            table().show()
        except SimulationError as error:
            raise click.ClickException(str(error)) from None
        context.exit()


@click.command()
@click.argument("name", type=ExperimentName(), metavar="EXPERIMENT")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_print_list,
              help="Show what each experiment compares, how long it takes and what it needs, and end.")
@click.option("--simulate/--emulate", default=True, help="In the flow-level simulator (default), or with the real "
              "filesystem and controller on an emulated fabric (as root).")
@click.option("--quick", is_flag=True, help="A first look: fewer runs, points and reads.")
@click.option("--policy", "policies", cls=PolicyOption, multiple=True, metavar="POLICY",
              help="Compare with this policy as well: REPLICA+PATH of {replica} and {path}, for coflows one of "
              "{coflow}, for writes one of {placement}, for xco ones one of {timeslices}. May be repeated; in the "
              "simulator only.")
@click.option("--method", "methods", multiple=True, metavar="METHOD",
              help="Only this method, by its name in the table, and the one that ratios are to. May be repeated.")
@click.option("--point", "places", multiple=True, metavar="POINT", help="Only this point, by its name in the table. "
              "May be repeated.")
@click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="For sinbad experiments and mincof-facebook in the simulator: a coflow-benchmark trace.")
@policy_path_option
@click.option("--seed", type=click.IntRange(0), help="Seed of the first run.  [default: 1; mincof: 101]")
@click.option("--runs", type=click.IntRange(1, 10), help="With --emulate: runs of each method at each point.  "
              "[default: 3; quick and coflows: 1]")
@click.option("--reads", type=click.IntRange(10, 100_000), help="With --emulate: reads of a run.  "
              "[default: 600; quick: 100]")
@click.option("--coflows", type=click.IntRange(2, 1000), help="With --emulate: coflows of a run.  "
              "[default: 64; quick: 8]")
@click.option("--host-mbps", type=Number(1, 1000), help="With --emulate: rate of a host's link; files "
              "shrink with it.  [default: 8; coflows: 20; writes: 40]")
@click.option("--slowdown", type=Number(1, 20), help="With --emulate: files grow by it and come so much "
              "less often, so a file is more frames.  [default: 1; mayflower-agreement: 2]")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Where results go; default: results/EXPERIMENT, with --emulate results/EXPERIMENT-emulated. With "
              "all: where their directories are made.")
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
              help="Say which values have left the intervals in DIR/EXPERIMENT.csv, the table.csv of an earlier run.")
@existing_options
@click.option("--scheduler", metavar="ADDRESS", help="Run on the workers of this Dask scheduler, not on all cores.")
def experiment(name: str, simulate: bool, quick: bool, policies: tuple[str, ...],
               methods: tuple[str, ...], places: tuple[str, ...], trace: Path | None,
               seed: int | None, runs: int | None, reads: int | None, coflows: int | None, host_mbps: float | None,
               slowdown: float | None, output: Path | None, against: Path | None, resume: bool, force: bool,
               scheduler: str | None) -> None:
    """Re-run an evaluation of the papers.

    EXPERIMENT is one of those that --list shows, such as mayflower-fig4, mincof-width, sinbad-write, xco-incast or
    metaflow-latency; or `all`, one after the other, with a page of all results in the end. Prints a table with 95 %
    confidence intervals (of ratios by Fieller's theorem), and leaves results.jsonl, table.csv, plot.png and
    manifest.json in DIR. An interrupted sweep keeps what has finished.

    mayflower-fig8 compares with HDFS: in the simulator a policy, with --emulate a real one, which takes Java.
    mayflower-agreement replays figure 4's reads on an emulated fabric, simulates the same, and compares.
    """
    from speedwell.evaluation.experiment import Choices, named
    from speedwell.sim.errors import SimulationError

    choices = Choices(quick, policies=policies, trace=trace, methods=methods, places=places)
    wanted = Emulation(runs, reads, coflows, host_mbps, slowdown)
    try:
        if name == ALL:
            _check_all(choices, wanted, simulate, scheduler)
            _all(choices, seed, wanted, simulate, output or Path("results"), against, resume, force, scheduler)
            return
        found = named(name)
        assert found is not None
        _check(name, found, choices, wanted, simulate, scheduler)
        if against is not None:
            _check_against([name], against)
        results = Output(output or Path("results") / _place(name, simulate), resume, force)
        _run(name, found, _from_seed(found, choices, seed), wanted, simulate, results, scheduler)
        if against is not None:
            _compare([(name, results.directory)], against)
    except SimulationError as error:
        raise click.ClickException(str(error)) from None


def _from_seed(found: Experiment, choices: Choices, seed: int | None) -> Choices:
    return replace(choices, seed=found.seed if seed is None else seed)


def _place(name: str, simulate: bool) -> str:
    return name if simulate else f"{name}-emulated"


def _check(name: str, found: Experiment, choices: Choices, wanted: Emulation, simulate: bool,
           scheduler: str | None) -> None:
    emulate = not simulate or found.run is None
    _refuse(
        (choices.trace is not None and not found.needs,
         f"{name} plays no trace: --trace goes with mincof-facebook and sinbad experiments, but for sinbad-busiest"),
        (choices.policies and found.method_of is None, "--policy does not go with metaflow experiments and together"),
        (emulate and found.emulation is None, f"{name} runs in the simulator only"),
        (emulate and choices.trace is not None, "--trace does not go with --emulate"),
        (not emulate and wanted != Emulation(), _WITH_EMULATE),
        (emulate and scheduler is not None, f"{name} runs on this machine only, without --scheduler"),
        (emulate and choices.policies, "--policy does not go with --emulate"))


def _check_all(choices: Choices, wanted: Emulation, simulate: bool, scheduler: str | None) -> None:
    _refuse(
        (choices.policies, "--policy goes with one experiment, not with all"),
        (simulate and wanted != Emulation(), _WITH_EMULATE),
        (wanted.reads or wanted.coflows, "--reads and --coflows go with one experiment, not with all"),
        (not simulate and choices.trace is not None, "--trace does not go with --emulate"),
        (not simulate and scheduler is not None, "--scheduler does not go with --emulate"))


def _check_against(names: Sequence[str], against: Path) -> None:
    """Raises InvalidSetting before hours have gone by."""
    from speedwell.evaluation.results.changes import read_table
    from speedwell.sim.errors import InvalidSetting

    tables = [path for name in names if (path := _earlier(name, against)).exists()]
    if not tables:
        raise InvalidSetting(f"against: {against} has no {_earlier(names[0], against).name}")
    for path in tables:
        read_table(path)


def _refuse(*refusals: tuple[object, str]) -> None:
    """Raises UsageError for an option that would do nothing."""
    for refused, why in refusals:
        if refused:
            raise click.UsageError(why, click.get_current_context())


def _run(name: str, found: Experiment, choices: Choices, wanted: Emulation, simulate: bool, output: Output,
         scheduler: str | None) -> None:
    if found.run is None or not simulate:
        assert found.emulation is not None
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))     # as Ctrl-C: stop the fabric, keep the results
        resolve_name(found.emulation)(name, found, choices, wanted, output)
        return
    from speedwell.evaluation.results.engine import run_all
    from speedwell.evaluation.results.output import finish, progress_bar

    tasks = found.tasks(choices)
    results_file = output.open(found.manifest(name, "simulate", choices, tasks))
    with progress_bar(name, len(tasks), output.directory) as (finished, _):
        results = run_all(tasks, found.run, results_file, finished, scheduler)
    finish(found, results, output.directory, found.beside(name, results))


def _all(choices: Choices, seed: int | None, wanted: Emulation, simulate: bool, output: Path, against: Path | None,
         resume: bool, force: bool, scheduler: str | None) -> None:
    from speedwell.evaluation.experiment import all_experiments
    from speedwell.evaluation.results.page import write_page

    places: dict[str, Output] = {}
    for name, found in all_experiments().items():
        if why := _left_out(found, choices, simulate):
            click.echo(f"{name} is left out: {why}", err=True)
            continue
        places[name] = Output(output / _place(name, simulate), resume, force)
        places[name].check()
    if against is not None:
        _check_against(list(places), against)
    done = []
    for name, results in places.items():
        found = all_experiments()[name]
        own = replace(_from_seed(found, choices, seed), trace=choices.trace if found.needs else None)
        _run(name, found, own, wanted, simulate, results, scheduler)
        if results.file.exists():       # it may lack Java
            done.append((name, results.directory))
    click.echo(f"{write_page([directory for _, directory in done], output / 'report.html')}: all of it on one page")
    if against is not None:
        _compare(done, against)


def _left_out(found: Experiment, choices: Choices, simulate: bool) -> str:
    if simulate and found.run is None:
        return "it needs --emulate"
    if not simulate and found.emulation is None:
        return "it runs in the simulator only"
    return f"it needs {found.needs}" if simulate and found.needs and choices.trace is None else ""


def _compare(done: list[tuple[str, Path]], against: Path) -> None:
    from speedwell.evaluation.results.changes import changes_table

    changes_table([(name, _earlier(name, against), directory / "table.csv") for name, directory in done]).show()


def _earlier(name: str, against: Path) -> Path:
    return against / f"{name}.csv"
