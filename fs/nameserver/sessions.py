"""Clients that hold something at the nameserver (locks, open files without a name), and until when."""

from collections.abc import Iterable

MAX_SESSIONS = 65536


class Sessions:
    """Leases by session number. Times are monotonic seconds, passed in."""

    def __init__(self, lease_seconds: float, holders: Iterable[int], now_seconds: float) -> None:
        """`holders` are the sessions that hold something from before a restart: they get a whole lease."""
        self.lease_seconds = lease_seconds
        self._renewed = dict.fromkeys(holders, now_seconds)

    def renew(self, session: int, now_seconds: float) -> bool:
        """Whether there was room for it."""
        if session not in self._renewed and len(self._renewed) >= MAX_SESSIONS:
            return False
        self._renewed[session] = now_seconds
        return True

    def is_known(self, session: int) -> bool:
        return session in self._renewed

    def end(self, session: int) -> None:
        self._renewed.pop(session, None)

    def expired(self, now_seconds: float) -> list[int]:
        """Those whose lease is over; they stay in this list until `end`."""
        return [session for session, renewed in self._renewed.items()
                if now_seconds - renewed > self.lease_seconds]
