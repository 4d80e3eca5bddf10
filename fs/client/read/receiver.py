"""Receiving a range of a file from its replicas, whatever happens to them."""

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator

from speedwell.fs.checksums import BLOCK_BYTES, MAX_SUMS
from speedwell.fs.client.context import ClientContext
from speedwell.fs.client.read.blocks import Blocks
from speedwell.fs.client.read.choice import ReplicaChoice
from speedwell.fs.client.read.plan import Source, plan_range
from speedwell.fs.client.read.steering import SteeredRead
from speedwell.fs.errors import FileClosed
from speedwell.fs.proto.speedwell_pb2 import (
    NOT_FOUND,
    OK,
    TOKEN_REFUSED,
    Attributes,
    DataReply,
    DataRequest,
    ReadOperation,
    Replica,
)
from speedwell.fs.wire.channel import Channel, ConnectionLost, MalformedFrame
from speedwell.fs.wire.local_sockets import LocalChannel

log = logging.getLogger(__name__)

ANSWER_BYTES = MAX_SUMS * BLOCK_BYTES
NO_BLOCKS = Blocks(DataReply())
EXTENTS_AHEAD = 4
"""How many pieces are asked for at a time: the dataserver goes on without waiting for the next request."""

HANDED_OVER_BYTES = 256 * 1024
"""From so many bytes on a dataserver on this host hands over its files; fewer are quicker sent."""


class Receiver(ABC):
    """Bytes from `position` up to `stop`, in order, by one thread at a time."""

    position: int
    stop: int

    @property
    @abstractmethod
    def current(self) -> SteeredRead | None:
        """Where the bytes at `position` come from; None before there is a connection."""

    @property
    @abstractmethod
    def sources(self) -> tuple[SteeredRead, ...]:
        """Where bytes came from and come from, in the order in which the connections were made."""

    @property
    @abstractmethod
    def file_size(self) -> int:
        """The committed length in bytes, as the replicas know it."""

    @abstractmethod
    def close(self) -> None:
        """Stop receiving; a thread that is blocked here wakes up with FileClosed. Safe to call again."""

    @abstractmethod
    def receive_into(self, view: memoryview) -> int:
        """Receive at least one byte into `view`; 0 only at `stop`. No byte is given out whose block differs from
        its sum.

        Raises NoReplicaAvailable (none could be reached), ReadFailed (none could deliver), StaleFile
        (none has the content any more); their messages say what was tried.
        """

    def receive_all(self, view: memoryview) -> int:
        """Fill `view` as far as the range goes and return how many bytes that is."""
        filled = 0
        while filled < len(view):
            received = self.receive_into(view[filled:])
            if not received:
                break
            filled += received
        return filled


class RangeReceiver(Receiver):
    """A range from one replica at a time.

    The controller places the range if `steer` and it is worth it. When a replica fails, the rest comes from
    another; once all have failed, the replicas are looked up again and each gets one more chance.
    With `short` the range may end early, at the end that the replica knows; otherwise a replica that holds
    less is out of date, and what it lacks comes from another one. So bytes that no replica has are missed only when
    their turn comes: all before them are delivered.

    `source` serves the range if its place is decided already.
    """

    def __init__(self, context: ClientContext, attributes: Attributes, offset: int, stop: int, *,
                 steer: bool = False, short: bool = False, source: Source | None = None) -> None:
        self.position = offset
        self.stop = stop
        self._extents = _cut(offset, stop)
        self._pending: deque[tuple[int, int]] = deque()
        self._asked = 0  # how many of `_pending` this connection was asked for
        self._ends_at: int | None = None   # what this replica has of the first of them, if that is less
        self._answered = False  # whether the bytes of the first of them are next on the connection
        self._blocks = NO_BLOCKS   # what the answer under way delivers
        self._verified = memoryview(b"")   # bytes from `position` on that did not fit where they were wanted
        self._file_size = attributes.size
        self._context = context
        self._attributes = attributes
        self._choice = ReplicaChoice(context, attributes)
        self._steer = steer
        self._short = short
        self._planned = source
        self._source: Source | None = None
        self._sources: list[SteeredRead] = []
        self._channel: Channel | None = None
        self._replica: Replica | None = None
        self._closed = False

    @property
    def current(self) -> SteeredRead | None:
        return self._sources[-1] if self._sources else None

    @property
    def sources(self) -> tuple[SteeredRead, ...]:
        return tuple(self._sources)

    @property
    def file_size(self) -> int:
        return self._file_size

    def receive_into(self, view: memoryview) -> int:
        while view:
            if self._verified:
                count = min(len(view), len(self._verified), self._available)
                view[:count] = self._verified[:count]
                self._verified = self._verified[count:]
                self._advance(count)
                return count
            channel = self._ready()
            if channel is None:
                return 0
            try:
                count = self._receive_blocks(channel, view[:self._available])
            except ConnectionLost as error:
                self._failed(str(error))
                continue
            if count:
                self._advance(count)
                return count
        return 0

    def close(self) -> None:
        self._closed = True
        self._drop()

    # ------------------------------------------------------------------ private

    @property
    def _left(self) -> int:
        return self.stop - self.position

    @property
    def _available(self) -> int:
        """How many bytes are wanted of the answer under way."""
        if not self._pending:
            return 0
        end = self._pending[0][1]
        return (end if self._ends_at is None else min(end, self._ends_at)) - self.position

    def _receive_blocks(self, channel: Channel, view: memoryview) -> int:
        """Receive whole blocks into `view` and return their bytes; 0: one block more is in `_verified`.

        Raises ConnectionLost, also for a block that differs from its sum.
        """
        blocks = self._blocks
        direct = blocks.whole(len(view)) if self.position == blocks.position else 0
        if direct:
            channel.receive_all(view[:direct])
            self._require_good(blocks.take(view[:direct]))
            return direct
        buffer = memoryview(bytearray(blocks.next_length))
        skipped = self.position - blocks.position
        channel.receive_all(buffer)
        self._require_good(blocks.take(buffer))
        self._verified = buffer[skipped:]
        return 0

    def _require_good(self, good: bool) -> None:
        if good:
            return
        if self._replica is not None:
            self._choice.damaged(self._replica)
        raise ConnectionLost("sent bytes that are damaged")

    def _ready(self) -> Channel | None:
        """A connection that delivers the bytes from `position`; None at `stop`. Raises as `receive_into`."""
        while self._left > 0:
            if self._closed:
                raise FileClosed("the reader is closed")
            if self._channel is None:
                self._open()
            elif self._answered:
                return self._channel
            else:
                self._receive_answer(self._channel)
        return None

    def _advance(self, count: int) -> None:
        """Note that `count` bytes were given out."""
        self.position += count
        if self._source is not None:
            self._source.moved(count)
        self._context.metrics.add(bytes_read=count)
        self._choice.delivered()
        if self._left <= 0:
            self._end()
        elif self.position == self._ends_at:
            self._failed(f"has only {self._ends_at} bytes of the file")
        elif self.position >= self._pending[0][1]:
            self._next_extent()

    def _failed(self, reason: str) -> None:
        """Note that the connection broke: the next `_ready` takes another replica."""
        replica = self._replica
        if replica is None or self._closed:
            return
        self._choice.failed(replica, reason, self.position)
        self._drop()

    def _open(self) -> None:
        source = self._planned or self._plan()
        self._planned, self._source = None, source
        read = source.read
        try:
            self._replica = self._choice.replica(read.replica_id)
            self._channel = source.connect(self._context, self._replica)
            self._ask_ahead(self._channel)
        except (ConnectionLost, OSError) as error:
            self._failed(str(error))
            return
        self._sources.append(read)
        if self._closed:
            self._drop()  # `close` came while there was nothing to close yet

    def _ask_ahead(self, channel: Channel) -> None:
        while len(self._pending) < EXTENTS_AHEAD and (extent := next(self._extents, None)) is not None:
            self._pending.append(extent)
        for number in range(self._asked, len(self._pending)):
            start, stop = self._pending[number]
            if number == 0:
                start = self.position
            channel.send(DataRequest(read=ReadOperation(
                file_id=self._attributes.file_id, offset=start, length=stop - start, sums=True,
                paced=self._context.paced,
                descriptors=channel.is_local and stop - start >= HANDED_OVER_BYTES),
                token=self._context.tokens.of(self._attributes)))
            self._asked += 1

    def _receive_answer(self, channel: Channel) -> None:
        try:
            reply = channel.expect(DataReply)
            self._choice.reached_any = True
            self._file_size = max(self._file_size, reply.file_size)
            if reply.pieces and isinstance(channel, LocalChannel):
                channel.take_pieces([(piece.offset, piece.length) for piece in reply.pieces])
            self._check(reply)
        except (ConnectionLost, MalformedFrame, OSError) as error:
            self._failed(str(error))
            return
        self._answered = True
        if self._left <= 0:
            self._end()

    def _check(self, reply: DataReply) -> None:
        if reply.status == NOT_FOUND:
            self._choice.missing += 1
        if reply.status == NOT_FOUND and self._short and self._attributes.size == 0:
            self._end_after(0)  # nothing was ever appended
            return
        if reply.status == TOKEN_REFUSED:
            self._context.tokens.refused(self._attributes)
        if reply.status != OK:
            raise ConnectionLost(reply.message or f"answered with status {reply.status}")
        self._blocks = Blocks(reply)
        delivered = reply.offset + reply.length - self.position if reply.length else 0
        if delivered < self._available:
            if self._short and reply.file_size >= self._attributes.size:
                self._end_after(max(0, delivered))
            elif delivered > 0:
                self._ends_at = self.position + delivered   # another one may have the rest
            else:
                raise ConnectionLost(f"has only {reply.file_size} bytes of the file")

    def _end_after(self, count: int) -> None:
        self.stop = self.position + count
        self._pending[0] = (self._pending[0][0], self.stop)

    def _next_extent(self) -> None:
        self._pending.popleft()
        self._verified = memoryview(b"")
        self._asked -= 1
        self._answered = False
        assert self._channel is not None
        try:
            self._ask_ahead(self._channel)
        except ConnectionLost as error:
            self.position = self._pending[0][0]
            self._failed(str(error))
            return
        self.position = self._pending[0][0]

    def _plan(self) -> Source:
        """Who serves the rest of the range."""
        return plan_range(self._context, self._attributes, self._choice.candidates(self.position), self.position,
                          self._left, steer=self._steer)

    def _end(self) -> None:
        self._verified = memoryview(b"")
        channel, self._channel = self._channel, None
        source, self._source = self._source, None
        if channel is not None and source is not None and source.read.chosen_by == "nearest":
            self._context.connections.give_back(source.read.replica_host, source.read.replica_port, channel)
        elif channel is not None:
            channel.close()
        if source is not None:
            source.ended()

    def _drop(self) -> None:
        self._asked, self._answered, self._ends_at = 0, False, None
        self._verified = memoryview(b"")
        channel, self._channel = self._channel, None
        sources, self._source, self._planned = (self._source, self._planned), None, None
        if channel is not None:
            channel.close()
        for source in sources:
            if source is not None:
                source.ended()


def _cut(offset: int, stop: int) -> Iterator[tuple[int, int]]:
    """Pieces of a range that one answer each may deliver."""
    while offset < stop:
        end = min(stop, offset - offset % BLOCK_BYTES + ANSWER_BYTES)
        yield offset, end
        offset = end
