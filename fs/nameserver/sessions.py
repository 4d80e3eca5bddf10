"""Clients that hold something at the nameserver (locks, open files without a name), and until when."""

import secrets
from collections.abc import Iterable, Mapping

MAX_SESSIONS = 65536


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

    def renew(self, session: int, now_seconds: float) -> bool:
        """Whether there was room for it."""
        if session not in self._renewed and len(self._renewed) >= MAX_SESSIONS:
            return False
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

    def expired(self, now_seconds: float) -> list[int]:
        """Those whose lease is over; they stay in this list until `end`."""
        return [session for session, renewed in self._renewed.items()
                if now_seconds - renewed > self.lease_seconds]
