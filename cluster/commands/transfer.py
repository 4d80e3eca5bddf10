"""speedwell put, speedwell get, speedwell cat, speedwell append"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from speedwell.cluster.commands.connection import Target, connection_options, policy_options
from speedwell.cluster.progress import Meter

if TYPE_CHECKING:
    from speedwell.fs.client import Client

STANDARD = "-"


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.argument("destination", metavar="DST")
@click.option("-r", "-R", "--recursive", is_flag=True, help="Copy directories and all they hold.")
@click.option("--replicas", metavar="ID,...", default="", help="Ids of the dataservers to hold each file, the "
              "primary first (default: as the nameserver chooses).")
@connection_options
def put(sources: tuple[str, ...], destination: str, recursive: bool, replicas: str, target: Target) -> None:
    """Copy files from this machine into the filesystem.

    DST is a path in the filesystem: a directory to copy into, or the new file's own path. SRC may be `-`
    for standard input. A file gets its name only when it is complete. Symbolic links are followed, those inside a
    directory are copied as links.
    """
    from speedwell.cluster import transfer

    wanted = tuple(replicas.split(",")) if replicas else ()
    with target.connect(for_bytes=True) as client:
        if len(sources) > 1:
            transfer.require_directory(client, destination)
        for source in sources:
            if source == STANDARD:
                _put_input(client, destination, wanted)
                continue
            path = Path(source)
            status = path.stat()
            target_path = transfer.destination_in(client, destination, _base_name(source))
            if stat.S_ISDIR(status.st_mode):
                if not recursive:
                    raise click.ClickException(f"{path} is a directory (-r copies directories)")
                tree = transfer.plan_uploads(path, target_path, _warn)
                with Meter(path.name or str(path), sum(job.size_bytes for job in tree.files)) as meter:
                    transfer.upload_tree(client, tree, meter.advance, wanted)
            else:
                job = transfer.Upload(path, target_path, stat.S_IMODE(status.st_mode) & 0o777, status.st_size)
                with Meter(path.name, status.st_size or None) as meter:
                    transfer.upload(client, job, meter.advance, wanted)


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("-r", "-R", "--recursive", is_flag=True, help="Copy a directory and all it holds.")
@policy_options
@connection_options
def get(source: str, destination: str, recursive: bool, target: Target) -> None:
    """Copy files from the filesystem to this machine.

    DST is a directory to copy into, the new file's own path, or `-` for standard output. A file gets its
    name only when it is complete. A symbolic link is followed, those inside a directory are copied as links.
    """
    from speedwell.cluster import transfer
    from speedwell.fs.paths import name, normalise
    from speedwell.fs.proto.speedwell_pb2 import DIRECTORY

    with target.connect(for_bytes=True) as client:
        path = client.follow(source)
        attributes = client.lookup(path)
        is_directory = attributes.type == DIRECTORY
        if is_directory and not recursive:
            raise click.ClickException(f"{source} is a directory (-r copies directories)")
        if destination == STANDARD:
            if is_directory:
                raise click.ClickException("a directory cannot be written to standard output")
            _to_output(client, path, attributes.size)
            return
        place = Path(destination)
        if place.is_dir():
            place = place / os.fsdecode(name(normalise(source)))
        elif destination.endswith("/") and not is_directory:
            raise click.ClickException(f"{destination} is not a directory")
        with Meter(os.fsdecode(name(path)) or "/", None if is_directory else attributes.size) as meter:
            if is_directory:
                tree = transfer.plan_downloads(client, path, place, _warn)
                meter.expect(sum(job.size_bytes for job in tree.files))
                transfer.download_tree(client, tree, meter.advance)
            else:
                transfer.download(client, transfer.Download(path, place, attributes.mode, attributes.size),
                                  meter.advance)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@policy_options
@connection_options
def cat(paths: tuple[str, ...], target: Target) -> None:
    """Write files to standard output."""
    with target.connect(for_bytes=True) as client:
        for path in paths:
            _to_output(client, client.follow(path), None)


@click.command()
@click.argument("path", metavar="FILE")
@click.argument("source", metavar="[SRC]", default=STANDARD)
@connection_options
def append(path: str, source: str, target: Target) -> None:
    """Append a file or standard input to a file.

    FILE is made if there is none; without SRC, or with `-`, standard input is appended. Up to 4 MiB are one
    atomic record: never torn, never mixed with other writers.
    """
    from speedwell.cluster import transfer

    with target.connect(for_bytes=True) as client:
        if source == STANDARD:
            with Meter("standard input", None) as meter:
                transfer.append(client, client.follow(path), sys.stdin.fileno(), meter.advance)
            return
        with Path(source).open("rb") as stream, \
                Meter(source, os.fstat(stream.fileno()).st_size or None) as meter:
            transfer.append(client, client.follow(path), stream.fileno(), meter.advance)


def _base_name(source: str) -> bytes:
    """The name of a file here, also for `.` and `dir/..`; a link's own name, not its target's."""
    return os.fsencode(Path(os.path.abspath(source)).name)  # noqa: PTH100 - resolve() would follow links


def _put_input(client: Client, destination: str, replicas: tuple[str, ...]) -> None:
    from speedwell.cluster import transfer
    from speedwell.fs.proto.speedwell_pb2 import DIRECTORY

    path = client.follow(destination)
    there = transfer.lookup_or_none(client, path)
    if destination.endswith("/") or (there is not None and there.type == DIRECTORY):
        raise click.ClickException(f"{destination} is a directory; standard input needs a file name")
    with Meter("standard input", None) as meter:
        client.store(path, sys.stdin.fileno(), meter.advance, mode=0o644, replicas=replicas)


def _to_output(client: Client, path: str | bytes, size_bytes: int | None) -> None:
    sys.stdout.flush()
    # A bar on the terminal that shows the file itself would be drawn into it.
    if sys.stdout.isatty():
        client.fetch(path, sys.stdout.fileno())
        return
    with Meter(os.fsdecode(path), size_bytes) as meter:
        client.fetch(path, sys.stdout.fileno(), meter.advance)


def _warn(message: str) -> None:
    click.echo(f"speedwell: {message}", err=True)
