"""What is left of a range that several connections bring at once, and what has come of it. Knows no connections."""

import heapq

from speedwell.fs.checksums import BLOCK_BYTES

WINDOW_BYTES = 8 << 20
"""How far ahead of its reader a piece may begin; so a range keeps at most a piece more than this."""
PIECE_BYTES = 1 << 20
"""The longest piece; towards the end they become shorter, down to a block, so that all connections end together."""
PIECES_LEFT = 4
"""A piece is at most this part of what is left for each connection."""


class Pieces:
    """A range from `position` to `stop`, taken in pieces, delivered in any order, read in order. Every byte is with
    exactly one of: not taken, taken by one connection, delivered, read. Not thread-safe."""

    def __init__(self, position: int, stop: int) -> None:
        self.position = position
        self.stop = stop
        self._next = position
        self._returned: list[tuple[int, int]] = []
        self._ready: dict[int, memoryview] = {}
        self._missing = stop - position

    @property
    def missing(self) -> int:
        """Bytes that are not delivered."""
        return self._missing

    @property
    def all_taken(self) -> bool:
        return self._next >= self.stop and not self._returned

    def take(self, connections: int) -> tuple[int, int] | None:
        """(start, stop) of the next piece for one of so many connections; None if there is none within the window."""
        if self._returned:
            return heapq.heappop(self._returned)
        start = self._next
        if start >= min(self.stop, self.position + WINDOW_BYTES):
            return None
        wanted = min(PIECE_BYTES, (self.stop - start) // (PIECES_LEFT * connections))
        end = start + max(wanted, BLOCK_BYTES)
        self._next = min(end - end % BLOCK_BYTES, self.stop)
        return start, self._next

    def give_back(self, start: int, stop: int) -> None:
        """Bytes that were taken and will not be delivered by who took them."""
        if start < stop:
            heapq.heappush(self._returned, (start, stop))

    def deliver(self, start: int, data: memoryview) -> None:
        """Bytes that were taken have come."""
        if data:
            self._ready[start] = data
            self._missing -= len(data)

    def read_into(self, view: memoryview) -> int:
        """Move bytes from `position` on into `view`; 0 if the next one has not come."""
        data = self._ready.pop(self.position, None)
        if data is None:
            return 0
        count = min(len(view), len(data))
        view[:count] = data[:count]
        self.position += count
        if count < len(data):
            self._ready[self.position] = data[count:]
        return count
