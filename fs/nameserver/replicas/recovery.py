"""Keeping every content on as many dataservers as it wants: the nameserver's part.

All files are looked at again and again, some with each heartbeat. Where a replica is missing, another
dataserver is told to copy the content and to join through the primary (`fs.dataserver.replication.copies`); what a
dataserver holds and should not is dropped after a grace period. Nothing of this is kept on disk: after a restart
heartbeats and the next look at all files bring it back. Times are monotonic seconds, passed in; one thread at a
time (the service holds a lock).
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from speedwell.fs import units
from speedwell.fs.errors import InvalidArgument, NoSpace, SpeedwellError
from speedwell.fs.nameserver.namespace.contents import Contents
from speedwell.fs.nameserver.namespace.namespace_records import Content
from speedwell.fs.nameserver.replicas.advised_targets import AdvisedTargets
from speedwell.fs.nameserver.replicas.copy_orders import BYTES_IN_FLIGHT, SLOW_BYTES_IN_FLIGHT, CopyOrders
from speedwell.fs.nameserver.replicas.placement import Candidate
from speedwell.fs.nameserver.replicas.placement_advice import PlacementAdvice
from speedwell.fs.nameserver.replicas.recovery_plan import (
    BALANCED_WITHIN,
    UNEVEN_BEYOND,
    State,
    overfull,
    plan,
    targets,
)
from speedwell.fs.nameserver.replicas.registry import Dataserver, Registry
from speedwell.fs.nameserver.replicas.replica_set import (
    Configuration,
    succession,
    without,
)
from speedwell.fs.nameserver.replicas.strays import Strays
from speedwell.fs.nameserver.service import request_fields as requests
from speedwell.fs.proto import speedwell_pb2 as pb

log = logging.getLogger(__name__)

FILES_PER_SECOND = 400
FILES_PER_SECOND_IN_NEED = 4000
"""Looked at, in all; more while a dataserver is away or to be emptied."""

FILES_AT_ONCE = 500
"""Requests wait meanwhile: some milliseconds."""

PAUSE_SECONDS = 5.0
"""Between two looks at all files when all is well."""

MAX_EXPECTED = 1000
REPORTED_BYTES = 128 << 10
REPORTED_BYTES_AWAITED = 512 << 10
"""Of contents, a second from all dataservers together; more while some have not reported all they hold."""

Replicas = Callable[[Sequence[int]], Sequence[pb.Replica]]


class Recovery:
    """`grace_seconds` is how long a silent dataserver may be away before its replicas are made elsewhere,
    `orphan_grace_seconds` how long a dataserver keeps what no file has, `least` how many live replicas a file needs
    to be changed, by how many it is to have; `advice` is asked where large files' further replicas go."""

    def __init__(self, contents: Contents, registry: Registry, replicas: Replicas, generator: random.Random, *,
                 grace_seconds: float, orphan_grace_seconds: float, may_delete: Callable[[], bool],
                 least: Callable[[int], int], advice: PlacementAdvice | None) -> None:
        self._contents = contents
        self._registry = registry
        self._replicas = replicas
        self._targets = AdvisedTargets(advice, generator)
        self._grace_seconds = grace_seconds
        self._orders = CopyOrders()
        self._may_delete = may_delete
        self.strays = Strays(contents, registry, grace_seconds=orphan_grace_seconds, may_delete=may_delete,
                             is_made=self._orders.is_made_by)
        self._looked_at_all = False
        self._expected: dict[int, list[pb.FileReport]] = {}
        self._after: int | None = None      # inode up to which all files were looked at; None: between two looks
        self._next_look_seconds = 0.0
        self._looks = 0
        self._looked_seconds = 0.0
        self._hurry = False
        self._balancing = False
        self._missing = False   # a replica, as the look under way or the last one found
        self._counting_missing = False
        self._moved = 0
        self._counting: Counter[int] = Counter()
        self.replica_counts: Counter[int] = Counter()
        self._least = least
        self._counting_unwritable = 0
        self.unwritable = 0     # files that cannot be changed for want of live replicas, at the last look

    # ------------------------------------------------------------------ asked for

    def hurry(self) -> None:
        """Take dataservers that are away now for gone, and look at all files at once."""
        self._hurry = True
        self.look_again()

    def balance(self) -> None:
        """Move replicas until all dataservers are about equally full."""
        self._balancing = True
        self.look_again()

    def look_again(self) -> None:
        """Begin the next look at all files now."""
        self._after = None
        self._next_look_seconds = 0.0

    def lost(self, inode: int, file_id: bytes, server: int, now_seconds: float) -> None:
        """`server` says, or a check found, that it does not hold the content: it leaves the set."""
        def change(now: Configuration) -> Configuration:
            return succession(without(now, server), lambda number: self._registry.is_alive(number, now_seconds))

        try:
            before = self._contents.of(inode)
            if before is None or before.file_id != file_id or server not in before.replicas:
                return
            self._contents.configure(inode, file_id, change)
            log.warning("inode %d: dataserver number %d has lost its replica", inode, server)
            self.look_again()
        except SpeedwellError as error:
            log.debug("inode %d: %s", inode, error)

    def copies(self) -> list[tuple[str, int]]:
        """(file id, number of the dataserver) of the replicas that are being made."""
        return list(self._orders)

    # ------------------------------------------------------------------ full disks

    def require_room(self, content: Content, full: Sequence[int], size_bytes: int, now_seconds: float) -> None:
        """Raises NoSpace if there are no live dataservers that could have `size_bytes` in place of each of `full`."""
        if len(self._with_room(content, size_bytes, now_seconds)) < len(full):
            names = ", ".join(server.dataserver_id for server, _ in self._registry.with_state(full, now_seconds))
            raise NoSpace(f"the disk of {names} is full, and no other live dataserver has room for "
                          f"{units.size(size_bytes)}")

    def replace_full(self, inode: int, content: Content, full: Sequence[int], size_bytes: int,
                     now_seconds: float) -> None:
        """Have another replica made in place of one of `full`: now, not at the next look at all files."""
        for number in full:
            self._registry.note_full(number)
        if full:
            self._order_copy(inode, replace(content, size_bytes=max(content.size_bytes, size_bytes)),
                             [number for number in full if number in content.replicas][:1], now_seconds)

    def _with_room(self, content: Content, size_bytes: int, now_seconds: float) -> list[Candidate]:
        return [candidate for candidate in self._registry.candidates(now_seconds)
                if candidate.number not in content.replicas
                and (candidate.free_bytes is None or candidate.free_bytes > size_bytes)]

    # ------------------------------------------------------------------ heartbeats

    def heartbeat(self, server: Dataserver, request: pb.HeartbeatRequest, reply: pb.HeartbeatReply,
                  now_seconds: float) -> None:
        """Take in what a heartbeat says of copies and contents, look at some files, add orders to the reply."""
        for report in request.lost:
            self._each(lambda report=report: self._lost(server, report, reply, now_seconds))  # type: ignore[misc]
        for report in request.reports:
            self._each(lambda report=report: self.strays.reported(server, report, reply, now_seconds))  # type: ignore[misc]
        self._orders.heard(server.number, request.copying, [*request.copied, *request.failed_copies], now_seconds)
        self._orders.forget_dead(lambda number: self._registry.is_alive(number, now_seconds))
        self._targets.forget(now_seconds)
        for go_on in self._targets.answered():
            go_on(now_seconds)
        self._look(now_seconds)
        reply.copies.extend(self._orders.to_send(server.number, request.copying))
        reply.expected.extend(self._expected.pop(server.number, ()))
        reply.report_bytes = (REPORTED_BYTES if self._may_delete() else REPORTED_BYTES_AWAITED) // max(
            1, self._registry.alive_count(now_seconds))

    @staticmethod
    def _each(take: Callable[[], None]) -> None:
        try:
            take()
        except InvalidArgument as error:
            log.warning("a dataserver sent a report that makes no sense: %s", error)

    def _lost(self, server: Dataserver, report: pb.FileReport, reply: pb.HeartbeatReply, now_seconds: float) -> None:
        """Take the replica out of the set; what is left of it and cannot be read is deleted then."""
        file_id = requests.file_id(report.file_id)
        self.lost(report.inode, file_id, server.number, now_seconds)
        self.strays.lost(server, report, file_id, reply)

    # ------------------------------------------------------------------ looking at all files

    def state(self, number: int, now_seconds: float) -> State:
        """Of a dataserver, as far as its replicas are concerned."""
        if self._registry.is_removed(number):
            return State.GONE
        if not self._registry.is_alive(number, now_seconds):
            silent = self._registry.silent_seconds(number, now_seconds)
            return State.GONE if self._hurry or silent > self._grace_seconds else State.AWAY
        return State.DRAINING if self._registry.is_draining(number) else State.ALIVE

    def counts(self, number: int, now_seconds: float) -> bool:
        """Whether a dataserver may hold what files need: not if it is gone, and given up or without replicas."""
        if self.state(number, now_seconds) is not State.GONE:
            return True
        return not self._registry.is_draining(number) and (
            not self._looked_at_all or self.replica_counts[number] > 0)

    def _in_need(self, now_seconds: float) -> bool:
        return self._hurry or self._balancing or self._missing or any(
            self.state(number, now_seconds) is not State.ALIVE for number in self._registry.numbers())

    def _look(self, now_seconds: float) -> None:
        in_need = self._in_need(now_seconds)
        if self._after is None:
            pause = 1.0 if in_need else PAUSE_SECONDS
            if now_seconds < self._next_look_seconds and not (in_need and self._next_look_seconds - now_seconds > 1):
                return
            self._next_look_seconds = now_seconds + pause
            self._after = 0
            self._looks += 1
            self._counting = Counter()
            self._counting_unwritable = 0
            self._counting_missing = False
            self._moved = 0
        used = self._registry.used_parts(now_seconds)
        givers, takers = overfull(used, BALANCED_WITHIN if self._balancing else UNEVEN_BEYOND)
        rate = FILES_PER_SECOND_IN_NEED if in_need else FILES_PER_SECOND
        limit = int(min(FILES_AT_ONCE, (now_seconds - self._looked_seconds) * rate))
        if limit < 1:
            return
        self._looked_seconds = now_seconds
        files, after = self._contents.files_after(self._after, limit)
        for inode, content in files:
            if not self._examine(inode, content, in_need, now_seconds):
                after = inode - 1    # go on here when there is room
                break
            if givers and (self._balancing or not in_need):
                self._move(inode, content, givers, takers, now_seconds)
        self._after = after
        if self._after is None:
            self._end_of_look()

    def _end_of_look(self) -> None:
        self._missing = self._counting_missing
        self.replica_counts, self.unwritable = self._counting, self._counting_unwritable
        self._looked_at_all = True
        if not self._orders and not self._targets:
            self._hurry = False
            if not self._moved:
                self._balancing = False

    def _examine(self, inode: int, content: Content, in_need: bool, now_seconds: float) -> bool:
        """Whether it was done: not if a replica is missing, and nobody may be told to make one more now."""
        content = self._with_primary(inode, content, now_seconds)
        wanted = plan(content.replicas, content.replication, lambda number: self.state(number, now_seconds))
        is_ordered = inode in self._orders
        if wanted.missing and not is_ordered and self._are_all_busy(now_seconds):
            return False
        self._counting.update(content.replicas)
        live = sum(self._registry.is_alive(number, now_seconds) for number in content.replicas)
        self._counting_unwritable += live < self._least(content.replication)
        if not in_need or (inode + self._looks) % (FILES_PER_SECOND_IN_NEED // FILES_PER_SECOND) == 0:
            self._expect(inode, content, now_seconds)   # a dataserver opens each of them
        for number in content.replicas[1:]:
            if number in wanted.surplus or self._registry.is_removed(number):
                after = self._contents.configure(inode, content.file_id, partial(without, lost=number))[1]
                self.strays.left(requests.file_id_text(content.file_id), after, [number], now_seconds)
        if wanted.missing and (is_ordered or
                               self._order_copy(inode, content, wanted.leaving[:1], now_seconds)):
            self._missing = self._counting_missing = True
        return True

    def _are_all_busy(self, now_seconds: float) -> bool:
        return bool(self._orders) and not any(self._orders.has_room(candidate.number, 0)
                                              for candidate in self._registry.candidates(now_seconds))

    def _with_primary(self, inode: int, content: Content, now_seconds: float) -> Content:
        if not content.replicas or self._registry.is_alive(content.replicas[0], now_seconds):
            return content
        return self._contents.configure(
            inode, content.file_id,
            lambda now: succession(now, lambda number: self._registry.is_alive(number, now_seconds)))[1]

    def _expect(self, inode: int, content: Content, now_seconds: float) -> None:
        if not content.size_bytes:
            return
        for number in content.replicas:
            expected = self._expected.setdefault(number, [])
            if len(expected) < MAX_EXPECTED and self._registry.is_alive(number, now_seconds):
                expected.append(pb.FileReport(file_id=requests.file_id_text(content.file_id), inode=inode,
                                              size=content.size_bytes))

    # ------------------------------------------------------------------ copies

    def _order_copy(self, inode: int, content: Content, replaces: Sequence[int], now_seconds: float,
                    takers: set[int] | None = None) -> bool:
        """Whether a copy is made now, or will be when it is known where."""
        file_id = requests.file_id_text(content.file_id)
        if inode in self._orders or not self._registry.is_alive(content.replicas[0], now_seconds):
            return False
        bytes_in_flight = BYTES_IN_FLIGHT if takers is None or self._balancing else SLOW_BYTES_IN_FLIGHT
        candidates = [candidate for candidate in self._with_room(content, content.size_bytes, now_seconds)
                      if self._orders.has_room(candidate.number, content.size_bytes, bytes_in_flight)
                      and (takers is None or candidate.number in takers)]
        holders = [Candidate(server.number, server.host, server.rack)
                   for server, _ in self._registry.with_state(content.replicas, now_seconds)
                   if server.number not in replaces]
        allowed = targets(candidates, holders)
        if not allowed:
            return False
        [(source, _)] = self._registry.with_state(content.replicas[:1], now_seconds)
        chosen = self._targets.choose(file_id, source.host, allowed, content.size_bytes, now_seconds,
                                      partial(self._order_later, inode, file_id, replaces, takers))
        if chosen is None:
            return True
        names = [server.dataserver_id for server, _ in self._registry.with_state(replaces, now_seconds)]
        copy = pb.Copy(file_id=file_id, inode=inode, chunk_size=content.chunk_size_bytes,
                       epoch=content.epoch, replicas=self._replicas(content.replicas), replaces=names)
        self._orders.add(copy, chosen.number, content.size_bytes, now_seconds)
        log.debug("inode %d: another replica on the dataserver with number %d", inode, chosen.number)
        return True

    def _order_later(self, inode: int, file_id: str, replaces: Sequence[int], takers: set[int] | None,
                     now_seconds: float) -> None:
        """It is known where a copy goes: order it, if it is still wanted."""
        content = self._contents.of(inode)
        if content is None or requests.file_id_text(content.file_id) != file_id:
            return
        if takers is not None:
            if set(replaces) <= set(content.replicas):
                self._order_copy(inode, content, replaces, now_seconds, takers)
            return
        wanted = plan(content.replicas, content.replication, lambda number: self.state(number, now_seconds))
        if wanted.missing:
            self._order_copy(inode, content, wanted.leaving[:1], now_seconds)

    def _move(self, inode: int, content: Content, givers: set[int], takers: set[int],
              now_seconds: float) -> None:
        """Give a replica of a file on a full dataserver to an emptier one, in as many racks as before."""
        leaving = [number for number in content.replicas if number in givers][-1:]
        if not leaving or not content.size_bytes:
            return
        servers = [server for server, _ in self._registry.with_state([*content.replicas, *takers], now_seconds)]
        racks = {server.number: server.rack for server in servers}
        kept = {racks[number] for number in content.replicas if number not in leaving}
        before = len(kept | {racks[number] for number in leaving})
        takers = {number for number in takers if len(kept | {racks[number]}) >= before}
        if self._order_copy(inode, content, leaving, now_seconds, takers):
            self._moved += 1
