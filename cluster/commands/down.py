"""speedwell down"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from speedwell.cluster import current, mounts
from speedwell.cluster.commands.connection import installation_option, one_installation
from speedwell.cluster.commands.mounting import unmount
from speedwell.cluster.commands.output import echo
from speedwell.cluster.errors import ClusterError, NotRunning
from speedwell.cluster.processes import Processes


@click.command()
@installation_option
@click.option("--local", "directory", type=click.Path(path_type=Path), metavar="DIR",
              help="The local installation in DIR; default: the one started last.")
@click.option("--force", is_flag=True, help="Unmount although a mount is in use.")
def down(directory: Path | None, installation: Path | None, force: bool) -> None:
    """Unmount and stop an installation; stored files stay.

    All of its mounts on this machine are unmounted. If one is in use nothing is stopped, and the processes that use
    it are named. Where none runs, what a killed `mn` or `speedwell fabric` left is removed.
    """
    one_installation(installation, directory)
    found = current.in_directory(installation) if installation else current.read() if directory is None else None
    if found is None and directory is None:
        removed, hindrance = _remove_leftovers()
        echo(removed or f"nothing to stop: no installation was started here{hindrance}")
    elif found is not None and found.kind == "fabric":
        _fabric(found)
    else:
        _local(Path(found.directory) if found else directory, force)


def _local(directory: Path | None, force: bool) -> None:
    from speedwell.cluster import local

    assert directory is not None
    with contextlib.suppress(NotRunning):
        _unmount_others(local.describe(directory), force)
    stopped = local.down(directory, force=force, progress=_say)
    current.clear(local.locate(directory))
    echo(f"stopped {', '.join(stopped)} in {directory}" if stopped else f"nothing was running in {directory}")
    removed = "" if stopped else _remove_leftovers()[0]
    if removed:
        echo(removed)


def _fabric(installation: current.Current) -> None:
    from speedwell.cluster import supervisor

    if os.geteuid() != 0:
        raise ClusterError("the installation on the emulated fabric is root's: run the command with sudo")
    _unmount_others(installation, force=True)
    try:
        supervisor.down()
        echo("stopped the installation on the emulated fabric")
    except NotRunning as error:
        echo(f"nothing to stop: {error}")
    current.forget(installation.directory)


def _remove_leftovers() -> tuple[str, str]:
    """Remove what `mn` or `speedwell fabric` left when it was killed; says what was done, and what hinders."""
    from speedwell.topo.emulation import EmulationRunning, remove_leftovers

    if os.geteuid() != 0:
        return "", ""
    try:
        left = remove_leftovers()
    except EmulationRunning as error:
        return "", f", but {error}"
    return "" if left is None else f"removed what {left} had left", ""


def _unmount_others(installation: current.Current, force: bool) -> None:
    """Unmount what was mounted with `speedwell mount`, the last one first; also in the place of a mount of `up` that
    has ended."""
    runs = {record.name for record in Processes(Path(installation.directory)).running()}
    own = installation.mounts if installation.kind == "fabric" or "mount" in runs else []
    for mountpoint in reversed(mounts.of_installation(installation.directory, installation.nameserver)):
        if str(mountpoint) not in own:
            unmount(mountpoint, force or mounts.stopped_process(mountpoint) is not None)
            echo(f"unmounted {mountpoint}")


def _say(message: str) -> None:
    click.echo(f"{message} ...", err=True)
