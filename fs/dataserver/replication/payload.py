"""The raw bytes that follow a request's frame."""

from collections.abc import Iterator

from speedwell.fs.wire.channel import Channel

PIECE_BYTES = 256 * 1024


class Payload:
    """`length` bytes that `channel` delivers next."""

    def __init__(self, channel: Channel, length: int) -> None:
        self._channel = channel
        self._missing = length

    def pieces(self) -> Iterator[memoryview]:
        """The bytes as they arrive, in a buffer that is used again for the next piece."""
        buffer = memoryview(bytearray(min(self._missing, PIECE_BYTES)))
        while self._missing:
            received = self._channel.receive_some(buffer[:self._missing])
            self._missing -= received
            yield buffer[:received]

    def discard(self) -> None:
        """Receive what was not read, so that the answer finds a sender that listens."""
        self._channel.discard(self._missing)
        self._missing = 0
