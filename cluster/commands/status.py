"""speedwell status"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from speedwell.cluster import current, mounts
from speedwell.cluster.commands.connection import (
    checked_nameserver,
    installation_option,
    last_started,
    one_installation,
)
from speedwell.cluster.commands.output import echo, echo_json, replica_document
from speedwell.cluster.commands.watching import watch_options
from speedwell.cluster.errors import ClusterError
from speedwell.cluster.processes import Processes, is_running, resident_bytes
from speedwell.cluster.supervision import Told, told
from speedwell.cluster.tables import echo_table
from speedwell.fs import units
from speedwell.fs.addresses import bracketed
from speedwell.fs.errors import NotAuthenticated
from speedwell.fs.identity.known import identity_for
from speedwell.fs.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from speedwell.fs.proto.speedwell_pb2 import StatisticsReply

MOST_ROWS = 24
"""With more, processes that are well are counted."""
KINDS = {"agent": "host agent", "metadata": "metadata server", "etcd": "etcd member"}
"""By the beginning of a process' name, where that is not what it is called."""
ORDINARY = {"running", "alive", "free"}
NAMESERVER_TIMEOUT_SECONDS = 2.0
ROLE_TIMEOUT_SECONDS = 1.0


@dataclass
class Status:
    """What is known of an installation. `problems` is empty when everything that should run does. `roles` says, by
    address, of each of several nameservers whether it "leads", "follows", gives "no answer" or is "refused", as its
    certificate was revoked, and what host agents and their scheduler do."""

    nameserver: str
    installation: current.Current | None = None
    roles: dict[str, str] = field(default_factory=dict)
    processes: list[dict[str, Any]] = field(default_factory=list)
    mounts: dict[str, bool] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)
    statistics: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)


@click.command()
@click.option("--nameserver", metavar="HOST:PORT", envvar="SPEEDWELL_NAMESERVER", callback=checked_nameserver,
              help="Another installation's nameserver; its processes are then not looked at.")
@click.option("--local", "directory", type=click.Path(path_type=Path), metavar="DIR",
              help="The local installation in DIR; default: the one started last.")
@installation_option
@click.option("--all", "shows_all", is_flag=True, help=f"A row for each process, also where there are more than "
              f"{MOST_ROWS}.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; sizes in bytes.")
@watch_options
@click.pass_context
def status(context: click.Context, nameserver: str | None, directory: Path | None, installation: Path | None,
           shows_all: bool, as_json: bool) -> None:
    """Show processes, capacity, dataservers and mounts.

    The last lines say what is wrong, or that all is well. The exit code is 1 if something is wrong.
    Of many processes those that are well are counted; the others have a row each.
    """
    one_installation(installation, directory)
    state = _gather(nameserver, directory, installation)
    if as_json:
        echo_json(asdict(state))
    else:
        _print(state, shows_all)
    context.exit(1 if state.problems else 0)


def _gather(nameserver: str | None, directory: Path | None, named: Path | None) -> Status:
    if nameserver is not None and directory is None and named is None:
        state = Status(nameserver)
    else:
        installation = (current.in_directory(named) if named is not None
                        else _local(directory) if directory is not None else last_started())
        state = Status(installation.nameserver, installation)
        _add_processes(state, installation)
    nameservers = [process["alive"] for process in state.processes if process["name"].startswith("nameserver")]
    if any(nameservers) or state.installation is None or current.is_of_systemd(state.installation):
        _add_roles(state)
        _add_statistics(state)
    _add_turns(state)
    if state.installation is not None and state.installation.controller and state.processes:
        _add_policies(state, state.installation.controller)
    return state


def _local(directory: Path) -> current.Current:
    from speedwell.cluster import local

    return local.describe(directory)


def _add_processes(state: Status, installation: current.Current) -> None:
    supervised = told(Path(installation.directory))
    restarts = supervised or {}
    records = Processes(Path(installation.directory)).records
    for record in records:
        alive = is_running(record)
        if not alive and record.address in installation.mounts and not mounts.is_dead(Path(record.address)):
            continue    # unmounted, or mounted again by hand
        of_process = restarts.get(record.name, Told())
        state.processes.append({"name": record.name, "pid": record.pid, "alive": alive,
                                "address": record.address, "memory_bytes": resident_bytes(record),
                                "log": record.log, "restarts": of_process.count,
                                "last_restart": of_process.reason if of_process.count else ""})
        if not alive:
            who = installation.up_again if supervised is None else "the supervisor"
            state.problems.append(f"{record.name} is not running any more, its log is {record.log}; "
                                  f"{who} starts it again")
    names = {record.name for record in records}
    state.problems += [f"{name} does not run: {each.reason}; the supervisor tried {each.failures} times and goes on"
                       for name, each in restarts.items() if name not in names]
    if supervised is None and any(process["alive"] for process in state.processes):
        state.problems.append(f"no supervisor runs that starts again what ends; {installation.up_again} starts one")
    meant = installation.mounts if records else []
    made_later = map(str, mounts.of_installation(installation.directory, installation.nameserver))
    for mountpoint in dict.fromkeys([*meant, *made_later]):
        condition = mounts.condition(Path(mountpoint))
        state.mounts[mountpoint] = condition is mounts.Condition.MOUNTED
        if condition is mounts.Condition.SILENT:
            state.problems.append(f"the mount {mountpoint} does not answer")
        elif not state.mounts[mountpoint]:
            state.problems.append(f"{mountpoint} is not mounted; {installation.up_again} mounts it again")
    if not records and not current.is_of_systemd(installation):
        state.problems.append(f"it is stopped; {installation.up_again} starts it again")


def _add_roles(state: Status) -> None:
    from speedwell.fs.client.names.nameservers import leads, parse_addresses

    addresses = parse_addresses(state.nameserver)
    if len(addresses) > 1:
        for address in addresses:
            try:
                found = leads(address, ROLE_TIMEOUT_SECONDS, _identity(state))
            except NotAuthenticated as error:   # it may be the only one
                state.roles[address] = "refused"
                state.problems.append(f"the nameserver {address}: {error}")
                continue
            state.roles[address] = "no answer" if found is None else "leads" if found else "follows"
            if found is None and state.installation is not None and state.installation.kind == current.MACHINE:
                state.problems.append(f"the nameserver {address} does not answer")


def _add_turns(state: Status) -> None:
    alive = {each["name"]: each["address"] for each in state.processes if each["alive"] and each["address"]}
    scheduler = alive.get("timeslices")
    if scheduler is None:
        return
    from speedwell.cluster import host_agents

    try:
        turns = host_agents.turns(scheduler.split()[-1])
    except ClusterError as error:
        state.problems.append(str(error))
        return
    found = {address: turns.get(address.split()[0]) for name, address in alive.items()
             if name.startswith(("agent-", "host-agent"))}
    state.roles[scheduler] = f"hears {counted(len(turns), 'agent')}"
    state.roles |= {address: "not heard" if number is None else f"turns to {counted(number, 'host')}" if number
                    else "free" for address, number in found.items()}


def _add_policies(state: Status, controller: str) -> None:
    from speedwell.cluster.controller_client import ask

    try:
        state.policies = ask(controller, "/v1/health")["policies"]
    except ClusterError as error:
        state.problems.append(str(error))


def _add_statistics(state: Status) -> None:
    from speedwell.fs.client.names.metadata import MetadataClient
    from speedwell.fs.errors import NameserverUnavailable, NotAuthenticated

    client = MetadataClient(state.nameserver, call_timeout_seconds=NAMESERVER_TIMEOUT_SECONDS,
                            identity=_identity(state))
    try:
        reply = client.statistics()
    except (NameserverUnavailable, NotAuthenticated) as error:
        state.problems.append(str(error))
        return
    finally:
        client.close()
    state.statistics = _document(reply)
    state.problems += _wrong(reply, state.statistics)


def _wrong(reply: StatisticsReply, statistics: dict[str, Any]) -> list[str]:
    """What the nameserver's answer says is wrong; `statistics` is it as a document."""
    problems = [*reply.warnings]
    servers = statistics["dataservers"]
    problems += [f"dataserver {server['dataserver_id']} is dead: no heartbeat for "
                 f"{units.about(server['last_heartbeat_seconds_ago'])}" for server in servers if not server["alive"]]
    alive, least = sum(server["alive"] for server in servers), _least(statistics)
    if alive < least:
        problems.append(f"no file can be made: {counted(alive, 'dataserver')} alive, a change needs "
                        f"{counted(least, 'replica')}")
    if reply.unwritable:
        problems.append(f"{counted(reply.unwritable, 'file')} cannot be changed: fewer than "
                        f"{counted(reply.min_replicas, 'replica')} alive")
    return problems


def _identity(state: Status) -> Path | None:
    installation = state.installation
    return Path(installation.identity) if installation is not None and installation.identity else None


def _document(reply: StatisticsReply) -> dict[str, Any]:
    servers = [{**replica_document(entry.server), "capacity_bytes": entry.capacity_bytes,
                "available_bytes": entry.available_bytes,
                "last_heartbeat_seconds_ago": entry.last_heartbeat_seconds_ago, "release": entry.release,
                "directories": [{"path": use.path, "capacity_bytes": use.capacity_bytes,
                                 "available_bytes": use.available_bytes, "failure": use.failure}
                                for use in entry.directories]}
               for entry in reply.dataservers]
    return {"files": reply.files, "directories": reply.directories, "capacity_bytes": reply.capacity_bytes,
            "available_bytes": reply.available_bytes, "replication": reply.replication,
            "chunk_size": reply.chunk_size, "dataservers": servers, "namespace": reply.namespace.hex(),
            "awaited_inventories": list(reply.awaited_inventories), "fsync": reply.fsync, "release": reply.release,
            "min_replicas": reply.min_replicas, "unwritable_files": reply.unwritable,
            "insecure": list(reply.insecure), "placed_by_controller": dict(reply.placed_by_controller)}


def _print(state: Status, shows_all: bool = False) -> None:
    if state.installation is not None:
        where = f" in {state.installation.directory}"
        steered = f", controller {state.installation.controller}" if state.installation.controller else ""
        echo(f"{state.installation.kind} installation{where}: nameserver {state.nameserver}{steered}")
    else:
        echo(f"nameserver {state.nameserver}")
    if not (state.installation.identity if state.installation is not None
            else identity_for(state.nameserver) or not state.statistics):
        echo("it has no identities: everybody who reaches its ports may do anything")
    if state.roles and state.installation is None:
        echo(", ".join(f"{address} {role}" for address, role in state.roles.items()))
    if state.policies:
        echo("reads are placed by {replica_policy} with paths by {path_policy}, new large files by {placement_policy}"
             .format_map(state.policies))
    if state.installation is not None and state.installation.systems:
        echo(f"with {', '.join(state.installation.systems)}")
    for mountpoint, alive in state.mounts.items():
        echo(f"mount {mountpoint}: {'mounted' if alive else 'NOT WORKING'}")
    if state.statistics is not None:
        _print_statistics(state.statistics)
    _print_servers(state, shows_all)
    servers = (state.statistics or {}).get("dataservers", [])
    if shows_all or len(servers) <= MOST_ROWS:
        _print_disks(servers)
    for process in state.processes:
        if process["restarts"]:
            times = "once" if process["restarts"] == 1 else f"{process['restarts']} times"
            echo(f"{process['name']} was started again {times}, the last time because {process['last_restart']}")
    for problem in state.problems:
        click.echo(f"speedwell: {problem}", err=True)
    if not state.problems:
        echo("all is well")


def _least(statistics: dict[str, Any]) -> int:
    """How many replicas of a new file a change needs."""
    least: int = min(statistics["min_replicas"], statistics["replication"])
    return least


def _print_statistics(statistics: dict[str, Any]) -> None:
    servers = statistics["dataservers"]
    alive = sum(server["alive"] for server in servers)
    echo(f"{counted(statistics['files'], 'file')}, {counted(statistics['directories'], 'directory')}; "
         f"{units.size(statistics['available_bytes'])} of {units.size(statistics['capacity_bytes'])} free")
    echo(f"{counted(statistics['replication'], 'replica')}, at least {_least(statistics)} for a change, "
         f"fsync policy {statistics['fsync']}; chunks of {units.size(statistics['chunk_size'])}")
    echo(f"dataservers: {alive} alive, {len(servers) - alive} dead")
    if len(releases := _releases(statistics)) > 1:
        echo("an upgrade is under way: " + "; ".join(f"{', '.join(names)} {release or 'an earlier release'}"
                                                     for release, names in sorted(releases.items())))
    if statistics["insecure"]:
        echo(f"without tokens (--no-tokens): {', '.join(statistics['insecure'])}; everybody who reaches the "
             "data channel is served")
    if statistics["awaited_inventories"]:
        echo(f"deletions wait for the reports of {', '.join(statistics['awaited_inventories'])}")


def _releases(statistics: dict[str, Any]) -> dict[str, list[str]]:
    """Who is of which."""
    found = {statistics["release"]: ["nameserver"]}
    for server in statistics["dataservers"]:
        if server["alive"]:
            found.setdefault(server["release"], []).append(server["dataserver_id"])
    return found


class _Row(NamedTuple):
    """Of the table: numbers are None where nothing is known."""

    kind: str
    name: str
    pid: int | None
    state: str
    memory_bytes: int | None
    address: str
    rack: str
    free_bytes: int | None

    def texts(self) -> tuple[str, ...]:
        memory = units.size(self.memory_bytes) if self.memory_bytes else ""
        free = "" if self.free_bytes is None else units.size(self.free_bytes)
        return self.name, str(self.pid or ""), self.state, memory, self.address, self.rack, free


def _print_servers(state: Status, shows_all: bool = False) -> None:
    """One table of the processes here and the dataservers that the nameserver knows."""
    rows = []
    servers = {server["dataserver_id"]: server
               for server in (state.statistics or {}).get("dataservers", [])}
    at = {f"{bracketed(server['host'])}:{server['port']}": name for name, server in servers.items()}
    for process in state.processes:
        # on a machine of several it is called as the machine is
        name = at.get(process["address"], "") if process["name"] == "dataserver" else process["name"]
        server = servers.pop(name.removeprefix("dataserver-"), None)
        role = "SILENT" if server and not server["alive"] else state.roles.get(process["address"], "running")
        rows.append(_Row("dataserver" if server else process["name"].partition("-")[0], process["name"],
                         process["pid"] if process["alive"] else None, role if process["alive"] else "DEAD",
                         process["memory_bytes"], process["address"], server["rack"] if server else "",
                         server["available_bytes"] if server else None))
    for server in servers.values():
        rows.append(_Row("dataserver", server["dataserver_id"], None, "alive" if server["alive"] else "DEAD", None,
                         f"{server['host']}:{server['port']}", server["rack"], server["available_bytes"]))
    here = {process["address"] for process in state.processes}
    rows += [_Row("nameserver", "nameserver", None, role, None, address, "", None)
             for address, role in state.roles.items() if state.installation is not None and address not in here]
    shown = rows if shows_all or len(rows) <= MOST_ROWS else _summed(rows)
    if rows:
        echo_table(("process", "pid", "state", "memory", "address", "rack", "free"), [row.texts() for row in shown],
                   ("pid", "memory", "free"))
    if len(shown) < len(rows):
        echo("`speedwell status --all` shows each process")


def _summed(rows: list[_Row]) -> list[_Row]:
    """With one row in place of all of a kind of which there is nothing to say."""
    alike: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        if row.state in ORDINARY:
            alike.setdefault((row.kind, row.state), []).append(row)
    found = []
    for row in rows:
        of_kind = alike.get((row.kind, row.state), [])
        if len(of_kind) < 2:
            found.append(row)
        elif row is of_kind[0]:
            racks = len({each.rack for each in of_kind if each.rack})
            found.append(_Row(row.kind, counted(len(of_kind), KINDS.get(row.kind, row.kind)), None, row.state,
                              sum(each.memory_bytes or 0 for each in of_kind), "",
                              counted(racks, "rack") if racks else "", None))     # they may share a disk
    return found


def _print_disks(servers: Sequence[dict[str, Any]]) -> None:
    """Of the dataservers that have several."""
    rows = [(server["dataserver_id"], disk["path"], "FAILED" if disk["failure"] else "in use",
             units.size(disk["capacity_bytes"]) if disk["capacity_bytes"] else "",
             "" if disk["failure"] else units.size(disk["available_bytes"]))
            for server in servers if len(server["directories"]) > 1 for disk in server["directories"]]
    if rows:
        echo("")
        echo_table(("dataserver", "directory", "state", "size", "free"), rows, ("size", "free"))
