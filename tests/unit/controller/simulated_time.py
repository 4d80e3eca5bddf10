"""An eventlet hub whose clock jumps to the next timer: hours of green threads' time pass in seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from eventlet import hubs
from eventlet.hubs.hub import BaseHub


class SimulatedHub(BaseHub):  # type: ignore[misc]
    """Never sleeps and never polls: nothing in a simulation has a file descriptor."""

    def __init__(self, clock: Any = None) -> None:
        self.now = 1000.0
        super().__init__(clock=self.read)

    @staticmethod
    def is_available() -> bool:
        return True

    def read(self) -> float:
        return self.now

    def wait(self, seconds: float | None = None) -> None:
        self.now += seconds or 0.0

    def stall(self, seconds: float) -> None:
        """Time passes, but no green thread runs."""
        self.now += seconds


def run_simulated(function: Callable[[SimulatedHub], None]) -> None:
    """Run a function, and the green threads it starts, on a simulated hub of their own. Its exception is raised."""
    failure: list[BaseException] = []

    def run() -> None:
        hubs.use_hub(SimulatedHub)
        try:
            function(hubs.get_hub())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
