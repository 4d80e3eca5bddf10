"""How long who is refused again and again waits for the answer: a token bucket for each source. Pure."""

from collections import OrderedDict

BURST = 100.0
PER_SECOND = 20.0
LONGEST_SECONDS = 1.0
MOST_SOURCES = 4096
"""One more, and who was refused least recently is forgotten."""


class Patience:
    """One thread at a time. Times are monotonic seconds, passed in."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()    # by source: tokens, and when

    def refused(self, source: str, now: float) -> float:
        """Take note; returns for how many seconds to hold the answer back."""
        left, since = self._left.pop(source, (BURST, now))
        left = min(BURST, left + (now - since) * PER_SECOND) - 1
        self._left[source] = max(left, -PER_SECOND * LONGEST_SECONDS), now
        if len(self._left) > MOST_SOURCES:
            self._left.popitem(last=False)
        return min(max(0.0, -left / PER_SECOND), LONGEST_SECONDS)
