"""A nameserver that is one of several: answers while it leads, refuses while it follows."""

import logging
import threading
from collections.abc import Callable

from speedwell.fs.errors import SpeedwellError
from speedwell.fs.nameserver.service.dispatch import Requests
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.store.replicated import ReplicatedStore

log = logging.getLogger(__name__)

PAUSE_AFTER_FAILURE_SECONDS = 1.0


class Leadership:
    """Follows and leads in turns, in a thread of its own, between `start` and `stop`."""

    def __init__(self, store: ReplicatedStore, requests: Requests,
                 make_service: Callable[[], NameserverService]) -> None:
        self._store = store
        self._requests = requests
        self._make_service = make_service
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Afterwards every request is refused, and another nameserver may lead at once."""
        self._stop.set()
        self._store.stop()
        self._thread.join()
        self._store.resign()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if not self._store.follow_until_elected():
                    return
                self._requests.lead(self._make_service())
            except Exception as error:  # who renews its lease and serves nobody keeps others from leading
                log.error("cannot lead: %s", error, exc_info=not isinstance(error, SpeedwellError))
                self._store.resign()
                self._stop.wait(PAUSE_AFTER_FAILURE_SECONDS)
                continue
            self._store.wait_until_deposed()
            self._requests.stand_by()
            log.info("leads no more")
