"""What a service tells systemd: a datagram to the socket that NOTIFY_SOCKET names (sd_notify(3))."""

import os
import signal
import socket
from collections.abc import Callable, Set
from contextlib import suppress


def notify(state: str) -> None:
    """Without effect where systemd did not start this process, or does not listen."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place[:1] not in ("/", "@"):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.sendto(state.encode(), place.replace("@", "\0", 1) if place.startswith("@") else place)


def ready(line: str) -> None:
    """Print the line by which `speedwell up` knows that a service is ready, and tell systemd."""
    print(line, flush=True)
    notify("READY=1")


def watchdog_seconds() -> float | None:
    """How often a service is to tell that it works: three times in the time that its unit allows; None: never."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 3e6 if microseconds.isdigit() and int(microseconds) else None


class Watchdog:
    """Of a service that turns in a loop, which comes to `beat` at least every second."""

    def __init__(self) -> None:
        self._seconds = watchdog_seconds()
        self._due = 0.0

    def beat(self, now: float) -> None:
        """The loop turns. `now` is the monotonic time in seconds."""
        if self._seconds is not None and now >= self._due:
            notify("WATCHDOG=1")
            self._due = now + self._seconds


def wait_for(signals: Set[signal.Signals], works: Callable[[], bool] = lambda: True) -> None:
    """Until one of the signals, which are blocked, comes; meanwhile tell the watchdog what `works` says."""
    seconds = watchdog_seconds()
    if seconds is None:
        signal.sigwait(signals)
        return
    while signal.sigtimedwait(signals, seconds) is None:
        if works():
            notify("WATCHDOG=1")
