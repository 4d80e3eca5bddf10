"""speedwell du, speedwell find, speedwell chmod, speedwell chown: what goes through whole directory trees."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from speedwell.cluster.commands.connection import Target, connection_options
from speedwell.cluster.commands.each_path import each_path
from speedwell.cluster.commands.output import (
    DIRECTORY_TYPE,
    LINK_TYPE,
    REGULAR_TYPE,
    echo,
    echo_json,
    printable,
    text,
)
from speedwell.fs import units

if TYPE_CHECKING:
    from speedwell.fs.client import Client
    from speedwell.fs.proto.speedwell_pb2 import Attributes

Found = tuple[bytes, "Attributes"]
KINDS = {"f": REGULAR_TYPE, "d": DIRECTORY_TYPE, "l": LINK_TYPE}
PERMISSIONS = {"r": 0o444, "w": 0o222, "x": 0o111, "X": 0o111}
WHO = {"u": 0o4700, "g": 0o2070, "o": 0o1007}


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("-s", "--summarize", is_flag=True, help="One line for each PATH alone.")
@click.option("-H", "--human", is_flag=True, help="Sizes as KiB, MiB, ...")
@click.option("--json", "as_json", is_flag=True, help="One JSON list; sizes in bytes.")
@connection_options
def du(paths: tuple[str, ...], summarize: bool, human: bool, as_json: bool, target: Target) -> None:
    """Show how many bytes the files below each directory have; the root by default.

    The bytes of one replica are counted. A file with several names counts once.
    """
    rows: list[tuple[bytes, int]] = []
    with each_path() as one:
        with target.connect() as client:
            for path in paths or ("/",):
                with one():
                    sizes = _sizes(client, client.follow(path, last=False))
                    rows += list(sizes.items())[:1] if summarize else reversed(sizes.items())
        if as_json:
            echo_json([{"path": text(there), "size": size} for there, size in rows])
            return
        for there, size in rows:
            echo(f"{units.size(size) if human else size}\t{printable(there)}")


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--name", metavar="GLOB", help="Only names like this: '*.log'.")
@click.option("--type", "kind", type=click.Choice(list(KINDS)), help="Only files, directories or symbolic links.")
@connection_options
def find(paths: tuple[str, ...], name: str | None, kind: str | None, target: Target) -> None:
    """List everything below each PATH, the root by default, one path a line."""
    with each_path() as one, target.connect() as client:
        for path in paths or ("/",):
            with one():
                here = client.follow(path, last=False)
                for there, attributes in _walk(client, here, client.lookup(here, fresh=True)):
                    matches = name is None or fnmatch.fnmatchcase(os.fsdecode(there.rpartition(b"/")[2]), name)
                    if matches and (kind is None or attributes.type == KINDS[kind]):
                        echo(printable(there))


@click.command()
@click.argument("mode")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-R", "--recursive", is_flag=True, help="Change what lies below each PATH too.")
@connection_options
def chmod(mode: str, paths: tuple[str, ...], recursive: bool, target: Target) -> None:
    """Change permissions: octal (640) or symbolic (u+rw,go-w, a=rX)."""
    changed = _mode(mode)
    def change(client: Client, path: bytes, attributes: Attributes) -> None:
        if attributes.type != LINK_TYPE:
            client.set_attributes(path, mode=changed(attributes))

    _change_each(target, paths, recursive, change)


@click.command()
@click.argument("owner", metavar="[USER][:GROUP]")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-R", "--recursive", is_flag=True, help="Change what lies below each PATH too.")
@connection_options
def chown(owner: str, paths: tuple[str, ...], recursive: bool, target: Target) -> None:
    """Change owner and group, by the names of this machine or by number."""
    import grp
    import pwd

    user, colon, group = owner.partition(":")
    if not user and not group:
        raise click.BadParameter("give USER, USER:GROUP or :GROUP", param_hint="'[USER][:GROUP]'")
    uid = _number(user, "user", lambda name: pwd.getpwnam(name).pw_uid) if user else None
    gid = _number(group, "group", lambda name: grp.getgrnam(name).gr_gid) if colon and group else None
    _change_each(target, paths, recursive,
                 lambda client, path, attributes: client.set_attributes(path, uid=uid, gid=gid))


def _change_each(target: Target, paths: tuple[str, ...], recursive: bool,
                 change: Callable[[Client, bytes, Attributes], object]) -> None:
    with each_path() as one, target.connect() as client:
        for path in paths:
            with one():
                here = client.follow(path, last=recursive)
                attributes = client.lookup(here, fresh=True)
                for found in _walk(client, here, attributes) if recursive else [(here, attributes)]:
                    change(client, *found)


def _walk(client: Client, path: bytes, attributes: Attributes) -> Iterator[Found]:
    """A path and all below it, each directory before what it holds. Symbolic links are not followed."""
    from speedwell.fs.client.names.trees import walk

    yield path, attributes
    if attributes.type == DIRECTORY_TYPE:
        yield from walk(client, path)


def _sizes(client: Client, path: bytes) -> dict[bytes, int]:
    """The bytes at and below a path, and at and below each directory in it."""
    from speedwell.fs.paths import parent

    sizes: dict[bytes, int] = {path: 0}
    counted: set[int] = set()
    for there, attributes in _walk(client, path, client.lookup(path, fresh=True)):
        if attributes.type == DIRECTORY_TYPE:
            sizes[there] = 0
        elif attributes.type == REGULAR_TYPE and attributes.inode not in counted:
            counted.add(attributes.inode)
            above = there if there == path else parent(there)
            while above != path:
                sizes[above] += attributes.size
                above = parent(above)
            sizes[path] += attributes.size
    return sizes


def _mode(wanted: str) -> Callable[[Attributes], int]:
    """What a file's permissions become. Raises BadParameter."""
    if re.fullmatch("[0-7]{1,4}", wanted):
        return lambda attributes: int(wanted, 8)
    clauses = [re.fullmatch("([ugoa]*)([-+=])([rwxXst]*)", clause) for clause in wanted.split(",")]
    if not all(clauses):
        raise click.BadParameter(f"{wanted!r} is neither octal like 640 nor symbolic like u+rw,go-w",
                                 param_hint="'MODE'")

    def changed(attributes: Attributes) -> int:
        mode = attributes.mode
        for clause in clauses:
            assert clause is not None
            mode = _applied(mode, *clause.groups(), runs=attributes.type == DIRECTORY_TYPE or bool(mode & 0o111))
        return mode

    return changed


def _applied(mode: int, who: str, operation: str, letters: str, *, runs: bool) -> int:
    classes = sum(WHO[letter] for letter in set("ugo" if not who or "a" in who else who))
    bits = 0
    for letter in letters:
        if letter != "X" or runs:
            bits |= PERMISSIONS.get(letter, 0) & classes
    if "s" in letters:
        bits |= classes & 0o6000
    if "t" in letters:
        bits |= 0o1000
    if operation == "=":
        return (mode & ~(classes & 0o777)) | bits
    return mode | bits if operation == "+" else mode & ~bits


def _number(given: str, kind: str, look_up: Callable[[str], int]) -> int:
    try:
        return look_up(given)
    except KeyError:
        if given.isdigit() and int(given) < 2**32 - 1:
            return int(given)
        raise click.BadParameter(f"this machine has no {kind} {given!r}", param_hint="'[USER][:GROUP]'") from None
