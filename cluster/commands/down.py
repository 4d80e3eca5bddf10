"""speedwell down"""

from __future__ import annotations

from pathlib import Path

import click

from cluster import current
from cluster.commands.output import echo
from cluster.errors import NotRunning


@click.command()
@click.option("--local", "directory", type=click.Path(path_type=Path), metavar="DIR",
              help="The local installation in DIR; default: the one started last.")
@click.option("--force", is_flag=True, help="Unmount although the mount is in use.")
def down(directory: Path | None, force: bool) -> None:
    """Unmount and stop an installation; stored files stay.

    If the mount is in use nothing is stopped, and the processes that use it are named.
    """
    if directory is None:
        last = current.read()
        if last is None:
            echo("nothing to stop: no installation was started here")
            return
        if last.kind == "fabric":
            _fabric(last.directory)
            return
        directory = Path(last.directory)
    from cluster import local

    stopped = local.down(directory, force=force, progress=_say)
    current.clear(local.locate(directory))
    echo(f"stopped {', '.join(stopped)}" if stopped else f"nothing was running in {directory}")


def _fabric(directory: str) -> None:
    from cluster import supervisor

    try:
        supervisor.down()
        echo("stopped the installation on the emulated fabric")
    except NotRunning as error:
        echo(f"nothing to stop: {error}")
    current.clear(directory)


def _say(message: str) -> None:
    click.echo(f"{message} ...", err=True)
