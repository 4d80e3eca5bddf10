"""Long loops beside which others have their turn."""

from __future__ import annotations

import time

import eventlet

TURN_SECONDS = 0.005


class Turns:
    """For one loop of one green thread: `others` lets other green threads run if this one has run for
    `TURN_SECONDS` since it last did."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def others(self) -> None:
        if time.monotonic() - self._since >= TURN_SECONDS:
            eventlet.sleep(0)
            self._since = time.monotonic()
