"""Holding work back to a rate, so that clients keep the rest."""

import threading
import time

SLICE_BYTES = 256 << 10
"""To be asked for at a time: what waits for a rate then still flows."""

WORTH_A_SLEEP_SECONDS = 0.1


class Pace:
    """Holds its callers back to `bytes_per_second` in all. Thread-safe."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    def wait(self, count: int) -> None:
        """Take `count` bytes; returns when the rate allows them."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + count / self._rate
            ahead = self._free_at - now
        if ahead > WORTH_A_SLEEP_SECONDS:
            time.sleep(ahead)
