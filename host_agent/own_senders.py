"""The agent's end of `speedwell.fs.wire.turns`: who on this host keeps turns by itself, and what it has to send."""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from speedwell.fs.wire.turns import WANT, WANT_SECONDS, Span, answer, name_of
from speedwell.host_agent.errors import KernelRefused
from speedwell.host_agent.gate import Gate

LEASE_SECONDS = 3 * WANT_SECONDS
"""After which a sender that says nothing is gone."""
MOST, BATCH = 1024, 64
_CREDENTIALS = struct.Struct("=3i")


class _Wish(NamedTuple):
    destination: str
    wanted_bytes: int
    until: float


class OwnSenders:
    """Only root's, and those of whoever runs the agent."""

    def __init__(self, address: str) -> None:
        """Raises KernelRefused."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            self.socket.bind(name_of(address))
        except OSError as error:
            raise KernelRefused(f"another agent of {address} runs on this host: {error.strerror}") from None
        self._wishes: dict[bytes, _Wish] = {}

    def hear(self, now: float) -> Iterator[tuple[str, bool]]:
        """The destinations of senders that said something, and whether it is somebody's first word."""
        for _ in range(BATCH):
            try:
                datagram, extra, _, sender = self.socket.recvmsg(WANT.size + 1, socket.CMSG_SPACE(_CREDENTIALS.size))
            except OSError:
                return
            uids = [_CREDENTIALS.unpack(data)[1] for _, kind, data in extra if kind == socket.SCM_CREDENTIALS]
            if len(datagram) != WANT.size or not sender or uids not in ([0], [os.getuid()]):
                continue
            packed, wanted_bytes = WANT.unpack(datagram)
            destination, is_new = socket.inet_ntoa(packed), sender not in self._wishes
            if not wanted_bytes:
                self._wishes.pop(sender, None)
            elif not is_new or len(self._wishes) < MOST:
                self._wishes[sender] = _Wish(destination, wanted_bytes, now + LEASE_SECONDS)
            yield destination, is_new

    def wanted_bytes(self, now: float) -> Counter[str]:
        """By destination."""
        self._wishes = {sender: wish for sender, wish in self._wishes.items() if wish.until > now}
        wanted: Counter[str] = Counter()
        for wish in self._wishes.values():
            wanted[wish.destination] += wish.wanted_bytes
        return wanted

    def tell(self, destination: str, gate: Gate | None) -> None:
        """All that send to a destination share its slices."""
        senders = [sender for sender, wish in self._wishes.items() if wish.destination == destination]
        if not senders:
            return
        spans = gate.spans if gate is not None else ()
        told = answer(gate.free_at if gate is not None else 0.0, [
            Span(each.begin, each.end, each.rate_bps // len(senders)) for each in spans])
        for sender in senders:
            try:
                self.socket.sendto(told, sender)
            except BlockingIOError:     # it does not read; what it was told runs out
                continue
            except OSError:
                del self._wishes[sender]

    def close(self) -> None:
        self.socket.close()
