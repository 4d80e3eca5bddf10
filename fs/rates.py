"""How often one source may do something: a token bucket for each. Pure."""

import math
import threading
from collections import OrderedDict

MOST_SOURCES = 4096
"""One more, and the one that was heard least recently is forgotten."""

REQUESTS_PER_SECOND = 50_000.0
"""Of one client, at the nameserver and at each dataserver: more than several fast ones that share a certificate make
together."""
REFUSED_BURST, REFUSED_PER_SECOND, REFUSED_WAIT_SECONDS = 100.0, 20.0, 1.0
"""Of requests or handshakes that are refused."""


class Rates:
    """Thread-safe. Times are monotonic seconds, passed in."""

    def __init__(self, per_second: float, burst: float, longest_seconds: float = math.inf) -> None:
        """Nobody is told to wait for longer than `longest_seconds`."""
        self._per_second = per_second
        self._burst = burst
        self._longest_seconds = longest_seconds
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()    # by source: tokens, and when
        self._lock = threading.Lock()

    def take(self, source: str, now: float) -> float:
        """Take note of one more; returns in how many seconds it is within the rate."""
        with self._lock:
            left = self._now_left(source, now) - 1
            wait_seconds = 0.0 if left >= 0 else min(-left / self._per_second, self._longest_seconds)
            self._left[source] = left if left >= 0 else -wait_seconds * self._per_second, now
            self._left.move_to_end(source)
            if len(self._left) > MOST_SOURCES:
                self._left.popitem(last=False)
        return wait_seconds

    def wait(self, source: str, now: float) -> float:
        """In how many seconds one more would be within the rate."""
        with self._lock:
            return max(0.0, (1 - self._now_left(source, now)) / self._per_second)

    def _now_left(self, source: str, now: float) -> float:
        left, since = self._left.get(source, (self._burst, now))
        left += (now - since) * self._per_second
        return left if left < self._burst else self._burst


def of_refused() -> Rates:
    """So many refusals may one source cause."""
    return Rates(REFUSED_PER_SECOND, REFUSED_BURST, REFUSED_WAIT_SECONDS)
