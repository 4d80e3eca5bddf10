"""The latest time that a report has told whose sender's clock is ahead, kept for the next start: nothing that was
taken before counts again then."""

import logging
from pathlib import Path

from speedwell.fs import durable

log = logging.getLogger(__name__)

NEAR_SECONDS = 0.1
"""No controller starts again so soon."""

MARGIN_SECONDS = 1.0
"""So much is kept beforehand: it is written once in that time."""


class ToldTimes:
    """Times are seconds since 1970. What cannot be read or kept is in the log, and reports are taken all the same."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._until = 0.0
        self._has_complained = False
        try:
            self._until = float(path.read_text())
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning("%s does not say which reports were taken: %s", path, error)

    def begun(self, now: float, allowed_skew_seconds: float) -> float:
        """From which time on reports are news to who starts now."""
        return max(now, min(self._until, now + allowed_skew_seconds))

    def note(self, told: float, now: float) -> None:
        """A report tells a time; it counts only after this."""
        if told <= max(self._until, now + NEAR_SECONDS):
            return
        self._until = told + MARGIN_SECONDS
        try:
            durable.replace(self._path, str(self._until).encode())
            self._has_complained = False
        except OSError as error:
            if self._has_complained:
                return
            self._has_complained = True
            log.warning("%s cannot be written, so reports of hosts whose clocks are ahead can be replayed after a "
                        "restart: %s", self._path, error.strerror)
