"""Getting the namespace back from the dataservers (Mayflower, section 3.3.1).

While it lasts only dataservers are answered, everybody else is told to wait. They report how far their copies of the
namespace are; once all have reported that may have the newest one (`backup.copy_holders`), the best of them sends
its copy, which becomes the new database. What files have grown by since comes from the dataservers too.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from speedwell.fs.errors import InvalidArgument, NamespaceRebuilding, StorageFailed
from speedwell.fs.nameserver.backup.copy_holders import Holders, Report, Take, Wait, decide, position_of
from speedwell.fs.nameserver.namespace import namespace_records as records
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import Batch, LevelDBStore
from speedwell.fs.store.change_encoding import MalformedRecord, decode_changes

log = logging.getLogger(__name__)

SETTLE_SECONDS = 2.5
"""All dataservers that live have reported once by then: they do so each second."""

SILENT_SECONDS = 5.0
POLL_SECONDS = 0.02


@dataclass
class Growth:
    """Lengths and epochs that dataservers report: file, and who says so."""

    lengths: dict[tuple[str, str], pb.FileLength] = field(default_factory=dict)
    epochs: dict[tuple[str, str], pb.FileReport] = field(default_factory=dict)

    def add(self, dataserver_id: str, request: pb.HeartbeatRequest) -> None:
        for length in request.lengths:
            self.lengths[dataserver_id, length.file_id] = length
        for report in request.reports:
            self.epochs[dataserver_id, report.file_id] = report

    def newest_epochs(self) -> list[tuple[tuple[str, str], pb.FileReport]]:
        """Of each content one that knows its newest epoch."""
        newest: dict[str, tuple[tuple[str, str], pb.FileReport]] = {}
        for place, report in self.epochs.items():
            if report.file_id not in newest or newest[report.file_id][1].epoch < report.epoch:
                newest[report.file_id] = place, report
        return list(newest.values())


class Rebuilding:
    """Collects reports and one copy. `heartbeat` and `upload` are called by any thread, the rest by one.

    `own` is what the nameserver's own database says, if it can be read; `make_store` makes the empty database.
    """

    def __init__(self, why: str, *, namespace: bytes, own: Report, force: bool,
                 make_store: Callable[[bytes], LevelDBStore],
                 clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self.why = why
        self.growth = Growth()
        self._namespace = namespace
        self._own = own
        self._force = force
        self._make_store = make_store
        self._clock = clock_seconds
        self._began = clock_seconds()
        self._reports: dict[str, Report] = {}
        self._heard: dict[str, float] = {}
        self._refused: dict[str, str] = {}   # dataservers whose copies are of no use, and why
        self._lock = threading.Lock()
        self._upload = 0
        self._source = ""
        self._source_heard = 0.0
        self._part = 0
        self._inodes = 0
        self._store: LevelDBStore | None = None
        self._complete = False
        self._waits_for = "the dataservers' reports"

    def refusal(self) -> NamespaceRebuilding:
        """What clients are told."""
        return NamespaceRebuilding(f"the nameserver gets its namespace back from the dataservers ({self.why}) and "
                                   f"waits for {self._waits_for}")

    @property
    def reports(self) -> dict[str, Report]:
        with self._lock:
            return dict(self._reports)

    # ------------------------------------------------------------------ dataservers

    def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        """Takes note of what a dataserver has; it gets no lease. Raises InvalidArgument."""
        name = requests.dataserver_id(request.server.dataserver_id, "server.dataserver_id")
        with self._lock:
            usable = request.HasField("mirror") and name not in self._refused
            self._reports[name] = Report(Holders.of(request.holders),
                                         position_of(request.mirror) if usable else None,
                                         self._refused.get(name, request.mirror_damage))
            self._heard[name] = self._clock()
            self.growth.add(name, request)
            return pb.HeartbeatReply(rebuilding=True, keep_mirror=True,
                                     upload=self._upload if name == self._source and not self._complete else 0)

    def upload(self, request: pb.UploadMirrorRequest) -> pb.UploadMirrorReply:
        """The next part of the copy. Raises StorageFailed, InvalidArgument."""
        with self._lock:
            if self._store is None or request.upload != self._upload or request.part != self._part or self._complete:
                return pb.UploadMirrorReply(stop=True)
            batch = Batch()
            try:
                batch.changes.update(decode_changes(request.changes))
            except MalformedRecord as error:
                raise InvalidArgument(f"changes: {error}") from None
            self._inodes += sum(key.startswith(records.INODE_PREFIX) for key in batch.changes)
            self._store.write(batch)
            self._part += 1
            self._source_heard = self._clock()
            self._complete = request.last
            return pb.UploadMirrorReply()

    # ------------------------------------------------------------------ the one who rebuilds

    def wait(self, stopped: threading.Event) -> tuple[Take, LevelDBStore | None] | None:
        """What to serve, with the database that came from a dataserver (None: the nameserver's own). None after
        `stopped`. Raises StorageFailed."""
        while not stopped.wait(POLL_SECONDS):
            decision = self._decide()
            if isinstance(decision, Wait):
                self._say(decision.why)
            elif decision.source is None:
                return decision, None
            elif (store := self._receive(decision, stopped)) is not None:
                return decision, store
        return None

    def close(self) -> None:
        """Close a database that was not finished."""
        with self._lock:
            self._upload, store, self._store = 0, self._store, None
        if store is not None:
            store.close()

    # ------------------------------------------------------------------ private

    def _decide(self) -> Take | Wait:
        now = self._clock()
        if now - self._began < SETTLE_SECONDS:
            return Wait("the dataservers' reports")
        with self._lock:
            live = {name: report for name, report in self._reports.items()
                    if now - self._heard[name] < SILENT_SECONDS}
        return decide(live, self._own, namespace=self._namespace, force=self._force)

    def _say(self, why: str) -> None:
        if why != self._waits_for:
            log.warning("rebuilding: %s", why)
            self._waits_for = why

    def _receive(self, decision: Take, stopped: threading.Event) -> LevelDBStore | None:
        assert decision.source is not None
        self._say(f"the copy of the namespace on {decision.source}, batch {decision.position.sequence}")
        store = self._make_store(decision.position.namespace)
        with self._lock:
            self._store, self._source, self._part, self._inodes = store, decision.source, 0, 0
            self._source_heard, self._upload = self._clock(), random.getrandbits(63) | 1
        while not stopped.wait(POLL_SECONDS):
            with self._lock:
                if self._complete:
                    self._store = None
                    break
                if self._clock() - self._source_heard > SILENT_SECONDS:
                    log.warning("rebuilding: %s sends nothing any more", decision.source)
                    self._reports.pop(decision.source, None)   # until it reports again
                    break
        if self._complete and self._is_whole(store):
            return store
        self.close()
        store.close()
        with self._lock:
            self._complete = False
        return None

    def _is_whole(self, store: LevelDBStore) -> bool:
        """Whether the copy has as many inodes as it says."""
        value = store.get(records.SUPERBLOCK_KEY)
        try:
            superblock = records.Superblock.decode(value or b"")
        except StorageFailed:
            superblock = None
        whole = superblock is not None and superblock.files + superblock.directories == self._inodes
        if not whole:
            self._refused[self._source] = "its copy is not whole"
            log.error("rebuilding: the copy on %s is not whole: %d inodes, but %s", self._source, self._inodes,
                      superblock)
        return whole
