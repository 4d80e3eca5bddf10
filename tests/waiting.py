"""Waiting for a condition with a deadline, in place of fixed sleeps."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LEAST_SECONDS = 30.0
"""No deadline is shorter: a machine that others use stands still for seconds now and then."""


def wait_until(condition: Callable[[], T], timeout_seconds: float, message: str | Callable[[], str],
               interval_seconds: float = 0.02) -> T:
    """Return the first true value of `condition`; fail with `message`, or what it returns then, after
    `timeout_seconds`."""
    timeout_seconds = max(timeout_seconds, LEAST_SECONDS)
    deadline = time.monotonic() + timeout_seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            said = message if isinstance(message, str) else message()
            raise AssertionError(f"{said} (waited {timeout_seconds:g} s, last value {value!r})")
        time.sleep(interval_seconds)
