"""Those who look at the page: what is sent goes to all, and who is too slow for it is let go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from eventlet.queue import Full, LightQueue

from speedwell.controller.errors import ControllerError

MOST_VIEWERS = 64
MOST_WAITING = 8
"""Events that a viewer may be behind."""


class TooManyViewers(ControllerError):
    """So many browsers show the page that no more can."""

    status = 503
    title = "Too many viewers already"

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} browsers show the page already: close one, or read /v1/network now and then")


class Viewer:
    """The events for one viewer, until it is closed or was too slow."""

    def __init__(self, viewers: set[Viewer], first: Iterable[bytes]) -> None:
        self._viewers = viewers
        self._waiting = LightQueue(MOST_WAITING)
        for event in first:
            self._waiting.put_nowait(event)
        viewers.add(self)

    def tell(self, event: bytes) -> None:
        """One more event, or the end for who has not taken those before."""
        try:
            self._waiting.put_nowait(event)
        except Full:
            self.close()

    def __iter__(self) -> Iterator[bytes]:
        while self in self._viewers:
            yield self._waiting.get()

    def close(self) -> None:
        self._viewers.discard(self)


class Viewers:
    def __init__(self) -> None:
        self._viewers: set[Viewer] = set()

    def __len__(self) -> int:
        return len(self._viewers)

    def add(self, first: Iterable[bytes]) -> Viewer:
        """A viewer that is told these events, and all that are sent from now on. Raises TooManyViewers."""
        if len(self) >= MOST_VIEWERS:
            raise TooManyViewers(MOST_VIEWERS)
        return Viewer(self._viewers, first)

    def send(self, event: bytes) -> None:
        """Tell all. Does not wait for anybody."""
        for viewer in list(self._viewers):
            viewer.tell(event)
