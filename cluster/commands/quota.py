"""speedwell quota"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from speedwell.cluster.commands.connection import Target, connection_options
from speedwell.cluster.commands.output import echo, echo_json
from speedwell.cluster.commands.watching import watch_options
from speedwell.cluster.tables import echo_table
from speedwell.fs import units
from speedwell.fs.option_types import Size

if TYPE_CHECKING:
    from speedwell.fs.proto.speedwell_pb2 import QuotaRecord


@click.group()
def quota() -> None:
    """Limit what lies in a directory with everything below it.

    A program that would add more gets EDQUOT ("Disk quota exceeded").
    """


@quota.command("set")
@click.argument("path")
@click.option("--bytes", "max_bytes", type=Size(), help="Lengths of the files, one replica of each: 10GiB.")
@click.option("--files", "max_files", type=click.IntRange(1), metavar="N",
              help="Files and directories, with PATH itself.")
@connection_options
def set_quota(path: str, max_bytes: int | None, max_files: int | None, target: Target) -> None:
    """Put limits on the directory PATH, in the place of those it has.

    Less than there is already is allowed: then nothing can be added.
    """
    if max_bytes is None and max_files is None:
        raise click.UsageError("give --bytes, --files, or both", click.get_current_context())
    with target.connect() as client:
        client.metadata.operator.set_quota(path, max_bytes=max_bytes, max_files=max_files)


@quota.command()
@click.argument("path")
@connection_options
def clear(path: str, target: Target) -> None:
    """Take the limits from the directory PATH."""
    with target.connect() as client:
        if not client.metadata.operator.set_quota(path):
            echo(f"{path} had no quota")


@quota.command()
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="One JSON list; sizes in bytes.")
@watch_options
@connection_options
def show(path: str, as_json: bool, target: Target) -> None:
    """Show the quotas that hold in PATH, the innermost first."""
    with target.connect() as client:
        _print(client.metadata.quotas(path), as_json, f"no quota holds in {path}")


@quota.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON list; sizes in bytes.")
@watch_options
@connection_options
def list_quotas(as_json: bool, target: Target) -> None:
    """List all quotas, with the paths of when they were set."""
    with target.connect() as client:
        _print(client.metadata.quotas(), as_json, "there are no quotas")


def _print(quotas: Sequence[QuotaRecord], as_json: bool, none: str) -> None:
    if as_json:
        echo_json([_document(record) for record in quotas])
        return
    if not quotas:
        echo(none)
        return
    columns = ("directory", "used", "allowed", "files", "files allowed", "state")
    echo_table(columns, [(os.fsdecode(record.path), units.size(record.used_bytes),
                          units.size(record.max_bytes) if record.HasField("max_bytes") else "any",
                          str(record.used_files), str(record.max_files) if record.HasField("max_files") else "any",
                          "counting" if record.counting else "counted") for record in quotas], columns[1:5])


def _document(record: QuotaRecord) -> dict[str, Any]:
    return {"path": os.fsdecode(record.path), "used_bytes": record.used_bytes, "used_files": record.used_files,
            "max_bytes": record.max_bytes if record.HasField("max_bytes") else None,
            "max_files": record.max_files if record.HasField("max_files") else None, "counting": record.counting}
