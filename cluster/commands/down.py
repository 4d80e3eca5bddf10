"""speedwell down"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from cluster import current, mounts
from cluster.commands.connection import installation_option, one_installation
from cluster.commands.mounting import unmount
from cluster.commands.output import echo
from cluster.errors import NotRunning


@click.command()
@installation_option
@click.option("--local", "directory", type=click.Path(path_type=Path), metavar="DIR",
              help="The local installation in DIR; default: the one started last.")
@click.option("--force", is_flag=True, help="Unmount although a mount is in use.")
def down(directory: Path | None, installation: Path | None, force: bool) -> None:
    """Unmount and stop an installation; stored files stay.

    All of its mounts on this machine are unmounted. If one is in use nothing is stopped, and the processes that use
    it are named. Where no installation is known, what a killed `mn` or `speedwell fabric` left is removed.
    """
    one_installation(installation, directory)
    found = current.in_directory(installation) if installation else current.read() if directory is None else None
    if found is None and directory is None:
        echo(_removed_leftovers() or "nothing to stop: no installation was started here")
    elif found is not None and found.kind == "fabric":
        _fabric(found)
    else:
        _local(Path(found.directory) if found else directory, force)


def _local(directory: Path | None, force: bool) -> None:
    from cluster import local

    assert directory is not None
    with contextlib.suppress(NotRunning):
        _unmount_others(local.describe(directory), force)
    stopped = local.down(directory, force=force, progress=_say)
    current.clear(local.locate(directory))
    echo(f"stopped {', '.join(stopped)}" if stopped else f"nothing was running in {directory}")


def _fabric(installation: current.Current) -> None:
    from cluster import supervisor

    _unmount_others(installation, force=True)
    try:
        supervisor.down()
        echo("stopped the installation on the emulated fabric")
    except NotRunning as error:
        echo(f"nothing to stop: {error}")
    current.forget(installation.directory)


def _removed_leftovers() -> str | None:
    """Remove what `mn` or `speedwell fabric` left when it was killed; says what was done or hinders, if anything."""
    from topo.emulation import EmulationRunning, remove_leftovers

    if os.geteuid() != 0:
        return None
    try:
        left = remove_leftovers()
    except EmulationRunning as error:
        return f"nothing to stop: no installation was started here, but {error}"
    return None if left is None else f"removed what {left} had left"


def _unmount_others(installation: current.Current, force: bool) -> None:
    """Unmount what was mounted with `speedwell mount`, the last one first."""
    for mountpoint in reversed(mounts.of_installation(installation.directory, installation.nameserver)):
        if str(mountpoint) not in installation.mounts:
            unmount(mountpoint, force or mounts.stopped_process(mountpoint) is not None)
            echo(f"unmounted {mountpoint}")


def _say(message: str) -> None:
    click.echo(f"{message} ...", err=True)
