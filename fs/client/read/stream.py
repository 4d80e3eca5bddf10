"""Sequential reads from one running transfer.

The read-ahead buffer is the socket's own receive buffer: the kernel fills it (several MiB, tuned by itself)
while the program works, and a read copies once, from there to the program. A second buffer with a thread to
fill it would cost a copy and two thread switches more.
"""

from collections import OrderedDict

from speedwell.fs.client.read.receiver import Receiver

AHEAD_BYTES = 4 << 20
"""A read that begins at most so far beyond the last one is still sequential: the kernel sends the requests
of its read-ahead to several threads of the mount, which may overtake each other."""

SET_ASIDE_BYTES = 8 << 20


class ReadAhead:
    """Hands out the bytes of a `Receiver` to reads that come almost in order. One thread at a time."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self._aside: OrderedDict[int, memoryview] = OrderedDict()  # overtaken bytes, by offset
        self._aside_bytes = 0

    def covers(self, offset: int, length: int) -> bool:
        """Whether `read_into` can serve the range without wasting much of the stream."""
        position = self.receiver.position
        if offset < position:
            return self._find(offset, length) is not None
        return offset - position <= AHEAD_BYTES and offset + length <= self.receiver.stop

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`, which `covers` said yes to. Raises what the receiver raises."""
        position = self.receiver.position
        if offset < position:
            self._take_aside(offset, view)
            return
        if offset > position:
            self._set_aside(offset - position)
        self.receiver.receive_all(view)

    def read(self, offset: int, length: int) -> bytes:
        """Like `read_into`, as new bytes."""
        buffer = bytearray(length)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    # ------------------------------------------------------------------ private

    def _set_aside(self, length: int) -> None:
        offset = self.receiver.position
        skipped = memoryview(bytearray(length))
        self.receiver.receive_all(skipped)
        self._keep(offset, skipped)
        while self._aside_bytes > SET_ASIDE_BYTES:
            _, oldest = self._aside.popitem(last=False)
            self._aside_bytes -= len(oldest)

    def _take_aside(self, offset: int, view: memoryview) -> None:
        start = self._find(offset, len(view))
        assert start is not None
        piece = self._aside.pop(start)
        self._aside_bytes -= len(piece)
        end = offset - start + len(view)
        view[:] = piece[offset - start:end]
        self._keep(start, piece[:offset - start])
        self._keep(offset + len(view), piece[end:])

    def _keep(self, offset: int, piece: memoryview) -> None:
        if piece:
            self._aside[offset] = piece
            self._aside_bytes += len(piece)

    def _find(self, offset: int, length: int) -> int | None:
        for start, piece in self._aside.items():
            if start <= offset and offset + length <= start + len(piece):
                return start
        return None
