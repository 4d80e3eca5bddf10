"""When a process that ended is started again. No clock, no processes.

At once the first time; one that does not live for HEALTHY_SECONDS, or cannot be started, waits longer each time.
"""

from dataclasses import dataclass

HEALTHY_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0


@dataclass
class Restarts:
    """Of one process. `count` is how often it was started again, `failures` how often in a row in vain, `reason` what
    happened last. Times are monotonic seconds, passed in."""

    count: int = 0
    failures: int = 0
    reason: str = ""
    due_seconds: float | None = None
    _started_seconds: float = float("-inf")

    def ended(self, reason: str, now_seconds: float) -> None:
        """The process was found dead."""
        self.failures = self.failures + 1 if now_seconds - self._started_seconds < HEALTHY_SECONDS else 0
        self._plan(reason, now_seconds)

    def failed(self, reason: str, now_seconds: float) -> None:
        """It could not be started."""
        self.failures += 1
        self._plan(reason, now_seconds)

    def started(self, now_seconds: float) -> None:
        self.count += 1
        self.due_seconds = None
        self._started_seconds = now_seconds

    def is_due(self, now_seconds: float) -> bool:
        return self.due_seconds is not None and now_seconds >= self.due_seconds

    def _plan(self, reason: str, now_seconds: float) -> None:
        self.reason = reason
        pause_seconds = 0.0
        if self.failures:
            pause_seconds = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self.failures - 1, 16))
        self.due_seconds = now_seconds + pause_seconds
