"""Holding a flow to a rate at its host, as Varys does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FIRST_RATE_SECONDS = 1.0
"""How long a flow waits for its first rate; it then goes without."""
LATENESS_SECONDS = 0.02
"""So much of what a sender could not use for want of processor time it may catch up with."""


class Pace:
    """Lets bytes go at a rate that may change at any time. Before the first one, nothing goes for a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._free_after = clock() + FIRST_RATE_SECONDS
        self._rate_bps: float | None = None
        self._due_at = 0.0

    def set(self, rate_bps: float) -> None:
        """From now on; 0 lets nothing go, infinity everything."""
        with self._changed:
            now, former = self._clock(), self._rate_bps
            if former and rate_bps and self._due_at > now:      # what goes at present is waited for at the new rate
                self._due_at = now + (self._due_at - now) * former / rate_bps
            self._rate_bps = rate_bps
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        """Return when `count` bytes may go."""
        with self._changed:
            while (seconds := self._seconds_until(count)) is None or seconds > 0:
                self._changed.wait(seconds)

    def _seconds_until(self, count: int) -> float | None:
        """0 if so many bytes may go now, and are taken to; None: not before there is another rate."""
        now = self._clock()
        if self._rate_bps is None:
            return max(0.0, self._free_after - now)
        if self._rate_bps <= 0:
            return None
        start = max(self._due_at, now - LATENESS_SECONDS)
        if start > now:
            return start - now
        self._due_at = start + 8 * count / self._rate_bps
        return 0.0
