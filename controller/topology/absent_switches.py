"""Which switches are away, and which of them are no longer waited for. No clock, no sockets."""

from __future__ import annotations

from collections.abc import Collection, Iterator

MAX_ABSENT = 1000
"""Switches that are waited for at the same time; of more, those that left first are given up."""


class AbsentSwitches:
    """Switches that left and may come back. Those of `expected` are waited for without end."""

    def __init__(self, expiry_seconds: float, expected: Collection[str] = ()) -> None:
        self._expiry_seconds = expiry_seconds
        self._expected = expected
        self._left_at: dict[str, float] = {}
        """In the order in which they left."""

    def __len__(self) -> int:
        return len(self._left_at)

    def left(self, dpid: str, now: float) -> None:
        """A switch's connection ended at `now` (seconds of a monotonic clock)."""
        if dpid not in self._expected:
            self._left_at[dpid] = now

    def returned(self, dpid: str) -> None:
        """A switch connected."""
        self._left_at.pop(dpid, None)

    def given_up(self, now: float) -> Iterator[str]:
        """The switches that are no longer waited for, each told once."""
        while self._left_at:
            dpid = next(iter(self._left_at))
            if len(self._left_at) <= MAX_ABSENT and now - self._left_at[dpid] < self._expiry_seconds:
                return
            del self._left_at[dpid]
            yield dpid
