"""What is decided about reads, entered in the book of reads and in the policy's model at once.

Nothing here may give up the processor, so that two requests at once see each other. Entries in switches are not
touched here: that takes time, and is the flowserver's part.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from speedwell.controller.counters.measurements import Measurements, fresh_rate
from speedwell.controller.errors import NoSuchPath
from speedwell.controller.policy.errors import NoPath, UnknownLink, UnknownNode
from speedwell.controller.policy.network.five_tuple import TCP, FiveTuple
from speedwell.controller.policy.network.graph import Link, Path
from speedwell.controller.policy.reads.mayflower import FlowReading
from speedwell.controller.policy.reads.multi_replica import Subflow
from speedwell.controller.policy.reads.selection import MAYFLOWER, PLUS, SRPT, Selector
from speedwell.controller.policy.reads.selection_request import Replica, Selection, SelectionRequest
from speedwell.controller.reads.book import ConnectionInUse, Following, Read, ReadBook, ReadPart, ReadRequest
from speedwell.controller.reads.byte_ranges import byte_ranges
from speedwell.controller.reads.chains import Chains
from speedwell.controller.reads.metrics import ReadMetrics
from speedwell.controller.reads.read_divisions import ReadDivider
from speedwell.controller.tables.flow_records import Claimant, FlowRecord
from speedwell.controller.topology.state import NetworkState

SPLITTING_POLICIES = (MAYFLOWER, PLUS, SRPT)
"""Replica policies under which a read may have several parts: those that the others are compared with read from one
replica."""
CLAIMANT = Claimant("reads", precedence=100)
LOCAL_READ_SECONDS = 600.0
"""After this, a read without an entry is forgotten: nothing tells when it ends if the client does not."""
MAX_LOCAL_READS = 10_000
"""Beyond so many of them the oldest are forgotten."""
EXPIRY_SLACK_SECONDS = 5.0
"""How long after its idle timeout an entry's end may stay untold."""


class ReadScheduler:
    """What the flowserver decides and is told. They share the selector, the divider and the book of reads."""

    def __init__(self, state: NetworkState, measurements: Measurements, selector: Selector, reads: ReadBook,
                 divider: ReadDivider, metrics: ReadMetrics, is_held: Callable[[ReadPart], bool]) -> None:
        """`is_held` says of a part whether somebody holds it back: then it is not over because it stands still."""
        self._state = state
        self._measurements = measurements
        self._selector = selector
        self.chains = Chains(selector)
        self._reads = reads
        self._divider = divider
        self._metrics = metrics
        self._is_held = is_held
        self._flow_numbers = itertools.count(secrets.randbits(16) << 32)

    # --- decisions ---

    def decide(self, wanted: ReadRequest, replicas: list[Replica]) -> Read:
        """Choose the replicas and paths of a read that begins. Raises NoSuchPath or ConnectionInUse."""
        now = time.monotonic()
        request = SelectionRequest(wanted.client, tuple(replicas), 8.0 * wanted.size_bytes, wanted.client_ports[0])
        replica_policy = wanted.replica_policy or self._selector.replica_policy
        path_policy = wanted.path_policy or (MAYFLOWER if replica_policy == PLUS else self._selector.path_policy)
        read = Read(secrets.token_hex(16), wanted.client, wanted.size_bytes, wanted.file_id, replica_policy,
                    path_policy, now, requester=wanted.requester, placement_id=wanted.placement_id)
        try:
            with _as_controller_errors():
                selected = self._select(wanted, request, read)
        finally:
            self._metrics.decision_seconds.observe(time.monotonic() - now)
        pieces = byte_ranges(wanted.size_bytes, [part.size_bits for part in selected])
        for part, client_port, (offset_bytes, size_bytes) in zip(selected, wanted.client_ports, pieces, strict=False):
            if size_bytes:
                read.parts.append(self._part(read, part.selection, client_port, offset_bytes, size_bytes))
        for flow in read.flows:
            if self._is_anothers(flow.five_tuple, wanted.requester, now):
                raise ConnectionInUse(flow.five_tuple)
        if replica_policy == PLUS and wanted.follows and len(read.parts) == len(read.flows):
            read.following = Following(request, wanted.parts_limit, wanted.client_ports[len(read.parts):], now)
            self._divider.added(read)
        for flow in read.flows:
            self._supersede(flow)
            self.chains.added(read, flow, now)
        self._reads.add(read)
        return read

    def _select(self, wanted: ReadRequest, request: SelectionRequest, read: Read) -> list[Subflow]:
        """The parts to begin with. A client that does not follow its read gets all of it at once, in one part, from
        a policy that would let it wait."""
        if read.replica_policy == PLUS and not wanted.follows:
            selection = self._selector.select(request, read.started_at, read.replica_policy, read.path_policy)
            return [Subflow(selection, request.size_bits)]
        most_parts = wanted.parts_limit if read.replica_policy in SPLITTING_POLICIES else 1
        return self._selector.select_parts(request, read.started_at, most_parts, read.replica_policy,
                                           read.path_policy, wanted.client_ports)

    def decide_again(self, part: ReadPart) -> Path | None:
        """Choose another path from the same replica; None if there is none, or the part is over."""
        read = self._reads.get(part.read_id)
        if read is None or self._reads.part_on(part.five_tuple) is not part:
            return None
        connection, now = part.five_tuple, time.monotonic()
        request = SelectionRequest(connection.destination, (Replica(connection.source, connection.source_port),),
                                   8.0 * max(part.size_bytes - part.transferred_bytes, 0),
                                   connection.destination_port)
        try:
            with _as_controller_errors():
                path = self._selector.select(request, now, read.replica_policy, read.path_policy).path
            self.chains.moved(part, path, now)
        except (NoSuchPath, UnknownLink):
            part.stranded = True
            self._metrics.reroutes.labels("no-path").inc()
            return None
        part.stranded = False
        return path

    def follow(self, part: ReadPart, path: Path, believed: Path) -> None:
        """A part takes another path than the policy believes: somebody with more to say about the flow chose it."""
        if path != believed:
            try:
                self.chains.moved(part, path, time.monotonic())
            except UnknownLink:
                return      # that link went meanwhile, and the part will be told of
        part.path = path

    def new_part(self, read: Read, selection: Selection, client_port: int, size_bytes: int) -> ReadPart:
        """See `PartInstaller`."""
        part = self._part(read, selection, client_port, 0, size_bytes)
        part.moved_at, part.placed = time.monotonic(), False
        self._supersede(part)
        return part

    def is_in_use(self, read: Read, selection: Selection, client_port: int) -> bool:
        """See `PartInstaller`."""
        return self._is_anothers(_connection(read, selection, client_port), read.requester, time.monotonic())

    def _part(self, read: Read, selection: Selection, client_port: int, offset_bytes: int,
              size_bytes: int) -> ReadPart:
        connection = _connection(read, selection, client_port)
        flow_id = f"{next(self._flow_numbers):016x}" if selection.path.links else ""
        return ReadPart(read.id, len(read.parts), connection, selection.path, offset_bytes, size_bytes,
                        selection.estimated_bps, selection.cost_seconds, flow_id, read.started_at,
                        considered=selection.considered)

    def _is_anothers(self, connection: FiveTuple, requester: str | None, now: float) -> bool:
        """Whether a connection carries a read that somebody else asked for: nobody ends such a read by naming its
        connection, until it has stood still for so long that its entry should have idled out."""
        former = self._reads.part_on(connection)
        read = self._reads.get(former.read_id) if former else None
        if former is None or read is None or read.requester == requester:
            return False
        return now - former.moved_at <= self._state.settings.read_idle_timeout_seconds or self._is_held(former)

    def _supersede(self, part: ReadPart) -> None:
        # The client has bound this port anew, so whatever used the same connection before is over.
        former = self._reads.part_on(part.five_tuple)
        if former is not None:
            self.end_part(former, "superseded")

    # --- ends ---

    def forget(self, read: Read) -> list[ReadPart]:
        """Forget a read here and in the policy. Returns the parts whose entries are still in a switch."""
        left = [part for part in self._reads.remove(read) if part.is_flow]
        for part in left:
            self.chains.dropped(part, time.monotonic())
        self._divider.ended(read)
        self._divider.wake()
        return left

    def end_part(self, part: ReadPart, reason: str) -> bool:
        """A part is over, and its read with the last one. False if it was over before."""
        read = self._reads.get(part.read_id)
        if not self._reads.end_part(part):
            return False
        if part.is_flow:
            self.chains.dropped(part, time.monotonic())
            self._selector.read_narrowed(part.read_id, part.five_tuple.source)
        if read is not None and self._reads.get(read.id) is None:
            self._divider.ended(read)
        self._metrics.parts_ended.labels(reason).inc()
        self._divider.wake()
        return True

    def expired(self, now: float) -> list[ReadPart]:
        """End what nobody will tell the end of: local reads, and entries whose removal was not heard of. Returns the
        parts with such an entry."""
        self._divider.expire(now)
        local = self._reads.local()
        for number, read in enumerate(local, -len(local)):
            if number < -MAX_LOCAL_READS or now - read.started_at > LOCAL_READ_SECONDS:
                self._reads.remove(read)
        longest_silence = self._state.settings.read_idle_timeout_seconds + EXPIRY_SLACK_SECONDS
        return [part for part in self._reads.flows()
                if now - part.moved_at > longest_silence and not self._is_held(part)
                and self.end_part(part, "expired")]

    # --- measurements ---

    def flows_measured(self, flows: Iterable[tuple[ReadPart, FlowRecord]], began_at: float, now: float) -> None:
        """A round of polls is over that began at `began_at`. These flows need not have been read in it."""
        readings: list[FlowReading] = []
        for part, record in flows:
            counters = record.counters
            if counters.read_at is None or counters.read_at < began_at:
                continue
            transferred_bytes = record.transferred_bytes(CLAIMANT)
            if transferred_bytes > part.transferred_bytes:
                part.transferred_bytes = transferred_bytes
                part.moved_at = now
            part.measured_bps = counters.rate_bps
            name = self.chains.measured_as(part)
            if name is not None:
                readings.append((name, part.transferred_bytes, counters.latest_bps))
        self._selector.flows_measured(readings, now)

    def link_measured(self, link: Link, began_at: float, now: float) -> None:
        """The same for a link, which may be gone. After all flows."""
        measured = fresh_rate(self._state, self._measurements, link, began_at)
        if measured is not None and self._state.network.has_link(link):
            self._selector.link_measured(link, measured[0], now)


def _connection(read: Read, selection: Selection, client_port: int) -> FiveTuple:
    return FiveTuple(selection.replica.host, read.client, TCP, selection.replica.port, client_port)


@contextmanager
def _as_controller_errors() -> Iterator[None]:
    try:
        yield
    except NoPath as error:
        raise NoSuchPath(str(error)) from None
    except UnknownNode as error:
        raise NoSuchPath(f"{error.node} is attached to a switch that is not connected") from None
