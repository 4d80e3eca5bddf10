"""The TLS handshakes of a listening end, all in one thread: who is slow, or silent, delays nobody."""

import logging
import os
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from prometheus_client import Counter

from speedwell.fs import rates
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.wire.tls import TLS

log = logging.getLogger(__name__)

DEADLINE_SECONDS = 5.0
"""For a handshake; an honest one takes milliseconds."""

LINGER_SECONDS = 1.0
"""For the other end to read why it was refused."""

MOST = 2048
"""Handshakes under way; one more ends the oldest, which is the one most likely to be nobody's."""

TOLD_SECONDS = 1.0
_DROPPED_BYTES = 4096


def begins_with_tls(connection: socket.socket, plain_answer: bytes) -> bool:
    """By the first byte, which stays unread; who begins otherwise is sent the `plain_answer`. Raises OSError;
    ConnectionAbortedError where the other end says nothing."""
    first = connection.recv(1, socket.MSG_PEEK)
    if not first:
        raise ConnectionAbortedError("it ended before the handshake")
    if first == b"\x16":
        return True
    connection.send(plain_answer)
    return False


class _Handshake:
    """One connection; `ends` once it was refused, and only lingers."""

    def __init__(self, connection: socket.socket, source: str, deadline: float) -> None:
        self.source = source
        self.connection = connection
        self.tls: TLS | None = None     # once it has begun
        self.deadline = deadline
        self.ends = False


class Handshakes:
    """Hands on to `accepted` each connection whose other end has proved who it is. From an address that failed
    too often no other one is looked at for a while. `refusals` counts."""

    def __init__(self, identity: Identity, accepted: Callable[[TLS], None], plain_answer: bytes, *,
                 deadline_seconds: float = DEADLINE_SECONDS, most: int = MOST) -> None:
        """`plain_answer` is for who does not begin a handshake."""
        self._identity = identity
        self._accepted = accepted
        self._plain_answer = plain_answer
        self._deadline_seconds = deadline_seconds
        self._most = most
        self._selector = selectors.DefaultSelector()
        self._under_way: dict[int, _Handshake] = {}     # by descriptor, the oldest first
        self._new: deque[socket.socket] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._stopping = False
        self.refusals = Counter("speedwell_refused_connections", "Whose other end did not prove who it is; limited: "
                                "not looked at, as too many from that address did not.", ["why"], registry=None)
        self._failures = rates.of_refused()
        self._refused = 0
        self._told_at = 0.0
        self._thread = threading.Thread(target=self._run, name="handshakes", daemon=True)
        self._thread.start()

    def begin(self, connection: socket.socket) -> None:
        """Callable from any thread."""
        self._new.append(connection)
        with suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b".")

    def stop(self) -> None:
        """End the thread and the handshakes under way."""
        self._stopping = True
        with suppress(OSError):
            os.write(self._wake_write, b".")
        self._thread.join(LINGER_SECONDS)

    # ------------------------------------------------------------------ private

    def _run(self) -> None:
        try:
            while not self._stopping:
                oldest = next(iter(self._under_way.values()), None)
                wait = None if oldest is None else max(oldest.deadline - time.monotonic(), 0.0)
                for key, _ in self._selector.select(wait if wait is None else min(wait, LINGER_SECONDS)):
                    self._advance(key.fd)
                self._take_new()
                self._end_late()
        finally:
            for descriptor in list(self._under_way):
                self._forget(descriptor).close()
            while self._new:
                self._new.popleft().close()
            self._selector.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _advance(self, descriptor: int) -> None:
        if descriptor == self._wake_read:
            with suppress(BlockingIOError):
                os.read(descriptor, 65536)
        elif descriptor in self._under_way:     # else ended in this round
            try:
                self._step(descriptor, self._under_way[descriptor])
            except Exception:
                log.exception("a handshake failed")
                if descriptor in self._under_way:
                    self._forget(descriptor).close()

    def _take_new(self) -> None:
        while self._new:
            connection = self._new.popleft()
            source = _source(connection)
            if self._failures.wait(source, time.monotonic()):
                self.refusals.labels("limited").inc()
                connection.close()
                continue
            if len(self._under_way) >= self._most:
                oldest = next(iter(self._under_way))
                self._note_refused(self._under_way[oldest], "too many others came")
                self._forget(oldest).close()
            try:
                connection.setblocking(False)
                self._selector.register(connection.fileno(), selectors.EVENT_READ)
            except (OSError, ValueError):
                connection.close()
                continue
            self._under_way[connection.fileno()] = _Handshake(
                connection, source, time.monotonic() + self._deadline_seconds)

    def _end_late(self) -> None:
        now = time.monotonic()
        for descriptor in [each for each, handshake in self._under_way.items() if now >= handshake.deadline]:
            if not self._under_way[descriptor].ends:
                self._note_refused(self._under_way[descriptor], "it did not end the handshake in time")
            self._forget(descriptor).close()

    def _step(self, descriptor: int, handshake: _Handshake) -> None:
        if handshake.ends:
            self._drop(descriptor, handshake)
            return
        try:
            tls = handshake.tls = handshake.tls or self._begun(handshake)
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ConnectionAbortedError:
            self._forget(descriptor).close()
        except OSError as error:
            self._refuse(descriptor, handshake, str(error.reason if isinstance(error, ssl.SSLError) else error))
        else:
            connection = self._forget(descriptor)
            try:
                self._accepted(tls)
            except BaseException:
                connection.close()
                raise

    def _begun(self, handshake: _Handshake) -> TLS:
        if not begins_with_tls(handshake.connection, self._plain_answer):
            raise OSError("it does not speak TLS")
        return TLS(handshake.connection, self._identity.server_context(), server_side=True)

    def _refuse(self, descriptor: int, handshake: _Handshake, why: str) -> None:
        """End it so that the alert arrives: unread bytes would turn the close into a reset."""
        self._note_refused(handshake, why)
        handshake.ends = True
        handshake.deadline = time.monotonic() + LINGER_SECONDS
        with suppress(OSError):
            handshake.connection.shutdown(socket.SHUT_WR)

    def _drop(self, descriptor: int, handshake: _Handshake) -> None:
        try:
            if handshake.connection.recv(_DROPPED_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._forget(descriptor).close()

    def _note_refused(self, handshake: _Handshake, why: str) -> None:
        self._refused += 1
        self.refusals.labels("failed").inc()
        now = time.monotonic()
        self._failures.take(handshake.source, now)
        if now - self._told_at >= TOLD_SECONDS:
            others = f", and {self._refused - 1} others" if self._refused > 1 else ""
            log.warning("%s was refused: %s%s", handshake.source, why, others)
            self._refused, self._told_at = 0, now

    def _forget(self, descriptor: int) -> socket.socket:
        self._selector.unregister(descriptor)
        return self._under_way.pop(descriptor).connection


def _source(connection: socket.socket) -> str:
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return "somebody"
