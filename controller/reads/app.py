"""The Flowserver: chooses replica and path of each read and keeps the reads in flight (Mayflower, section 3.3.3).

A read is decided and accounted for without giving up the processor (`controller.reads.scheduler`); only then its
entries are installed, and what could not be installed is taken back. `/v1/reads` is in `controller.reads.api`.
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from ryu.controller.handler import set_ev_cls

from speedwell.controller.application import Application
from speedwell.controller.counters.measurements import Measurements
from speedwell.controller.counters.poller import EventMeasured
from speedwell.controller.errors import ControllerError, NoSuchPath
from speedwell.controller.loops import in_turns, pieces
from speedwell.controller.network.api import ReadsInFlight
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.policy.reads.link_load import ReadFlow
from speedwell.controller.policy.reads.selection import Selector, compile_selection
from speedwell.controller.policy.reads.selection_request import Selection
from speedwell.controller.reads.api import ReadsApi
from speedwell.controller.reads.book import Read, ReadBook, ReadPart, ReadRequest, UnknownPart, UnknownRead
from speedwell.controller.reads.metrics import ReadMetrics
from speedwell.controller.reads.read_divisions import ReadDivider
from speedwell.controller.reads.replica_search import ReplicaSearch
from speedwell.controller.reads.scheduler import CLAIMANT, ReadScheduler
from speedwell.controller.reads.transfers import ReportedTransfers
from speedwell.controller.rest import RestApplication
from speedwell.controller.services import Services
from speedwell.controller.tables.events import EventFlowsEnded, EventFlowsMoved, EventPathsChanged
from speedwell.controller.tables.flow_records import Claim, FlowRecord, Withdrawal
from speedwell.controller.tables.forwarding import Forwarding
from speedwell.controller.tables.transfers import Transfers
from speedwell.controller.topology.events import EventHostChanged
from speedwell.controller.topology.hosts import Hosts
from speedwell.controller.topology.state import NetworkState

FLOWS_AT_ONCE = 64
"""So many counters are told to the policy in one go, a third of a millisecond's work."""
PLACEMENT_ATTEMPTS = 3
"""Decisions for one read, if a chosen path dies before its entry is in."""


class Flowserver(Application):
    """Places reads, feeds the policy with measurements, re-routes and ends reads. Reads `Measurements`."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._state = services.get(NetworkState)
        self.reads = ReadBook()
        services.provide(ReadsInFlight, self.reads)
        rest = services.get(RestApplication)
        self.metrics = ReadMetrics(rest.metrics)
        self.metrics.in_flight.set_function(lambda: len(self.reads))
        settings = self._state.settings
        self._idle_timeout_seconds = settings.read_idle_timeout_seconds
        compile_selection()
        self._selector = Selector(self._state.network, settings.replica_policy, settings.path_policy, Random())
        self._search = ReplicaSearch(self._state, self.loops)
        self.divider = ReadDivider(self._selector, self.reads, self, self.metrics, self.loops)
        self._scheduler = ReadScheduler(self._state, services.get(Measurements), self._selector, self.reads,
                                        self.divider, self.metrics, self._is_held)
        self.transfers = ReportedTransfers(self, self.loops)
        services.provide(Transfers, self.transfers)
        rest.register(ReadsApi(self, self._state))

    def start(self) -> None:
        self.hosts = self.services.get(Hosts)
        self.forwarding = self.services.get(Forwarding)
        super().start()

    # --- placing a read ---

    def place(self, wanted: ReadRequest) -> Read:
        """Choose replicas and paths, and install them, confirmed by all the switches concerned.

        Raises UnknownHost, NoSuchPath, SwitchRefused, SwitchTimedOut or SwitchGone; then nothing of the read remains.
        """
        begin = time.monotonic()
        try:
            replicas = self._search.locate(self.hosts, wanted)
            for attempt in range(1, PLACEMENT_ATTEMPTS + 1):
                read = self._scheduler.decide(wanted, replicas)
                try:
                    self._install(read.flows)
                    break
                except NoSuchPath:
                    self._abandon(read)
                    if attempt == PLACEMENT_ATTEMPTS:
                        raise
                except BaseException:
                    self._abandon(read)
                    raise
        except ControllerError as error:
            self.metrics.refused.labels(error.slug).inc()
            raise
        self.metrics.placement_seconds.observe(time.monotonic() - begin)
        if read.placement_id is None:
            self.metrics.reads.labels(read.replica_policy, read.path_policy).inc()
        else:
            self.metrics.transfers.inc()
        self.metrics.local_parts.inc(len(read.parts) - len(read.flows))
        return read

    def is_in_use(self, read: Read, selection: Selection, client_port: int) -> bool:
        """See `PartInstaller`."""
        return self._scheduler.is_in_use(read, selection, client_port)

    def new_part(self, read: Read, selection: Selection, client_port: int, size_bytes: int) -> ReadPart:
        """See `PartInstaller`."""
        return self._scheduler.new_part(read, selection, client_port, size_bytes)

    def _install(self, parts: Sequence[ReadPart]) -> None:
        """Install all at once. Raises what went wrong when nothing is under way any more."""
        # A path that died meanwhile is chosen anew, which is of no use if there is something worse.
        for error in sorted(self.install(parts), key=lambda error: isinstance(error, NoSuchPath)):
            raise error

    def install(self, parts: Sequence[ReadPart]) -> list[ControllerError]:
        """See `PartInstaller`."""
        failures = self.forwarding.apply([self._claim(part, part.path) for part in parts])
        for error in failures.values():
            self.metrics.installs_refused.labels(error.slug).inc()
        for part in parts:
            self._follow(part, believed=part.path)
        return list(failures.values())

    def _claim(self, part: ReadPart, path: Path) -> Claim:
        return Claim(part.five_tuple, CLAIMANT, part.flow_id, path,
                     idle_timeout_seconds=self._idle_timeout_seconds)

    def _record(self, part: ReadPart) -> FlowRecord | None:
        """The record in which a part has its claim."""
        record = self.forwarding.records.get(part.five_tuple)
        claim = record.claims.get(CLAIMANT) if record else None
        return record if claim is not None and claim.subject == part.flow_id else None

    def _follow(self, part: ReadPart, believed: Path) -> None:
        """The policy's model has a part where its packets go, whoever chose that path."""
        record = self._record(part)
        if record is not None and record.path is not None:
            self._scheduler.follow(part, record.path, believed)

    def _abandon(self, read: Read) -> None:
        """Take back a read that could not be installed."""
        for part in self._scheduler.forget(read):
            self.metrics.parts_ended.labels("not-installed").inc()
            self.remove_entry(part)

    # --- ending reads ---

    def end(self, read_id: str) -> None:
        """End a read at its client's word, confirmed by the switches.

        Raises UnknownRead, SwitchRefused or SwitchTimedOut; the read is forgotten all the same, and a remaining entry
        goes by its idle timeout.
        """
        read = self.reads.get(read_id)
        if read is None:
            raise UnknownRead(read_id)
        left = self._scheduler.forget(read)
        self.metrics.parts_ended.labels("deleted").inc(len(left))
        self._withdraw(left)

    def end_part(self, read_id: str, number: int) -> None:
        """End one part of a read, counted from 0, and the read with the last one. What the part had is free for
        others from now on; the read gets no further part from the same replica. Raises UnknownPart, and what `end`
        raises."""
        read = self.reads.get(read_id)
        if read is None:
            raise UnknownRead(read_id)
        if number >= len(read.parts) or not self._scheduler.end_part(read.parts[number], "deleted"):
            raise UnknownPart(read_id, number)
        self._withdraw([read.parts[number]])

    def _withdraw(self, parts: Iterable[ReadPart]) -> None:
        """Raises the first thing that a switch has against it."""
        for error in self.forwarding.apply(
                (), [Withdrawal(part.five_tuple, CLAIMANT, part.flow_id) for part in parts if part.is_flow]).values():
            raise error

    def remove_entry(self, part: ReadPart) -> None:
        """See `PartInstaller`."""
        try:
            self._withdraw([part])
        except ControllerError as error:
            self.logger.warning("an entry goes by its idle timeout only: %s", error)

    @set_ev_cls(EventFlowsEnded)
    def flows_ended(self, event: EventFlowsEnded) -> None:
        """A dead client's entry idled out, or somebody else deleted it: the flow is on the default paths then."""
        for claim in event.claims:
            part = self.reads.part_on(claim.five_tuple)
            if part is not None and claim.claimant == CLAIMANT and claim.subject == part.flow_id:
                self._scheduler.end_part(part, "idle" if event.is_idle else "entry-removed")

    @set_ev_cls(EventHostChanged)
    def _host_changed(self, event: EventHostChanged) -> None:
        if event.previous is None or event.previous == event.location:
            return
        for part in self.reads.flows():
            ends = (part.five_tuple.source, part.five_tuple.destination)
            if event.ip in ends and self._scheduler.end_part(part, "host-moved"):
                self.loops.spawn(self.remove_entry, part)

    # --- measurements ---

    @set_ev_cls(EventMeasured)
    def measured(self, event: EventMeasured) -> None:
        # Flows first, then links, as the policy wants it; requests have their turn in between.
        for parts in in_turns(pieces(self.reads.flows(), FLOWS_AT_ONCE)):
            self._scheduler.flows_measured(
                [(part, record) for part in parts if (record := self._record(part)) is not None],
                event.began_at, time.monotonic())
        for link in in_turns(list(self._state.network.links)):
            self._scheduler.link_measured(link, event.began_at, time.monotonic())
        now = time.monotonic()
        self.divider.measured(now)
        for part in self._scheduler.expired(now):
            self.loops.spawn(self.remove_entry, part)
        stranded = [part for part in self.reads.flows() if part.stranded]
        if stranded:
            self.loops.spawn(self.reroute, stranded)
        self.divider.wake()

    def counted_bytes(self, part: ReadPart, since: float) -> int | None:
        """What a part has sent, if that was counted since then, on the monotonic clock."""
        record = self._record(part)
        if record is None or record.counters.read_at is None or record.counters.read_at < since:
            return None
        return record.transferred_bytes(CLAIMANT)

    def _is_held(self, part: ReadPart) -> bool:
        record = self._record(part)
        return record is not None and record.is_held(CLAIMANT)

    # --- re-routing ---

    @set_ev_cls(EventPathsChanged)
    def paths_changed(self, event: EventPathsChanged) -> None:
        self._look_after([affected.five_tuple for affected in event.affected])

    @set_ev_cls(EventFlowsMoved)
    def flows_moved(self, event: EventFlowsMoved) -> None:
        self._look_after(event.flows)

    def _look_after(self, flows: Iterable[FiveTuple]) -> None:
        """Flows take another path than they did: the model follows, and those whose own path is lost get another."""
        lost = []
        for part in filter(None, map(self.reads.part_on, flows)):
            record = self._record(part)
            if record is None:
                continue
            if record.path is not None:
                if not self._state.network.has_path(part.path):
                    self._count_reroute(part)       # somebody with more to say about the flow was faster
                self._follow(part, believed=part.path)
            own = record.claims[CLAIMANT].path
            if record.path is None or (own is not None and not self._state.network.has_path(own)):
                lost.append(part)
        if lost:
            self.loops.spawn(self.reroute, lost)

    def _count_reroute(self, part: ReadPart) -> None:
        part.reroutes += 1
        self.metrics.reroutes.labels("moved").inc()

    def reroute(self, parts: list[ReadPart]) -> None:
        """Give running parts new paths from the same replica. All are decided first, then moved at once."""
        away_from = {part: part.path for part in parts if (record := self._record(part)) and record.path is None}
        moved = {part: path for part in parts if (path := self._scheduler.decide_again(part)) is not None}
        failures = self.forwarding.apply([self._claim(part, path) for part, path in moved.items()])
        for part, path in moved.items():
            error = failures.get(part.five_tuple)
            if error is not None:
                part.stranded = True
                self.metrics.reroutes.labels(error.slug).inc()
                self.logger.warning("a running read stays on the default paths for now: %s", error)
                continue
            if away_from.get(part) == part.path:        # and nobody has brought it back meanwhile
                self._count_reroute(part)
            part.path = path
            self._follow(part, believed=path)
            if part.ended:
                self.remove_entry(part)

    # --- look-ups ---

    def follow(self, read_id: str, after: int, wait_seconds: float) -> Read:
        """See `ReadDivider.follow`."""
        return self.divider.follow(read_id, after, wait_seconds)

    def model(self) -> Mapping[str, ReadFlow]:
        """The policy's view of each flow, by `ReadPart.flow_id`, as it is at any time; hops of one chain have one in
        common."""
        flows = self._selector.by_id
        hops = {hop: flows[chain] for hop, chain in self._scheduler.chains.by_hop() if chain in flows}
        return ChainMap(hops, flows)
