"""Many who want their changes on the disk share one forcing of it."""

import threading
from collections.abc import Callable


class GroupCommit:
    """Runs a step, which forces to the disk what was done before it began, once for all who wait. Thread-safe."""

    def __init__(self) -> None:
        self._begun = 0
        self._done = 0
        self._failure: BaseException | None = None      # of the last step, which covers those before it
        self._changed = threading.Condition()

    def share(self, step: Callable[[], None]) -> None:
        """Returns when a step has ended that began after this call did: this caller's or another's. Raises what it
        raised."""
        with self._changed:
            wanted = self._begun + 1
            while self._done < wanted and self._begun > self._done:
                self._changed.wait()
            if self._done >= wanted:
                failure = self._failure
                if failure is not None:
                    raise failure
                return
            self._begun += 1
        failure = None
        try:
            step()
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._changed:
                self._done = self._begun
                self._failure = failure
                self._changed.notify_all()
