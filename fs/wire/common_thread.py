"""Frame connections whose short requests one thread answers for all of them.

Threads that answer in turns hand Python's lock to each other with every system call, and with TLS at every record:
that costs more than the answers. A connection has a thread of its own for what may wait, and for the requests behind
that until some in a row were short.
"""

import logging
import select
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.message import Message
from prometheus_client import Counter

from speedwell.fs import tracing
from speedwell.fs.proto.speedwell_pb2 import Call
from speedwell.fs.wire.channel import Channel, ConnectionLost, MalformedFrame, NotYet
from speedwell.fs.wire.frame_server import FrameServer

log = logging.getLogger(__name__)

SHORT_IN_A_ROW = 8
LOOK_SECONDS = 1.0
"""So late at most the thread sees that it is to stop, or that a connection was idle for too long."""
FAILED_SECONDS = 0.1
"""It pauses so long after it failed."""


class Answer(NamedTuple):
    """A frame, which is held back for `wait_seconds`; with the last one the connection ends."""

    frame: bytes
    wait_seconds: float
    is_last: bool


class CommonThread(FrameServer):
    """Answers `Call` frames."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As FrameServer."""
        super().__init__(*arguments, **options)
        self._common: dict[int, Channel] = {}   # by descriptor
        self._ready = select.epoll()
        self._failures = Counter("speedwell_short_requests_failures", "How often the thread that answers short "
                                 "requests failed and went on.", registry=None)
        self._failed = 0
        self.door_metrics = [*self.door_metrics, self._failures]

    @property
    def warnings(self) -> list[str]:
        """What an operator should look at."""
        return [f"answering short requests failed {self._failed} times since the start: the nameserver's log says why"
                ] * bool(self._failed)

    @abstractmethod
    def is_short(self, request: Call) -> bool:
        """Whether `answer` waits for nothing but what other short requests wait for, too."""

    @abstractmethod
    def answer(self, channel: Channel, request: Call) -> Answer:
        """Raises nothing."""

    def serve(self) -> None:
        threading.Thread(target=self._serve_common, name="short requests", daemon=True).start()
        super().serve()

    def serve_request(self, channel: Channel, request: Message) -> None:
        assert isinstance(request, Call)
        channel.short_in_a_row = channel.short_in_a_row + 1 if self.is_short(request) else 0
        self._send(self.answer(channel, request), channel)

    def _send(self, answer: Answer, channel: Channel) -> bool:
        if answer.wait_seconds:
            time.sleep(answer.wait_seconds)
        if not channel.send_now(answer.frame):
            channel.send_rest()
        return self._sent(answer, channel)

    def _sent(self, answer: Answer, channel: Channel) -> bool:
        if answer.is_last:
            raise ConnectionLost(f"{channel.peer} was refused: its certificate counts for nothing any more")
        self._set_busy(channel, False)
        return True

    # ------------------------------------------------------------------ the common thread

    def _leaves(self, channel: Channel) -> bool:
        if channel.short_in_a_row < SHORT_IN_A_ROW or channel.is_pending or self._stopping:
            return False
        self._common[channel.socket.fileno()] = channel
        try:
            self._ready.register(channel.socket, select.EPOLLIN)
        except OSError as error:    # the kernel watches no more: it keeps its thread
            del self._common[channel.socket.fileno()]
            self.note_refusal("%s keeps a thread of its own: %s", channel.peer, error)
            channel.short_in_a_row = 0
            return False
        return True

    def _part(self, channel: Channel, work: Callable[[Channel], bool]) -> bool:
        """It goes on in a thread of its own."""
        self._ready.unregister(channel.socket)
        del self._common[channel.socket.fileno()]
        channel.short_in_a_row = 0
        self._converse_apart(channel, work)
        return True

    def _end(self, channel: Channel) -> None:
        self._common.pop(channel.socket.fileno(), None)
        super()._end(channel)

    def _serve_common(self) -> None:
        looks_at = 0.0
        while not self._stopping:
            try:
                for descriptor, _ in self._ready.poll(LOOK_SECONDS):
                    self._serve_ready(descriptor)
                now = time.monotonic()
                if now >= looks_at:
                    looks_at = now + LOOK_SECONDS
                    self._interrupt_idle(now)
            except Exception:
                self._note_failure()
                time.sleep(FAILED_SECONDS)
        for channel in list(self._common.values()):
            self._end(channel)

    def _serve_ready(self, descriptor: int) -> None:
        try:
            self._goes_on(self._common[descriptor], self._serve_now)
        except Exception:   # it would be ready again at once
            self._note_failure()
            with suppress(OSError):
                self._ready.unregister(descriptor)
            if channel := self._common.pop(descriptor, None):
                channel.interrupt()
                with suppress(KeyError):
                    self._end(channel)

    def _interrupt_idle(self, now: float) -> None:
        for channel in list(self._common.values()):
            if now - self._rests_since[channel] >= self._idle_seconds:
                channel.interrupt()

    def _note_failure(self) -> None:
        log.exception("the thread that answers short requests failed; it goes on")
        self._failures.inc()
        self._failed += 1

    def _serve_now(self, channel: Channel) -> bool:
        """What can be done without waiting."""
        try:
            request = channel.receive_alone(Call, wait=False)
        except NotYet:
            return self._part(channel, self._serve_one)
        except MalformedFrame as error:
            return self._part(channel, partial(_raise, error))
        if request is None:
            return False
        if not self.is_short(request):
            return self._part(channel, partial(self._serve, request=request))
        self._set_busy(channel, True)
        with tracing.serving(self.name_of(request), request.traceparent):
            answer = self.answer(channel, request)
        if answer.wait_seconds:
            return self._part(channel, partial(self._send, answer))
        if not channel.send_now(answer.frame):
            return self._part(channel, partial(self._send_rest, answer))
        self._sent(answer, channel)
        return not channel.is_pending or self._part(channel, self._serve_one)

    def _send_rest(self, answer: Answer, channel: Channel) -> bool:
        channel.send_rest()
        return self._sent(answer, channel)


def _raise(error: Exception, channel: Channel) -> bool:
    raise error
