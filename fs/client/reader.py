"""Reading one file: a read-ahead stream for sequential reads, small requests for the others."""

from types import TracebackType

from fs.client.context import ClientContext
from fs.client.steering import SteeredRead
from fs.proto.speedwell_pb2 import Attributes


class Reader:
    """Reads one file. Thread-safe. Use it as a context manager, or call `close`.

    Sequential reads (from several threads, slightly out of order too) are served from a stream that the
    controller placed and that a background thread receives ahead, at most 16 MiB. Other reads go to the
    nearest replica. A replica that fails is replaced by another at the offset reached.
    """

    def __init__(self, context: ClientContext, attributes: Attributes, path: bytes) -> None:
        raise NotImplementedError

    @property
    def attributes(self) -> Attributes:
        """As of the open."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Length in bytes: the committed length at open, or a later one that a dataserver reported."""
        raise NotImplementedError

    @property
    def last_read(self) -> SteeredRead | None:
        """Where the newest stream came from; None before the first."""
        raise NotImplementedError

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from `offset`, fewer than `size` only at the end of the file.

        Raises ReadFailed or NoReplicaAvailable (the message says what was tried), StaleFile when the
        content is gone, InvalidArgument for a negative offset or size, FileClosed.
        """
        raise NotImplementedError

    def readinto(self, offset: int, buffer: bytearray | memoryview) -> int:
        """Like `read`, into a writable buffer; returns the number of bytes."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the stream and release everything. Never raises."""
        raise NotImplementedError

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()
