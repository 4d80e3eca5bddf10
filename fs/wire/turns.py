"""Senders of this host that keep to their turns by themselves, as its agent tells them: no packet of theirs is held.

The agent listens on an abstract Unix socket, named by the host's address; without it, and without the right to mark
connections, nothing here waits. A sender says every WANT_SECONDS how many bytes it has for whom. The answers, at once
and whenever the scheduler says something new, have the slices by this machine's monotonic clock and when they are
over if nobody renews them.
"""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from typing import NamedTuple, Self

LEAST_BYTES = 100_000
"""Smaller transfers never wait."""
MARK = 0x10000000
"""Of packets that the agent's rules let pass."""
WANT_SECONDS = 0.1
STEP_SECONDS, MOST_STEP_BYTES = 0.002, 1 << 18
"""What is written at once: about as much waits in the socket when a slice is over, or turns begin."""
WANT = struct.Struct("=4sQ")
_ANSWER, _SPAN = struct.Struct("=d"), struct.Struct("=ddQ")


def name_of(address: str) -> str:
    """Of the socket of the agent with this address."""
    return f"\0speedwell host agent {address}"


class Span(NamedTuple):
    begin: float
    end: float
    rate_bps: int


def answer(free_at: float, spans: list[Span]) -> bytes:
    """The datagram that tells them."""
    return _ANSWER.pack(free_at) + b"".join(_SPAN.pack(*span) for span in spans)


def _heard(datagram: bytes) -> tuple[float, list[Span]]:
    return _ANSWER.unpack_from(datagram)[0], [
        Span(*_SPAN.unpack_from(datagram, at)) for at in range(_ANSWER.size, len(datagram), _SPAN.size)]


class OwnTurns:
    """Of one connection, as a context manager around what it sends."""

    def __init__(self, agent: socket.socket, connection: socket.socket, count: int) -> None:
        self._agent, self._connection = agent, connection
        self._destination = socket.inet_aton(connection.getpeername()[0])
        self._frame_bytes = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        self._free_at, self._spans, self._said_at = -inf, list[Span](), -inf
        self._free_step, self._stepped_at, self._unsent_bytes = self._frame_bytes, -inf, 0
        self._want(count)
        self._listen(WANT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._agent.send(WANT.pack(self._destination, 0))
        self._agent.close()
        self._let_wait(0)

    def wait(self, count: int) -> int:
        """How many of `count` bytes may go now, at least one; waits until some may."""
        while True:
            self._listen(0.0)
            now = time.monotonic()
            if now - self._said_at >= WANT_SECONDS:
                self._want(count)
            if now >= self._free_at:
                return min(count, self._let_wait(self._free_bytes(now)))
            span = next((span for span in self._spans if span.begin <= now < span.end), None)
            if span is not None:
                fits = int((span.end - now) * span.rate_bps / 8) - self._queued_bytes()
                if fits >= min(count, self._frame_bytes):
                    return min(count, fits, self._let_wait(int(span.rate_bps / 8 * STEP_SECONDS)))
            next_at = min([span.begin for span in self._spans if span.begin > now] + [self._free_at])
            self._listen(min(next_at - now, WANT_SECONDS))

    def _free_bytes(self, now: float) -> int:
        """What takes about STEP_SECONDS where nothing says how fast it goes, by how long the last ones took."""
        took, self._stepped_at = now - self._stepped_at, now
        if took < STEP_SECONDS / 2:
            self._free_step *= 2
        elif took > 2 * STEP_SECONDS:
            self._free_step //= 2
        self._free_step = min(max(self._free_step, self._frame_bytes), MOST_STEP_BYTES)
        return self._free_step

    def _let_wait(self, count: int) -> int:
        """Have writing wait while more than so many bytes have not been sent, 0 for what is usual. Returns them, at
        least a frame's."""
        count = count and min(max(count, self._frame_bytes), MOST_STEP_BYTES)
        if count != self._unsent_bytes:
            self._unsent_bytes = count
            with suppress(OSError):     # the connection is lost
                self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, count)
        return count

    def _want(self, count: int) -> None:
        self._said_at = time.monotonic()
        with suppress(OSError):     # an agent that is gone: what it said last runs out
            self._agent.send(WANT.pack(self._destination, count))

    def _listen(self, seconds: float) -> None:
        """For so long at most, or until there is news."""
        while select.select([self._agent], [], [], max(0.0, seconds))[0]:
            try:
                self._free_at, self._spans = _heard(self._agent.recv(4096))
            except OSError:         # it is gone
                self._free_at, self._spans = -inf, []
                return
            seconds = 0.0

    def _queued_bytes(self) -> int:
        """Not acknowledged yet."""
        return int(struct.unpack("i", fcntl.ioctl(self._connection, termios.TIOCOUTQ, bytes(4)))[0])


def in_turns(connection: socket.socket, count: int) -> Iterator[int]:
    """Parts of `count` bytes that are about to go out on a connection, each when it may: all of it at once where
    nobody gives turns, or others see to it that they are kept."""
    turns = own_turns(connection, count)
    if turns is None:
        yield count
        return
    with turns:
        while count:
            size = turns.wait(count)
            yield size
            count -= size


def own_turns(connection: socket.socket, count: int) -> OwnTurns | None:
    """Turns for so many bytes that are about to go out on a connection; None where nobody gives any, or others see to
    it that it keeps them."""
    if count < LEAST_BYTES or connection.family != socket.AF_INET:
        return None
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        agent.connect(name_of(connection.getsockname()[0]))
        agent.bind("")              # the kernel gives it a name, for answers
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
        return OwnTurns(agent, connection, count)
    except OSError:
        agent.close()
        return None
