"""speedwell quarantine"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from speedwell.cluster.commands.connection import Target, connection_options
from speedwell.cluster.commands.output import echo, echo_json
from speedwell.cluster.errors import ClusterError
from speedwell.cluster.tables import echo_table
from speedwell.fs import units

if TYPE_CHECKING:
    from speedwell.fs.client import Client
    from speedwell.fs.proto.speedwell_pb2 import FileReport, Replica

PIECE_BYTES = 4 << 20


@click.group()
def quarantine() -> None:
    """Contents without a file, kept for some days."""


@quarantine.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON list; sizes in bytes.")
@connection_options
def list_quarantine(as_json: bool, target: Target) -> None:
    """List what is kept, where, under which path it was made, and for how long it stays."""
    with target.connect(for_bytes=True) as client:
        rows = [_document(server, report) for server, report in _found(client)]
    if as_json:
        echo_json(rows)
    elif not rows:
        echo("nothing is in quarantine")
    else:
        echo_table(("content", "dataserver", "size", "goes in", "path"),
                   [(row["content"], row["dataserver"], units.size(row["size_bytes"]),
                     units.about(row["seconds_left"]), row["path"] or row["damage"]) for row in rows],
                   ("size", "goes in"))


@quarantine.command()
@click.argument("content")
@click.argument("path", required=False)
@connection_options
def restore(content: str, path: str | None, target: Target) -> None:
    """Make the bytes of CONTENT the new file PATH (default: the path under which they were made)."""
    from speedwell.fs.proto.speedwell_pb2 import QuarantineOperation

    with target.connect(for_bytes=True) as client:
        copies = [(server, report) for server, report in _found(client)
                  if report.file_id == content and not report.damage]
        if not copies:
            raise ClusterError(f"no dataserver that can be reached has {content!r} in quarantine; "
                               "`speedwell quarantine list` shows what there is")
        server, report = max(copies, key=lambda copy: copy[1].size)
        _ask(client, server, QuarantineOperation(restore=content))
        destination = os.fsencode(path) if path else report.path
        _copy(client, server, report, destination)
        echo(f"{os.fsdecode(destination)}: {units.size(report.size)}")


@quarantine.command()
@connection_options
def empty(target: Target) -> None:
    """Delete all that is in quarantine now."""
    from speedwell.cluster.fsck import live_servers
    from speedwell.fs.proto.speedwell_pb2 import QuarantineOperation

    with target.connect(for_bytes=True) as client:
        for server in live_servers(client.metadata):
            _ask(client, server, QuarantineOperation(empty=True))


def _found(client: Client) -> list[tuple[Replica, FileReport]]:
    from speedwell.cluster.fsck import inventory_of, live_servers

    return [(server, report) for server in live_servers(client.metadata)
            for report in inventory_of(server, client.metadata, quarantined=True).values()]


def _document(server: Replica, report: FileReport) -> dict[str, Any]:
    return {"content": report.file_id, "dataserver": server.dataserver_id, "inode": report.inode,
            "size_bytes": report.size, "path": os.fsdecode(report.path), "seconds_left": report.seconds_left,
            "damage": report.damage}


def _ask(client: Client, server: Replica, operation: Any) -> None:
    from speedwell.fs.proto.speedwell_pb2 import OK, DataReply, DataRequest
    from speedwell.fs.wire.identification import connect_identified

    channel = connect_identified(server, client.metadata)
    try:
        channel.send(DataRequest(quarantine=operation, token=client.metadata.operator.authorize()))
        reply = channel.expect(DataReply)
    finally:
        channel.close()
    if reply.status != OK:
        raise ClusterError(f"dataserver {server.dataserver_id}: {reply.message}")


def _copy(client: Client, server: Replica, report: FileReport, path: bytes) -> None:
    """Raises AlreadyExists, ReadFailed: then there is no new file."""
    from speedwell.fs.proto.speedwell_pb2 import REGULAR, Attributes

    kept = Attributes(inode=report.inode, type=REGULAR, size=report.size, file_id=report.file_id, replicas=[server],
                      chunk_size=1 << 28, epoch=1, token=client.metadata.operator.authorize())
    made = client.create(path, exclusive=True)
    try:
        with client.open_read(path, kept, strong=False) as reader, client.open_append(path, made) as appender:
            for offset in range(0, report.size, PIECE_BYTES):
                appender.write(reader.read(offset, min(PIECE_BYTES, report.size - offset)))
    except BaseException:
        client.remove(path)
        raise
