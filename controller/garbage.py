"""When Python looks for garbage in cycles, of which reads and coflows leave none.

Left to itself Python looks when more objects were made than ended, so at a steady load seldom and then through all
that was made since: for 50 ms, which nobody may be held up.
"""

import gc
import time

from speedwell.controller.loops import Loops

PAUSE_SECONDS = 0.05
"""What was made meanwhile is looked through within a millisecond or two."""
UNSEEN = 9
"""After a look that found nothing, what so many pauses made is not looked through: a look takes half a microsecond an
object, and a steady load leaves no garbage."""
FULL_SECONDS, FULL_GROWTH = 600.0, 1.5
"""Once in so long all is looked through, a tenth of a second or more, if it is by this much more than last time."""
PATIENCE_SECONDS = 30.0


class Garbage:
    """Stands in for Python's own collection. What is there when it is made, or at `collect`, is expected to stay."""

    def __init__(self) -> None:
        gc.disable()
        self._unseen = 0
        self._collect_all()

    def collect(self) -> None:
        """Call this every `PAUSE_SECONDS`."""
        if self._unseen:
            self._unseen -= 1
        elif not gc.collect(0):
            self._unseen = UNSEEN
        gc.freeze()
        if time.monotonic() >= self._due_at:
            self._due_at += FULL_SECONDS
            if gc.get_freeze_count() > FULL_GROWTH * self._kept:
                self._collect_all()

    def _collect_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._kept, self._due_at = gc.get_freeze_count(), time.monotonic() + FULL_SECONDS


def collect_for_ever(loops: Loops) -> None:
    """Have a `Garbage` collect from now on."""
    loops.run("garbage", Garbage().collect, every_seconds=PAUSE_SECONDS, patience_seconds=PATIENCE_SECONDS)
