"""The nameservers of an installation. Several of them keep the namespace in an etcd of the installation's own.

    DIRECTORY/nameserver/    the namespace of a single one
    DIRECTORY/nameserver-N/  what each of several mirrors of etcd
    DIRECTORY/etcd-N/        what each member of the etcd stores

There are as many members of etcd as nameservers, or one less: with an even number more members would have to live.
So of three nameservers any one process may die, and of five any two.
"""

import re
import shutil
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import InvalidSetting
from cluster.processes import Command, Processes, program

MAX_NAMESERVERS = 7
ETCD_READY = re.compile(rb'"serving client traffic insecurely[^\n]*"address":"([^"\n]+)"')
"""In etcd's log (`--logger zap`), once it has found a quorum."""

LARGEST_TRANSACTION = 100_000
LARGEST_DATABASE_BYTES = 8 << 30
"""What etcd recommends at most. A million files take about a tenth."""


@dataclass(frozen=True)
class EtcdMember:
    """The ports on which a member of etcd serves clients and its peers. The peers' ports never change."""

    client_port: int
    peer_port: int


def nameserver_names(number: int) -> list[str]:
    """Process names of `number` nameservers."""
    return ["nameserver"] if number == 1 else [f"nameserver-{index}" for index in range(number)]


def etcd_names(nameservers: int) -> list[str]:
    """Process names of the etcd behind that many nameservers; a single one needs none."""
    return [] if nameservers == 1 else [f"etcd-{index}" for index in range(nameservers - (nameservers + 1) % 2)]


def require_etcd() -> None:
    """Raises InvalidSetting if etcd is not installed."""
    if shutil.which("etcd") is None:
        raise InvalidSetting("--nameservers: several of them need etcd; install Debian's package etcd-server "
                             "(scripts/setup does)")


def free_ports(host: str, number: int) -> list[int]:
    """That many different ports of `host` which nobody uses now."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind((host, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def etcd_commands(directory: Path, host: str, members: Sequence[EtcdMember]) -> list[Command]:
    """An etcd of those `members` on `host`, one command a member."""
    names = [f"etcd-{index}" for index in range(len(members))]
    cluster = ",".join(f"{name}=http://{host}:{member.peer_port}"
                       for name, member in zip(names, members, strict=True))
    commands = []
    for name, member in zip(names, members, strict=True):
        client, peer = f"http://{host}:{member.client_port}", f"http://{host}:{member.peer_port}"
        commands.append(Command(name, [
            "etcd", "--name", name, "--data-dir", str(directory / name), "--logger", "zap",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster,
            "--max-txn-ops", str(LARGEST_TRANSACTION), "--quota-backend-bytes", str(LARGEST_DATABASE_BYTES)],
            ready_line=ETCD_READY))
    return commands


def stop_etcd(processes: Processes, names: Sequence[str]) -> None:
    """Stop members one after the other: the leader of an etcd waits for seconds for one to hand over to when all
    are told to stop at the same time."""
    for name in names:
        processes.stop(names=[name])


def nameserver_commands(directory: Path, listen: Sequence[str], options: Sequence[str], host: str,
                        members: Sequence[EtcdMember]) -> list[Command]:
    """A nameserver on each address of `listen`, all over the etcd of `members` on `host` if there are any."""
    etcd = ",".join(f"{host}:{member.client_port}" for member in members)
    return [Command(name, [program("speedwell-nameserver"), "--listen", address, "--directory", str(directory / name),
                           *options, *(("--etcd", etcd) if etcd else ())])
            for name, address in zip(nameserver_names(len(listen)), listen, strict=True)]
