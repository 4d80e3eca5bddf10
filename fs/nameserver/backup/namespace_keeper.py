"""Serving the namespace of a directory, and getting it back when it is lost or damaged.

A thread of its own waits for what makes the present state doubtful, has it rebuilt, and serves again.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from speedwell.fs.errors import DatabaseDamaged, SpeedwellError, StorageFailed
from speedwell.fs.nameserver.backup.copy_holders import Holders, Report, Take, next_timeline
from speedwell.fs.nameserver.backup.mirrors import read_holders, write_holders
from speedwell.fs.nameserver.backup.namespace_directory import Found, Lost, NameserverDirectory
from speedwell.fs.nameserver.backup.provenance import SKIPPED_INODES
from speedwell.fs.nameserver.backup.rebuilding import Growth, Rebuilding
from speedwell.fs.nameserver.namespace.namespace import Namespace
from speedwell.fs.nameserver.replicas.registry import Registry
from speedwell.fs.nameserver.replicas.replica_set import MAX_EPOCH, overtaken
from speedwell.fs.nameserver.service.dispatch import Requests
from speedwell.fs.nameserver.service.request_fields import file_id as parse_file_id
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.store import Batch, JournaledStore, LevelDBStore, Position
from speedwell.fs.store.change_encoding import MalformedRecord, decode_changes
from speedwell.fs.store.journal import Journal
from speedwell.fs.store.journaled import STATE_KEY

log = logging.getLogger(__name__)

MakeService = Callable[[JournaledStore, Callable[[str], None]], NameserverService]
"""The service on a store; what it is given calls when a dataserver knows of a newer state."""

CHECK_SECONDS = 0.1
CHECKED_KEYS = 200
"""Of the database, compared with their checksums every CHECK_SECONDS."""

AFTER_FAILURE_SECONDS = 1.0


class Keeper:
    """Between `start` and `stop` either serves or rebuilds."""

    def __init__(self, directory: NameserverDirectory, requests: Requests, make_service: MakeService, *, new: bool,
                 force: bool, mirrors: bool) -> None:
        """Without `mirrors` there is nothing to rebuild from: a damaged database is an error."""
        self._directory = directory
        self._requests = requests
        self._make_service = make_service
        self._new = new
        self._force = force
        self._mirrors = mirrors
        self._store: JournaledStore | None = None
        self._doubts: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._lost: Lost | Found | None = None

    def start(self) -> None:
        """Serve, if the directory has the newest namespace, else rebuild. Raises StorageFailed if it can do
        neither."""
        found = self._directory.open(new=self._new)
        if isinstance(found, Lost) and not self._mirrors:
            raise DatabaseDamaged(f"{found.why}. There are no copies of the namespace on dataservers (--mirrors 0)"
                                  if not self._new else found.why)
        if isinstance(found, Found) and (not found.doubt or not self._mirrors
                                         or not read_holders(found.store).members):
            try:
                if found.doubt:
                    _skip_inodes(found.store)
                self._serve(found.store)
                self._thread.start()
                return
            except DatabaseDamaged as error:
                found.store.close()
                if not self._mirrors:
                    raise
                found = Lost(str(error), found.store.position.namespace)
        self._lost = found
        self._requests.rebuild(self._rebuilding_of(found))
        self._thread.start()

    def stop(self) -> None:
        """Close the database. Nothing is answered any more when this is called."""
        self._stopped.set()
        self._thread.join()
        store, self._store = self._store, None
        if store is not None:
            store.close()
            if store.settled and not self._doubts:
                self._directory.stopped(store.position)
        self._directory.close()

    def damaged(self, why: str) -> None:
        """The database, or what it holds, cannot be trusted any more."""
        self._doubts.append(why)

    # ------------------------------------------------------------------ private

    def _run(self) -> None:
        checked: Iterator[object] = iter(())
        while not self._stopped.is_set():
            try:
                if self._lost is not None:
                    self._rebuild(self._lost)
                    checked = iter(())
                    continue
                self._stopped.wait(CHECK_SECONDS)
                checked = self._check(checked)
                if self._doubts and self._mirrors and not self._stopped.is_set():
                    self._give_up()
            except SpeedwellError as error:
                log.error("%s", error)
                self._stopped.wait(AFTER_FAILURE_SECONDS)

    def _check(self, checked: Iterator[object]) -> Iterator[object]:
        """Compare the next keys with their checksums; returns where to go on."""
        if self._store is None:
            return checked
        try:
            for _ in range(CHECKED_KEYS):
                if next(checked, None) is None:
                    return self._store.iterate(b"")
        except DatabaseDamaged as error:
            self.damaged(str(error))
        return checked

    def _serve(self, store: JournaledStore) -> None:
        self._doubts.clear()
        service = self._make_service(store, self.damaged)
        self._directory.serving(store)
        self._store = store
        self._requests.lead(service, self.damaged)

    def _give_up(self) -> None:
        """Serve no more; the next turn of the thread rebuilds."""
        store = self._store
        assert store is not None
        why = self._doubts[0]
        log.error("the namespace is rebuilt: %s", why)
        self._store = None
        self._lost = Lost(why, store.position.namespace)
        self._requests.rebuild(self._rebuilding_of(self._lost))
        store.close()

    def _rebuilding_of(self, found: Lost | Found) -> Rebuilding:
        if isinstance(found, Lost):
            why, namespace, own = found.why, found.namespace, Report()
        else:
            why, namespace = found.doubt, found.store.position.namespace
            own = Report(read_holders(found.store), found.store.position)
        self._rebuilding = Rebuilding(
            why, namespace=namespace, own=own, force=self._force,
            make_store=lambda known: self._directory.begin_rebuilding(known, why))
        return self._rebuilding

    def _rebuild(self, found: Lost | Found) -> None:
        """Wait until there is something to serve, and serve it. Raises StorageFailed."""
        rebuilding = self._rebuilding
        began = time.monotonic()
        log.warning("rebuilding: %s", rebuilding.why)
        try:
            result = rebuilding.wait(self._stopped)
            if result is None:
                return
            take, database = result
            if database is not None:
                if isinstance(found, Found):
                    found.store.close()
                    self._lost = found = Lost(found.doubt, take.position.namespace)
                store, complete = self._with_copy(take.position, database)
            else:
                assert isinstance(found, Found)
                store, complete = found.store, False
            if not complete or self._force:
                _fork(store, take, rebuilding.reports)
            _apply(rebuilding.growth, store)
            self._serve(store)
            self._lost = None
            log.warning("rebuilding: done after %.1f s; serves from batch %d on", time.monotonic() - began,
                        store.position.sequence)
        except BaseException:
            self._requests.rebuild(self._rebuilding_of(found))
            raise
        finally:
            rebuilding.close()
            if self._stopped.is_set() and isinstance(found, Found) and self._store is not found.store:
                found.store.close()

    def _with_copy(self, position: Position, database: LevelDBStore) -> tuple[JournaledStore, bool]:
        """The store with the copy that was received at `position`, and with what the old journal has beyond it; and
        whether that is all that was ever written."""
        batch = Batch()
        batch.put(STATE_KEY, position.encode())
        database.write(batch)
        database.close()
        journal = self._directory.journal()
        try:
            complete = _goes_on(journal, position)
            if not complete:
                journal.start_anew(position.sequence)
        finally:
            journal.close()
        self._directory.end_rebuilding()
        return self._directory.reopen(), complete


def _fork(store: JournaledStore, take: Take, reports: dict[str, Report]) -> None:
    """Begin a new timeline: copies that have batches which are lost here must not be taken for newer."""
    before = store.position
    timelines = [before.timeline, *(report.mirror.timeline for report in reports.values() if report.mirror)]
    store.fork(Position(before.namespace, next_timeline(timelines, random.getrandbits(16)), before.sequence,
                        before.timeline, before.sequence))
    _skip_inodes(store)
    # Who did not report was given up by the operator.
    write_holders(store, Holders(before.namespace, take.holders.version + 1,
                                 tuple(name for name in take.holders.members if name in reports)))


def _skip_inodes(store: JournaledStore) -> None:
    """Use none of the numbers again that changes had that are lost."""
    superblocks = Namespace(store, now_ns=time.time_ns(), deletion_grace_ns=0).superblocks
    superblocks.skip_inodes(superblocks.next_inode + SKIPPED_INODES)


def _goes_on(journal: Journal, position: Position) -> bool:
    """Whether the journal has the batches behind `position`, up to the last that was written."""
    if journal.last < position.sequence or journal.first > position.sequence + 1:
        return False
    try:
        for _, changes in journal.records(max(journal.first - 1, min(position.sequence, journal.last - 1))):
            state = dict(decode_changes(changes)).get(STATE_KEY)
            if state is None:
                return False
            written = Position.decode(state)
            if not written.continues(position):
                return False
        return journal.first <= journal.last
    except (MalformedRecord, StorageFailed):
        return False


def _apply(growth: Growth, store: JournaledStore) -> None:
    """Take over epochs and lengths that the copy does not know yet. Raises StorageFailed."""
    now_ns = time.time_ns()
    contents = Namespace(store, now_ns=now_ns, deletion_grace_ns=0).contents
    registry = Registry(store, now_seconds=0.0)
    for (name, file_id), report in growth.newest_epochs():
        number = registry.number_of(name)
        with suppress(SpeedwellError):   # it is of no file any more, or makes no sense
            content = contents.of(report.inode)
            if number is not None and content is not None and content.epoch < report.epoch <= MAX_EPOCH:
                contents.configure(report.inode, parse_file_id(file_id),
                                   partial(overtaken, epoch=report.epoch, member=number))
    for (name, file_id), length in list(growth.lengths.items()):
        number = registry.number_of(name)
        try:
            known = parse_file_id(file_id)
        except SpeedwellError:
            continue
        if number is not None and contents.repair_length(length.inode, known, length.size, number, now_ns=now_ns):
            log.info("rebuilding: inode %d has %d bytes, says %s", length.inode, length.size, name)


