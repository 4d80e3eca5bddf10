"""What a disk could still write, where the operator says what it can write at all."""

from __future__ import annotations

import time
from collections.abc import Callable

LEAST_PART = 0.05
"""Of its rate a disk that is fully busy still has to offer: it is never taken for none."""


class DiskRate:
    """Compares what was written to a disk with its rate in bytes/s; 0: it is not known."""

    def __init__(self, rate_bytes: float, written_bytes: Callable[[], int],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._rate_bytes = rate_bytes
        self._written_bytes = written_bytes
        self._clock = clock
        self._last: tuple[float, int] | None = None

    def left_bytes(self) -> int:
        """What the disk could have written besides, in bytes/s, since the last call; 0 if its rate is not known."""
        if not self._rate_bytes:
            return 0
        now, written_bytes = self._clock(), self._written_bytes()
        last, self._last = self._last, (now, written_bytes)
        busy_bytes = (written_bytes - last[1]) / (now - last[0]) if last and now > last[0] else 0.0
        return max(int(max(self._rate_bytes - busy_bytes, LEAST_PART * self._rate_bytes)), 1)
