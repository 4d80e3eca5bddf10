"""speedwell top"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from speedwell.cluster import current, mounts
from speedwell.cluster.commands.connection import installation_option
from speedwell.cluster.commands.output import echo
from speedwell.cluster.commands.watching import watch
from speedwell.cluster.tables import NONE, echo_table
from speedwell.fs import units
from speedwell.fs.command_line import Number

if TYPE_CHECKING:
    from speedwell.cluster.mount_monitor import Source

COLUMNS = {"mount": "mount", "ops": "ops/s", "mean": "mean ms", "p99": "p99 ms", "read": "read/s",
           "written": "written/s", "errors": "err/s", "open": "open"}
"""As --sort names them, and their headings."""


@click.command()
@click.option("--all", "of_all", is_flag=True, help="The mounts of all installations: the default where none was "
              "started.")
@click.option("--once", is_flag=True, help="Show one interval, and end. That is the default without a terminal.")
@click.option("--interval", "interval_seconds", type=Number(0.1, 3600), default=1.0, show_default=True,
              metavar="SECONDS", help="What one look shows.")
@click.option("--sort", "column", type=click.Choice(tuple(COLUMNS)), default="mount", show_default=True,
              help="The column to sort by; numbers come largest first.")
@installation_option
def top(of_all: bool, once: bool, interval_seconds: float, column: str, installation: Path | None) -> int:
    """Show what the mounts of this machine do.

    On a terminal it goes on until Ctrl-C, elsewhere it shows one interval.

    Operations are requests of the kernel: what it answers from its cache is not among them. Latencies are without
    requests that wait for a lock, errors without names and attributes that there are not. `no answer` is a mount
    whose process is stopped or hangs, `not yours` one that another user made: only root sees those.
    """
    from speedwell.cluster.mount_monitor import Mounts

    if of_all and installation is not None:
        raise click.UsageError("--installation does not go with --all", click.get_current_context())
    of = None if of_all else current.in_directory(installation) if installation else current.read()
    watched = Mounts()

    def look() -> list[Source]:
        return watched.look([mount for mount in mounts.of_speedwell()
                             if of is None or mounts.is_of(mount, of.directory, of.nameserver)])

    def show() -> None:
        sources = look()
        if sources:
            headings = tuple(COLUMNS.values())
            echo_table(headings, rows(sources, column), headings[1:])
        else:
            echo("nothing is mounted; `speedwell mount DIR` does it" if of is None else
                 f"nothing of {of.directory} is mounted; --all shows all installations")

    look()
    time.sleep(interval_seconds)
    if once or not sys.stdout.isatty():
        show()
        return 0
    return watch(show, interval_seconds)


def rows(sources: list[Source], column: str) -> list[tuple[str, ...]]:
    """A row for each mount, sorted by a column; those that are not heard come last."""
    from speedwell.cluster.mount_monitor import activity

    found: list[tuple[bool, float, tuple[str, ...]]] = []
    index = tuple(COLUMNS).index(column)
    for source in sources:
        mountpoint = str(source.mount.mountpoint)
        if source.problem or source.before is None or source.statistics is None:
            found.append((True, 0.0, (mountpoint, source.problem or NONE, *[NONE] * (len(COLUMNS) - 2))))
            continue
        now = activity(source.before, source.statistics)
        numbers = (now.operations, 1e3 * now.mean_seconds, 1e3 * now.p99_seconds, now.read_bytes, now.written_bytes,
                   now.errors, now.open_files)
        found.append((False, -numbers[index - 1] if index else 0.0, (
            mountpoint, f"{now.operations:.0f}", f"{numbers[1]:.2f}", f"{numbers[2]:.2f}",
            units.size(round(now.read_bytes)), units.size(round(now.written_bytes)), f"{now.errors:.0f}",
            str(now.open_files))))
    return [row for _, _, row in sorted(found)]
