"""The blocks of an answer on the data channel, each with its sum."""

from speedwell.fs.checksums import BLOCK_BYTES, block_sum, blocks_of, unpack
from speedwell.fs.proto.speedwell_pb2 import DataReply
from speedwell.fs.wire.channel import ConnectionLost

DIRECT_BYTES = 1 << 20


class Blocks:
    """The blocks that an answer announces, and their sums."""

    def __init__(self, reply: DataReply) -> None:
        """Raises ConnectionLost if the answer makes no sense."""
        self.position = reply.offset    # in the file, of the next byte on the connection
        self._stop = reply.offset + reply.length
        self._sums = unpack(reply.sums)
        self._taken = 0
        if reply.length and (reply.offset % BLOCK_BYTES or len(self._sums) != blocks_of(reply.length)):
            raise ConnectionLost("announced bytes without their sums")

    @property
    def next_length(self) -> int:
        """Of the next block."""
        return min(BLOCK_BYTES, self._stop - self.position)

    def whole(self, room: int) -> int:
        """The bytes of as many of the next blocks as go into `room`, up to DIRECT_BYTES."""
        left = self._stop - self.position
        room = min(room, DIRECT_BYTES)
        return left if left <= room else room - room % BLOCK_BYTES

    def take(self, data: memoryview) -> bool:
        """Whether the next blocks, which are `data`, are good."""
        good = True
        for start in range(0, len(data), BLOCK_BYTES):
            good = block_sum(data[start:start + BLOCK_BYTES]) == self._sums[self._taken] and good
            self._taken += 1
        self.position += len(data)
        return good
