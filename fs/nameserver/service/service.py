"""What each request of the nameserver does: checks it, asks the namespace, answers.

Requests and replies are the messages of fs/proto/speedwell.proto; errors are those of `speedwell.fs.errors`. gRPC
itself is in `speedwell.fs.nameserver.service.grpc_door`.
"""

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from speedwell.fs import paths
from speedwell.fs.errors import InvalidArgument, NoReplicaAvailable, NoSpace
from speedwell.fs.file_status import SET_ID_BITS
from speedwell.fs.limits import MAX_FILE_BYTES
from speedwell.fs.nameserver.backup.mirrors import Mirrors
from speedwell.fs.nameserver.backup.namespace_age import Age
from speedwell.fs.nameserver.backup.namespace_copies import NamespaceCopies
from speedwell.fs.nameserver.backup.provenance import Provenance
from speedwell.fs.nameserver.locks.session_requests import SessionRequests
from speedwell.fs.nameserver.namespace.namespace import Namespace
from speedwell.fs.nameserver.namespace.namespace_records import Content, Inode
from speedwell.fs.nameserver.namespace.trash import refuse_in_trash
from speedwell.fs.nameserver.replicas.placement import place, with_room
from speedwell.fs.nameserver.replicas.placement_advice import PlacementAdvice
from speedwell.fs.nameserver.replicas.placement_questions import PlacementQuestions
from speedwell.fs.nameserver.replicas.recovery import Recovery
from speedwell.fs.nameserver.replicas.registry import Registry
from speedwell.fs.nameserver.replicas.replica_set import MAX_EPOCH, succession
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.nameserver.service.administration import Administration
from speedwell.fs.nameserver.service.asking import asking
from speedwell.fs.nameserver.service.dataserver_requests import DataserverRequests
from speedwell.fs.nameserver.service.grants import Grants
from speedwell.fs.nameserver.service.outcomes import Outcomes
from speedwell.fs.nameserver.service.posix_requests import PosixRequests
from speedwell.fs.nameserver.service.quota_requests import QuotaRequests
from speedwell.fs.nameserver.service.settings import NEVER, Settings
from speedwell.fs.nameserver.service.token_clock import TokenClock
from speedwell.fs.nameserver.service.token_keys import TokenKeys
from speedwell.fs.nameserver.service.trash_requests import TrashRequests
from speedwell.fs.nameserver.service.wire_attributes import WireAttributes
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.release import release
from speedwell.fs.slots import block_of
from speedwell.fs.store import JournaledStore, Store
from speedwell.fs.store.shared import SharedStore

log = logging.getLogger(__name__)


class NameserverService:
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
        self._heard: pb.StatisticsReply | None = None
        self.shared = store if isinstance(store, SharedStore) else None
        if self.shared is not None:
            self.shared.served_by = self
        self.guard = self.shared.guard if self.shared else threading.RLock()
        self._age = Age(store, clock_seconds)
        self.outcomes = Outcomes(store, clock_seconds, lambda requester: (
            self.shared is None or self.shared.owners.owns(block_of(requester))))
        self._namespace = Namespace(self.outcomes, now_ns=clock_ns(), age_ns=lambda now_ns: self._age.now_ns(),
                                    deletion_grace_ns=int(settings.deletion_grace_seconds * 1e9),
                                    hashes=self.shared is not None)
        self._registry = Registry(store, now_seconds=clock_seconds(), lease_seconds=settings.lease_seconds)
        keys = TokenKeys(store, settings.token_seconds, insecure=settings.no_tokens, revoked=revoked)
        self.grants = Grants(self._namespace.tree, keys, lambda: self.provenance.is_rolled_back,
                             TokenClock(clock_ns, clock_seconds))
        self._mirrors = Mirrors(store, self._registry, settings.mirrors, doubt=doubt,
                                grace_seconds=settings.recovery_grace_seconds
                                ) if isinstance(store, JournaledStore) else None
        self.sessions = SessionRequests(self.guard, store, self._namespace, settings.session_lease_seconds,
                                        clock_seconds, clock_ns)
        self._wire = WireAttributes(self._registry, self._namespace.accounting.room, settings.least,
                                    clock_seconds, self.grants.token, settings.token_seconds)
        self._recovery = Recovery(self._namespace.contents, self._registry, self._wire.replicas, generator,
                                  grace_seconds=settings.recovery_grace_seconds,
                                  orphan_grace_seconds=settings.deletion_grace_seconds, least=settings.least,
                                  advice=advice,
                                  may_delete=lambda: self.provenance.may_delete(clock_seconds()))
        self.provenance = Provenance(store, self._namespace.superblocks, self._registry, self._recovery.counts)
        self.administration = Administration(self.guard, store, self._namespace.contents, self._registry,
                                             self._recovery, self.provenance, clock_seconds, clock_ns)
        self.questions = PlacementQuestions(advice, self.guard, self._namespace.tree, self._registry, settings,
                                            clock_seconds)
        self.copies = NamespaceCopies(self.guard, store, self._namespace, self._registry, self._recovery)
        self.posix = PosixRequests(self.guard, self._namespace, self.grants, self._wire.of, clock_ns)
        self.quota = QuotaRequests(self.guard, self._namespace.quotas)
        self.trash = TrashRequests(self.guard, self._namespace.trash, self._age, self._wire.of, clock_ns)
        self.dataservers = DataserverRequests(
            guard=self.guard, store=store, settings=settings, contents=self._namespace.contents,
            registry=self._registry, recovery=self._recovery, provenance=self.provenance, grants=self.grants,
            wire=self._wire, age=self._age, mirrors=self._mirrors, number_of=self.administration.number_of,
            upkeep=self._upkeep, force=self._force, clock_seconds=clock_seconds, clock_ns=clock_ns)

    # -------------------------------------------------------------- names

    def lookup(self, request: pb.LookupRequest) -> pb.LookupReply:
        if bool(request.path) == bool(request.inode):
            raise InvalidArgument("path: exactly one of path and inode must be set")
        with self.guard:
            inode = (self._namespace.tree.lookup(request.path) if request.path
                     else self._namespace.tree.inode(request.inode))
            changes = request.to_append and asking.may_write and not self.provenance.is_rolled_back
            if changes and inode.content is not None:
                refuse_in_trash(inode)
                inode = self._with_primary(inode.number, inode.content)
            return pb.LookupReply(attributes=self._wire.of(inode))

    def list(self, request: pb.ListRequest) -> bytes:
        """A serialised ListReply."""
        after = requests.name(request.after, "after")
        limit = min(request.limit or requests.LIST_LIMIT, requests.LIST_LIMIT)
        with self.guard:
            directory, found, more = self._namespace.tree.names(request.path, after, limit)
            names, kinds, inodes = zip(*found, strict=True) if found else ((), (), ())
            if request.columns:     # of which as many as one answer has always fit into a frame
                return pb.ListReply(
                    names=names, inodes=inodes, kinds=bytes(kinds), statuses=self._wire.statuses(
                        inodes, self._namespace.tree.records(inodes)) if request.statuses else b"",
                    more=more, directory=self._wire.of(directory)).SerializeToString()
            entries = self._wire.entries((name, number, self._namespace.tree.record(number))
                                         for name, number in zip(names, inodes, strict=True))
            fitting, cut = requests.page(entries, len)
            rest = pb.ListReply(more=more or cut, directory=self._wire.of(directory))
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
            attributes = self._wire.of(inode)
            if created and (path := self._namespace.tree.full_path(request.path)) != request.path:
                attributes.path = path[:paths.MAX_PATH_BYTES]
            return pb.CreateReply(attributes=attributes, created=created)

    def make_directory(self, request: pb.MakeDirectoryRequest) -> pb.MakeDirectoryReply:
        mode, umask = requests.mode(request.mode), requests.mode(request.umask, "umask")
        uid, gid = requests.owner(request.uid, "uid"), requests.owner(request.gid, "gid")
        with self.guard:
            inode = self._namespace.make_directory(request.path, mode=mode, uid=uid, gid=gid, umask=umask,
                                                   now_ns=self._clock_ns())
            return pb.MakeDirectoryReply(attributes=self._wire.of(inode))

    def remove(self, request: pb.RemoveRequest) -> pb.RemoveReply:
        with self.guard:
            if request.directory:
                removed = self._namespace.remove_directory(request.path, now_ns=self._clock_ns())
            else:
                if request.session:
                    self.sessions.require_session(request.session)
                removed = self._namespace.remove_file(request.path, now_ns=self._clock_ns(),
                                                      session=request.session)
            directory = self._namespace.tree.lookup(paths.parent(request.path))
            return pb.RemoveReply(directory=self._wire.of(directory), removed=self._wire.of(removed))

    def rename(self, request: pb.RenameRequest) -> pb.RenameReply:
        source = requests.path(request.source, "source")
        destination = requests.path(request.destination, "destination")
        if request.no_replace and request.exchange:
            raise InvalidArgument("exchange: one of exchange and no_replace at most")
        with self.guard:
            if request.session:
                self.sessions.require_session(request.session)
            replaced = self._namespace.rename(source, destination, no_replace=request.no_replace,
                                              exchange=request.exchange, session=request.session,
                                              now_ns=self._clock_ns())
            return pb.RenameReply(replaced=None if replaced is None else self._wire.of(replaced))

    # -------------------------------------------------------------- files

    def set_attributes(self, request: pb.SetAttributesRequest) -> pb.SetAttributesReply:
        has = request.HasField
        mode = requests.mode(request.mode) if has("mode") else None
        uid = requests.owner(request.uid, "uid") if has("uid") else None
        gid = requests.owner(request.gid, "gid") if has("gid") else None
        with self.guard:
            now_ns = self._clock_ns()
            if mode is not None and mode & SET_ID_BITS:
                self.grants.end_writes(self._namespace.tree.lookup(request.path))
            inode = self._namespace.set_attributes(
                request.path, mode=mode, uid=uid, gid=gid, now_ns=now_ns,
                atime_ns=now_ns if request.atime_now else request.atime_ns if has("atime_ns") else None,
                mtime_ns=now_ns if request.mtime_now else request.mtime_ns if has("mtime_ns") else None)
            return pb.SetAttributesReply(attributes=self._wire.of(inode))

    def truncate(self, request: pb.TruncateRequest, advised: Sequence[int] = ()) -> pb.TruncateReply:
        """The new content is placed as `advised`, if all of these dataservers can still take it."""
        writer_host = requests.text(request.client_host, "client_host")
        with self.guard:
            if request.if_empty and (inode := self._namespace.tree.lookup(request.path)).content is not None and (
                    inode.content.size_bytes):
                return pb.TruncateReply(attributes=self._wire.of(inode))
            inode = self._namespace.contents.truncate(
                request.path,
                new_content=lambda old: self._new_content(old.replication, old.chunk_size_bytes, writer_host,
                                                          advised),
                now_ns=self._clock_ns())
            return pb.TruncateReply(attributes=self._wire.of(inode))

    def commit(self, request: pb.CommitRequest) -> pb.CommitReply:
        requests.number(request.inode, "inode", 2**64 - 1, 1)
        file_id = requests.file_id(request.file_id)
        size_bytes = requests.number(request.size, "size", MAX_FILE_BYTES)
        origin = requests.file_id(request.origin, "origin") if request.origin else b""
        with self.guard:
            self.sessions.require_generation(request)
            inode = self._namespace.contents.commit(request.inode, file_id, size_bytes, origin=origin,
                                                    mtime_ns=request.mtime_ns or None, now_ns=self._clock_ns())
            return pb.CommitReply(attributes=self._wire.of(inode))

    def publish(self, request: pb.PublishRequest) -> pb.PublishReply:
        requests.number(request.inode, "inode", 2**64 - 1, 1)
        base = requests.file_id(request.base, "base")
        file_id = requests.file_id(request.file_id)
        base_size = requests.number(request.base_size, "base_size", MAX_FILE_BYTES)
        epoch = requests.number(request.epoch, "epoch", MAX_EPOCH - 1, 1)
        size_bytes = requests.number(request.size, "size", MAX_FILE_BYTES)
        hole_bytes = requests.number(request.hole_bytes, "hole_bytes", size_bytes)
        with self.guard:
            self.sessions.require_generation(request)
            inode = self._namespace.contents.publish(
                request.inode, base, base_size, file_id, size_bytes, epoch=epoch, mtime_ns=request.mtime_ns or None,
                requester=self.administration.number_of(request.dataserver_id, "dataserver_id"),
                now_ns=self._clock_ns(), hole_bytes=hole_bytes)
            return pb.PublishReply(attributes=self._wire.of(inode))

    # -------------------------------------------------------------- helpers

    def _with_primary(self, inode: int, content: Content) -> Inode:
        """The inode with a primary that has a lease, if any of its replicas has one."""
        now = self._clock_seconds()
        return self._namespace.contents.configure(
            inode, content.file_id,
            lambda before: succession(before, lambda number: self._registry.is_alive(number, now)))[0]

    def _upkeep(self) -> None:
        """With each heartbeat."""
        self.sessions.expire()
        self.quota.count()
        self.trash.expire()
        self.outcomes.forget()

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
        if statistics.token_clock_ms:   # older versions have none
            self.grants.clock.hear(statistics.token_clock_ms)
        self._heard = statistics

    def statistics(self, request: pb.StatisticsRequest) -> pb.StatisticsReply:
        """Capacities are those of the live dataservers' disks."""
        with self.guard:
            now, superblocks = self._clock_seconds(), self._namespace.superblocks
            capacity_bytes, available_bytes = self._registry.capacity(now)
            reply = pb.StatisticsReply(
                files=superblocks.file_count, directories=superblocks.directory_count,
                capacity_bytes=capacity_bytes, available_bytes=available_bytes,
                replication=self._settings.replication, chunk_size=self._settings.chunk_size_bytes,
                frame_port=self._frame_port, namespace=self.provenance.namespace_id,
                warnings=[*self.provenance.warnings(now), *self._registry.failed_directories(now),
                          *self._door_warnings()],
                awaited_inventories=self.provenance.awaited(now), fsync=self._settings.fsync,
                min_replicas=self._settings.min_replicas,
                unwritable=self._recovery.unwritable, acls=self._namespace.extended_attributes.has_acls,
                insecure=["nameserver"] if self._settings.no_tokens else (),
                encrypts_data=self._settings.encrypt_data, release=release(), age_ns=self._age.now_ns(),
                token_clock_ms=self.grants.clock.now_ms(), placed_by_controller=self.questions.counts,
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
            if self._heard is not None:
                self._tell_what_was_heard(reply, self._heard)
            return reply

    def _tell_what_was_heard(self, reply: pb.StatisticsReply, heard: pb.StatisticsReply) -> None:
        """What only the owner of block 0 knows."""
        reply.warnings[:] = dict.fromkeys([*heard.warnings, *self._door_warnings()])
        reply.awaited_inventories[:] = heard.awaited_inventories
        reply.insecure[:] = heard.insecure
        reply.unwritable = heard.unwritable
        replicas = {each.server.dataserver_id: each.replicas for each in heard.dataservers}
        for status in reply.dataservers:
            status.replicas = replicas.get(status.server.dataserver_id, 0)

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
