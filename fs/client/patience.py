"""How long a client tries again what a file's replicas could not do."""

import time

SECONDS = 10.0
"""Longer than it takes until the lease of a primary that is gone has ended and the nameserver names another one."""

MOST_SECONDS = 60.0
PAUSE_SECONDS = 0.1


class Patience:
    """It lasts `SECONDS` from the first failure, and anew when something has changed for the file since: an attempt
    may take longer than that, and end because others have changed the set of replicas. `MOST_SECONDS` in all."""

    def __init__(self) -> None:
        self._until = self._end = 0.0

    def is_over(self, has_changed: bool) -> bool:
        """To be asked after each failure. `has_changed`: it looks different to the nameserver than when the attempt
        was made."""
        now = time.monotonic()
        self._end = self._end or now + MOST_SECONDS
        if has_changed or not self._until:
            self._until = min(now + SECONDS, self._end)
        return now > self._until
