"""The part of an installation that runs on this machine, where it has several: one process a role, by its file.

    DIRECTORY/ROLE.toml          settings of speedwell-ROLE, which `speedwell check-config` checks
    DIRECTORY/etcd.env           of a machine that keeps the names with others (speedwell.cluster.etcd_machines)
    DIRECTORY/identity/          the certificates of this machine; the first machine has the authority, too
    DIRECTORY/{nameserver,dataserver,etcd}/    what they store
    DIRECTORY/{state.json,lock,logs/}     as speedwell.cluster.processes keeps them
"""

import json
import os
import shutil
import socket
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from speedwell.cluster import current, etcd_machines, identities, local_metrics, switched
from speedwell.cluster.errors import InvalidSetting
from speedwell.cluster.local_commands import LOOPBACK, ours, over_supervisor, start_supervisor
from speedwell.cluster.local_metrics import SUPERVISOR
from speedwell.cluster.nameservers import require_etcd
from speedwell.cluster.processes import Command, Processes, program
from speedwell.cluster.registration import own_root_directory
from speedwell.fs import durable
from speedwell.fs.addresses import bracketed, is_ip, parse_address
from speedwell.fs.controller import OF_INSTALLATION
from speedwell.fs.identity import files, invitations, joining, places, roles

KIND = current.MACHINE
CERTIFICATES = "certificates"
ORDER = (CERTIFICATES, roles.ETCD, roles.CONTROLLER, switched.TIMESLICES, roles.NAMESERVER, roles.DATASERVER,
         roles.METADATA_STORE, roles.MOUNT, roles.HOST_AGENT)
"""In which they are started."""

PORTS = {CERTIFICATES: 7450, roles.NAMESERVER: 7400, roles.DATASERVER: 7500}
REST_PORT = 8080


@dataclass(frozen=True)
class Part:
    """Of this machine: its name, its IP address, where its filesystem is mounted, empty: nowhere, the directories of
    its dataserver, if not one below its own, and what its link carries, if not what its driver says."""

    directory: Path
    machine: str
    address: str
    mount: str = ""
    disks: Sequence[Path] = ()
    rate_bps: int | None = None


def first(part: Part, chosen: Sequence[str], replication: int, others: str = "") -> current.Current:
    """Begin an installation with an authority and a namespace of its own, which the `others`, NAME=IP,NAME=IP, keep
    with this machine. Raises InvalidSetting, IdentityError, StartFailed."""
    from speedwell.fs.identity.authority import Authority  # takes 30 ms

    is_made = _require_new(part)
    machines = etcd_machines.together(part.machine, part.address, others) if others else {}
    if machines:
        chosen = [*dict.fromkeys([*chosen, roles.ETCD, roles.NAMESERVER])]
    directory = part.directory / identities.FOLDER
    try:
        Authority.make(directory).ensure([
            (roles.AUTHORITY, roles.AUTHORITY), identities.OPERATORS,
            *((invitations.name_of(part.machine, role, part.address), invitations.certified(role))
              for role in chosen if role != roles.HOST_AGENT)], part.address)
        found = {"nameserver": ",".join(_at(address, PORTS[roles.NAMESERVER])
                                        for address in machines.values() or [part.address]),
                 "etcd": etcd_machines.as_text(machines), "replication": str(replication),
                 "controller": controller_at(part.address) if roles.CONTROLLER in chosen else ""}
        found |= switched.told(directory, chosen, part.address, found)
        processes = _write(part, chosen, found)
        if not machines:    # an etcd that is empty is a new one
            _begin_namespace(processes, part, found["nameserver"])
    except BaseException:
        if part.directory.is_dir():
            for path in part.directory.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if is_made:
                part.directory.rmdir()
        raise
    return remember(processes)


def join(part: Part, token: invitations.Token, tell: Callable[[current.Current], None]) -> None:
    """Take part in an installation, and `tell` of it. What was interrupted may be repeated until that is done. Raises
    InvalidSetting, IdentityError."""
    _require_new(part, identities.FOLDER)
    if roles.ETCD in token.roles:
        require_etcd()
    joining.join(part.directory / identities.FOLDER, token,
                 lambda found: tell(remember(_write(part, token.roles, found))))


def present(processes: Processes) -> list[str]:
    """The roles that this machine has, in the order in which they start."""
    return [role for role in ORDER if (processes.directory / settings_file(role)).exists()]


def settings_file(role: str) -> str:
    return "etcd.env" if role == roles.ETCD else f"{role}.toml"


def elsewhere(processes: Processes, role: str) -> list[Path]:
    """The directories outside of this machine's own in which a role writes. Raises InvalidSetting."""
    file = processes.directory / settings_file(role)
    try:
        values = tomllib.loads(file.read_text()) if file.suffix == ".toml" else {}
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(f"{file}: it is no TOML: {error}") from None
    named = values.get("directory", [])
    written = [Path(each) for each in (named if isinstance(named, list) else [named])]
    written += [Path(values["audit_log"]).parent] if "audit_log" in values else []
    return [path for path in written if not path.is_relative_to(processes.directory)]


def unit_of(role: str) -> str:
    return f"speedwell-{role}.service"


def invited(processes: Processes, machine: str, chosen: Sequence[str], address: str,
            replaces: bool = False) -> tuple[list[str], str, dict[str, str]]:
    """What a machine that joins gets by its token: the roles that go with those `chosen`, its IP address where that
    is known, and what it is told of the installation. Who `replaces` one that keeps the names does so, too. Raises
    InvalidSetting."""
    settings = processes.settings
    told = {"nameserver": settings.get("addresses", {}).get("nameserver", ""),
            **{name: settings.get(name, "") for name in ("etcd", "replication", "scheduler")},
            "controller": controllers(processes)}
    machines = etcd_machines.parsed(told["etcd"])
    if replaces and machine in machines:
        chosen, told["replaces"] = [*chosen, roles.NAMESERVER], machine
    if machines and {roles.NAMESERVER, roles.ETCD} & set(chosen):
        if machine not in machines or address not in ("", machines[machine]):
            raise InvalidSetting(f"{machine}: the machines that keep the names are {told['etcd']}, as "
                                 "`speedwell init` was told")
        chosen, address = [*dict.fromkeys([*chosen, roles.NAMESERVER, roles.ETCD])], machines[machine]
    if roles.CONTROLLER in chosen and address:
        # without an etcd they cannot agree on who leads
        known = told["controller"] if machines and roles.NAMESERVER in chosen else ""
        told["controller"] = ",".join(dict.fromkeys(filter(None, (known, controller_at(address)))))
    told |= switched.told(processes.directory / identities.FOLDER, chosen, address, told)
    certified = [role for role in chosen if role != roles.HOST_AGENT]
    if not certified:
        raise InvalidSetting(f"{roles.HOST_AGENT}: it has no certificate, by which a machine joins: name one more "
                             f"role, for example {roles.READER}")
    return certified, address, told


def note_invited(processes: Processes, told: Mapping[str, str]) -> None:
    """Commands here, and machines that are invited later, know the controllers and schedulers that this one gets."""
    if processes.settings.get("kind") != KIND:
        return
    before = {"controller": controllers(processes), "scheduler": processes.settings.get("scheduler", "")}
    # a controller that does not share the etcd leads nobody else
    known = {name: told[name] for name in before
             if {*before[name].split(",")} - {""} < {*told[name].split(",")} - {""}}
    if known:
        processes.settings |= known
        processes.save()
        remember(processes)
    else:   # an authority of an earlier version has told nobody
        _tell_controllers(processes.directory / identities.FOLDER, before["controller"])


def replace(processes: Processes, machine: str, address: str) -> None:
    """Take back what `machine` at `address` had, which was lost with its disk, and have etcd expect another one in
    its place. Raises InvalidSetting, IdentityError, StorageFailed."""
    from speedwell.fs.identity.authority import Authority  # takes 30 ms

    folder = processes.directory / identities.FOLDER
    machines = etcd_machines.parsed(processes.settings.get("etcd", ""))
    authority = Authority(folder)
    valid = {each.name: each for each in authority.newest().values() if each.revoked_at is None}
    names = valid.keys() & {invitations.name_of(machine, role, address) for role in roles.JOINING}
    for name in sorted(names):
        if not valid[name].elsewhere:
            raise InvalidSetting(f"--replace: the certificate of {name} is this machine's own")
    if machine in machines:
        etcd_machines.replace(folder, machine, machines)
    invitations.withdraw(folder, machine)
    for name in names:
        authority.revoke(name)


def adopt(processes: Processes, copy: Path) -> None:
    """Make this machine the authority's, from a copy, as the one that had it was lost: what that one held as such is
    revoked. Raises InvalidSetting, also if an authority answers still, IdentityError, AlreadyRunning."""
    from speedwell.fs.identity import copies  # takes 30 ms

    folder, address = processes.directory / identities.FOLDER, processes.settings["address"]
    with over_supervisor(processes, "`speedwell identity restore`"):
        if processes.settings["authority"]:
            raise InvalidSetting("this machine has the certificate authority already")
        listen = _at(address, PORTS[CERTIFICATES])
        if other := joining.answering(folder, but=listen):
            raise InvalidSetting(f"the certificate authority still answers at {other}: switch that machine off first")
        authority = copies.read(copy, folder)
        for name, role in ((roles.AUTHORITY, roles.AUTHORITY), identities.OPERATORS):
            if (newest := authority.newest().get(name)) is not None and newest.revoked_at is None:
                authority.revoke(name)
            authority.issue(name, role)
        durable.replace(processes.directory / settings_file(CERTIFICATES),
                        _toml({"directory": folder, "listen": listen}).encode(), 0o644)
        processes.stop(names=[CERTIFICATES])
        processes.settings |= {"authority": listen, "user": str(identities.of_operator(processes.directory))}
        processes.save()
    remember(processes)


def wanted(processes: Processes) -> list[str]:
    """What runs while the machine takes part, but for the supervisor. What somebody has unmounted stays so."""
    mountpoint = processes.settings["mount"]
    is_mounted = mountpoint and (processes.find(roles.MOUNT) or ours(processes, Path(mountpoint)))
    return [role for role in present(processes) if role != roles.MOUNT or is_mounted]


def command_again(processes: Processes, role: str) -> Command:
    if role == roles.ETCD:
        return etcd_machines.command(processes.directory)
    return Command(role, [program(f"speedwell-{role}"), "--config", str(processes.directory / settings_file(role))])


def up(processes: Processes, with_metrics: bool = False) -> list[str]:
    """Start what does not run; returns what was started. From `with_metrics` on the supervisor answers Prometheus.
    Raises StartFailed (what was started is stopped again); InvalidSetting where systemd does that; AlreadyRunning if
    another command is at work."""
    if processes.settings.get("systemd"):
        raise InvalidSetting("systemd starts what runs here: "
                             f"`systemctl start {' '.join(unit_of(role) for role in present(processes))}`")
    with over_supervisor(processes, "`speedwell up`"):
        processes.forget_dead()
        if with_metrics or processes.settings.get("metrics"):
            _let_supervisor_tell(processes)
        started: list[str] = []
        try:
            for role in present(processes):
                if not processes.find(role):
                    processes.start(command_again(processes, role))
                    started.append(role)
            start_supervisor(processes, started)
        except BaseException:
            processes.stop(names=started)
            raise
    remember(processes)
    return started


def remember(processes: Processes) -> current.Current:
    """Commands on this machine find it. Raises OSError."""
    found = described(processes)
    if not found.nameserver:
        return found
    current.write(found)
    # of an installation of a version that told nobody, too
    _tell_controllers(processes.directory / identities.FOLDER, found.controller or "")
    if found.identity:
        controllers = [urlsplit(url).netloc for url in (found.controller or "").split(",") if url]
        places.remember(",".join((found.nameserver, *controllers)), Path(found.identity))
    return found


def controllers(processes: Processes) -> str:
    """The URLs of those that this machine knows, with commas between them."""
    return places.controllers_for(processes.directory / identities.FOLDER / roles.OPERATOR,
                                  str(processes.settings.get("controller", "")))


def described(processes: Processes) -> current.Current:
    settings = processes.settings
    return current.Current(KIND, str(processes.directory), settings["addresses"]["nameserver"],
                           controllers(processes) or None, [settings["mount"]] if settings["mount"] else [],
                           settings["user"])


def own_address(other: str) -> str:
    """Of this machine, as `other`, HOST:PORT, sees it."""
    host, port = parse_address(other, "authority")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        unsent.connect((host, port))
        return str(unsent.getsockname()[0])


def controller_at(address: str) -> str:
    """The URL of a machine's."""
    return f"https://{_at(address, REST_PORT)}"


# ------------------------------------------------------------------ private


def _let_supervisor_tell(processes: Processes) -> None:
    recorded = processes.settings.get("metrics", {})
    running = [SUPERVISOR] if processes.find(SUPERVISOR) else []
    addresses = local_metrics.addresses(recorded, [SUPERVISOR], running, processes.settings.get("address", LOOPBACK))
    if addresses == recorded:
        return
    processes.stop(names=[SUPERVISOR])
    processes.settings["metrics"] = addresses
    processes.save()
    local_metrics.write_targets(processes, {})


def _at(address: str, port: int) -> str:
    return f"{bracketed(address)}:{port}"


def _require_new(part: Part, left: str = "") -> bool:
    """Whether its directory has to be made; it may have what is called `left` in it."""
    if not is_ip(part.address):
        raise InvalidSetting(f"--address: {part.address!r} is not an IP address")
    if (address := ip_address(part.address)).is_unspecified or address.is_multicast:
        raise InvalidSetting(f"--address: others cannot reach a machine at {part.address}: name an address of one of "
                             "its interfaces")
    is_begun = left and joining.is_begun(part.directory / left)
    if part.directory.exists() and not is_begun and any(path.name != left for path in part.directory.iterdir()):
        raise InvalidSetting(f"{part.directory} is not empty: name a new directory")
    return not part.directory.exists()


def _write(part: Part, chosen: Sequence[str], found: Mapping[str, str]) -> Processes:
    """The files of each role, and the state by which commands find this part."""
    directory, folder = part.directory, part.directory / identities.FOLDER
    is_first = (folder / "authority.key").exists()
    machines = etcd_machines.parsed(found.get("etcd", ""))
    address = machines.get(part.machine, part.address)
    # one that shares no etcd with others leads this machine's programs, too
    is_alone = roles.CONTROLLER in chosen and not is_first and not (machines and roles.NAMESERVER in chosen)
    common = {"nameserver": found["nameserver"], "controller": found["controller"] if is_alone else OF_INSTALLATION}
    _tell_controllers(folder, found["controller"])
    listens = {role: _at(address, port) for role, port in PORTS.items()}
    etcd = {"etcd": etcd_machines.endpoints(machines),      # which takes nameservers' certificates alone
            "etcd_identity": folder / invitations.name_of(part.machine, roles.NAMESERVER)} if machines else {}
    settings: dict[str, dict[str, Any]] = {
        CERTIFICATES: {"directory": folder, "listen": listens[CERTIFICATES] if is_first else None},
        roles.NAMESERVER: {"listen": listens[roles.NAMESERVER], "directory": directory / roles.NAMESERVER,
                           "replication": int(found.get("replication") or 3), "controller": common["controller"],
                           "audit_log": directory / "audit.log", **etcd},
        roles.DATASERVER: {**common, "id": part.machine, "listen": listens[roles.DATASERVER], "rack": part.machine,
                           "directory": list(part.disks) or [directory / roles.DATASERVER]},
        roles.CONTROLLER: {"openflow_host": address, "rest_host": address, "rest_port": REST_PORT,
                           **(etcd if roles.NAMESERVER in chosen else {})},
        roles.MOUNT: {**common, "mountpoint": part.mount, "foreground": True, "local_host": address}}
    settings = {role: {**values, "identity": folder / invitations.name_of(part.machine, role)}
                for role, values in settings.items() if role in chosen} | {CERTIFICATES: settings[CERTIFICATES]}
    settings |= switched.settings(directory, found, chosen, folder / invitations.name_of(
        part.machine, roles.SCHEDULER), os.geteuid() == 0, part.rate_bps)
    for role, values in settings.items():
        if (role == roles.MOUNT and not part.mount) or (role != CERTIFICATES and not found["nameserver"]):
            continue
        if role == roles.MOUNT:
            Path(part.mount).mkdir(parents=True, exist_ok=True)
        durable.replace(directory / f"{role}.toml", _toml(values).encode(), 0o644)
    if roles.ETCD in chosen:
        etcd_machines.write(directory, folder, part.machine, machines, found.get("replaces") == part.machine)
    processes = Processes(directory)
    user = next((name for role in (roles.OPERATOR, roles.READER, roles.MOUNT)
                 if (folder / (name := invitations.name_of(part.machine, role))).exists()), "")
    processes.settings = {
        "kind": KIND, "address": address, "mount": part.mount, "nameservers": 1, "etcd_ports": [], "identity": False,
        "controller": found["controller"], "etcd": found.get("etcd", ""),
        "replication": found.get("replication", ""), "scheduler": found.get("scheduler", ""),
        "addresses": {"nameserver": found["nameserver"]},
        "user": str(identities.of_operator(directory) if is_first else folder / user if user else ""),
        "authority": listens[CERTIFICATES] if is_first else ""}
    processes.save()
    return processes


def _tell_controllers(folder: Path, urls: str) -> None:
    """All on this machine, and on those that hear its authority, know them."""
    if urls:
        durable.replace_others([(folder / files.CONTROLLERS, urls.encode())])


def _begin_namespace(processes: Processes, part: Part, nameserver: str) -> None:
    """Once and for all: from now on an empty directory means that the namespace was lost."""
    if roles.NAMESERVER not in present(processes):
        return
    command = command_again(processes, roles.NAMESERVER)
    processes.start(Command(command.name, [*command.argv, "--new"]))
    try:
        own_root_directory(nameserver, identities.of_operator(part.directory))
    finally:
        processes.stop()


def _toml(values: Mapping[str, Any]) -> str:
    """Its texts, lists, numbers and truth values are those of JSON, but for one sign."""
    return "".join(f"{key} = {json.dumps(value, default=str, ensure_ascii=False)}\n"
                   for key, value in values.items() if value is not None).replace("\x7f", "\\u007f")
