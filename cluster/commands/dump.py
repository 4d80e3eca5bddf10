"""speedwell dump, speedwell load"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import click

from speedwell.cluster.commands.connection import Target, connection_options
from speedwell.cluster.commands.output import echo
from speedwell.cluster.errors import InvalidDump
from speedwell.cluster.progress import Meter
from speedwell.fs import durable
from speedwell.fs.units import counted

STANDARD = "-"


@click.command()
@click.argument("file")
@connection_options
def dump(file: str, target: Target) -> None:
    """Write the namespace to FILE, a JSON document a line; `-` is standard output.

    It has all names, attributes, links, quotas and trash policies of one moment, and for each file which content it
    has on which dataservers. It does not have a single byte of the files themselves, nor locks, open files without a
    name and what lies in the trash. FILE gets its name when it is complete.
    """
    from speedwell.cluster import namespace_file

    place = Path(file)
    if file != STANDARD and not place.parent.is_dir():
        code = errno.ENOTDIR if place.parent.exists() else errno.ENOENT
        raise OSError(code, os.strerror(code), str(place.parent))
    with target.connect() as client, ExitStack() as cleanup:
        stream: IO[bytes] = sys.stdout.buffer
        if file != STANDARD:
            stream = cleanup.enter_context(durable.replacing(place))
        meter = cleanup.enter_context(Meter(place.name, None, "entries"))
        count = namespace_file.write(client.metadata.copies.dump(), stream, meter.advance)
        stream.flush()
    click.echo(f"{count} records in {'standard output' if file == STANDARD else place}", err=True)


@click.command()
@click.argument("file")
@connection_options
def load(file: str, target: Target) -> None:
    """Fill the namespace of a new installation from FILE, which `speedwell dump` wrote; `-` is standard input.

    Everything is checked first: all of it is loaded, or nothing. The files' bytes are found again on the dataservers
    that have them; one that belongs to the former namespace needs `speedwell node adopt`. A file whose content no
    dataserver has cannot be read, and `speedwell fsck` names it.
    """
    from speedwell.cluster.namespace_file import NamespaceFile
    from speedwell.fs.errors import InvalidArgument

    with ExitStack() as cleanup:
        stream = sys.stdin.buffer if file == STANDARD else cleanup.enter_context(Path(file).open("rb"))
        try:
            dumped = NamespaceFile(stream)
            client = cleanup.enter_context(target.connect())
            loaded = client.metadata.copies.load(dumped.records(), dumped.next_inode)
        except (InvalidArgument, InvalidDump) as error:
            raise InvalidDump(f"{file}: {error}; nothing was loaded") from None
    echo(f"loaded {counted(loaded.files, 'file')} and {counted(loaded.directories, 'directory')}")
    for name in loaded.silent:
        echo(f"dataserver {name} holds some of their contents and has not reported here yet: start it with this "
             f"nameserver, and if it belongs to another namespace, `speedwell node adopt {name}`")
