"""Requests of operators: what there is, where it lies, and what is to be done about it."""

import logging
import threading
from collections.abc import Callable

from speedwell.fs import units
from speedwell.fs.errors import DataserverInUse, InvalidArgument
from speedwell.fs.nameserver.backup.provenance import Provenance
from speedwell.fs.nameserver.namespace import deletions
from speedwell.fs.nameserver.namespace.contents import Contents
from speedwell.fs.nameserver.namespace.namespace_records import Content
from speedwell.fs.nameserver.replicas.recovery import Recovery
from speedwell.fs.nameserver.replicas.registry import Registry
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import Store

log = logging.getLogger(__name__)

MAX_LOST_INODES = 1000
NAMED_INODES = 10
"""In a message."""


class Administration:
    """One method per rpc, callable from any thread; `guard` is the service's."""

    def __init__(self, guard: threading.RLock, store: Store, contents: Contents, registry: Registry,
                 recovery: Recovery, provenance: Provenance, clock_seconds: Callable[[], float],
                 clock_ns: Callable[[], int]) -> None:
        self._guard = guard
        self._store = store
        self._contents = contents
        self._registry = registry
        self._recovery = recovery
        self._provenance = provenance
        self._clock_seconds = clock_seconds
        self._clock_ns = clock_ns

    def set_draining(self, request: pb.SetDrainingRequest) -> pb.SetDrainingReply:
        with self._guard:
            self._registry.set_draining(self.number_of(request.dataserver_id, "dataserver_id"), request.draining)
            self._recovery.look_again()
        return pb.SetDrainingReply()

    def remove_dataserver(self, request: pb.RemoveDataserverRequest) -> pb.RemoveDataserverReply:
        """Raises DataserverInUse."""
        name = request.dataserver_id
        reply = pb.RemoveDataserverReply()
        after: int | None = 0
        while after is not None:    # others go on between two pages: nothing new is placed on a dead dataserver
            with self._guard:
                number = self._dead(name)
                files, after = self._contents.files_after(after, requests.LIST_LIMIT)
                for inode, content in files:
                    self._count_loss(inode, content, number, reply)
        if reply.lost and not request.force:
            first = ", ".join(str(inode) for inode in reply.lost_inodes[:NAMED_INODES])
            more = ", ..." if reply.lost > NAMED_INODES else ""
            raise DataserverInUse(f"{name} has the last replica of {units.counted(reply.lost, 'file')}, "
                                  f"{units.size(reply.lost_bytes)} (inode {first}{more}); to give them up: --force")
        with self._guard:
            self._registry.remove(self._dead(name))
            self._recovery.look_again()
        log.warning("the dataserver %s is removed by an operator: %d replicas, %d files lost", name, reply.replicas,
                    reply.lost)
        return reply

    def _dead(self, dataserver_id: str) -> int:
        number = self.number_of(dataserver_id, "dataserver_id")
        if self._registry.is_alive(number, self._clock_seconds()):
            raise DataserverInUse(f"{dataserver_id} is alive: drain it and stop it before (speedwell node drain "
                                  f"{dataserver_id})")
        return number

    def _count_loss(self, inode: int, content: Content, number: int, reply: pb.RemoveDataserverReply) -> None:
        if number not in content.replicas:
            return
        reply.replicas += 1
        now = self._clock_seconds()
        if any(self._registry.is_alive(other, now) for other in content.replicas):
            return
        reply.lost += 1
        reply.lost_bytes += content.size_bytes
        if len(reply.lost_inodes) < MAX_LOST_INODES:
            reply.lost_inodes.append(inode)

    def balance(self, request: pb.BalanceRequest) -> pb.BalanceReply:
        with self._guard:
            self._recovery.balance()
        return pb.BalanceReply()

    def adopt(self, request: pb.AdoptRequest) -> pb.AdoptReply:
        with self._guard:
            self._provenance.adopt(requests.dataserver_id(request.dataserver_id, "dataserver_id"))
        return pb.AdoptReply()

    def contents(self, request: pb.ContentsRequest) -> pb.ContentsReply:
        limit = min(request.limit or requests.LIST_LIMIT, requests.LIST_LIMIT)
        after = requests.number(request.after, "after", 2**64 - 2)
        reply = pb.ContentsReply()
        with self._guard:
            files, position = self._contents.files_after(after, limit)
            for inode, content in files:
                servers = self._registry.with_state(content.replicas, self._clock_seconds())
                reply.entries.add(inode=inode, content=content.record(),
                                  dataserver_ids=[server.dataserver_id for server, _ in servers])
            if not after:
                self._add_surplus(reply)
        reply.more = position is not None
        if position is not None and not reply.entries:
            reply.entries.add(inode=position)  # only directories so far: where to go on
        return reply

    def _add_surplus(self, reply: pb.ContentsReply) -> None:
        names = {server.number: server.dataserver_id for server, _ in self._registry.statuses()}
        found = [(number, requests.file_id_text(file_id)) for number, file_id in deletions.waiting(self._store)]
        found += [(number, file_id_text) for file_id_text, number in self._recovery.copies()]
        found += self._recovery.strays.left_behind(self._clock_seconds())
        for number, file_id_text in found:
            if number in names:     # not a dataserver that was removed
                reply.surplus.add(file_id=file_id_text, dataserver_id=names[number])

    def repair(self, request: pb.RepairRequest) -> pb.RepairReply:
        with self._guard:
            if request.accept_roll_back:
                self._provenance.accept_roll_back()
            self._provenance.require_newest()
            now = self._clock_seconds()
            for index, tail in enumerate(request.lost_tails):
                self._accept(tail, f"lost_tails[{index}]")
            for index, finding in enumerate(request.bad_replicas):
                file_id, number = self._finding(finding, f"bad_replicas[{index}]")
                self._recovery.lost(finding.inode, file_id, number, now)
            for index, finding in enumerate(request.orphans):
                file_id, number = self._finding(finding, f"orphans[{index}]")
                self._recovery.strays.orphan(finding.inode, file_id, number)
            self._recovery.hurry()
        return pb.RepairReply()

    def _accept(self, tail: pb.LostTail, field: str) -> None:
        file_id = requests.file_id(tail.file_id, f"{field}.file_id")
        holders = [self.number_of(value, f"{field}.dataserver_ids") for value in tail.dataserver_ids]
        if self._contents.accept_length(tail.inode, file_id, tail.size, holders, now_ns=self._clock_ns()):
            log.warning("inode %d is cut to the %d bytes that are left, by the word of an operator", tail.inode,
                        tail.size)

    def _finding(self, finding: pb.Finding, field: str) -> tuple[bytes, int]:
        return (requests.file_id(finding.file_id, f"{field}.file_id"),
                self.number_of(finding.dataserver_id, f"{field}.dataserver_id"))

    def number_of(self, dataserver_id: str, field: str) -> int:
        """The dataserver's number. Raises InvalidArgument for one that never reported."""
        number = self._registry.number_of(requests.dataserver_id(dataserver_id, field))
        if number is None:
            raise InvalidArgument(f"no dataserver {dataserver_id!r} has ever reported")
        return number
