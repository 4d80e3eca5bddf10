"""One connection of a range that several bring at once: asks for pieces, and checks what comes."""

import time
from collections import deque

from speedwell.fs.checksums import BLOCK_BYTES
from speedwell.fs.client.context import ClientContext
from speedwell.fs.client.names.tokens import Tokens
from speedwell.fs.client.read.blocks import Blocks
from speedwell.fs.client.read.choice import ReplicaChoice
from speedwell.fs.client.read.plan import Source
from speedwell.fs.proto.speedwell_pb2 import (
    NOT_FOUND,
    OK,
    TOKEN_REFUSED,
    Attributes,
    DataReply,
    DataRequest,
    ReadOperation,
)
from speedwell.fs.wire.channel import Channel, ConnectionLost

RUN_BYTES = 256 << 10
"""So much is received and checked at a time: what came of a piece before a connection broke is not lost."""
YOUNG_SECONDS = 0.5
"""Before this age, what was measured says little of a connection's rate."""


class PieceStream:
    """`asked` are the pieces that this connection was asked for, the one under way first. One thread receives."""

    def __init__(self, source: Source, attributes: Attributes, choice: ReplicaChoice) -> None:
        self.source = source
        self.replica = choice.replica(source.read.replica_id)
        self.asked: deque[tuple[int, int]] = deque()
        self.is_stopped = False
        self.is_done = False
        self.due: float | None = None   # when it should have brought what it was asked for, at the latest
        self.file_size = 0
        self._attributes = attributes
        self._choice = choice
        self._channel: Channel | None = None
        self._tokens: Tokens | None = None
        self._began: float | None = None
        self._delivered = 0
        self._data = memoryview(b"")    # of the piece under way, and blocks before it
        self._filled = 0

    def connect(self, context: ClientContext) -> None:
        """Raises ConnectionLost."""
        self._tokens = context.tokens
        self._channel = self.source.connect(context, self.replica)

    def ask(self, start: int, stop: int) -> None:
        """Have a piece sent, one of `asked`. Raises ConnectionLost."""
        assert self._channel is not None and self._tokens is not None
        self._began = self._began or time.monotonic()
        self._channel.send(DataRequest(read=ReadOperation(
            file_id=self._attributes.file_id, offset=start, length=stop - start, sums=True),
            token=self._tokens.of(self._attributes)))

    def receive(self) -> memoryview:
        """The bytes of the first piece of `asked`. Raises ConnectionLost, MalformedFrame."""
        assert self._channel is not None and self._tokens is not None
        start, stop = self.asked[0]
        reply = self._channel.expect(DataReply)
        self._choice.reached_any = True
        self.file_size = max(self.file_size, reply.file_size)
        if reply.status == NOT_FOUND:
            self._choice.missing += 1
        if reply.status == TOKEN_REFUSED:
            self._tokens.refused(self._attributes)
        if reply.status != OK:
            raise ConnectionLost(reply.message or f"answered with status {reply.status}")
        if reply.offset > start or reply.offset + reply.length < stop:
            raise ConnectionLost(f"has only {reply.file_size} bytes of the file")
        blocks = Blocks(reply)
        self._filled, self._data = 0, memoryview(bytearray(reply.length))
        while self._filled < len(self._data):
            count = blocks.whole(min(len(self._data) - self._filled, RUN_BYTES))
            run = self._data[self._filled:self._filled + count]
            self._channel.receive_all(run)
            if not blocks.take(run):
                self._choice.damaged(self.replica)
                raise ConnectionLost("sent bytes that are damaged")
            self._filled += count
        return self._data[start - reply.offset:][:stop - start]

    def arrived(self) -> memoryview:
        """What has come of the first piece of `asked`, though `receive` raised."""
        start, stop = self.asked[0]
        before = start % BLOCK_BYTES     # an answer begins with a whole block
        return self._data[before:self._filled][:stop - start] if self._filled > before else memoryview(b"")

    def took(self, count: int) -> None:
        """The piece under way was delivered."""
        self.asked.popleft()
        self.due = None
        self._delivered += count
        self._filled, self._data = 0, memoryview(b"")
        self.source.moved(count, self.outstanding)

    @property
    def outstanding(self) -> int:
        """Bytes that it was asked for and has not received."""
        return max(sum(stop - start for start, stop in self.asked) - self._filled, 0)

    @property
    def rate(self) -> float:
        """Bytes a second since it was first asked; what the controller expects as long as it is young."""
        seconds = time.monotonic() - self._began if self._began is not None else 0.0
        measured = (self._delivered + self._filled) / seconds if seconds > 0 else 0.0
        expected = (self.source.read.estimated_bps or 0.0) / 8
        return max(measured, expected) if seconds < YOUNG_SECONDS else measured

    def stop(self) -> None:
        """Have the thread that receives wake up with ConnectionLost."""
        self.is_stopped = True
        if self._channel is not None:
            self._channel.interrupt()

    def done(self) -> None:
        """It has nothing left to do: what it has of the network is free, though the connection is kept."""
        if self.is_done:
            return
        self.is_done = True
        if self.source.account is not None:
            self.source.account.ended()
        if self.source.placement is not None:
            self.source.placement.ended(self.source.read)

    def finish(self, context: ClientContext, whole: bool) -> None:
        """Release the connection; with `whole` all that it was asked for has come."""
        channel, self._channel = self._channel, None
        read = self.source.read
        if channel is not None:
            if read.chosen_by == "nearest" and whole:
                context.connections.give_back(read.replica_host, read.replica_port, channel)
            else:
                channel.close()
        self.source.ended()
