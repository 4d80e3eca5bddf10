"""speedwell mkdir, speedwell mv, speedwell rm"""

from __future__ import annotations

from contextlib import suppress

import click

from speedwell.cluster.commands.connection import Target, connection_options
from speedwell.cluster.commands.each_path import each_path


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-p", "--parents", is_flag=True, help="Make missing parents too; existing ones are no error.")
@connection_options
def mkdir(paths: tuple[str, ...], parents: bool, target: Target) -> None:
    """Make directories."""
    from speedwell.cluster.transfer import make_directory
    from speedwell.fs.paths import components, join, normalise

    with each_path() as one, target.connect() as client:
        for path in paths:
            with one():
                if not parents:
                    client.mkdir(client.follow(path, last=False))
                    continue
                directory = b"/"
                for name in components(normalise(path)):
                    directory = client.follow(join(directory, name))
                    make_directory(client, directory)


@click.command()
@click.argument("source")
@click.argument("destination")
@click.option("-n", "--no-clobber", is_flag=True, help="Fail if the destination exists.")
@connection_options
def mv(source: str, destination: str, no_clobber: bool, target: Target) -> None:
    """Rename a file or directory, or move it into a directory.

    A file at the destination is replaced in one step. Symbolic links are moved and replaced themselves; one to a
    directory is one to move into.
    """
    from speedwell.cluster.transfer import destination_in
    from speedwell.fs.paths import name

    with target.connect() as client:
        path = client.follow(source, last=False)
        client.lookup(path, fresh=True)
        client.rename(path, destination_in(client, destination, name(path), follow=False), no_replace=no_clobber)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-r", "-R", "--recursive", is_flag=True, help="Remove directories and all they hold.")
@click.option("-f", "--force", is_flag=True, help="A path that does not exist is no error.")
@connection_options
def rm(paths: tuple[str, ...], recursive: bool, force: bool, target: Target) -> None:
    """Remove files, or whole directories with -r.

    Symbolic links are removed themselves, not what they lead to.
    """
    from speedwell.cluster.progress import Meter
    from speedwell.cluster.transfer import lookup_or_none
    from speedwell.fs.client.names.trees import remove_tree
    from speedwell.fs.errors import IsADirectory, NoSuchFile
    from speedwell.fs.paths import normalise
    from speedwell.fs.proto.speedwell_pb2 import DIRECTORY

    with each_path() as one, target.connect() as client, Meter("removing", None, counts="entries") as meter:
        for given in paths:
            with one():
                path = normalise(given)
                attributes = None
                with suppress(NoSuchFile):
                    path = client.follow(path, last=False)
                    attributes = lookup_or_none(client, path)
                if attributes is None:
                    if not force:
                        raise NoSuchFile(f"{path.decode(errors='backslashreplace')}: no such file or directory")
                elif attributes.type != DIRECTORY:
                    client.remove(path)
                elif recursive:
                    remove_tree(client, path, lambda: meter.advance(1))
                else:
                    raise IsADirectory(f"{path.decode(errors='backslashreplace')} is a directory "
                                       "(-r removes directories)")
