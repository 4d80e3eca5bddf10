"""speedwell backup, speedwell restore"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import click

from speedwell.cluster.commands.connection import Target, connection_options
from speedwell.cluster.progress import Meter
from speedwell.fs import durable, paths

STANDARD = "-"


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--from", "directory", metavar="PATH", default="/", show_default=True, help="What is below this "
              "directory.")
@connection_options
def backup(file: str, directory: str, target: Target) -> None:
    """Write names, attributes and contents to FILE.

    That is a tar archive; `-` is standard output. It has modes, owners, times of change, extended attributes, hard
    and symbolic links; not quotas (`speedwell dump` has them), nor what lies in the trash. Programs go on meanwhile:
    each file is as it was when it was read. FILE gets its name when it is complete.
    """
    from speedwell.cluster import archive

    place = Path(file)
    if place.is_dir():
        raise click.UsageError(f"{file} is a directory: name a file", click.get_current_context())
    with target.connect(for_bytes=True) as client, ExitStack() as cleanup:
        stream: IO[bytes] = sys.stdout.buffer
        if file != STANDARD:        # it has everybody's contents: readable for its owner alone
            stream = cleanup.enter_context(durable.replacing(place, 0o600))
        meter = cleanup.enter_context(Meter(place.name, None))
        written = archive.write(client, client.follow(directory), stream, meter.advance,
                                lambda message: click.echo(f"speedwell: {message}", err=True))
        stream.flush()
    click.echo(f"{written} in {'standard output' if file == STANDARD else place}", err=True)


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--to", "directory", metavar="PATH", default="/", show_default=True,
              help="Make it below this directory.")
@connection_options
def restore(file: str, directory: str, target: Target) -> None:
    """Make what `speedwell backup` has written to FILE.

    `-` is standard input. Any installation will do. A file appears when it is complete, and replaces one that has its
    name; what else is there stays. If it was interrupted, begin again. Only root gives files to their owners.
    """
    from speedwell.cluster import archive
    from speedwell.cluster.errors import InvalidArchive

    with ExitStack() as cleanup:
        stream = sys.stdin.buffer if file == STANDARD else cleanup.enter_context(Path(file).open("rb"))
        client = cleanup.enter_context(target.connect(for_bytes=True))
        meter = cleanup.enter_context(Meter(paths.display(os.fsencode(file)), None))
        try:
            made = archive.read(client, client.follow(directory), stream, meter.advance)
        except InvalidArchive as error:
            raise InvalidArchive(f"{file}: {error}") from None
    click.echo(f"{made} restored", err=True)
