"""How long to wait before something that failed at a switch is tried again. No clock, no sockets."""

from __future__ import annotations

FIRST_SECONDS, LAST_SECONDS = 1.0, 60.0


class Backoff:
    """Waits that double with each failure, up to `LAST_SECONDS`, for each switch on its own."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def __contains__(self, dpid: str) -> bool:
        """Whether anything failed at a switch since `reset`."""
        return dpid in self._seconds

    def failed(self, dpid: str) -> float:
        """Something failed at a switch. Returns how many seconds to wait."""
        delay_seconds = self._seconds.get(dpid, FIRST_SECONDS)
        self._seconds[dpid] = min(2 * delay_seconds, LAST_SECONDS)
        return delay_seconds

    def reset(self, dpid: str) -> None:
        """Whatever fails next at a switch is the first failure."""
        self._seconds.pop(dpid, None)
