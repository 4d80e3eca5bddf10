"""What runs in an installation on loopback: which processes, with which commands."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from speedwell.cluster import mounts
from speedwell.cluster.data_directories import directory_options
from speedwell.cluster.errors import AlreadyRunning, StartFailed
from speedwell.cluster.identities import OPERATORS, with_identity
from speedwell.cluster.local_metrics import SUPERVISOR, is_free, with_metrics
from speedwell.cluster.nameservers import EtcdMember, etcd_commands, etcd_names, nameserver_commands, nameserver_names
from speedwell.cluster.processes import Command, Processes, program
from speedwell.fs.identity import roles

LOOPBACK = "127.0.0.1"
MOUNT = "mount"


def wanted(processes: Processes) -> list[str]:
    """What runs while the installation is up, but for the supervisor. What somebody has unmounted stays so."""
    settings = processes.settings
    number, mountpoint = settings["nameservers"], settings["mount"]
    is_mounted = mountpoint and (processes.find("mount") or ours(processes, Path(mountpoint)))
    return [*etcd_names(number), *nameserver_names(number), *dataserver_names(settings),
            *(["mount"] if is_mounted else [])]


def command_again(processes: Processes, name: str) -> Command:
    """The command of a process that ended, on its old address."""
    settings = processes.settings
    if name == "mount":
        return mount_command(processes, Path(settings["mount"]))
    nameservers = settings["addresses"]["nameserver"].split(",")
    commands = [*etcd_commands(processes.directory, LOOPBACK, members(settings)),
                *local_nameserver_commands(processes, nameservers)]
    found = next((command for command in commands if command.name == name), None)
    return found or dataserver_command(processes, name, settings["addresses"][name])


def members(settings: Mapping[str, Any]) -> list[EtcdMember]:
    """Of etcd, once their ports are chosen."""
    return [EtcdMember(*ports) for ports in settings["etcd_ports"]]


def local_nameserver_commands(processes: Processes, listen: list[str]) -> list[Command]:
    """One for each address of `listen`."""
    settings = processes.settings
    # An empty directory is a lost one but for the first time; it is rebuilt then.
    first = [] if settings["namespace"] else ["--new"]
    options = [*first, "--replication", str(settings["replication"]),
               "--chunk-size", str(settings["chunk_size_bytes"]), *durability_options(settings),
               *(["--shared"] if settings.get("shared") else [])]
    commands = nameserver_commands(processes.directory, listen, options, LOOPBACK, members(settings))
    return [with_identity(processes, with_metrics(processes, command)) for command in commands]


def durability_options(settings: Mapping[str, Any]) -> list[str]:
    """Of a nameserver; what is None or was never recorded is as the nameserver has it by default."""
    return [word for option, setting in (("--fsync", "fsync"), ("--min-replicas", "min_replicas"))
            if settings.get(setting) is not None for word in (option, str(settings[setting]))]


def dataserver_names(settings: Mapping[str, Any]) -> list[str]:
    return [f"d{number}" for number in range(settings["dataservers"])]


def dataserver_command(processes: Processes, name: str, listen: str) -> Command:
    return with_identity(processes, with_metrics(processes, Command(name, [
        program("speedwell-dataserver"), "--id", name, "--listen", listen,
        "--advertise", LOOPBACK, "--rack", f"r{name[1:]}", "--pod", "p0",
        "--nameserver", processes.settings["addresses"]["nameserver"],
        *directory_options(processes.directory / "dataservers" / name,
                           processes.settings.get("directories_per_server", 1))])))


def mount_command(processes: Processes, mountpoint: Path) -> Command:
    return with_identity(processes, with_metrics(processes, Command(MOUNT, [
        program("speedwell-mount"), str(mountpoint), "--foreground",
        "--nameserver", processes.settings["addresses"]["nameserver"], "--local-host", LOOPBACK])))


def is_mounted(processes: Processes, mountpoint: Path) -> bool:
    """Whether the installation is mounted at `mountpoint`, by its own process or by `speedwell mount`."""
    nameserver = processes.settings.get("addresses", {}).get("nameserver", "")
    by_hand = mounts.of_installation(processes.directory, nameserver)
    return processes.find("mount") is not None or (mountpoint in by_hand and not mounts.is_dead(mountpoint))


def start_supervisor(processes: Processes, started: list[str]) -> None:
    """The process that starts again what ends. Raises StartFailed."""
    if processes.find(SUPERVISOR):
        return
    processes.start(Command(SUPERVISOR, [sys.executable, "-m", "speedwell.cluster.local_supervisor",
                                         str(processes.directory)]))
    started.append(SUPERVISOR)


@contextmanager
def over_supervisor(processes: Processes, purpose: str) -> Iterator[None]:
    """Hold the installation's lock. A supervisor that is starting something has to end: `up` starts another one.
    Raises AlreadyRunning if another command is at work."""
    with ExitStack() as held:
        try:
            held.enter_context(processes.exclusive(purpose))
        except AlreadyRunning as error:
            supervisor = processes.find(SUPERVISOR)
            if supervisor is None or f"(pid {supervisor.pid})" not in str(error):
                raise
            processes.end(supervisor)
            held.enter_context(processes.exclusive(purpose))
        yield


def ours(processes: Processes, mountpoint: Path) -> bool:
    """Whether the mount at `mountpoint` was made by this installation (its process may be dead)."""
    there = mounts.mounted_here(mountpoint)
    if there is None or not there.filesystem_type.startswith("fuse"):
        return False
    return processes.settings.get("mount") == str(mountpoint) and (
        processes.find("mount") is not None or mounts.is_dead(mountpoint))


def identity_names(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Who has a certificate, by name and role."""
    return [*((name, roles.NAMESERVER) for name in nameserver_names(settings["nameservers"])),
            *((name, roles.ETCD) for name in etcd_names(settings["nameservers"])),
            *((name, roles.DATASERVER) for name in dataserver_names(settings)), (MOUNT, roles.MOUNT), OPERATORS]


def has_certificates(settings: Mapping[str, Any]) -> bool:
    """Whether anything shows one: an etcd that was made with TLS keeps it."""
    return bool(settings.get("identity")) or any(member.metrics_port for member in members(settings))


def listen_address(before: str | None) -> str:
    """The address of the last run if it is still free, else any free port."""
    return before if before and is_free(before) else f"{LOOPBACK}:0"


def address(ready: str, name: str) -> str:
    """The address in a `ready` line."""
    address = ready.split(" ")[0]
    if not address.rpartition(":")[2].isdigit():
        raise StartFailed(f"{name} did not say where it listens (`ready {ready}`)")
    return address
