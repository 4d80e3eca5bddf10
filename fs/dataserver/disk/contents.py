"""What lies on this dataserver, compared with what the nameserver thinks lies here."""

import logging
import math
import time
from collections.abc import Container, Iterable, Iterator, Mapping

from speedwell.fs.checksums import blocks_of
from speedwell.fs.dataserver.disk.quarantine import Quarantine
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.upkeep.scrub import Scrubber
from speedwell.fs.errors import NoSuchFile, SpeedwellError, StorageFailed
from speedwell.fs.proto.speedwell_pb2 import FileReport, VerifyOperation
from speedwell.fs.slots import note_highest

log = logging.getLogger(__name__)

REPORT_BYTES = 64 << 10
"""In a heartbeat at most, until the nameserver says how many it takes."""

SCAN_SECONDS = 0.05
FIRST_SCAN_SECONDS = 0.5
"""In a heartbeat at most, as long as a nameserver does not know all that is here: it deletes nothing before."""

FRAMING_BYTES = 3
"""Of each report in its message."""

PAUSE_SECONDS = 10.0
"""Between two reports of everything."""

ADOPTED_SECONDS = 60.0
"""For so long after an adoption lengths are reported with everything: a nameserver takes a primary's alone, and
chooses another primary while not all dataservers are adopted."""

MAX_INVENTORY = 2000
VERIFIED_FILES = 100
VERIFY_SECONDS = 2.0
"""After so long a request to verify is answered with what was read so far, so that nobody takes it for lost."""


class Contents:
    """The part of the heartbeats that speaks of single files. Used by one thread."""

    def __init__(self, store: FileStore, quarantine: Quarantine) -> None:
        self.reports: list[FileReport] = []
        self.lost: list[FileReport] = []
        self._highest: dict[int, int] = {}      # by block, of all that was looked at
        self.limit_bytes = REPORT_BYTES
        self.is_complete = False    # everything was reported since `begin_again`, with the present reports
        self._store = store
        self._quarantine = quarantine
        self._unscanned: Iterator[str] = store.ids()
        self._next_scan = 0.0
        self._first = True
        self._adopted_until = -math.inf

    @property
    def highest_inodes(self) -> list[int]:
        """Of each block of numbers (`speedwell.fs.slots`) the last that was given out."""
        return sorted(self._highest.values())

    def begin_again(self, *, lengths: bool = False) -> None:
        """Have everything reported from the first file on, and soon: another nameserver asks. With `lengths` those
        too: its namespace may be older than what is here."""
        if lengths:
            self._first, self._adopted_until = True, time.monotonic() + ADOPTED_SECONDS
        self.is_complete = False
        self.reports = []
        self._unscanned = self._store.ids()
        self._next_scan = 0.0

    def reported(self) -> None:
        """The nameserver has the reports."""
        self.reports = []

    def scan(self) -> None:
        """Have the next files reported. After a start their lengths too: a crash may have cut off that report."""
        if self.reports or time.monotonic() < self._next_scan:
            return
        end = time.monotonic() + (SCAN_SECONDS if self.is_complete else FIRST_SCAN_SECONDS)
        room = self.limit_bytes
        for file_id in self._unscanned:
            report = self._report(file_id)
            if report is not None:
                self.reports.append(report)
                room -= report.ByteSize() + FRAMING_BYTES
            if room <= 0 or time.monotonic() > end:
                return
        self._unscanned = self._store.ids()
        self._next_scan = time.monotonic() + PAUSE_SECONDS
        self._first = time.monotonic() < self._adopted_until
        self.is_complete = True

    def _report(self, file_id: str) -> FileReport | None:
        if self._quarantine.is_spared(file_id):
            return None
        try:
            with self._store.opened(file_id) as file:
                note_highest(self._highest, file.inode)
                if self._first:
                    self._store.grown.note(file)
                return FileReport(file_id=file_id, inode=file.inode, size=file.length,
                                  epoch=file.ordering.log(file.length).epoch)
        except StorageFailed as error:
            log.error("%s", error)
            return FileReport(file_id=file_id, damage=str(error))
        except SpeedwellError as error:
            log.warning("%s", error)
            return None

    def compare(self, expected: Iterable[FileReport], copying: Container[str]) -> None:
        """Have those of `expected` reported as lost that are not here or cannot be read. One in quarantine is put
        back: the namespace is another copy of itself again."""
        self.lost = [report for report in expected if report.file_id not in copying and not self._holds(report)]

    def drop(self, reports: Iterable[FileReport], copying: Container[str]) -> None:
        """Delete contents that are no replicas, unless this server has come to know a newer epoch since. What no file
        has (no epoch) goes to quarantine."""
        for report in reports:
            if report.file_id in copying:
                continue
            try:
                if self._is_newer(report):
                    continue
                if report.epoch:
                    log.info("%s is dropped: other dataservers hold the file", report.file_id)
                    self._store.begin_anew(report.file_id, report.inode)
                else:
                    log.warning("%s goes to quarantine: no file has it", report.file_id)
                    self._quarantine.put(report.file_id)
            except NoSuchFile:
                continue
            except SpeedwellError as error:
                log.warning("%s cannot be dropped: %s", report.file_id, error)

    def _is_newer(self, report: FileReport) -> bool:
        """Whether this server knows of a newer epoch, if it can read the content at all. Raises NoSuchFile."""
        try:
            with self._store.opened(report.file_id) as file:
                return bool(report.epoch) and file.ordering.log(file.length).epoch > report.epoch
        except StorageFailed:
            return False

    def _holds(self, report: FileReport) -> bool:
        try:
            self._quarantine.restore(report.file_id)
            with self._store.opened(report.file_id) as file:
                file.ordering.log(file.length)
                return self._store.is_sound(file)
        except SpeedwellError:
            return False


def verify(store: FileStore, scrubber: Scrubber, operation: VerifyOperation) -> tuple[list[FileReport], str]:
    """The damaged ones of the next files, and the id up to which all were read; empty: there are no more.
    Raises OSError, InvalidArgument."""
    found: list[FileReport] = []
    end = time.monotonic() + VERIFY_SECONDS
    after, ids = operation.after, list(operation.file_ids)
    while ids or not operation.file_ids:
        if not ids:
            ids = [report.file_id for report in inventory(store, after, VERIFIED_FILES)]
        for file_id in ids:
            if operation.repair:
                scrubber.check(file_id)
            if damage := scrubber.find(file_id):
                found.append(FileReport(file_id=file_id, damage=damage))
            after = file_id
            if time.monotonic() > end and not operation.file_ids:
                return found, after
        if operation.file_ids or len(ids) < VERIFIED_FILES:
            return found, ""
        ids = []
    return found, ""


def inventory(store: FileStore, after: str, limit: int, damaged: Mapping[str, str] | None = None, *,
              digests: bool = False) -> list[FileReport]:
    """The next contents in the order of their ids, with digests of their sums if wanted; `damaged` says what is known
    to be wrong with some. Raises OSError."""
    found: list[FileReport] = []
    for prefix in (f"{number:02x}" for number in range(256)):
        if prefix < after[:2]:
            continue
        for file_id in sorted(store.ids_below(prefix)):
            if file_id <= after:
                continue
            try:
                with store.opened(file_id) as file:
                    committed = file.committed
                    report = FileReport(file_id=file_id, inode=file.inode, size=committed[0],
                                        epoch=file.ordering.log(committed[0]).epoch,
                                        damage=(damaged or {}).get(file_id, ""))
                    if digests:
                        report.digest = file.digest(0, blocks_of(committed[0]), committed)
                    found.append(report)
            except NoSuchFile as error:
                log.warning("%s", error)
            except SpeedwellError as error:
                found.append(FileReport(file_id=file_id, damage=str(error)))
            if len(found) == limit:
                return found
    return found
