"""The nameservers of an installation. Several of them keep the namespace in an etcd of the installation's own.

    DIRECTORY/nameserver/    the namespace of a single one
    DIRECTORY/nameserver-N/  what each of several mirrors of etcd
    DIRECTORY/etcd-N/        what each member of the etcd stores
    DIRECTORY/identity/      the certificates of both (speedwell.cluster.identities)

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

from speedwell.cluster.errors import InvalidSetting
from speedwell.cluster.identities import FOLDER
from speedwell.cluster.processes import Command, Processes, program
from speedwell.fs.identity import files, roles

MAX_NAMESERVERS = 7
ETCD_READY = re.compile(rb'"serving client traffic (?:in)?securely[^\n]*"address":"([^"\n]+)"')
"""In etcd's log (`--logger zap`), once it has found a quorum."""

REFUSES_TLS_1_2 = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
"""The one suite that HTTP/2 needs of TLS 1.2 and that no key on P-256 can go with. Those of TLS 1.3 are always on."""

ETCD_STARTED = re.compile(rb'"serving peer traffic"[^\n]*"address":"([^"\n]+)"')
"""Likewise, while it waits for one: its other members may not have begun."""

ETCD_TIMING = {"heartbeat-interval": "60", "election-timeout": "600"}
"""In milliseconds. etcd's shortest lease is 1.5 elections, rounded up to seconds: 2 s with its defaults."""

LARGEST_TRANSACTION = 100_000
LARGEST_DATABASE_BYTES = 8 << 30
"""What etcd recommends at most. A million files take about a tenth."""


@dataclass(frozen=True)
class EtcdMember:
    """The ports on which a member of etcd serves clients and its peers. The peers' ports never change, and nor does
    whether there is TLS: then one more port of loopback has its metrics."""

    client_port: int
    peer_port: int
    metrics_port: int = 0

    @property
    def scheme(self) -> str:
        return "https" if self.metrics_port else "http"


def nameserver_names(number: int) -> list[str]:
    """Process names of `number` nameservers."""
    return ["nameserver"] if number == 1 else [f"nameserver-{index}" for index in range(number)]


def etcd_names(nameservers: int) -> list[str]:
    """Process names of the etcd behind that many nameservers; a single one needs none."""
    return [] if nameservers == 1 else [f"etcd-{index}" for index in range(nameservers - (nameservers + 1) % 2)]


def require_etcd() -> None:
    """Raises InvalidSetting if etcd is not installed."""
    if shutil.which("etcd") is None:
        raise InvalidSetting("several nameservers need etcd: install Debian's package etcd-server "
                             "(scripts/setup does)")


def free_ports(host: str, number: int) -> list[int]:
    """That many different ports of `host` which nobody uses now."""
    with ExitStack() as opened:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sockets = [opened.enter_context(socket.socket(family)) for _ in range(number)]
        for each in sockets:
            each.bind((host, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def etcd_commands(directory: Path, host: str, members: Sequence[EtcdMember]) -> list[Command]:
    """An etcd of those `members` on `host`, one command a member."""
    names = [f"etcd-{index}" for index in range(len(members))]
    cluster = ",".join(f"{name}={member.scheme}://{host}:{member.peer_port}"
                       for name, member in zip(names, members, strict=True))
    commands = []
    for name, member in zip(names, members, strict=True):
        options = etcd_options(name, directory / name, host, member, cluster, directory / FOLDER / name)
        commands.append(Command(name, ["etcd", *(f"--{option}={value}" for option, value in options.items())],
                                ready_line=ETCD_READY))
    return commands


def etcd_options(name: str, data: Path, host: str, member: EtcdMember, cluster: str,
                 identity: Path) -> dict[str, str]:
    """Of one member, which keeps its part in `data`; `cluster` has all as NAME=URL of the peers' port."""
    client, peer = (f"{member.scheme}://{host}:{port}" for port in (member.client_port, member.peer_port))
    return {"name": name, "data-dir": str(data), "logger": "zap",
            "listen-client-urls": client, "advertise-client-urls": client,
            "listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster": cluster,
            "grpc-keepalive-min-time": "1s",    # nameservers ask every two seconds whether a member lives
            **ETCD_TIMING,
            "max-txn-ops": str(LARGEST_TRANSACTION), "quota-backend-bytes": str(LARGEST_DATABASE_BYTES),
            **(_tls(identity, member.metrics_port) if member.metrics_port else {})}


def _tls(identity: Path, metrics_port: int) -> dict[str, str]:
    """Options of a member that takes nameservers as clients, members as peers, and nobody else."""
    own, trusted = (str(identity / name) for name in (files.CERTIFICATE, files.AUTHORITY))
    revoked = str(identity.parent / files.REVOCATION_LIST)
    return {
        "cert-file": own, "key-file": own, "trusted-ca-file": trusted, "client-crl-file": revoked,
        "client-cert-allowed-hostname": roles.host_of(roles.NAMESERVER),
        "peer-cert-file": own, "peer-key-file": own, "peer-trusted-ca-file": trusted, "peer-crl-file": revoked,
        "peer-cert-allowed-hostname": roles.host_of(roles.ETCD),
        "client-cert-auth": "true", "peer-client-cert-auth": "true", "cipher-suites": REFUSES_TLS_1_2,
        "enable-grpc-gateway": "false",     # JSON for curl: it would be a client with the member's own certificate
        "listen-metrics-urls": f"http://127.0.0.1:{metrics_port}"}


def stop_etcd(processes: Processes, names: Sequence[str]) -> None:
    """Stop members one after the other: the leader of an etcd waits for seconds for one to hand over to when all
    are told to stop at the same time."""
    for name in names:
        processes.stop(names=[name])


def nameserver_commands(directory: Path, listen: Sequence[str], options: Sequence[str], host: str,
                        members: Sequence[EtcdMember]) -> list[Command]:
    """A nameserver on each address of `listen`, all over the etcd of `members` on `host` if there are any."""
    etcd = ",".join(f"{host}:{member.client_port}" for member in members)
    is_secure = any(member.metrics_port for member in members)
    return [Command(name, [program("speedwell-nameserver"), "--listen", address, "--directory", str(directory / name),
                           *options, *(("--etcd-identity", str(directory / FOLDER / name)) if is_secure else ()),
                           *(("--etcd", etcd) if etcd else ())])
            for name, address in zip(nameserver_names(len(listen)), listen, strict=True)]
