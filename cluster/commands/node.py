"""speedwell node"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from speedwell.cluster.commands.connection import Target, connection_options
from speedwell.cluster.commands.output import echo, echo_json
from speedwell.cluster.commands.watching import watch_options
from speedwell.cluster.tables import echo_table
from speedwell.fs import units
from speedwell.fs.command_line import Number
from speedwell.fs.units import counted

if TYPE_CHECKING:
    from speedwell.fs.client import Client


@click.group()
def node() -> None:
    """Look after the dataservers: list, drain, remove, balance and others."""


@node.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON list; sizes in bytes.")
@watch_options
@connection_options
def list_nodes(as_json: bool, target: Target) -> None:
    """List the dataservers with what they hold."""
    with target.connect() as client:
        statuses = client.statistics().dataservers
    rows: list[dict[str, Any]] = [
        {"name": status.server.dataserver_id, "address": f"{status.server.host}:{status.server.port}",
         "rack": status.server.rack, "pod": status.server.pod,
         "state": _state(status.server.alive, status.draining), "replicas": status.replicas,
         "capacity_bytes": status.capacity_bytes, "available_bytes": status.available_bytes,
         "last_heartbeat_seconds_ago": round(status.last_heartbeat_seconds_ago, 1)} for status in statuses]
    if as_json:
        echo_json(rows)
        return
    echo_table(("name", "address", "pod", "rack", "state", "replicas", "free", "disk"),
               [(row["name"], row["address"], row["pod"], row["rack"], row["state"], str(row["replicas"]),
                 units.size(row["available_bytes"]), units.size(row["capacity_bytes"])) for row in rows],
               ("replicas", "free", "disk"))


def _state(alive: bool, draining: bool) -> str:
    return ("draining" if draining else "alive") if alive else "away"


@node.command()
@click.argument("name")
@click.option("--wait", "wait_seconds", type=Number(0), metavar="SECONDS",
              help="Wait until it holds no replica any more; exit code 1 if that takes longer.")
@connection_options
def drain(name: str, wait_seconds: float | None, target: Target) -> None:
    """Move all replicas away from the dataserver NAME; it gets no new ones."""
    from speedwell.cluster.follow import follow

    with target.connect() as client:
        client.metadata.operator.set_draining(name, True)
        follow(f"draining {name}", lambda: len(_wanted_elsewhere(client, name)), wait_seconds or 0.0, "entries")
        left = _wanted_elsewhere(client, name)
        others = sum(status.server.alive and not status.draining for status in client.statistics().dataservers)
    stuck = sum(replicas > others for replicas in left)
    if stuck:
        raise click.ClickException(
            f"{name} keeps {stuck} of its {counted(len(left), 'replica')}: their files are to have up to "
            f"{counted(max(left), 'replica')}, and only {counted(others, 'other dataserver')} in use. Add one, or "
            f"`speedwell node undrain {name}`")
    if wait_seconds is not None and left:
        raise click.ClickException(f"{name} still holds {counted(len(left), 'replica')} after "
                                   f"{units.duration(wait_seconds)}")
    echo(f"{name} holds no replicas any more" if not left else
         f"{name} is being drained: {counted(len(left), 'replica')} to move; `speedwell node list` shows how far "
         "it is")


def _wanted_elsewhere(client: Client, name: str) -> list[int]:
    """For each file that the dataserver `name` has a replica of, how many replicas it is to have."""
    contents = client.metadata.operator.contents()
    return [entry.content.replication for entry in contents if name in entry.dataserver_ids]


@node.command()
@click.argument("name")
@connection_options
def undrain(name: str, target: Target) -> None:
    """Use the dataserver NAME again."""
    with target.connect() as client:
        before = {status.server.dataserver_id: status for status in client.statistics().dataservers}.get(name)
        client.metadata.operator.set_draining(name, False)
    if before is None or not before.draining:
        echo(f"{name} was not being drained: nothing changes")
    else:
        echo(f"{name} gets new replicas again; those that it gave away stay where they are "
             "(`speedwell node balance` moves some back)")


@node.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Remove it although files lose their last replica, and name these files.")
@connection_options
def remove(name: str, force: bool, target: Target) -> None:
    """Forget the dataserver NAME, which is dead and never comes back.

    Refused while it is alive, and while a file has no live replica elsewhere.
    """
    from speedwell.cluster.fsck import names_of

    with target.connect() as client:
        done = client.metadata.operator.remove_dataserver(name, force=force)
        lost = names_of(client.metadata, set(done.lost_inodes))
    echo(f"{name} is removed. {done.replicas - done.lost} files had a replica there and have others; what they lack "
         "is made in the background")
    if not done.lost:
        return
    echo(f"{done.lost} files with {units.size(done.lost_bytes)} are lost with it:")
    for inode in done.lost_inodes:
        echo(f"  {os.fsdecode(lost[inode])}" if inode in lost else f"  inode {inode}, which has no name")
    if done.lost > len(done.lost_inodes):
        echo(f"  and {done.lost - len(done.lost_inodes)} more: speedwell fsck names them")


@node.command()
@click.argument("name")
@connection_options
def adopt(name: str, target: Target) -> None:
    """Have the dataserver NAME, which holds the contents of another namespace, belong to this one.

    Contents that no file here has go to quarantine (`speedwell quarantine`).
    """
    with target.connect() as client:
        client.metadata.operator.adopt(name)
    echo(f"{name} belongs to this namespace from its next heartbeat on; `speedwell status` tells if it is refused")


@node.command()
@click.option("--wait", "wait_seconds", type=Number(0), metavar="SECONDS",
              help="Wait until nothing is to move any more; exit code 1 if that takes longer.")
@connection_options
def balance(wait_seconds: float | None, target: Target) -> None:
    """Move replicas in the background until all dataservers are about equally full."""
    from speedwell.cluster.balance import given, to_move
    from speedwell.cluster.follow import follow

    with target.connect() as client:
        moves = to_move(client.statistics().dataservers)
        if not moves:
            echo("0 moves: all dataservers in use are equally full, to 5 % of their disks")
            return
        for name, count in moves.items():
            echo(f"{name}: {'gives' if count > 0 else 'takes'} about {units.size(abs(count))}")
        client.metadata.operator.balance()
        if wait_seconds is None:
            echo("replicas move in the background; `speedwell node list` shows how far they are")
            return
        left = follow("balancing", lambda: given(to_move(client.statistics().dataservers)), wait_seconds, "bytes")
    if left:
        raise click.ClickException(f"about {units.size(left)} are still to move after "
                                   f"{units.duration(wait_seconds)}; what is under way goes on")
    echo("all dataservers in use are equally full, to 5 % of their disks")
