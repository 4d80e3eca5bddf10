"""Directories with all that is below them."""

from collections.abc import Callable, Iterator

from speedwell.fs import paths
from speedwell.fs.client.client import Client
from speedwell.fs.errors import InvalidName
from speedwell.fs.proto.speedwell_pb2 import DIRECTORY, Attributes


def walk(client: Client, directory: bytes) -> Iterator[tuple[bytes, Attributes]]:
    """Everything below a stored directory, parents before their entries. Works at any depth, follows no link."""
    pending = [directory]
    while pending:
        parent = pending.pop()
        for entry in client.list(parent):
            path = paths.join(parent, entry.name)
            yield path, entry.attributes
            if entry.attributes.type == DIRECTORY:
                pending.append(path)


def remove_tree(client: Client, path: bytes, removed: Callable[[], None] = lambda: None) -> None:
    """Remove a directory and everything below it; `removed` is called after each entry. Raises InvalidName for /."""
    if path == paths.ROOT:
        raise InvalidName("refusing to remove /; name the directories in it")
    directories = [path]
    for below, attributes in walk(client, path):
        if attributes.type == DIRECTORY:
            directories.append(below)
        else:
            client.remove(below)
            removed()
    for directory in reversed(directories):
        client.rmdir(directory)
        removed()
