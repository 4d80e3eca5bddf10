"""Noticing a disk that hangs without an error.

Who asks such a disk for anything waits, and holds what others wait for. So the server ends, and whoever keeps it
running starts it again: at its start it leaves out a directory that does not answer.
"""

import logging
import threading
from collections.abc import Callable

from speedwell.fs.dataserver.disk.data_directories import Directories
from speedwell.fs.dataserver.disk.data_directory import DiskHangs

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0


class Watch:
    """Asks the disks in a thread of its own between `start` and `stop`, and calls `end` when one hangs."""

    def __init__(self, directories: Directories, end: Callable[[], None]) -> None:
        self._directories = directories
        self._end = end
        self._stop = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="watch-disks", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        try:
            while not self._stop.wait(INTERVAL_SECONDS):
                self._directories.require_answers()
        except DiskHangs as error:
            if not self._stop.is_set():
                log.critical("%s: this dataserver ends, to be started again without it", error)
                self._end()
