"""A scheduler that stands by: it gives turns only while the one before it is silent.

It registers with that one as agents do, and is told signs of life as they are. While these come it welcomes no agent,
so agents, which register with all schedulers they know, are the first one's.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from contextlib import suppress
from math import inf

from speedwell.controller.timeslices.turns import SILENT_SECONDS
from speedwell.host_agent.channel import MAX_DATAGRAM_BYTES, NONCE_BYTES, agent_key
from speedwell.host_agent.session import AgentEnd

SIGN_SECONDS = SILENT_SECONDS / 3


class FirstScheduler(threading.Thread):
    """Whether it is there."""

    def __init__(self, place: tuple[str, int], master_key: bytes, own_address: str) -> None:
        """`own_address` must be no agent's. Raises OSError."""
        super().__init__(name="first scheduler", daemon=True)
        self._end = AgentEnd(own_address, agent_key(master_key, own_address), 1)
        self._channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._channel.settimeout(SIGN_SECONDS)
        self._place = place
        self._heard_at = time.monotonic()
        """Counted as heard when we begin: it is asked before anybody is given turns."""
        self._said_at = -inf

    @property
    def is_there(self) -> bool:
        return time.monotonic() - self._heard_at < SILENT_SECONDS

    def run(self) -> None:
        while True:
            with suppress(OSError):     # nobody listens there, or nobody answers
                if time.monotonic() - self._said_at >= SIGN_SECONDS:
                    self._said_at = time.monotonic()
                    self._channel.sendto(self._word(), self._place)
                datagram, _ = self._channel.recvfrom(MAX_DATAGRAM_BYTES + 1)
                if self._end.take(datagram) is not None:
                    self._heard_at = time.monotonic()

    def _word(self) -> bytes:
        if self.is_there and self._end.is_registered:
            return self._end.report(0, ())
        return self._end.register(secrets.token_bytes(NONCE_BYTES))
