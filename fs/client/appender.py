"""Appending to one file: buffered, written behind, acknowledged by every live replica."""

from types import TracebackType

from fs.client.context import ClientContext
from fs.proto.speedwell_pb2 import Attributes


class Appender:
    """Appends to one file. Thread-safe. Use it as a context manager, or call `close`.

    `write` buffers; a background thread sends full pieces, at most 16 MiB wait. One `write` is never
    torn: its bytes are neighbours in the file whoever else appends. After an error the appender is failed:
    every later call raises the same error.
    """

    def __init__(self, context: ClientContext, attributes: Attributes, path: bytes) -> None:
        raise NotImplementedError

    @property
    def attributes(self) -> Attributes:
        """As of the open or the last flush."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Length of the file in bytes once everything written here is flushed (if nobody else appends)."""
        raise NotImplementedError

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Buffer `data` for appending and return its length. Blocks while 16 MiB wait.

        Raises what an earlier piece failed with: AppendFailed, NoSpace, NoReplicaAvailable; FileClosed.
        """
        raise NotImplementedError

    def append_record(self, data: bytes | bytearray | memoryview) -> int:
        """Append `data` now, after everything written before, and publish it; returns its offset."""
        raise NotImplementedError

    def flush(self) -> Attributes:
        """Wait until all live replicas hold everything written, publish the new length at the nameserver.

        No request is sent when nothing was written since the last flush. Raises like `write`, and
        StaleFile if the file was truncated or replaced meanwhile.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Flush and release. Raises like `flush`, unless that error was already raised to the caller."""
        raise NotImplementedError

    def __enter__(self) -> "Appender":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()
