"""Waiting for a condition with a deadline."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool], timeout_seconds: float, interval_seconds: float = 0.1) -> bool:
    """Whether `condition` became true within `timeout_seconds`; asked every `interval_seconds`."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_seconds)
    return True
