"""speedwell warmup"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from speedwell.cluster.commands.connection import Target, connection_options
from speedwell.cluster.commands.output import echo
from speedwell.cluster.progress import Meter
from speedwell.fs import units
from speedwell.fs.units import counted

if TYPE_CHECKING:
    from speedwell.fs.client import Client
    from speedwell.fs.proto.speedwell_pb2 import Attributes


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@connection_options
def warmup(paths: tuple[str, ...], target: Target) -> None:
    """Have the dataservers read files into their memory, directories with all below them.

    Each live replica is read by its own dataserver, from its disk into that machine's page cache; no byte crosses the
    network. What does not fit into the memory there pushes other things out. Nothing is cached on this machine: a
    mount's cache ends with the file that is open. What is found damaged is told, and the exit code is 1.
    """
    from speedwell.cluster.warmup import jobs, warm

    with target.connect(for_bytes=True) as client:
        work = jobs(found for path in paths for found in _files(client, path))
        with Meter("reading", sum(job.size_bytes for job in work)) as meter:
            warmed = warm(work, client.metadata, meter.advance)
    echo(f"read {counted(warmed.files, 'file')}, {units.size(warmed.size_bytes)} with all replicas, on "
         f"{counted(len(warmed.dataservers), 'dataserver')}")
    if warmed.problems:
        for problem in warmed.problems[:-1]:
            click.echo(f"speedwell: {problem}", err=True)
        raise click.ClickException(warmed.problems[-1])


def _files(client: Client, path: str) -> Iterator[tuple[bytes, Attributes]]:
    from speedwell.fs.client.names.trees import walk
    from speedwell.fs.proto.speedwell_pb2 import DIRECTORY

    here = client.follow(path)
    attributes = client.lookup(here, fresh=True)
    yield here, attributes
    if attributes.type == DIRECTORY:
        yield from walk(client, here)
