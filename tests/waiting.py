"""Waiting for a condition with a deadline, in place of fixed sleeps."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout_seconds: float, message: str | Callable[[], str],
               interval_seconds: float = 0.02) -> T:
    """Return the first true value of `condition`; fail with `message`, or what it returns then, after
    `timeout_seconds`."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            said = message if isinstance(message, str) else message()
            raise AssertionError(f"{said} (waited {timeout_seconds:g} s, last value {value!r})")
        time.sleep(interval_seconds)
