"""Whether this dataserver may order appends: only while the nameserver has answered it lately.

The nameserver names another primary for a file when it has not heard from the present one for the time of
a lease. By then that one has stopped: it counts from the moment it sent the heartbeat, not from the answer,
and for a fifth less, which is more than clocks and scheduling differ by.
"""

import threading
import time
from collections.abc import Callable

USED_PART = 0.8


def boot_seconds() -> float:
    """A clock that nobody sets and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Thread-safe. `term` counts how often the lease was got anew: meanwhile others may have been primary."""

    def __init__(self, clock: Callable[[], float] = boot_seconds) -> None:
        self.now = clock
        self.term = 0
        self._until: float | None = None
        self._lock = threading.Lock()

    def renew(self, sent_at: float, lease_seconds: float) -> None:
        """The nameserver answered a heartbeat that was sent at `sent_at` with a lease of that length."""
        with self._lock:
            until = sent_at + lease_seconds * USED_PART
            if until <= self.now():
                return
            if self._until is None or self._until <= self.now():
                self.term += 1
            self._until = max(until, self._until or until)

    @property
    def held(self) -> bool:
        return self.left_seconds > 0

    @property
    def left_seconds(self) -> float:
        until = self._until
        return 0.0 if until is None else max(0.0, until - self.now())
