"""systemd units for what runs on a machine: a service a role, made from the template beside this module."""

import os
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from string import Template

from speedwell.cluster import parts
from speedwell.cluster.errors import InvalidSetting
from speedwell.cluster.processes import Processes
from speedwell.cluster.state_files import STATE_MODE
from speedwell.cluster.switched import TIMESLICES
from speedwell.fs import durable
from speedwell.fs.identity.roles import ETCD, HOST_AGENT, METADATA_STORE, MOUNT

UNSANDBOXED = (MOUNT,)
"""A namespace of its own for the sandbox would hide the mount from everybody else."""

NOTIFY = "Type=notify\nNotifyAccess=main"
WATCHED = f"{NOTIFY}\nWatchdogSec=60"
STARTS = {
    MOUNT: NOTIFY,      # it waits for the nameserver as long as that is away, which no watchdog is to end
    ETCD: "Type=exec\nEnvironmentFile=$directory/etcd.env",     # it is ready once more than half of its members are
}

CAPABILITIES = {
    TIMESLICES: "CAP_SYS_NICE",
    # rules and queues of the uplink; the sockets of other programs; before all of them
    HOST_AGENT: "CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_PTRACE CAP_SYS_NICE",
    METADATA_STORE: "CAP_NET_ADMIN",
}
REALTIME = "RestrictRealtime=no"
OPENED = {
    TIMESLICES: REALTIME,
    HOST_AGENT: f"{REALTIME}\nReadWritePaths=/run",           # the lock of iptables is there
    METADATA_STORE: "ProtectKernelTunables=no",               # it sets arp_announce
}
"""What the sandbox of a role does not close."""


def check(directory: Path, place: Path, disks: Iterable[Path] = ()) -> None:
    """Raises InvalidSetting if there can be no units in `place` for what runs in `directory` and on `disks`."""
    for path in (directory, *disks):
        if any(sign.isspace() or sign in "%$\\\"'" for sign in str(path)):
            raise InvalidSetting(f"--systemd: {str(path)!r} has signs that mean something to systemd: name another "
                                 "directory")
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise InvalidSetting(f"--systemd: {place} is no directory that you may write to")


def write(processes: Processes, place: Path) -> list[str]:
    """Write the units of what runs here; returns their names, in the order in which they start. Raises
    InvalidSetting."""
    directory = processes.directory
    elsewhere = {role: parts.elsewhere(processes, role) for role in parts.present(processes)}
    check(directory, place, [path for paths in elsewhere.values() for path in paths])
    unit, hardening = (Template(resources.files("speedwell.cluster").joinpath("systemd", each).read_text())
                       for each in ("speedwell.service", "hardening.conf"))
    for role, paths in elsewhere.items():
        text = unit.substitute(
            role=role, directory=directory, start=Template(STARTS.get(role, WATCHED)).substitute(directory=directory),
            command=" ".join(parts.command_again(processes, role).argv),
            rest="" if role in UNSANDBOXED else hardening.substitute(
                writable=" ".join(map(str, [directory, *paths])), capabilities=CAPABILITIES.get(role, ""),
                opened=OPENED.get(role, "")))
        durable.replace(place / parts.unit_of(role), text.encode(), STATE_MODE)
    processes.settings["systemd"] = str(place)
    processes.save()
    return [parts.unit_of(role) for role in elsewhere]
