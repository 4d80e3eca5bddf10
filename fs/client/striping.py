"""One stream of bytes in order, from several replicas at once, without memory of its own.

A sequential reader wants the beginning first. So a long range is not cut where one part ends and the next begins, but
into windows, each of which every part has its share of. Connections are read in turns. While the reader has its turn
at one, the kernel receives the others' next pieces into their sockets' buffers, which are the read-ahead: nothing is
copied once more, and what is kept is bounded by those buffers and by the pieces asked for ahead. Every part moves the
number of bytes that the controller gave it (Mayflower, section 4.3: sizes in proportion to bandwidth).
"""

from collections.abc import Iterator, Sequence

from fs.client.context import ClientContext
from fs.client.following import FollowedReceiver
from fs.client.plan import Followed, Source, plan_stream
from fs.client.receiver import RangeReceiver, Receiver
from fs.client.steering import SteeredRead
from fs.proto.speedwell_pb2 import Attributes

WINDOW_BYTES = 1 << 20
ALIGNMENT_BYTES = 64 * 1024


def turns(sizes: Sequence[int], window_bytes: int = WINDOW_BYTES,
          alignment_bytes: int = ALIGNMENT_BYTES) -> Iterator[tuple[int, int, int]]:
    """(part, start, stop) of the pieces in order; they cover `sum(sizes)` bytes, `sizes[i]` of them part i's."""
    total, position, reached = sum(sizes), 0, 0
    given = [0] * len(sizes)
    while reached < total:
        reached = min(reached + window_bytes, total)
        for part, size in enumerate(sizes):
            until = size * reached // total
            if reached < total:
                until -= until % alignment_bytes
            if until > given[part]:
                yield part, position, position + until - given[part]
                position += until - given[part]
                given[part] = until


def _extents(sizes: Sequence[int], part: int, offset: int) -> Iterator[tuple[int, int]]:
    return ((offset + start, offset + stop) for turn, start, stop in turns(sizes) if turn == part)


def open_range(context: ClientContext, attributes: Attributes, offset: int, stop: int) -> Receiver:
    """A receiver for a long range that is read in order: from as many replicas at once as the controller says."""
    return receiver_of(context, attributes, plan_parts(context, attributes, offset, stop), offset, stop)


def plan_parts(context: ClientContext, attributes: Attributes, offset: int, stop: int) -> list[Source] | Followed:
    """Who serves a range; nobody if there is no replica, which is for the receiver to report."""
    candidates = context.near_first(attributes.replicas, attributes.file_id)
    if not candidates or stop <= offset:
        return []
    return plan_stream(context, attributes, candidates, offset, stop - offset)


def receiver_of(context: ClientContext, attributes: Attributes, plan: list[Source] | Followed, offset: int,
                stop: int) -> Receiver:
    """A receiver for a range that `plan_parts` has planned."""
    if isinstance(plan, Followed):
        return FollowedReceiver(context, attributes, plan, offset, stop)
    if len(plan) > 1:
        return StripedReceiver(context, attributes, plan, offset, stop)
    return RangeReceiver(context, attributes, offset, stop, steer=True, source=plan[0] if plan else None)


class StripedReceiver(Receiver):
    """Several `RangeReceiver`s as one.

    A part whose replica fails goes on from another replica; the others are not disturbed.
    """

    def __init__(self, context: ClientContext, attributes: Attributes, sources: Sequence[Source], offset: int,
                 stop: int) -> None:
        """`sources` are the parts in order, their sizes add up to the range."""
        sizes = [source.read.size_bytes for source in sources]
        self.position = offset
        self.stop = stop
        self._receivers = [
            RangeReceiver(context, attributes, offset, stop, steer=True, source=source,
                          extents=_extents(sizes, number, offset))
            for number, source in enumerate(sources)]
        self._turns = ((self._receivers[part], offset + end) for part, _, end in turns(sizes))
        self._receiver, self._turn_stop = next(self._turns)
        self._begun = False

    @property
    def current(self) -> SteeredRead | None:
        return self._receiver.current

    @property
    def sources(self) -> tuple[SteeredRead, ...]:
        return tuple(source for receiver in self._receivers for source in receiver.sources)

    @property
    def file_size(self) -> int:
        return max(receiver.file_size for receiver in self._receivers)

    def receive_into(self, view: memoryview) -> int:
        if not self._begun:
            self._begun = True
            for receiver in self._receivers:
                receiver.begin()
        if self.position >= self.stop:
            return 0
        received = self._receiver.receive_into(view[:self._turn_stop - self.position])
        self.position += received
        if self.position == self._turn_stop and self.position < self.stop:
            self._receiver, self._turn_stop = next(self._turns)
        return received

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.close()
