"""Clients that hold something at the nameserver (locks, open files without a name), and until when."""

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping

MAX_SESSIONS = 65536
MAX_OF_A_CLIENT = 1024
"""Of one certificate, which may be that of all mounts of a machine."""


class Sessions:
    """Leases by session number. Times are monotonic seconds, passed in. A session that has ended and begins again is
    of another generation."""

    def __init__(self, lease_seconds: float, holders: Iterable[int], now_seconds: float,
                 generations: Mapping[int, int]) -> None:
        """`holders` are the sessions that hold something from before a restart: they get a whole lease. Those with
        locks are of the `generations` of their locks."""
        self.lease_seconds = lease_seconds
        self._renewed = dict.fromkeys(holders, now_seconds)
        self._generations = dict(generations)
        self._clients: dict[int, str] = {}
        self._of_client: Counter[str] = Counter()

    def renew(self, session: int, now_seconds: float, client: str = "") -> bool:
        """Whether there was room for it; `client` is whose it is when it begins, empty for one that is not known."""
        if session not in self._renewed:
            if len(self._renewed) >= MAX_SESSIONS or self._of_client[client] >= MAX_OF_A_CLIENT:
                return False
            if client:
                self._clients[session] = client
                self._of_client[client] += 1
        self._renewed[session] = now_seconds
        return True

    def is_known(self, session: int) -> bool:
        return session in self._renewed

    def generation(self, session: int) -> int:
        """Of a session that is known; drawn when it began. 0: it is not known."""
        if session not in self._renewed:
            return 0
        return self._generations.setdefault(session, secrets.randbits(63) | 1)

    def end(self, session: int) -> None:
        self._renewed.pop(session, None)
        self._generations.pop(session, None)
        client = self._clients.pop(session, None)
        if client is not None:
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]

    def expired(self, now_seconds: float) -> list[int]:
        """Those whose lease is over; they stay in this list until `end`."""
        return [session for session, renewed in self._renewed.items()
                if now_seconds - renewed > self.lease_seconds]
