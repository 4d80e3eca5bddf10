"""What lies on this dataserver, compared with what the nameserver thinks lies here."""

import logging
import os
import time
from collections.abc import Container, Iterable, Iterator
from itertools import islice

from fs.dataserver.store import FileStore
from fs.errors import SpeedwellError
from fs.proto.speedwell_pb2 import FileReport

log = logging.getLogger(__name__)

FILES_PER_SCAN = 100
PAUSE_SECONDS = 10.0
"""Between two reports of everything."""

MAX_INVENTORY = 2000


class Contents:
    """The part of the heartbeats that speaks of single files. Used by one thread."""

    def __init__(self, store: FileStore) -> None:
        self.reports: list[FileReport] = []
        self.lost: list[FileReport] = []
        self._store = store
        self._unscanned: Iterator[str] = store.ids()
        self._next_scan = 0.0
        self._first = True

    def scan(self) -> None:
        """Have the next files reported. After a start their lengths too: a crash may have cut off that report."""
        self.reports = []
        if time.monotonic() < self._next_scan:
            return
        ids = list(islice(self._unscanned, FILES_PER_SCAN))
        for file_id in ids:
            try:
                with self._store.opened(file_id) as file:
                    self.reports.append(FileReport(file_id=file_id, inode=file.inode, size=file.length,
                                                   epoch=file.ordering.log(file.length).epoch))
                    if self._first:
                        self._store.note_growth(file)
            except SpeedwellError as error:
                log.warning("%s", error)
        if len(ids) < FILES_PER_SCAN:
            self._unscanned = self._store.ids()
            self._next_scan = time.monotonic() + PAUSE_SECONDS
            self._first = False

    def compare(self, expected: Iterable[FileReport], copying: Container[str]) -> None:
        """Have those of `expected` reported as lost that are not here or cannot be read."""
        self.lost = [report for report in expected if report.file_id not in copying and not self._holds(report)]

    def drop(self, reports: Iterable[FileReport], copying: Container[str]) -> None:
        """Delete contents that are no replicas, unless this server has come to know a newer epoch since."""
        for report in reports:
            if report.file_id in copying:
                continue
            try:
                with self._store.opened(report.file_id) as file:
                    newer = report.epoch and file.ordering.log(file.length).epoch > report.epoch
                if not newer:
                    log.info("%s is dropped: it is no replica of a file", report.file_id)
                    self._store.begin_anew(report.file_id)
            except SpeedwellError as error:
                log.warning("%s cannot be dropped: %s", report.file_id, error)

    def _holds(self, report: FileReport) -> bool:
        try:
            with self._store.opened(report.file_id):
                return True
        except SpeedwellError:
            return False


def inventory(store: FileStore, after: str, limit: int) -> list[FileReport]:
    """The next contents in the order of their ids. Raises OSError."""
    found: list[FileReport] = []
    for prefix in (f"{number:02x}" for number in range(256)):
        directory = store.directory / prefix
        if prefix < after[:2] or not directory.is_dir():
            continue
        for file_id in sorted(os.listdir(directory)):  # noqa: PTH208
            if file_id <= after:
                continue
            try:
                with store.opened(file_id) as file:
                    found.append(FileReport(file_id=file_id, inode=file.inode, size=file.length,
                                            epoch=file.ordering.log(file.length).epoch))
            except SpeedwellError as error:
                log.warning("%s", error)
            if len(found) == limit:
                return found
    return found
