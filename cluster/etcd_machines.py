"""Machines that keep the names together: each has a nameserver, and a member of their etcd.

    DIRECTORY/etcd.env    the options of the machine's member, as etcd and systemd read them (ETCD_NAME=...)
    DIRECTORY/etcd/       what it stores

Which machines these are is said once, by `speedwell init`: etcd is told all its members when it begins. One that was
lost is replaced by a new machine with its name and address.
"""

import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from speedwell.cluster.errors import InvalidSetting
from speedwell.cluster.nameservers import ETCD_STARTED, MAX_NAMESERVERS, EtcdMember, etcd_options, require_etcd
from speedwell.cluster.processes import Command
from speedwell.fs import durable
from speedwell.fs.addresses import bracketed, is_ip
from speedwell.fs.errors import IdentityError, StorageFailed
from speedwell.fs.etcd_client import EtcdClient
from speedwell.fs.identity import files, invitations, roles
from speedwell.fs.identity.bundle import Identity

MEMBER = EtcdMember(client_port=2379, peer_port=2380, metrics_port=2381)
UNHEALTHY = "unhealthy cluster"
REACHED_SECONDS = 2.0
REPLACED_SECONDS = 20.0
"""etcd takes no new member while the connections of the others are younger than 5 s."""


def parsed(text: str) -> dict[str, str]:
    """The IP address of each machine in NAME=IP,NAME=IP. Raises InvalidSetting."""
    pairs = [each.partition("=")[::2] for each in text.split(",")] if text else []
    for name, address in pairs:
        try:
            roles.checked_name(name)
        except IdentityError as error:
            raise InvalidSetting(f"--etcd: {error}") from None
        if not is_ip(address):
            raise InvalidSetting(f"--etcd: {address!r} is not the IP address of {name}: write NAME=IP,NAME=IP")
    return dict(pairs)


def together(machine: str, address: str, others: str) -> dict[str, str]:
    """All that keep the names, by name: this machine and the `others`, NAME=IP,NAME=IP. Raises InvalidSetting."""
    found = {machine: address, **parsed(others)}
    number = 1 + others.count(",") + 1
    if len(found) != number or len(set(found.values())) != number or found[machine] != address:
        raise InvalidSetting(f"--etcd: name each other machine once, and {machine} not at all")
    if number % 2 == 0 or number > MAX_NAMESERVERS:
        raise InvalidSetting(f"--etcd: with {machine} these are {number} machines: 3, 5 or {MAX_NAMESERVERS} "
                             "keep the names, as more than half of them have to run")
    require_etcd()
    return found


def as_text(machines: Mapping[str, str]) -> str:
    """What `parsed` takes."""
    return ",".join(f"{name}={address}" for name, address in machines.items())


def endpoints(machines: Mapping[str, str]) -> str:
    """Where etcd serves nameservers."""
    return ",".join(f"{bracketed(address)}:{MEMBER.client_port}" for address in machines.values())


def replace(identities: Path, machine: str, machines: Mapping[str, str]) -> None:
    """Let a new machine take the place of `machine`, which was lost with its disk. Raises InvalidSetting if that
    still runs, this one does not keep the names, or one of the others does not run; StorageFailed if most do not."""
    own = next(identities.glob(f"{roles.NAMESERVER}-*/{files.CERTIFICATE}"), None)
    if own is None or own.parent.name == invitations.name_of(machine, roles.NAMESERVER):
        raise InvalidSetting(f"--replace: run this on another machine that keeps the names than {machine}")
    with suppress(OSError), socket.create_connection((machines[machine], MEMBER.peer_port), REACHED_SECONDS):
        raise InvalidSetting(f"--replace: etcd still runs on {machine}: switch that machine off first")
    others = {name: address for name, address in machines.items() if name != machine}
    etcd = EtcdClient(endpoints(others).split(","), REPLACED_SECONDS, Identity(own.parent))
    try:
        etcd.replace_member(_peer_url(machines[machine]))
    except StorageFailed as error:
        if UNHEALTHY not in str(error):
            raise
        raise InvalidSetting("--replace: etcd takes no new member while another one does not run: start that one, or "
                             f"replace it first; then invite {machine} again") from None
    finally:
        etcd.close()


def write(directory: Path, identities: Path, machine: str, machines: Mapping[str, str], replaces: bool) -> None:
    """The settings of the member on `machine`, which `replaces` a lost one or begins with the others."""
    cluster = ",".join(f"{name}={_peer_url(address)}" for name, address in machines.items())
    options = etcd_options(machine, directory / roles.ETCD, bracketed(machines[machine]), MEMBER, cluster,
                           identities / invitations.name_of(machine, roles.ETCD))
    options["initial-cluster-state"] = "existing" if replaces else "new"
    durable.replace(directory / "etcd.env", "".join(
        f"ETCD_{option.upper().replace('-', '_')}={value}\n" for option, value in options.items()).encode(), 0o644)


def command(directory: Path) -> Command:
    """Of the machine's member. It counts as started before the others are there. Raises InvalidSetting."""
    require_etcd()
    lines = (directory / "etcd.env").read_text().splitlines()
    return Command(roles.ETCD, [shutil.which("etcd") or ""], env=dict(line.split("=", 1) for line in lines),
                   ready_line=ETCD_STARTED, last_words={
                       b"the member has been permanently removed": f"another machine takes the place of this one; "
                       f"remove {directory}, then `speedwell join` with a new invitation"})


def _peer_url(address: str) -> str:
    return f"https://{bracketed(address)}:{MEMBER.peer_port}"
