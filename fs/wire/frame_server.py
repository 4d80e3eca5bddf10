"""The listening end of frame connections: a thread per connection, one request after the other on each."""

import contextlib
import logging
import os
import resource
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable

from google.protobuf.message import Message

from speedwell.fs import tracing
from speedwell.fs.errors import IdentityError, InvalidArgument, NotAuthenticated, SpeedwellError
from speedwell.fs.identity.bundle import Identity, peer_of
from speedwell.fs.wire import local_sockets as local
from speedwell.fs.wire.channel import Channel, ConnectionLost, MalformedFrame, encode
from speedwell.fs.wire.handshakes import Handshakes
from speedwell.fs.wire.local_sockets import user_of
from speedwell.fs.wire.secure_channel import SecureChannel
from speedwell.fs.wire.tls import TLS

log = logging.getLogger(__name__)

CONNECTION_BYTES = 256 << 10
"""What a connection with its thread takes of the memory, at most."""

MEMORY_PART = 8
"""So small a part of the machine's memory is for connections."""

LEAST_CONNECTIONS = 512
OTHER_FILES = 512
"""Descriptors that are for other things than connections."""

LEAST_OF_A_SOURCE = 256
"""So many connections one address, or one local user, may have in any case; half of all otherwise."""

RESTED_SECONDS = 1.0
"""A connection without a request for so long is closed when another one needs its place."""

IDLE_SECONDS = 60.0
"""A connection without a request for this long is closed."""

SEND_STALL_SECONDS = 60.0
"""A reader may pause: its socket's buffer is full then, and nothing moves."""

NO_CERTIFICATE = ("here only clients with a certificate are served: name yours with --identity or "
                  "SPEEDWELL_IDENTITY")

LINGER_SECONDS = 1.0
LINGER_BYTES = 4 << 20


def most_connections() -> int:
    """As many as memory and descriptors allow. Raises the process's limit of descriptors as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(LEAST_CONNECTIONS, min(memory_bytes // MEMORY_PART // CONNECTION_BYTES, soft - OTHER_FILES))


class FrameServer(ABC):
    """Serves a listening socket until `stop`. A subclass says what a request is, and whether local users may ask who
    are neither root nor our own where there is an identity.

    A connection too many takes the place of the one that has rested for the longest time. As long as all are at work
    it waits to be accepted.
    """

    admits_local_users = False

    def __init__(self, listener: socket.socket, *, local_listener: socket.socket | None = None,
                 idle_seconds: float = IDLE_SECONDS, max_connections: int = 0,
                 identity: Identity | None = None) -> None:
        """`local_listener` is for clients on this host (`local_sockets`); 0 connections: `most_connections`. With an
        `identity` the others are TLS, and local ones root's or our own user's."""
        self._own_identity = identity
        self._handshakes = None if identity is None else Handshakes(
            identity, self._accept_proven, encode(self.refusal(NotAuthenticated(NO_CERTIFICATE))))
        self.door_metrics = [] if self._handshakes is None else [self._handshakes.refusals]
        self._listener = listener
        self._local_listener = local_listener
        self._idle_seconds = idle_seconds
        self._max_connections = max_connections or most_connections()
        self._open: dict[Channel, bool] = {}  # whether a request is being served
        self._rests_since: dict[Channel, float] = {}
        self._of_source: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._stopping = False
        self._tells_again_at = 0.0

    @abstractmethod
    def receive_request(self, channel: Channel) -> Message | None:
        """The next request, None if the peer is done. Raises MalformedFrame, ConnectionLost."""

    @abstractmethod
    def serve_request(self, channel: Channel, request: Message) -> None:
        """Answer one request. Raises InvalidArgument or MalformedFrame to refuse it and close the connection."""

    @abstractmethod
    def name_of(self, request: Message) -> str:
        """What kind of request it is, in traces."""

    @abstractmethod
    def refusal(self, error: SpeedwellError) -> Message:
        """The answer to a malformed request, or to who may not ask."""

    def serve(self) -> None:
        """Accept connections until `stop`."""
        if self._local_listener is not None:
            is_open = self._own_identity is None or self.admits_local_users
            admit = self._accept if is_open else self._accept_own
            threading.Thread(target=self._listen, args=(self._local_listener, admit), name="accept",
                             daemon=True).start()
        self._listen(self._listener, self._accept if self._handshakes is None else self._handshakes.begin)

    def _listen(self, listener: socket.socket, admit: Callable[[socket.socket], None]) -> None:
        while not self._stopping:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if self._stopping:
                    return
                log.error("cannot accept a connection: %s", error)
                time.sleep(0.1)  # out of descriptors or memory: give those in use time to end
                continue
            admit(connection)

    def stop(self, grace_seconds: float = 1.0) -> None:
        """Take no more requests, give those under way `grace_seconds` to end, close everything."""
        self._stopping = True
        for listener in (self._listener, self._local_listener):
            if listener is not None:
                with contextlib.suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
                listener.close()
        if self._handshakes is not None:
            self._handshakes.stop()
        with self._changed:
            for channel, busy in self._open.items():
                if not busy:
                    channel.interrupt()
            self._changed.wait_for(lambda: not any(self._open.values()), grace_seconds)
            for channel in self._open:
                channel.interrupt()

    # ------------------------------------------------------------------ connections

    def _accept(self, connection: socket.socket) -> None:
        try:
            channel = Channel(connection)
            if channel.is_local:
                channel.source = f"the user {user_of(connection)}"
        except OSError:
            connection.close()
            return
        self._begin(channel)

    def _accept_own(self, connection: socket.socket) -> None:
        if local.is_own(connection):
            self._accept(connection)
        else:
            connection.close()

    def _accept_proven(self, connection: TLS) -> None:
        assert self._own_identity is not None
        try:
            channel = SecureChannel(connection, self._own_identity, peer_of(connection.session))
        except (OSError, IdentityError) as error:
            log.warning("a connection was refused: %s", error)
            connection.socket.close()
            return
        self._begin(channel)

    def _begin(self, channel: Channel) -> None:
        with self._changed:
            if not self._admit(channel.source):
                self.note_refusal("%s has too many connections: another one is closed", channel.source)
                channel.close()
                return
            self._make_room()
            self._open[channel] = False
            self._of_source[channel.source] += 1
            self._rests_since[channel] = time.monotonic()
        self._converse_apart(channel, self._serve_one)

    def _converse_apart(self, channel: Channel, work: Callable[[Channel], bool]) -> None:
        """Go on in a new thread, which begins with that `work`."""
        try:
            threading.Thread(target=self._converse, args=(channel, work), daemon=True).start()
        except RuntimeError as error:   # out of threads: who accepts connections goes on
            self.note_refusal("%s is not served: %s", channel.peer, error)
            self._end(channel)

    def _end(self, channel: Channel) -> None:
        with self._changed:
            del self._open[channel], self._rests_since[channel]
            self._of_source[channel.source] -= 1
            if not self._of_source[channel.source]:
                del self._of_source[channel.source]
            self._changed.notify_all()
        channel.close()

    def _admit(self, source: str) -> bool:
        """Whether a source may have another connection, in place of one of its own that rests if it has its share."""
        if self._of_source[source] < max(LEAST_OF_A_SOURCE, self._max_connections // 2):
            return True
        resting = [channel for channel, busy in self._open.items() if not busy and channel.source == source]
        oldest = min(resting, key=self._rests_since.__getitem__, default=None)
        if oldest is None or time.monotonic() - self._rests_since[oldest] < RESTED_SECONDS:
            return False
        oldest.interrupt()
        return True

    def _make_room(self) -> None:
        """Wait until there is a place for another connection; the lock is held."""
        told = False
        while len(self._open) >= self._max_connections and not self._stopping:
            resting = [channel for channel, busy in self._open.items() if not busy]
            oldest = min(resting, key=self._rests_since.__getitem__, default=None)
            if oldest is not None and time.monotonic() - self._rests_since[oldest] >= RESTED_SECONDS:
                oldest.interrupt()
            elif not told:
                log.warning("%d connections are at work: others wait", len(self._open))
                told = True
            self._changed.wait(0.1)

    def _converse(self, channel: Channel, work: Callable[[Channel], bool]) -> None:
        while self._goes_on(channel, work) and not self._leaves(channel):
            work = self._serve_one

    def _leaves(self, channel: Channel) -> bool:
        """Whether it needs no thread of its own any more."""
        return False

    def _goes_on(self, channel: Channel, work: Callable[[Channel], bool]) -> bool:
        """Whether the connection does after that `work`; else it has ended."""
        goes_on = False
        try:
            goes_on = not self._stopping and work(channel)
        except (ConnectionLost, NotAuthenticated) as error:
            log.debug("%s", error)
        except (InvalidArgument, MalformedFrame) as error:
            self.note_refusal("%s sent a malformed request: %s", channel.peer, error)
            self.refuse(channel, self.refusal(InvalidArgument(str(error))))
        except Exception:
            log.exception("a request of %s failed", channel.peer)
        finally:
            if not goes_on:
                self._end(channel)
        return goes_on

    def _serve_one(self, channel: Channel) -> bool:
        channel.set_timeout(self._idle_seconds, SEND_STALL_SECONDS)
        request = self.receive_request(channel)
        return request is not None and self._serve(channel, request)

    def _serve(self, channel: Channel, request: Message) -> bool:
        self._set_busy(channel, True)
        with tracing.serving(self.name_of(request), getattr(request, tracing.HEADER, "")):
            self.serve_request(channel, request)
        self._set_busy(channel, False)
        return True

    def _set_busy(self, channel: Channel, busy: bool) -> None:
        self._rests_since[channel] = time.monotonic()
        self._open[channel] = busy
        if self._stopping:
            with self._changed:
                self._changed.notify_all()

    def note_refusal(self, message: str, *words: object) -> None:
        """In the log, which strangers do not fill: one of those that come within a second."""
        now = time.monotonic()
        if now >= self._tells_again_at:
            self._tells_again_at = now + 1
            log.warning(message, *words)

    def refuse(self, channel: Channel, answer: Message) -> None:
        """Answer and close so that the answer arrives: unread bytes would turn the close into a reset."""
        deadline = time.monotonic() + LINGER_SECONDS
        with contextlib.suppress(ConnectionLost, OSError):
            channel.set_timeout(LINGER_SECONDS)
            channel.send(answer)
            channel.socket.shutdown(socket.SHUT_WR)
            scratch = memoryview(bytearray(65536))
            dropped = 0
            while dropped < LINGER_BYTES and time.monotonic() < deadline:
                dropped += channel.receive_some(scratch)
