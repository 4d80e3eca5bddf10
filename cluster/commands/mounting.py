"""speedwell mount, speedwell umount"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import click

from speedwell.cluster import machine_mounts, mounts
from speedwell.cluster.commands.connection import Target, connection_options, parts_option
from speedwell.cluster.commands.output import echo
from speedwell.cluster.errors import InvalidSetting
from speedwell.cluster.processes import Command, Processes, program
from speedwell.fs import metrics as prometheus
from speedwell.fs.command_line import Number
from speedwell.fs.identity import places
from speedwell.fs.option_types import MountPoint


@click.command()
@click.argument("mountpoint", type=MountPoint())
@click.option("--allow-other", is_flag=True, help="Let other users in (root, or user_allow_other in "
                                                  "/etc/fuse.conf).")
@click.option("--foreground", is_flag=True, help="Stay, and write the log to standard error.")
@click.option("--strong", is_flag=True, help="A read sees every append acknowledged before it to any client.")
@click.option("--cache-seconds", type=Number(0, 3600), metavar="SECONDS",
              help="How old the attributes may be that a look-up answers.  [default: 1]")
@click.option("-o", "options", metavar="OPTIONS", default="", help="Options of mount(8), separated by commas, such "
              "as ro and noexec, and those of `speedwell-mount --help`, with _ for -.")
@click.option("--subdirectory", metavar="PATH", default="/", help="Show this directory, in place of the root.")
@prometheus.OPTION
@parts_option
@connection_options
def mount(mountpoint: Path, allow_other: bool, foreground: bool, strong: bool, cache_seconds: float | None,
          options: str, subdirectory: str, metrics: str | None, target: Target) -> None:
    """Mount the filesystem on a directory.

    The mount runs in the background until `speedwell umount`.
    """
    from speedwell.cluster.mount_helper import read_options

    prometheus.check(metrics)
    wanted = read_options(options)
    if wanted.remount:
        raise InvalidSetting(f"`mount -o {options} {mountpoint}` remounts")
    place = mounts.locate(mountpoint)
    shells = machine_mounts.enter()
    with target.connect(for_bytes=True) as client:
        client.require_dataservers()    # else programs would find names without bytes
    processes = _processes()
    with processes.exclusive("`speedwell mount`"):
        processes.forget_dead()
        _clear_dead(place)
        mounts.require_usable(place)
        argv = [program("speedwell-mount"), str(place), "--foreground", "--nameserver", target.nameserver]
        if target.identity is not None:
            argv += ["--identity", str(target.identity.absolute())]
        for option, value in (("--controller", target.controller), ("--local-host", target.local_host),
                              ("--parts", target.parts), ("--cache-seconds", cache_seconds), ("--metrics", metrics)):
            argv += [option, str(value)] if value is not None else []
        argv += ["--allow-other"] if allow_other else []
        argv += ["--strong"] if strong else []
        argv += ["--subdirectory", subdirectory, *wanted.arguments]
        argv += ["--options", ",".join(wanted.kernel)] if wanted.kernel else []
        if not foreground:
            processes.start(Command(_name(place), argv))
            machine_mounts.show(shells, place)
            echo(f"mounted at {place}")
    if foreground:
        os.execv(argv[0], argv)


@click.command()
@click.argument("mountpoint", type=MountPoint())
@click.option("--force", is_flag=True, help="Unmount although it is in use, or its process is stopped.")
def umount(mountpoint: Path, force: bool) -> None:
    """Unmount the filesystem."""
    place = mounts.locate(mountpoint)
    there = mounts.mounted_here(place)
    if there is None:
        raise InvalidSetting(f"{place} is not a mount point")
    if not there.filesystem_type.startswith("fuse"):
        raise InvalidSetting(f"{place} is a mount of {there.source} ({there.filesystem_type}), not of Speedwell")
    mounts.unmount(place, lazy=force)
    machine_mounts.enter()
    unmount(place, force)


def unmount(mountpoint: Path, force: bool) -> None:
    """Unmount, and see the mount's process end. Raises StopFailed, naming the users of a busy mount."""
    mounts.unmount(mountpoint, lazy=force)
    processes = _processes()
    if processes.find(_name(mountpoint)):
        with processes.exclusive("`speedwell umount`"):
            processes.stop(names=[_name(mountpoint)])


def _processes() -> Processes:
    return Processes(places.state_directory() / "mounts")


def _name(mountpoint: Path) -> str:
    """A process name for a mount point: readable, and different for different paths."""
    digest = hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:8]
    return f"{mountpoint.name or 'root'}-{digest}"


def _clear_dead(mountpoint: Path) -> None:
    there = mounts.mounted_here(mountpoint)
    if there is not None and there.filesystem_type.startswith("fuse") and mounts.is_dead(mountpoint):
        mounts.unmount(mountpoint, lazy=True)
