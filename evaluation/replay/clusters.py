"""Runs of an experiment in clusters of their own, one for each method: to start one takes as long as half a run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from speedwell.cluster.errors import ClusterError
from speedwell.cluster.fabric import FabricCluster
from speedwell.cluster.fabric_settings import read_settings
from speedwell.evaluation.replay.speedwell import Speedwell
from speedwell.evaluation.results.output import Say, progress_bar
from speedwell.evaluation.results.results_file import ResultsFile
from speedwell.topo.emulation import EmulationError

MOST_BUSY = 0.7
"""Of the processors. A run in which the machine was busier measured the machine, too."""


class Run(Protocol):
    """A run of a method. Equal ones ask for the same."""

    @property
    def method(self) -> Any:
        """What its cluster is made for."""

    def parameters(self) -> dict[str, Any]:
        """As plain JSON values."""


R = TypeVar("R", bound=Run)


@contextmanager
def running(say: Say, **settings: Any) -> Iterator[tuple[FabricCluster, Speedwell]]:
    """A cluster with these settings and a reading process on each of its hosts. Raises ClusterError,
    EmulationError."""
    with tempfile.TemporaryDirectory(prefix="speedwell-runs-") as name, ExitStack() as cleanup:
        cluster = FabricCluster(read_settings(directory=Path(name), deletion_grace_seconds=0, **settings))
        cleanup.callback(cluster.stop)
        cluster.start(say)
        system = Speedwell({**cluster.description(), "directory": name}, cluster.settings.poll_interval_seconds)
        cleanup.callback(system.close)
        yield cluster, system


def play_all(name: str, tasks: Sequence[R], play: Callable[[Sequence[R], Say], Iterator[dict[str, Any]]],
             results: ResultsFile, directory: Path) -> list[dict[str, Any]]:
    """Play what `results` does not have, all of a method in one cluster; returns all in the order of the tasks.
    Raises ClickException."""
    try:
        with progress_bar(name, len(tasks), directory) as (finished, say):
            missing = [task for task in tasks if results.get(task.parameters()) is None]
            finished(done := len(tasks) - len(missing))
            for _, group in groupby(missing, key=lambda task: task.method):
                for made in play(list(group), say):
                    results.add(made)
                    finished(done := done + 1)
    except (ClusterError, EmulationError) as error:
        raise click.ClickException(str(error)) from None
    return [result for task in tasks if (result := results.get(task.parameters())) is not None]


def warn_if_busy(results: Sequence[dict[str, Any]]) -> None:
    """Say so where the machine was busier than MOST_BUSY in a run."""
    if any(result["machine"]["busy_share"] > MOST_BUSY for result in results):
        click.echo(f"speedwell: the machine was busier than {MOST_BUSY:.0%}: it was measured, too, not the network "
                   "alone. Repeat with a lower --host-mbps.", err=True)
