"""speedwell ls, speedwell stat"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from speedwell.cluster.commands.connection import Target, connection_options
from speedwell.cluster.commands.each_path import each_path
from speedwell.cluster.commands.output import (
    DIRECTORY_TYPE,
    LINK_TYPE,
    REGULAR_TYPE,
    attributes_document,
    echo,
    echo_json,
    group_name,
    mode_string,
    printable,
    text,
    type_name,
    user_name,
)
from speedwell.cluster.commands.watching import watch_options
from speedwell.cluster.tables import echo_table
from speedwell.fs import units

if TYPE_CHECKING:
    from speedwell.fs.client import Client
    from speedwell.fs.proto.speedwell_pb2 import Attributes

Entry = tuple[bytes, "Attributes"]


@click.command()
@click.option("-H", "--human", is_flag=True, help="Sizes as KiB, MiB, ...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; sizes in bytes.")
@watch_options
@connection_options
def df(human: bool, as_json: bool, target: Target) -> None:
    """Show how much space there is, in bytes on the dataservers' disks: a file takes its size for each replica."""
    with target.connect() as client:
        statistics = client.statistics()
    size, available = statistics.capacity_bytes, statistics.available_bytes
    percent = round(100 * (size - available) / size) if size else 0
    if as_json:
        echo_json({"nameserver": target.nameserver, "size": size, "used": size - available, "available": available,
                   "used_percent": percent})
        return
    cells = [units.size(count) if human else str(count) for count in (size, size - available, available)]
    columns = ("size", "used", "available", "use")
    echo_table(columns, [[*cells, f"{percent} %"]], columns)


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("-l", "--long", is_flag=True, help="Mode, replicas, owner, size, time of change.")
@click.option("-R", "--recursive", is_flag=True, help="List what lies below too, directory by directory.")
@click.option("-H", "--human", is_flag=True, help="With -l: sizes as KiB, MiB, ...")
@click.option("--json", "as_json", is_flag=True, help="One JSON list of all entries.")
@connection_options
def ls(paths: tuple[str, ...], long: bool, recursive: bool, human: bool, as_json: bool, target: Target) -> None:
    """List directories; the root by default. A file is listed by its own name.

    A symbolic link to a directory is followed, with -l only if PATH ends in a slash.
    """
    listings: list[tuple[str, list[Entry]]] = []
    with each_path() as one:
        with target.connect() as client:
            for path in paths or ("/",):
                with one():
                    entries = _entries(client, path, follow=not long or path.endswith("/"))
                    listings += _below(client, path, entries) if recursive else [(path, entries)]
        if as_json:
            echo_json([{"directory": path, "name": text(name), **attributes_document(attributes)}
                       for path, entries in listings for name, attributes in entries])
            return
        for number, (path, entries) in enumerate(listings):
            is_file = [name for name, _ in entries] == [os.fsencode(path)]
            if (len(paths) > 1 or len(listings) > 1) and not is_file:
                echo(f"{chr(10) if number else ''}{printable(os.fsencode(path))}:")
            for line in _long_lines(entries, human) if long else map(_short_line, entries):
                echo(line)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@connection_options
def stat(paths: tuple[str, ...], as_json: bool, target: Target) -> None:
    """Show everything about a file, with its replicas, their racks and whether they are alive."""
    found: list[tuple[str, Attributes]] = []
    with each_path() as one:
        with target.connect() as client:
            for path in paths:
                with one():
                    found.append((path, client.lookup(client.follow(path, last=False), fresh=True)))
        if as_json:
            echo_json([{"path": path, **attributes_document(attributes)} for path, attributes in found])
            return
        for path, attributes in found:
            for key, value in _description(path, attributes):
                echo(f"{key:>12}  {value}")
            _print_replicas(attributes)


def _entries(client: Client, path: str, *, follow: bool) -> list[Entry]:
    from speedwell.fs.errors import NoSuchFile

    there = client.follow(path, last=False)
    attributes = client.lookup(there, fresh=True)
    if follow and attributes.type == LINK_TYPE:
        with suppress(NoSuchFile):
            there = client.follow(path)
            attributes = client.lookup(there, fresh=True)
    if attributes.type != DIRECTORY_TYPE:
        return [(os.fsencode(path), attributes)]
    return [(entry.name, entry.attributes) for entry in client.list(there)]


def _below(client: Client, path: str, entries: list[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    """A listing, and those of all directories below it."""
    yield path, entries
    for name, attributes in entries:
        if attributes.type == DIRECTORY_TYPE:
            there = f"{path.rstrip('/')}/{text(name)}"
            yield from _below(client, there, _entries(client, there, follow=False))


def _short_line(entry: Entry) -> str:
    name, attributes = entry
    return printable(name) + ("/" if attributes.type == DIRECTORY_TYPE else "")


def _target(attributes: Attributes) -> str:
    return f" -> {printable(attributes.target)}" if attributes.type == LINK_TYPE else ""


def _long_lines(entries: list[Entry], human: bool) -> list[str]:
    rows = [(mode_string(attributes), str(len(attributes.replicas) or "-"), user_name(attributes.uid),
             group_name(attributes.gid),
             units.size(attributes.size) if human else str(attributes.size),
             units.moment(attributes.mtime_ns), _short_line((name, attributes)) + _target(attributes))
            for name, attributes in entries]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(6)]
    return [f"{mode} {replicas:>{widths[1]}} {user:<{widths[2]}} {group:<{widths[3]}} "
            f"{size:>{widths[4]}} {when} {name}"
            for mode, replicas, user, group, size, when, name in rows]


def _description(path: str, attributes: Attributes) -> list[tuple[str, Any]]:
    lines = [("path", printable(os.fsencode(path))), ("type", type_name(attributes)),
             ("inode", attributes.inode),
             ("mode", f"{attributes.mode:04o} {mode_string(attributes)}"),
             ("owner", f"{user_name(attributes.uid)}:{group_name(attributes.gid)} "
                       f"({attributes.uid}:{attributes.gid})"),
             ("modified", units.moment(attributes.mtime_ns)), ("changed", units.moment(attributes.ctime_ns))]
    if attributes.type == LINK_TYPE:
        lines.insert(2, ("target", printable(attributes.target)))
    if attributes.type != REGULAR_TYPE:
        return lines
    chunks = -(-attributes.size // attributes.chunk_size) if attributes.chunk_size else 0
    lines[2:2] = [("size", f"{attributes.size} bytes ({units.size(attributes.size)})"),
                  ("chunks", f"{chunks} of up to {units.size(attributes.chunk_size)}"),
                  ("file id", attributes.file_id)]
    return lines


def _print_replicas(attributes: Attributes) -> None:
    if attributes.type != REGULAR_TYPE:
        return
    for number, replica in enumerate(attributes.replicas):
        role = "primary" if number == 0 else "replica"
        state = "alive" if replica.alive else "DEAD"
        echo(f"{role:>12}  {replica.dataserver_id} in rack {replica.rack}, pod {replica.pod}, at "
             f"{replica.host}:{replica.port}: {state}")
    if not attributes.replicas:
        echo(f"{'replicas':>12}  none")
