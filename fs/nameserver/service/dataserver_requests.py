"""Requests of dataservers: heartbeats, changes of who holds a content, copies of the namespace."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from speedwell.fs.errors import InvalidArgument, NotSupported, TooFewReplicas
from speedwell.fs.limits import MAX_FILE_BYTES
from speedwell.fs.nameserver.backup.mirrors import Mirrors
from speedwell.fs.nameserver.backup.namespace_age import Age
from speedwell.fs.nameserver.backup.provenance import Provenance
from speedwell.fs.nameserver.namespace import deletions
from speedwell.fs.nameserver.namespace.contents import Contents
from speedwell.fs.nameserver.replicas.recovery import Recovery
from speedwell.fs.nameserver.replicas.registry import Dataserver, Registry
from speedwell.fs.nameserver.replicas.replica_set import MAX_EPOCH, change
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.nameserver.service.grants import Grants
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.nameserver.service.wire_attributes import WireAttributes
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import Store

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class DataserverRequests:
    """One method per rpc, callable from any thread; `guard` is the service's."""

    guard: threading.RLock
    store: Store
    settings: Settings
    contents: Contents
    registry: Registry
    recovery: Recovery
    provenance: Provenance
    grants: Grants
    wire: WireAttributes
    age: Age
    mirrors: Mirrors | None
    number_of: Callable[[str, str], int]
    """Of a dataserver, by its id and the field that has it."""
    upkeep: Callable[[], None]
    """What is to be done now and then, with the guard."""
    force: Callable[[], None]
    """Has all that was answered lie on the disk."""
    clock_seconds: Callable[[], float]
    clock_ns: Callable[[], int]

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
            if self.provenance.is_adopted(request, self.clock_seconds()):
                identity.adopt = True
                return identity
            if self.mirrors is not None:
                self.mirrors.check(request)
            dataserver = self.registry.heartbeat(
                dataserver_id, host, port, rack, pod, capacity_bytes=capacity, available_bytes=available,
                disk=disk, disk_left_bytes=disk_left, now_seconds=self.clock_seconds(), insecure=request.insecure,
                other_hosts=others, directories=uses, release=request.release[:64])
            self.provenance.heard(dataserver, request)
            keys, now_ms = self.grants.keys, self.grants.clock.now_ms()
            if not self.provenance.is_rolled_back:
                keys.renew(now_ms)
            identity.admission.CopyFrom(keys.admission(self.registry, request, now_ms))
            if self.provenance.is_rolled_back:
                return identity   # without a lease nobody orders appends
            now_ns = self.clock_ns()
            for length in request.lengths:
                self._repair(length, dataserver, now_ns)
            due = deletions.due(self.store, dataserver.number, self.age.now_ns(), deleted)
            if not self.provenance.may_delete(self.clock_seconds()):
                due = []
            reply = pb.HeartbeatReply(delete=[requests.file_id_text(file_id) for file_id in due],
                                      lease_seconds=self.settings.lease_seconds, fsync=self.settings.fsync)
            reply.MergeFrom(identity)
            self.recovery.heartbeat(dataserver, request, reply, self.clock_seconds())
            self.upkeep()
            if self.mirrors is not None:
                self.mirrors.heartbeat(dataserver, reply, self.clock_seconds())
        if reply.delete or reply.drop:
            self.force()   # what says that nobody needs them is to survive what they do not
        return reply

    def mirror(self, request: pb.MirrorRequest) -> pb.MirrorReply:
        """Without the lock: a copy is fed while the namespace changes."""
        requests.dataserver_id(request.dataserver_id, "dataserver_id")
        if self.mirrors is None:
            raise NotSupported("this nameserver has no copies of its namespace on dataservers")
        return self.mirrors.pull(request, self.clock_seconds())

    def change_replicas(self, request: pb.ChangeReplicasRequest) -> pb.ChangeReplicasReply:
        requests.number(request.inode, "inode", 2**64 - 1, 1)
        file_id = requests.file_id(request.file_id)
        epoch = requests.number(request.epoch, "epoch", MAX_EPOCH, 1)
        requests.number(request.size, "size", MAX_FILE_BYTES)
        with self.guard:
            number_of = self.number_of
            requester = number_of(request.dataserver_id, "dataserver_id")
            remove = [number_of(value, f"remove[{index}]") for index, value in enumerate(request.remove)]
            add = [number_of(value, f"add[{index}]") for index, value in enumerate(request.add)]
            full = [number_of(value, f"full[{index}]") for index, value in enumerate(request.full)]
            before, now_seconds = self.contents.of(request.inode), self.clock_seconds()
            least = self.settings.least(before.replication) if before is not None else 1
            replace_full = partial(self.recovery.replace_full, request.inode, full=full,
                                   size_bytes=request.size, now_seconds=now_seconds)
            if full and before is not None and before.epoch == epoch:
                self.recovery.require_room(before, full, request.size, now_seconds)
            try:
                _, content = self.contents.configure(
                    request.inode, file_id,
                    lambda now: change(now, epoch=epoch, requester=requester, remove=remove, add=add, full=full,
                                       new_epoch=request.new_epoch, least=least))
            except TooFewReplicas:
                if before is not None:
                    replace_full(before)
                raise
            replace_full(content)
            self.recovery.strays.left(request.file_id, content, remove, now_seconds)
            return pb.ChangeReplicasReply(epoch=content.epoch, replicas=self.wire.replicas(content.replicas))

    def _repair(self, length: pb.FileLength, dataserver: Dataserver, now_ns: int) -> None:
        try:
            requests.number(length.inode, "inode", 2**64 - 1, 1)
            requests.number(length.size, "size", MAX_FILE_BYTES)
            file_id = requests.file_id(length.file_id)
        except InvalidArgument as error:
            log.warning("dataserver %s reports a length that makes no sense: %s",
                        dataserver.dataserver_id, error)
            return
        if self.contents.repair_length(length.inode, file_id, length.size, dataserver.number, now_ns=now_ns):
            log.info("inode %d has %d bytes, says dataserver %s", length.inode, length.size,
                     dataserver.dataserver_id)
