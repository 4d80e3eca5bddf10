"""Whole files between the network and a file descriptor."""

from collections.abc import Callable

from fs.client.appender import Appender
from fs.client.context import ClientContext
from fs.proto.speedwell_pb2 import Attributes


def receive_file(context: ClientContext, attributes: Attributes, destination_fd: int,
                 progress: Callable[[int], None] | None) -> int:
    """Write the file's bytes to `destination_fd`; returns how many."""
    raise NotImplementedError


def send_file(appender: Appender, source_fd: int, progress: Callable[[int], None] | None) -> int:
    """Append what `source_fd` holds up to its end; returns how many bytes."""
    raise NotImplementedError
