"""One stream of bytes in order, from several replicas at once.

The range is cut into pieces. Each connection takes the next one whenever it has room, so however fast each turns out
to be, all end together. What the controller reckoned with for each part (Mayflower, section 4.3: sizes in proportion
to bandwidth, for the same end) is an estimate; how much a part does carry it sees in the switches. It may also open
parts as the read goes on (mayflower-plus): then a read may wait, and a connection that is given later finds its work.

A connection that breaks gives its pieces back to the others. When the last one has broken, the rest is placed anew.
If the controller dies, what runs runs on, and a read that waited takes the nearest replica.
"""

import logging
import threading
import time
from collections.abc import Sequence

from speedwell.fs import tracing
from speedwell.fs.client.context import ClientContext
from speedwell.fs.client.read.choice import ReplicaChoice
from speedwell.fs.client.read.piece_stream import PieceStream
from speedwell.fs.client.read.pieces import Pieces
from speedwell.fs.client.read.plan import Followed, Source, plan_stream
from speedwell.fs.client.read.receiver import Receiver
from speedwell.fs.client.read.steering import NoNews, SteeredRead
from speedwell.fs.errors import FileClosed, SpeedwellError
from speedwell.fs.proto.speedwell_pb2 import Attributes
from speedwell.fs.wire.channel import ConnectionLost, MalformedFrame

log = logging.getLogger(__name__)

PIECES_AHEAD = 2
"""How many pieces a connection is asked for at a time, so that the dataserver goes on without a pause."""
MOVE_RATIO, MOVE_SECONDS = 2.0, 0.3
"""The rest of a connection goes to another that has nothing left to do, if it should end that much earlier there, or
takes that much longer than it should."""
MOST_SECONDS = 3.0
"""What a connection that has brought nothing yet is given."""


class SideBySideReceiver(Receiver):
    """Pieces come in threads, one for each connection, and are kept until it is their turn.

    No connection waits for its turn at the reader: a socket's buffer grows only as it is read from, so one that
    waited would soon stand still, and the slowest would hold up all.
    """

    def __init__(self, context: ClientContext, attributes: Attributes, plan: Followed | Sequence[Source],
                 offset: int, stop: int) -> None:
        self.position = offset
        self.stop = stop
        self._context = context
        self._attributes = attributes
        self._pieces = Pieces(offset, stop)
        self._choice = ReplicaChoice(context, attributes)
        self._followed: Followed | None = None
        self._plan: Followed | Sequence[Source] | None = plan     # until it has begun
        self._streams: list[PieceStream] = []
        self._sources: list[SteeredRead] = []
        self._file_size = attributes.size
        self._changed = threading.Condition()
        self._idle = 0                  # connections that wait for a piece
        self._closed = False
        self._error: BaseException | None = None

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
        with self._changed:
            if self._plan is not None and not self._closed:
                self._begin(self._plan)
                self._plan = None
            while True:
                if self._closed:
                    raise FileClosed("the reader is closed")
                if self.position >= self.stop or not view:
                    return 0
                count = self._pieces.read_into(view)
                if count:
                    break
                if self._error is not None:
                    raise self._error
                self._changed.wait()
            self.position = self._pieces.position
            if self._streams:       # else these bytes came before the last connection broke
                self._choice.delivered()
            if self._idle:
                self._changed.notify_all()      # the window has moved
        self._context.metrics.add(bytes_read=count)
        return count

    def close(self) -> None:
        with self._changed:
            self._closed = True
            plan, self._plan = self._plan, None
            self._changed.notify_all()
        if plan is not None:
            _give_up(plan)
        self._end_following()
        with self._changed:
            for stream in self._streams:
                stream.stop()

    # ------------------------------------------------------------------ parts come

    def _begin(self, plan: Followed | Sequence[Source]) -> None:
        """Open what is to be opened now."""
        if isinstance(plan, Followed):
            self._followed = plan
            sources = [source for part in plan.placement.parts if (source := plan.source(part)) is not None]
            threading.Thread(target=tracing.carried(self._follow), args=(plan,), name="news", daemon=True).start()
        else:
            self._followed = None
            sources = list(plan)
        for source in sources:
            self._open(source)

    def _open(self, source: Source) -> None:
        stream = PieceStream(source, self._attributes, self._choice)
        self._streams.append(stream)
        threading.Thread(target=tracing.carried(self._receive), args=(stream,), name="part", daemon=True).start()

    def _follow(self, followed: Followed) -> None:
        """Open further parts as the controller names them."""
        try:
            while True:
                parts = followed.placement.news()
                with self._changed:
                    if followed is not self._followed or self._is_over:
                        return
                    new = [source for part in parts if (source := followed.source(part)) is not None]
                    self._context.metrics.add(later_parts=len(new),
                                              split_reads=int(bool(new) and len(self._sources) == 1))
                    for source in new:
                        self._open(source)
        except NoNews as error:
            with self._changed:
                if followed is not self._followed or self._is_over:
                    return
                log.warning("%s is read on without news from the controller: %s", self._attributes.file_id, error)
                waited = not self._streams
            if waited:
                self._place_again()
        except BaseException as error:
            self._fail(error)       # the reader must not wait for a thread that is gone

    # ------------------------------------------------------------------ bytes come

    @property
    def _is_over(self) -> bool:
        return self._closed or self._error is not None or not self._pieces.missing

    def _receive(self, stream: PieceStream) -> None:
        """The thread of a connection."""
        whole = False
        try:
            stream.connect(self._context)
            with self._changed:
                self._sources.append(stream.source.read)
                if self._closed:
                    stream.stop()
            while self._ask(stream):
                self._deliver(stream, stream.receive())
        except (ConnectionLost, MalformedFrame, OSError) as error:
            self._lost(stream, str(error))
        except BaseException as error:
            self._fail(error)
        else:
            whole = not stream.is_stopped
            with self._changed:
                self._streams.remove(stream)
        finally:
            stream.finish(self._context, whole)

    def _ask(self, stream: PieceStream) -> bool:
        """Ask for pieces; False when nothing is left to wait for."""
        while len(stream.asked) < PIECES_AHEAD and (piece := self._take(stream)) is not None:
            stream.ask(*piece)
        return bool(stream.asked)

    def _take(self, stream: PieceStream) -> tuple[int, int] | None:
        """The next piece; if it has none to receive, it waits for one as long as there may be one."""
        with self._changed:
            while not self._is_over and not stream.is_stopped:
                piece = self._pieces.take(len(self._streams))
                if piece is not None:
                    stream.asked.append(piece)
                    return piece
                if stream.asked:
                    return None
                seconds = self._look_after_others(stream)
                self._idle += 1
                self._changed.wait(seconds)
                self._idle -= 1
            return None

    def _look_after_others(self, stream: PieceStream) -> float | None:
        """A connection has nothing to do: have the rest of a slow or stalled one come over it, or say that its share
        of the network is free.

        Returns after how many seconds this is to be looked at again; None: when something has changed.
        """
        others = [other for other in self._streams if other.asked and not other.is_stopped]
        if not others or stream.is_stopped:
            return None
        slowest = max(others, key=_seconds_left)
        now, here = time.monotonic(), slowest.outstanding / stream.rate if stream.rate else MOST_SECONDS
        slow = self._pieces.all_taken and _seconds_left(slowest) > MOVE_RATIO * here + MOVE_SECONDS
        if slow or (slowest.due is not None and now > slowest.due):
            self._context.metrics.add(moved_parts=1)
            slowest.stop()
            return None
        for other in others:
            other.due = other.due or now + MOVE_RATIO * _seconds_left(other) + MOVE_SECONDS
        if self._pieces.all_taken:
            stream.done()
        return max(min(other.due - now for other in others if other.due is not None), 0.0) + 0.01

    def _deliver(self, stream: PieceStream, data: memoryview) -> None:
        with self._changed:
            self._pieces.deliver(stream.asked[0][0], data)
            stream.took(len(data))
            self._file_size = max(self._file_size, stream.file_size)
            over = not self._pieces.missing
            self._changed.notify_all()
        if over:
            self._end_following()

    # ------------------------------------------------------------------ parts go

    def _lost(self, stream: PieceStream, reason: str) -> None:
        """A connection broke, or was stopped: what it brought counts, the rest is for others."""
        with self._changed:
            if stream.asked:
                start, stop = stream.asked[0]
                arrived = stream.arrived()
                self._pieces.deliver(start, arrived)
                stream.took(len(arrived))
                self._pieces.give_back(start + len(arrived), stop)
            while stream.asked:
                self._pieces.give_back(*stream.asked.popleft())
            self._streams.remove(stream)
            over = self._is_over
            if not over and not stream.is_stopped:
                self._choice.failed(stream.replica, reason, self.position)
            alone = not over and not self._streams
            self._changed.notify_all()
        if alone:
            self._place_again()

    def _place_again(self) -> None:
        """Nothing runs and nothing will: have the rest placed as a read of its own."""
        self._end_following()
        try:
            candidates = self._choice.candidates(self.position)
            plan = plan_stream(self._context, self._attributes, candidates, self.position, self._pieces.missing)
        except (SpeedwellError, OSError) as error:
            self._fail(error)
            return
        with self._changed:
            over = self._is_over
            if not over:
                self._begin(plan)
        if over:
            _give_up(plan)

    def _end_following(self) -> None:
        with self._changed:
            followed, self._followed = self._followed, None
        if followed is not None:
            followed.ended()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            for stream in self._streams:
                stream.stop()
            self._changed.notify_all()
        self._end_following()


def _give_up(plan: Followed | Sequence[Source]) -> None:
    for unused in [plan] if isinstance(plan, Followed) else plan:
        unused.ended()


def _seconds_left(stream: PieceStream) -> float:
    return min(stream.outstanding / stream.rate, MOST_SECONDS) if stream.rate else MOST_SECONDS
