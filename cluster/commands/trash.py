"""speedwell trash"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from speedwell.cluster.commands.connection import Target, connection_options
from speedwell.cluster.commands.output import DIRECTORY_TYPE, echo, echo_json
from speedwell.cluster.commands.watching import watch_options
from speedwell.cluster.errors import ClusterError
from speedwell.cluster.tables import echo_table
from speedwell.fs import units
from speedwell.fs.limits import MAX_KEEP_SECONDS
from speedwell.fs.option_types import Duration

if TYPE_CHECKING:
    from speedwell.fs.client import Client
    from speedwell.fs.proto.speedwell_pb2 import TrashEntry

SHOWN = 1000
PURGED_AT_ONCE = 500


@click.group()
def trash() -> None:
    """Keep removed files for a while, to bring them back."""


@trash.command()
@click.argument("path", default="/")
@click.option("--keep", "keep_seconds", type=Duration(MAX_KEEP_SECONDS), required=True,
              help="How long they are kept: 30m, 12h, 7d.")
@connection_options
def on(path: str, keep_seconds: int, target: Target) -> None:
    """Keep what is removed in the directory PATH (default: everywhere) and below it."""
    with target.connect() as client:
        client.metadata.trash.keep(path, keep_seconds * 10**9)


@trash.command()
@click.argument("path", default="/")
@connection_options
def off(path: str, target: Target) -> None:
    """Keep nothing any more of what is removed in PATH and below it. What is kept already stays until its time."""
    with target.connect() as client:
        client.metadata.trash.keep(path, 0)


@trash.command("list")
@click.argument("path", default="/")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all of it; sizes in bytes.")
@watch_options
@connection_options
def list_trash(path: str, as_json: bool, target: Target) -> None:
    """List what was removed in PATH (default: everywhere) and is kept; what goes first before the rest.

    A directory and what was removed below it are one row; --json has each.
    """
    with target.connect() as client:
        policies: list[dict[str, Any]] = [{"path": os.fsdecode(policy.path), "keep_seconds": policy.keep_ns // 10**9}
                    for policy in client.metadata.trash.policies()]
        if as_json:
            echo_json({"policies": policies, "entries": [_document(entry) for entry in _below(client, path)]})
            return
        for policy in policies:
            echo(f"files removed in {policy['path']} are kept for {units.duration(policy['keep_seconds'])}"
                 if policy["keep_seconds"] else f"files removed in {policy['path']} are not kept")
        removed = _trees(_below(client, path))
    if removed:
        echo_table(("removed", "kept until", "size", "below it", "path"),
                   [(units.moment(tree.top.removed_ns, seconds=True), units.moment(tree.kept_until_ns),
                     units.size(tree.size_bytes), str(tree.inside), os.fsdecode(tree.top.path))
                    for tree in removed[:SHOWN]],
                   ("removed", "kept until", "size", "below it"))
    else:
        echo(f"the trash has nothing that was removed in {path}")
    if len(removed) > SHOWN:
        echo(f"... only the first {SHOWN}; --json lists all")


@trash.command()
@click.argument("path")
@click.argument("destination", required=False)
@connection_options
def restore(path: str, destination: str | None, target: Target) -> None:
    """Bring back the file or directory PATH as it was removed last, with what was removed below it.

    To DESTINATION if that is given; directories above it that are missing are made. What is there is not replaced; a
    directory that is there gets what is missing in it.
    """
    from speedwell.fs import paths

    top = paths.normalise(path)
    new_top = paths.normalise(destination or path, "destination")
    with target.connect() as client:
        newest: dict[bytes, TrashEntry] = {}
        for entry in _below(client, path):
            if entry.path not in newest or newest[entry.path].removed_ns <= entry.removed_ns:
                newest[entry.path] = entry
        if not newest:
            raise ClusterError(f"the trash has nothing that was removed at {path}: see `speedwell trash list`")
        restored = 0
        for old in sorted(newest):
            new = new_top + old[len(top):] if top != paths.ROOT else paths.join(new_top, old[1:])
            _make_directories(client, paths.parent(new))
            if newest[old].attributes.type == DIRECTORY_TYPE and _is_directory(client, new):
                client.metadata.trash.purge([newest[old]])
            else:
                client.metadata.trash.restore(newest[old], new)
                restored += 1
    echo(f"{os.fsdecode(new)} restored" if len(newest) == 1 else f"{restored} restored")


@trash.command()
@click.argument("path", default="/")
@connection_options
def empty(path: str, target: Target) -> None:
    """Delete now, for good, the removed files of PATH (default: everywhere)."""
    with target.connect() as client:
        entries = list(_below(client, path))
        purged = sum(client.metadata.trash.purge(entries[first:first + PURGED_AT_ONCE])
                     for first in range(0, len(entries), PURGED_AT_ONCE))
    echo(f"{purged} gone for good")


def _below(client: Client, path: str) -> Iterator[TrashEntry]:
    from speedwell.fs import paths

    top = paths.normalise(path)
    entries: Iterable[TrashEntry] = client.metadata.trash.entries()
    return (entry for entry in entries if paths.is_within(entry.path, top))


@dataclass
class _Tree:
    """Something that was removed, with what of it was removed before."""

    top: TrashEntry
    kept_until_ns: int
    size_bytes: int
    inside: int = 0


def _trees(entries: Iterable[TrashEntry]) -> list[_Tree]:
    """One for each entry that no directory removed after it holds, by the time at which they go."""
    from speedwell.fs import paths

    trees: dict[bytes, list[_Tree]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.path.count(b"/"), -entry.removed_ns)):
        above = paths.parent(entry.path)
        while above != paths.ROOT and above not in trees:
            above = paths.parent(above)
        holders = [tree for tree in trees.get(above, ()) if tree.top.removed_ns >= entry.removed_ns]
        if holders:
            tree = min(holders, key=lambda tree: tree.top.removed_ns)
            tree.inside += 1
            tree.size_bytes += entry.attributes.size
            tree.kept_until_ns = min(tree.kept_until_ns, entry.kept_until_ns)
        else:
            trees.setdefault(entry.path, []).append(_Tree(entry, entry.kept_until_ns, entry.attributes.size))
    return sorted((tree for found in trees.values() for tree in found),
                  key=lambda tree: (tree.kept_until_ns, tree.top.path))


def _is_directory(client: Client, path: bytes) -> bool:
    from speedwell.fs.errors import NoSuchFile

    try:
        return client.lookup(path, fresh=True).type == DIRECTORY_TYPE
    except NoSuchFile:
        return False


def _make_directories(client: Client, path: bytes) -> None:
    from speedwell.fs import paths
    from speedwell.fs.errors import AlreadyExists, NoSuchFile

    try:
        client.lookup(path, fresh=True)
    except NoSuchFile:
        _make_directories(client, paths.parent(path))
        try:
            client.mkdir(path)
        except AlreadyExists:
            return


def _document(entry: TrashEntry) -> dict[str, Any]:
    return {"path": os.fsdecode(entry.path), "size_bytes": entry.attributes.size, "inode": entry.attributes.inode,
            "removed": _time(entry.removed_ns), "kept_until": _time(entry.kept_until_ns)}


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().isoformat(" ", "seconds")
