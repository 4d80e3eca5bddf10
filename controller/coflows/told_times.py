"""The latest time that a report has told whose sender's clock is ahead, kept for the next start: nothing that was
taken before counts again then."""

import logging
import time
from pathlib import Path

from speedwell.coflow.acceptance import ALLOWED_SKEW_SECONDS, Acceptance
from speedwell.coflow.errors import InvalidReport
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


class Hearing:
    """What counts of what hosts tell: nothing that may have counted before we began, or began to lead."""

    def __init__(self, path: Path) -> None:
        """`path` is where the latest time is kept."""
        self._path = path
        self.begin()

    def begin(self) -> None:
        """From now on."""
        told = ToldTimes(self._path)
        self._note = told.note
        self._begun = told.begun(time.time(), ALLOWED_SKEW_SECONDS)
        self.reports = Acceptance(begun_unix=self._begun, note_time=told.note)

    def require_news(self, sent_at: float) -> None:
        """Of a heartbeat. Raises InvalidReport."""
        now = time.time()
        if abs(sent_at - now) > ALLOWED_SKEW_SECONDS:
            return      # whoever keeps them refuses it
        if sent_at < self._begun <= now + ALLOWED_SKEW_SECONDS:     # else our clock was set back
            raise InvalidReport("crowded", "it may have counted before this controller began")
        self._note(sent_at, now)
