"""What each request of the nameserver does: checks it, asks the namespace, answers.

Requests and replies are the messages of fs/proto/speedwell.proto; errors are those of `speedwell.fs.errors`. gRPC
itself is in `speedwell.fs.nameserver.grpc_door`.
"""

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from speedwell.fs import paths
from speedwell.fs.errors import InvalidArgument, NoReplicaAvailable, NoSpace, NotSupported, TooFewReplicas
from speedwell.fs.file_status import SET_ID_BITS
from speedwell.fs.limits import MAX_FILE_BYTES
from speedwell.fs.nameserver import deletions, requests
from speedwell.fs.nameserver.administration import Administration
from speedwell.fs.nameserver.age import Age
from speedwell.fs.nameserver.asking import asking
from speedwell.fs.nameserver.attributes import WireAttributes
from speedwell.fs.nameserver.configuration import MAX_EPOCH, change, succession
from speedwell.fs.nameserver.grants import Grants
from speedwell.fs.nameserver.locks import LockTable
from speedwell.fs.nameserver.mirrors import Mirrors
from speedwell.fs.nameserver.namespace import Namespace
from speedwell.fs.nameserver.namespace_copies import NamespaceCopies
from speedwell.fs.nameserver.outcomes import Outcomes
from speedwell.fs.nameserver.placement import place, with_room
from speedwell.fs.nameserver.placement_advice import PlacementAdvice
from speedwell.fs.nameserver.placement_questions import PlacementQuestions
from speedwell.fs.nameserver.posix_requests import PosixRequests
from speedwell.fs.nameserver.provenance import Provenance
from speedwell.fs.nameserver.quota_requests import QuotaRequests
from speedwell.fs.nameserver.records import Content, Inode
from speedwell.fs.nameserver.recovery import Recovery
from speedwell.fs.nameserver.registry import Dataserver, Registry
from speedwell.fs.nameserver.sessions import Sessions
from speedwell.fs.nameserver.settings import NEVER, Settings
from speedwell.fs.nameserver.token_keys import TokenKeys
from speedwell.fs.nameserver.trash_requests import TrashRequests
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.release import release
from speedwell.fs.slots import block_of
from speedwell.fs.store import JournaledStore, SharedStore, Store

log = logging.getLogger(__name__)

class NameserverService(PosixRequests, QuotaRequests, TrashRequests):
    """One method per rpc, callable from any thread; `guard` makes each one atomic, or several."""

    def __init__(self, store: Store, settings: Settings, *, generator: random.Random, frame_port: int = 0,
                 clock_ns: Callable[[], int] = time.time_ns,
                 clock_seconds: Callable[[], float] = time.monotonic,
                 advice: PlacementAdvice | None = None,
                 doubt: Callable[[str], None] = log.error,
                 revoked: Callable[[], Mapping[str, str]] = dict,
                 door_warnings: Callable[[], Iterable[str]] = tuple) -> None:
        """`advice` says where large files go. `doubt` is told when a dataserver knows a newer state of the namespace.
        `revoked` are certificates, as `Identity.revoked`, `door_warnings` are about how requests arrive. Raises
        StorageFailed if the store holds no namespace."""
        self._store = store
        self._settings = settings
        self._disk = store
        self._generator = generator
        self._frame_port = frame_port
        self._clock_ns = clock_ns
        self._clock_seconds = clock_seconds
        self._door_warnings = door_warnings
        self.shared = store if isinstance(store, SharedStore) else None
        if self.shared is not None:
            self.shared.served_by = self
        self.guard = self.shared.guard if self.shared else threading.RLock()
        self._age = Age(store, clock_seconds)
        self.outcomes = Outcomes(store, clock_seconds, lambda requester: self.shared is None or self.shared.owns(
            block_of(requester)))
        self._namespace = Namespace(self.outcomes, now_ns=clock_ns(), age_ns=lambda now_ns: self._age.now_ns(),
                                    deletion_grace_ns=int(settings.deletion_grace_seconds * 1e9),
                                    hashes=self.shared is not None)
        self._registry = Registry(store, now_seconds=clock_seconds(), lease_seconds=settings.lease_seconds)
        keys = TokenKeys(store, settings.token_seconds, insecure=settings.no_tokens, revoked=revoked)
        self.grants = Grants(self._namespace, keys, lambda: self.provenance.is_rolled_back, clock_ns)
        self._mirrors = Mirrors(store, self._registry, settings.mirrors, doubt=doubt,
                                grace_seconds=settings.recovery_grace_seconds
                                ) if isinstance(store, JournaledStore) else None
        self._locks = LockTable(store)
        self._locks_changed = threading.Condition(self.guard)
        self._sessions = Sessions(settings.session_lease_seconds,
                                  self._namespace.holders() | set(self._locks.sessions()), clock_seconds(),
                                  self._locks.sessions())
        self._wire = WireAttributes(self._registry, self._namespace.quotas.room, settings.least,
                                    clock_seconds, self.grants.token, settings.token_seconds)
        self._recovery = Recovery(self._namespace, self._registry, self._wire.replicas, generator,
                                  grace_seconds=settings.recovery_grace_seconds,
                                  orphan_grace_seconds=settings.deletion_grace_seconds, least=settings.least,
                                  advice=advice,
                                  may_delete=lambda: self.provenance.may_delete(clock_seconds()))
        self.provenance = Provenance(store, self._namespace, self._registry, self._recovery.counts)
        self.administration = Administration(self.guard, store, self._namespace, self._registry, self._recovery,
                                             self.provenance, clock_seconds, clock_ns)
        self.questions = PlacementQuestions(advice, self.guard, self._namespace, self._registry, settings,
                                            clock_seconds)
        self.copies = NamespaceCopies(self.guard, store, self._namespace, self._registry, self._recovery)

    # -------------------------------------------------------------- names

    def lookup(self, request: pb.LookupRequest) -> pb.LookupReply:
        if bool(request.path) == bool(request.inode):
            raise InvalidArgument("path: exactly one of path and inode must be set")
        with self.guard:
            inode = (self._namespace.lookup(request.path) if request.path
                     else self._namespace.inode(request.inode))
            changes = request.to_append and asking.may_write and not self.provenance.is_rolled_back
            if changes and inode.content is not None:
                self._namespace.refuse_in_trash(inode)
                inode = self._with_primary(inode.number, inode.content)
            return pb.LookupReply(attributes=self._attributes(inode))

    def list(self, request: pb.ListRequest) -> bytes:
        """A serialised ListReply."""
        after = requests.name(request.after, "after")
        limit = min(request.limit or requests.LIST_LIMIT, requests.LIST_LIMIT)
        with self.guard:
            directory, names, more = self._namespace.names(request.path, after, limit)
            if request.columns:     # of which as many as one answer has always fit into a frame
                inodes = [number for _, _, number in names]
                return pb.ListReply(
                    names=[name for name, _, _ in names], inodes=inodes, kinds=bytes([kind for _, kind, _ in names]),
                    statuses=self._wire.statuses(
                        (number, self._namespace.record(number)) for number in inodes) if request.statuses else b"",
                    more=more, directory=self._attributes(directory)).SerializeToString()
            entries = self._wire.entries((name, number, self._namespace.record(number)) for name, _, number in names)
            fitting, cut = requests.page(entries, len)
            rest = pb.ListReply(more=more or cut, directory=self._attributes(directory))
        return b"".join((*fitting, rest.SerializeToString()))

    def create(self, request: pb.CreateRequest, advised: Sequence[int] = ()) -> pb.CreateReply:
        """A new file is placed as `advised`, if all of these dataservers can still take it."""
        mode, umask = requests.mode(request.mode), requests.mode(request.umask, "umask")
        uid, gid = requests.owner(request.uid, "uid"), requests.owner(request.gid, "gid")
        replication = requests.replication(request.replication, self._settings.replication)
        chunk_size_bytes = requests.chunk_size(request.chunk_size, self._settings.chunk_size_bytes)
        writer_host = requests.text(request.client_host, "client_host")
        wanted = requests.replicas(request.replicas, request.replication)
        with self.guard:
            inode, created = self._namespace.create(
                request.path, mode=mode, uid=uid, gid=gid, exclusive=request.exclusive, umask=umask,
                new_content=lambda: (self._content_on(wanted, chunk_size_bytes) if wanted else
                                     self._new_content(replication, chunk_size_bytes, writer_host, advised,
                                                       request.expected_size)),
                now_ns=self._clock_ns())
            attributes = self._attributes(inode)
            if created and (path := self._namespace.full_path(request.path)) != request.path:
                attributes.path = path[:paths.MAX_PATH_BYTES]
            return pb.CreateReply(attributes=attributes, created=created)

    def make_directory(self, request: pb.MakeDirectoryRequest) -> pb.MakeDirectoryReply:
        mode, umask = requests.mode(request.mode), requests.mode(request.umask, "umask")
        uid, gid = requests.owner(request.uid, "uid"), requests.owner(request.gid, "gid")
        with self.guard:
            inode = self._namespace.make_directory(request.path, mode=mode, uid=uid, gid=gid, umask=umask,
                                                   now_ns=self._clock_ns())
            return pb.MakeDirectoryReply(attributes=self._attributes(inode))

    def remove(self, request: pb.RemoveRequest) -> pb.RemoveReply:
        with self.guard:
            if request.directory:
                removed = self._namespace.remove_directory(request.path, now_ns=self._clock_ns())
            else:
                if request.session:
                    self._require_session(request.session)
                removed = self._namespace.remove_file(request.path, now_ns=self._clock_ns(),
                                                      session=request.session)
            directory = self._namespace.lookup(paths.parent(request.path))
            return pb.RemoveReply(directory=self._attributes(directory), removed=self._attributes(removed))

    def rename(self, request: pb.RenameRequest) -> pb.RenameReply:
        source = requests.path(request.source, "source")
        destination = requests.path(request.destination, "destination")
        if request.no_replace and request.exchange:
            raise InvalidArgument("exchange: one of exchange and no_replace at most")
        with self.guard:
            if request.session:
                self._require_session(request.session)
            replaced = self._namespace.rename(source, destination, no_replace=request.no_replace,
                                              exchange=request.exchange, session=request.session,
                                              now_ns=self._clock_ns())
            return pb.RenameReply(replaced=None if replaced is None else self._attributes(replaced))

    # -------------------------------------------------------------- files

    def set_attributes(self, request: pb.SetAttributesRequest) -> pb.SetAttributesReply:
        has = request.HasField
        mode = requests.mode(request.mode) if has("mode") else None
        uid = requests.owner(request.uid, "uid") if has("uid") else None
        gid = requests.owner(request.gid, "gid") if has("gid") else None
        with self.guard:
            now_ns = self._clock_ns()
            if mode is not None and mode & SET_ID_BITS:
                self.grants.end_writes(self._namespace.lookup(request.path))
            inode = self._namespace.set_attributes(
                request.path, mode=mode, uid=uid, gid=gid, now_ns=now_ns,
                atime_ns=now_ns if request.atime_now else request.atime_ns if has("atime_ns") else None,
                mtime_ns=now_ns if request.mtime_now else request.mtime_ns if has("mtime_ns") else None)
            return pb.SetAttributesReply(attributes=self._attributes(inode))

    def truncate(self, request: pb.TruncateRequest, advised: Sequence[int] = ()) -> pb.TruncateReply:
        """The new content is placed as `advised`, if all of these dataservers can still take it."""
        writer_host = requests.text(request.client_host, "client_host")
        with self.guard:
            if request.if_empty and (inode := self._namespace.lookup(request.path)).content is not None and (
                    inode.content.size_bytes):
                return pb.TruncateReply(attributes=self._attributes(inode))
            inode = self._namespace.truncate(
                request.path,
                new_content=lambda old: self._new_content(old.replication, old.chunk_size_bytes, writer_host,
                                                          advised),
                now_ns=self._clock_ns())
            return pb.TruncateReply(attributes=self._attributes(inode))

    def commit(self, request: pb.CommitRequest) -> pb.CommitReply:
        requests.number(request.inode, "inode", 2**64 - 1, 1)
        file_id = requests.file_id(request.file_id)
        size_bytes = requests.number(request.size, "size", MAX_FILE_BYTES)
        with self.guard:
            self._require_generation(request)
            inode = self._namespace.commit(request.inode, file_id, size_bytes,
                                           mtime_ns=request.mtime_ns or None, now_ns=self._clock_ns())
            return pb.CommitReply(attributes=self._attributes(inode))

    def publish(self, request: pb.PublishRequest) -> pb.PublishReply:
        requests.number(request.inode, "inode", 2**64 - 1, 1)
        base = requests.file_id(request.base, "base")
        file_id = requests.file_id(request.file_id)
        base_size = requests.number(request.base_size, "base_size", MAX_FILE_BYTES)
        epoch = requests.number(request.epoch, "epoch", MAX_EPOCH - 1, 1)
        size_bytes = requests.number(request.size, "size", MAX_FILE_BYTES)
        hole_bytes = requests.number(request.hole_bytes, "hole_bytes", size_bytes)
        with self.guard:
            self._require_generation(request)
            inode = self._namespace.publish(
                request.inode, base, base_size, file_id, size_bytes, epoch=epoch, mtime_ns=request.mtime_ns or None,
                requester=self.administration.number_of(request.dataserver_id, "dataserver_id"),
                now_ns=self._clock_ns(), hole_bytes=hole_bytes)
            return pb.PublishReply(attributes=self._attributes(inode))

    # -------------------------------------------------------------- dataservers

    def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        """A dataserver that is alive stays alive: what it reports about single files is ignored where it
        makes no sense (and logged), not held against the server."""
        server = request.server
        dataserver_id = requests.dataserver_id(server.dataserver_id, "server.dataserver_id")
        host = requests.text(server.host, "server.host", required=True)
        port = requests.number(server.port, "server.port", 65535, 1)
        others = requests.hosts(server.other_hosts, "server.other_hosts")
        rack, pod = requests.text(server.rack, "server.rack"), requests.text(server.pod, "server.pod")
        capacity = requests.number(request.capacity_bytes, "capacity_bytes", requests.MAX_SIZE_BYTES)
        available = requests.number(request.available_bytes, "available_bytes", capacity)
        disk = requests.text(request.disk, "disk")
        disk_left = requests.number(request.disk_left, "disk_left", requests.MAX_SIZE_BYTES)
        uses = requests.directories(request.directories, "directories")
        deleted = [requests.file_id(value, f"deleted[{index}]")
                   for index, value in enumerate(request.deleted)]
        with self.guard:
            identity = pb.HeartbeatReply(namespace=self.provenance.namespace_id, term=self.provenance.term)
            if self.provenance.is_adopted(request, self._clock_seconds()):
                identity.adopt = True
                return identity
            if self._mirrors is not None:
                self._mirrors.check(request)
            dataserver = self._registry.heartbeat(
                dataserver_id, host, port, rack, pod, capacity_bytes=capacity, available_bytes=available,
                disk=disk, disk_left_bytes=disk_left, now_seconds=self._clock_seconds(), insecure=request.insecure,
                other_hosts=others, directories=uses, release=request.release[:64])
            self.provenance.heard(dataserver, request)
            keys, now_ms = self.grants.keys, self.grants.now_ms()
            if not self.provenance.is_rolled_back:
                keys.renew(now_ms)
            identity.admission.CopyFrom(keys.admission(self._registry, request, now_ms))
            if self.provenance.is_rolled_back:
                return identity   # without a lease nobody orders appends
            self._expire_sessions()
            now_ns = self._clock_ns()
            for length in request.lengths:
                self._repair(length, dataserver, now_ns)
            due = deletions.due(self._store, dataserver.number, self._age.now_ns(), deleted)
            if not self.provenance.may_delete(self._clock_seconds()):
                due = []
            reply = pb.HeartbeatReply(delete=[requests.file_id_text(file_id) for file_id in due],
                                      lease_seconds=self._settings.lease_seconds, fsync=self._settings.fsync)
            reply.MergeFrom(identity)
            self._recovery.heartbeat(dataserver, request, reply, self._clock_seconds())
            self._count_quota()
            self._expire_trash()
            self.outcomes.forget()
            if self._mirrors is not None:
                self._mirrors.heartbeat(dataserver, reply, self._clock_seconds())
        if reply.delete or reply.drop:
            self._force()   # what says that nobody needs them is to survive what they do not
        return reply

    def mirror(self, request: pb.MirrorRequest) -> pb.MirrorReply:
        """Without the lock: a copy is fed while the namespace changes."""
        requests.dataserver_id(request.dataserver_id, "dataserver_id")
        if self._mirrors is None:
            raise NotSupported("this nameserver has no copies of its namespace on dataservers")
        return self._mirrors.pull(request, self._clock_seconds())

    def change_replicas(self, request: pb.ChangeReplicasRequest) -> pb.ChangeReplicasReply:
        requests.number(request.inode, "inode", 2**64 - 1, 1)
        file_id = requests.file_id(request.file_id)
        epoch = requests.number(request.epoch, "epoch", MAX_EPOCH, 1)
        requests.number(request.size, "size", MAX_FILE_BYTES)
        with self.guard:
            number_of = self.administration.number_of
            requester = number_of(request.dataserver_id, "dataserver_id")
            remove = [number_of(value, f"remove[{index}]") for index, value in enumerate(request.remove)]
            add = [number_of(value, f"add[{index}]") for index, value in enumerate(request.add)]
            full = [number_of(value, f"full[{index}]") for index, value in enumerate(request.full)]
            before, now_seconds = self._namespace.inode(request.inode).content, self._clock_seconds()
            least = self._settings.least(before.replication) if before is not None else 1
            replace_full = partial(self._recovery.replace_full, request.inode, full=full,
                                   size_bytes=request.size, now_seconds=now_seconds)
            if full and before is not None and before.epoch == epoch:
                self._recovery.require_room(before, full, request.size, now_seconds)
            try:
                _, content = self._namespace.configure(
                    request.inode, file_id,
                    lambda now: change(now, epoch=epoch, requester=requester, remove=remove, add=add, full=full,
                                       new_epoch=request.new_epoch, least=least))
            except TooFewReplicas:
                if before is not None:
                    replace_full(before)
                raise
            replace_full(content)
            self._recovery.left(request.file_id, content, remove, now_seconds)
            return pb.ChangeReplicasReply(epoch=content.epoch, replicas=self._wire.replicas(content.replicas))

    # -------------------------------------------------------------- helpers

    def _with_primary(self, inode: int, content: Content) -> Inode:
        """The inode with a primary that has a lease, if any of its replicas has one."""
        now = self._clock_seconds()
        return self._namespace.configure(
            inode, content.file_id,
            lambda before: succession(before, lambda number: self._registry.is_alive(number, now)))[0]

    def _repair(self, length: pb.FileLength, dataserver: Dataserver, now_ns: int) -> None:
        try:
            requests.number(length.inode, "inode", 2**64 - 1, 1)
            requests.number(length.size, "size", MAX_FILE_BYTES)
            file_id = requests.file_id(length.file_id)
        except InvalidArgument as error:
            log.warning("dataserver %s reports a length that makes no sense: %s",
                        dataserver.dataserver_id, error)
            return
        if self._namespace.repair_length(length.inode, file_id, length.size, dataserver.number,
                                         now_ns=now_ns):
            log.info("inode %d has %d bytes, says dataserver %s", length.inode, length.size,
                     dataserver.dataserver_id)

    def sync(self, request: pb.SyncRequest) -> pb.SyncReply:
        """Without the lock: others go on meanwhile."""
        self._force()
        return pb.SyncReply()

    def _force(self) -> None:
        if self._settings.fsync != NEVER:
            self._disk.sync()

    def owners(self, request: pb.OwnersRequest) -> pb.OwnersReply:
        """None: this one owns everything. `fs.nameserver.sharing` answers for several."""
        return pb.OwnersReply()

    def hear(self, statistics: pb.StatisticsReply) -> None:
        """What the owner of block 0 says of dataservers, which report to it alone. The caller has the guard, or its
        holder has decided and tells others: taking it here would stop both for ever."""
        self._registry.hear(statistics.dataservers, self._clock_seconds())
        self._age.hear(statistics.age_ns)

    def statistics(self, request: pb.StatisticsRequest) -> pb.StatisticsReply:
        """Capacities are those of the live dataservers' disks."""
        with self.guard:
            now = self._clock_seconds()
            capacity_bytes, available_bytes = self._registry.capacity(now)
            reply = pb.StatisticsReply(
                files=self._namespace.file_count, directories=self._namespace.directory_count,
                capacity_bytes=capacity_bytes, available_bytes=available_bytes,
                replication=self._settings.replication, chunk_size=self._settings.chunk_size_bytes,
                frame_port=self._frame_port, namespace=self.provenance.namespace_id,
                warnings=[*self.provenance.warnings(now), *self._registry.failed_directories(now),
                          *self._door_warnings()],
                awaited_inventories=self.provenance.awaited(now), fsync=self._settings.fsync,
                min_replicas=self._settings.min_replicas,
                unwritable=self._recovery.unwritable, acls=self._namespace.has_acls,
                insecure=["nameserver"] if self._settings.no_tokens else (),
                encrypts_data=self._settings.encrypt_data, release=release(), age_ns=self._age.now_ns(),
                placed_by_controller=self.questions.counts,
                mirrors=() if self._mirrors is None else self._mirrors.statuses())
            for server, status in self._registry.statuses():
                alive = self._registry.is_alive(server.number, now)
                if status.insecure:
                    reply.insecure.append(server.dataserver_id)
                reply.dataservers.add(server=self._wire.replica(server, alive), disk=status.disk,
                                      capacity_bytes=status.capacity_bytes or 0,
                                      available_bytes=status.available_bytes or 0,
                                      last_heartbeat_seconds_ago=now - status.last_heartbeat_seconds,
                                      draining=server.draining, directories=status.directories,
                                      release=status.release, replicas=self._recovery.replica_counts[server.number])
            return reply

    # -------------------------------------------------------------- helpers

    def _new_content(self, replication: int, chunk_size_bytes: int, writer_host: str,
                     advised: Sequence[int] = (), size_bytes: int = 0) -> Content:
        now = self._clock_seconds()
        candidates = self._registry.candidates(now)
        if not candidates:
            if self._registry.alive_count(now):
                raise NoSpace("every live dataserver is full")
            raise NoReplicaAvailable("no dataserver is alive to hold the file")
        roomy = with_room(candidates, size_bytes, replication)
        if not advised or not set(advised) <= {candidate.number for candidate in roomy}:
            advised = [candidate.number for candidate in place(roomy, replication, writer_host, self._generator)]
        return Content(uuid.uuid4().bytes, chunk_size_bytes, replication, tuple(advised))

    def _content_on(self, wanted: Sequence[str], chunk_size_bytes: int) -> Content:
        numbers = self._registry.numbers_for_new_file(wanted, self._clock_seconds())
        return Content(uuid.uuid4().bytes, chunk_size_bytes, len(numbers), numbers)

    def _attributes(self, inode: Inode) -> pb.Attributes:
        return self._wire.of(inode)
