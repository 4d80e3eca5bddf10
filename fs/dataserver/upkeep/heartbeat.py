"""Telling the nameserver each second that this dataserver lives, and doing what it answers."""

import logging
import threading

from speedwell.fs.dataserver.admission import Door
from speedwell.fs.dataserver.disk.contents import Contents
from speedwell.fs.dataserver.disk.durability import Policy
from speedwell.fs.dataserver.disk.quarantine import Quarantine
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.nameserver_link import NameserverLink
from speedwell.fs.dataserver.namespace_identity import Identity
from speedwell.fs.dataserver.replication.copies import Copies
from speedwell.fs.dataserver.replication.lease import Lease
from speedwell.fs.dataserver.upkeep.mirroring import Mirroring
from speedwell.fs.errors import FileClosed, InvalidArgument, SpeedwellError, WrongNamespace
from speedwell.fs.proto.speedwell_pb2 import HeartbeatRequest, Replica
from speedwell.fs.release import release

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
LENGTHS_PER_HEARTBEAT = 2000


class Unanswered(SpeedwellError):
    """A heartbeat that the nameserver did not take, because of `cause`."""

    def __init__(self, cause: SpeedwellError) -> None:
        super().__init__(cause.message)
        self.cause = cause


class Heartbeats:
    """Sends heartbeats in a thread of its own between `start` and `stop`."""

    def __init__(self, link: NameserverLink, lease: Lease, server: Replica, store: FileStore,
                 copies: Copies, mirroring: Mirroring, identity: Identity, quarantine: Quarantine,
                 policy: Policy, door: Door) -> None:
        self._door = door
        self._identity = identity
        self._quarantine = quarantine
        self._term = 0
        self._copies = copies
        self._policy = policy
        self._mirroring = mirroring
        self._rebuilding = False
        self._contents = Contents(store, quarantine)
        self._link = link
        self._lease = lease
        self._server = server
        self._store = store
        self._deleted: list[str] = []
        self._trouble = ""      # why the last heartbeat was not answered
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.run_forever, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin sending."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a call under way is cancelled."""
        self._stop.set()
        self._link.close()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def come_round(self) -> bool:
        """Whether a pass has begun, or come further, since this was asked for the last time."""
        passes, self._passes = self._passes, 0
        return passes > 0

    _passes = 0

    def run_forever(self) -> None:
        """One pass each second until `stop`."""
        while not self._stop.is_set():
            self._passes += 1
            try:
                self.run_once()
                if self._trouble:
                    log.info("the nameserver at %s answers again", self._link.address)
                self._trouble = ""
            except FileClosed:
                return  # by `stop`
            except Unanswered as error:
                self._rebuilding = False
                if isinstance(error.cause, WrongNamespace):
                    self._identity.refused()
                if self._trouble != error.message and not self._stop.is_set():
                    log.warning("no heartbeat at the nameserver %s: %s", self._link.address, error.message)
                self._trouble = error.message
            except SpeedwellError as error:
                log.error("heartbeat: %s", error)
            self._stop.wait(INTERVAL_SECONDS)

    def run_once(self) -> None:
        """Send one heartbeat and delete what its answer names. Raises Unanswered, StorageFailed,
        WrongNamespace."""
        if self._store.look_after_directories():
            self._contents.begin_again()
        self._contents.scan()
        directories = self._store.directories
        directories.measure()
        directories.require_one()
        uses = directories.uses()
        disks = {use.disk: use for use in uses if not use.failure}.values()
        first = next(use for use in uses if not use.failure)
        lengths = self._store.grown.take(LENGTHS_PER_HEARTBEAT)
        deleted = list(self._deleted)
        under_way = self._copies.under_way
        made, failed = self._copies.take_ended()
        request = HeartbeatRequest(
            server=self._server, capacity_bytes=sum(use.capacity_bytes for use in disks),
            available_bytes=sum(use.available_bytes for use in disks), lengths=lengths,
            disk=first.disk, disk_left=max(use.disk_left for use in uses), directories=uses, deleted=deleted,
            reports=self._contents.reports, lost=self._contents.lost,
            copying=under_way, failed_copies=failed, copied=made, term=self._term,
            inventory_complete=self._contents.is_complete, highest_inode=self._contents.highest_inodes,
            servers_version=self._door.servers_version,
            revocations_version=self._door.revocations_version, insecure=self._door.insecure, release=release())
        self._mirroring.report(request)
        self._identity.introduce(request)
        sent_at = self._lease.now()
        try:
            reply = self._link.heartbeat(request)
        except FileClosed:
            raise
        except SpeedwellError as error:
            self._store.grown.put_back(lengths)
            raise Unanswered(error) from None
        except BaseException:
            self._store.grown.put_back(lengths)
            raise
        self._identity.check(reply)
        self._door.hear(reply.admission)
        self._contents.reported()
        self._policy.value = reply.fsync or self._policy.value
        if reply.adopt:
            self._contents.begin_again(lengths=True)
        if not reply.rebuilding and not reply.lease_seconds:
            return   # it has just been adopted, or the namespace is an old copy: no orders
        self._lease.renew(sent_at, reply.lease_seconds)
        self._mirroring.ordered(reply)
        if reply.rebuilding:
            if not self._rebuilding:
                self._store.grown.report_again()
            self._rebuilding = True
            return
        self._rebuilding = False
        if reply.term != self._term:
            self._term = reply.term
            self._contents.begin_again()
        self._deleted = []
        for file_id in reply.delete:
            self._passes += 1   # a thousand take a slow disk minutes
            try:
                self._store.delete(file_id)
            except InvalidArgument as error:
                log.error("the nameserver asks to delete a file it cannot mean: %s", error)
                continue
            self._deleted.append(file_id)
        self._contents.limit_bytes = reply.report_bytes or self._contents.limit_bytes
        self._contents.compare(reply.expected, self._copies.under_way)
        self._contents.drop(reply.drop, self._copies.under_way)
        for copy in reply.copies:
            self._copies.order(copy)
        self._quarantine.expire()
