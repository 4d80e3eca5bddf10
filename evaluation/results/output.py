"""What the commands share that run many simulations: progress, manifest, table and plot."""

from __future__ import annotations

import functools
import json
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from speedwell.cluster.tables import Table
    from speedwell.evaluation.results.report import Layout
    from speedwell.evaluation.results.results_file import ResultsFile

F = TypeVar("F", bound=Callable[..., Any])
Finished = Callable[[int], None]
Say = Callable[[str], None]
MADE_OF_RESULTS = ("table.csv", "tables.md", "plot.png", "agreement.json")


@contextmanager
def progress_bar(name: str, runs: int, output: Path) -> Iterator[tuple[Finished, Say]]:
    """Yields what is to hear how many runs are done, and what goes on. If they are interrupted, says what is kept."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("[dim]{task.fields[now]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(name, total=runs, now="")
        finished = 0

        def hear(done: int) -> None:
            nonlocal finished
            finished = done
            bar.update(task, completed=done)

        try:
            yield hear, lambda now: bar.update(task, now=now)
        except KeyboardInterrupt:
            bar.stop()
            click.echo(f"speedwell: {finished} of {runs} runs are kept in {output}; --resume goes on", err=True)
            raise


@dataclass(frozen=True)
class Output:
    """Where results go, and what is to happen to those that are there."""

    directory: Path
    resume: bool
    force: bool

    def open(self, manifest: dict[str, object], beside: Mapping[str, str] = MappingProxyType({})) -> ResultsFile:
        """The file of results. Nothing is written, replaced or removed before the first of them is there; then the
        exact parameters, the versions that make them and the texts of the files `beside` are put beside it. Raises
        InvalidSetting."""
        from speedwell.evaluation.results.results_file import ResultsFile

        def begin() -> None:
            self.directory.mkdir(parents=True, exist_ok=True)
            for name in MADE_OF_RESULTS if self.force else ():
                (self.directory / name).unlink(missing_ok=True)
            for name, text in {**beside, "manifest.json": _manifest(manifest)}.items():
                (self.directory / name).write_text(text)

        return ResultsFile(self.file, self.resume, self.force, begin)

    @property
    def file(self) -> Path:
        """What holds the results."""
        return self.directory / "results.jsonl"

    def check(self) -> None:
        """Raises InvalidSetting as `open` would."""
        from speedwell.evaluation.results.results_file import ResultsFile

        ResultsFile(self.file, self.resume, self.force)


def existing_options(function: F) -> F:
    """Adds --resume and --force."""

    @click.option("--resume", is_flag=True, help="Go on with the results in DIR.")
    @click.option("--force", is_flag=True, help="Begin anew, and replace the results in DIR.")
    @functools.wraps(function)
    def checked(*arguments: Any, resume: bool, force: bool, **options: Any) -> Any:
        if resume and force:
            raise click.UsageError("--resume and --force exclude each other", click.get_current_context())
        return function(*arguments, resume=resume, force=force, **options)

    return checked  # type: ignore[return-value]


def _manifest(parameters: dict[str, object]) -> str:
    from importlib.metadata import version

    versions = {"python": platform.python_version(),
                **{package: version(package) for package in ("speedwell", "numpy", "numba")}}
    return json.dumps(parameters | {"versions": versions}, indent=2) + "\n"


def finish(layout: Layout, results: list[dict[str, Any]], output: Path,
           beside: Iterable[Table | str] = ()) -> None:
    """Write the table and the plot, and the tables and what stands `beside` them as Markdown; print them."""
    from speedwell.evaluation.results import report
    from speedwell.evaluation.results.plot import plot

    rows = report.rows_of(results, layout)
    report.write_csv(rows, output / "table.csv", layout)
    plot(layout, rows, output / "plot.png")
    shown = [*report.tables_of(layout, rows), *beside]
    (output / "tables.md").write_text("\n".join(
        each + "\n" if isinstance(each, str) else each.markdown() for each in shown))
    for each in shown:
        click.echo(each) if isinstance(each, str) else each.show()
    for reason in dict.fromkeys(result["overloaded"] for result in results if "overloaded" in result):
        click.echo(f"speedwell: a run was stopped: {reason}", err=True)
    click.echo(f"{output}: results.jsonl, table.csv, tables.md, plot.png, manifest.json")
