"""`mount.speedwell`: what mount(8) and /etc/fstab call for the types `speedwell` and `fuse.speedwell`."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from speedwell.cluster import current, fabric_network, mounts
from speedwell.cluster.errors import InvalidSetting, MountFailed, NotOnFabric, NotRunning
from speedwell.cluster.processes import program
from speedwell.fs import command_line
from speedwell.fs.ending import run_to_the_end
from speedwell.fs.mount_table import FILESYSTEM_TYPE
from speedwell.fs.option_types import MountPoint
from speedwell.fuse_mount.main import KERNEL_OPTIONS
from speedwell.fuse_mount.main import command as speedwell_mount

# mount(8)
WRONG_USAGE, MOUNT_FAILURE = 1, 32
# sys/mount.h
MS_REMOUNT = 32
FLAGS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8}
OPPOSITES = {"rw": "ro", "suid": "nosuid", "dev": "nodev", "exec": "noexec"}

OF_THE_SOURCE = {"nameserver", "subdirectory", "source", "options", "foreground"}
# Of mount(8) itself, of who starts a machine, and of times of reading, which are never kept.
WITHOUT_EFFECT = {"defaults", "auto", "noauto", "nofail", "user", "nouser", "users", "nousers", "owner", "noowner",
                  "group", "nogroup", "_netdev", "comment", "async", "atime", "noatime", "diratime", "nodiratime",
                  "relatime", "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime",
                  "default_permissions"}
# The kernel's mount table has them, and so they come back when something is mounted anew.
OF_THE_TABLE = {"user_id", "group_id", "rootmode", "max_read", "blksize", "subtype", "fsname"}


@dataclass
class Wanted:
    """Mount options: `kernel` are the kernel's, `arguments` those of `speedwell-mount`."""

    remount: bool = False
    kernel: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)


def read_options(text: str, *, sloppy: bool = False) -> Wanted:
    """What is to be done by options that commas separate. Raises InvalidSetting naming one that is wrong; `sloppy`
    leaves out those that nobody knows."""
    wanted, known = Wanted(), _known_options()
    for word in filter(None, text.split(",")):
        name, separator, value = word.partition("=")
        if word == "remount":
            wanted.remount = True
        elif word in KERNEL_OPTIONS:
            wanted.kernel.append(word)
        elif name in known:
            option, flag = known[name]
            if option.is_flag is bool(separator):
                raise InvalidSetting(f"the option {name} takes {'no' if option.is_flag else 'a'} value: {word!r}")
            wanted.arguments.append(f"{flag}={value}" if separator else flag)
        elif name not in WITHOUT_EFFECT | OF_THE_TABLE and not name.lower().startswith("x-") and not sloppy:
            choices = ", ".join(["remount", *KERNEL_OPTIONS, *known])
            raise InvalidSetting(f"unknown option {word!r}; there are {choices}")
    return wanted


def _known_options() -> dict[str, tuple[click.Option, str]]:
    return {flag.removeprefix("--").replace("-", "_"): (option, flag)
            for option in speedwell_mount.params if isinstance(option, click.Option)
            for flag in (*option.opts, *option.secondary_opts)
            if flag.startswith("--") and flag.removeprefix("--") not in OF_THE_SOURCE}


@click.command("mount.speedwell", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source")
@click.argument("mountpoint", metavar="DIRECTORY", type=MountPoint())
@click.option("-o", "options", metavar="OPTIONS", multiple=True, help="Mount options, separated by commas.")
@click.option("-f", "fake", is_flag=True, help="Check everything and mount nothing.")
@click.option("-s", "sloppy", is_flag=True, help="Leave out unknown options.")
@click.option("-n", is_flag=True, expose_value=False, help="Without effect.")
@click.option("-v", is_flag=True, expose_value=False, help="Without effect.")
@click.option("-t", metavar="TYPE", expose_value=False, help="Without effect.")
def command(source: str, mountpoint: Path, options: tuple[str, ...], fake: bool, sloppy: bool) -> int:
    """Mount a Speedwell filesystem, for mount(8) and /etc/fstab.

    SOURCE is NAMESERVER:PORT (several are joined by commas) or the directory of an installation of this machine, and
    may have :/SUB/DIRECTORY behind it. OPTIONS are mount(8)'s and those of `speedwell-mount --help`, with _ for -.
    """
    wanted = read_options(",".join(options), sloppy=sloppy)
    place = mounts.locate(mountpoint)
    arguments = [str(place), "--source", source, *_place_of(source, wanted), *wanted.arguments]
    _parsed(arguments)
    if fake:
        return 0
    if wanted.remount:
        return _remount(source, place, wanted)
    if wanted.kernel:
        arguments += ["--options", ",".join(wanted.kernel)]
    ended = subprocess.run([program("speedwell-mount"), *arguments], stdout=subprocess.DEVNULL, check=False)
    return MOUNT_FAILURE if ended.returncode else 0


def _place_of(source: str, wanted: Wanted) -> list[str]:
    """Arguments of `speedwell-mount`."""
    place, subdirectory = mounts.source_of(source)
    if not place.startswith("/"):
        if ":" not in place:
            raise InvalidSetting(f"{source!r} is neither NAMESERVER:PORT nor the directory of an installation")
        return ["--nameserver", place, "--subdirectory", subdirectory]
    installation = current.in_directory(Path(place))
    if not wanted.remount:
        if current.is_stopped(installation):
            raise NotRunning(f"the installation in {place} is stopped; {installation.up_again} starts it again")
        hindrance = fabric_network.join(installation.nameserver)
        if hindrance:
            raise NotOnFabric(hindrance)
    controller = ["--controller", installation.controller] if installation.controller else []
    return ["--nameserver", installation.nameserver, "--subdirectory", subdirectory, *controller]


def _parsed(arguments: list[str]) -> click.Context:
    return speedwell_mount.make_context("mount.speedwell", list(arguments))


def _remount(source: str, place: Path, wanted: Wanted) -> int:
    """The kernel's options can change, and nothing else. Raises MountFailed."""
    there = mounts.mounted_here(place)
    if there is None or there.filesystem_type != FILESYSTEM_TYPE:
        raise MountFailed(f"{place} is no mount of Speedwell, so it cannot be mounted anew")
    if there.source != source:
        raise MountFailed(f"{place} is mounted from {there.source}, and remounting does not change that to {source}")
    requested = _parsed([str(place), "--nameserver", source, *wanted.arguments])
    running = mounts.arguments(place)
    has: dict[str, Any] = _parsed(running).params if running else {}
    has["allow_other"] = "allow_other" in there.options
    for name, (option, _) in _known_options().items():
        field_ = str(option.name)
        if requested.get_parameter_source(field_) is not ParameterSource.COMMANDLINE:
            continue
        if field_ not in has:
            raise MountFailed(f"the process of {place} is not seen here, so neither is its {name}: remount with "
                              f"{', '.join(KERNEL_OPTIONS)} only")
        if has[field_] != requested.params[field_]:
            raise MountFailed(f"remounting cannot change {name}, only {', '.join(KERNEL_OPTIONS)}: unmount {place} "
                              "and mount it again")
    _change_flags(place, {*FLAGS} & {*there.options}, wanted.kernel)
    return 0


def _change_flags(place: Path, names: set[str], changes: list[str]) -> None:
    for word in changes:
        if word in OPPOSITES:
            names.discard(OPPOSITES[word])
        else:
            names.add(word)
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(MS_REMOUNT | sum(FLAGS[name] for name in names))
    if libc.mount(None, os.fsencode(place), None, flags, None):
        number = ctypes.get_errno()
        reason = "files are open for writing there" if number == errno.EBUSY else os.strerror(number)
        raise MountFailed(f"{place} cannot be mounted anew: {reason}")


def main() -> NoReturn:
    """Entry of the executable: ends the process with an exit status of mount(8)."""
    def work() -> int:
        status = command_line.run(command, "mount.speedwell", wrong_usage=(InvalidSetting,))
        return {command_line.FAILED: MOUNT_FAILURE, command_line.WRONG_USAGE: WRONG_USAGE}.get(status, status)

    run_to_the_end(work)
