"""One record for each flow, whoever claims it: what its entry should be, and what was counted. No Ryu, no sockets.

A system that wants something of a flow writes a claim: a path, a traffic class, a rate. What nobody claims is the
default's; default ways have no class, so a flow with a class for which nobody has a path takes the path of ECMP.
Each part has one owner: path and class are those of the claim with the highest precedence that names one (and whose
path is live), the rate is the lowest that is claimed. So a later stage only narrows what an earlier one chose, and a
system that is new here needs a `Claimant` of its own and nothing else. A record ends with its last claim.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from speedwell.controller.counters.measurements import FlowCounters
from speedwell.controller.errors import NoSuchPath
from speedwell.controller.policy.errors import PolicyError
from speedwell.controller.policy.network.ecmp import ecmp_path
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.switches.entries import FlowEntry, FlowKey, Meter, Output, cookie
from speedwell.controller.switches.layout import COOKIE_FLOWS
from speedwell.controller.tables.explicit_paths import ExplicitPaths


class Claimant(NamedTuple):
    """A system that claims flows. What one of higher precedence claims holds."""

    name: str
    precedence: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What one system wants of a flow; None: that is left to the others.

    `path` runs from host to host (addresses first and last, datapath ids between). `subject` is what is served, like
    a part of a read: another one on the same connection is counted from 0. Without a packet for
    `idle_timeout_seconds` the flow counts as over; not while a claim with a `lifetime_seconds` (0: for ever) holds,
    because whoever renews that vouches for the flow, which it may be holding back.
    """

    five_tuple: FiveTuple
    claimant: Claimant
    subject: object
    path: Path | None = None
    traffic_class: int | None = None
    rate_bps: float | None = None
    idle_timeout_seconds: int = 0
    lifetime_seconds: int = 0


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A system gives up what it claims of a flow, if that is for `subject` still (None: whatever it is for)."""

    five_tuple: FiveTuple
    claimant: Claimant
    subject: object = None


@dataclass(frozen=True, slots=True)
class EntryPlacement:
    """What a flow's first switch holds for it. `path` None: the entry sends it where default traffic goes."""

    dpid: str
    entry: FlowEntry
    path: Path | None
    meter: Meter | None = None


@dataclass(eq=False, slots=True)
class FlowRecord:
    """Everything about one flow. `placement` is None until its first entry is sent."""

    five_tuple: FiveTuple
    claims: dict[Claimant, Claim] = field(default_factory=dict)
    placement: EntryPlacement | None = None
    counters: FlowCounters = field(default_factory=FlowCounters)
    _before: dict[Claimant, int | None] = field(default_factory=dict)
    """The bytes that were counted before a claim came; None until the next reading."""

    @property
    def ranked(self) -> list[Claim]:
        """The claims, highest precedence first."""
        if len(self.claims) == 1:
            return list(self.claims.values())
        return sorted(self.claims.values(), key=lambda claim: -claim.claimant.precedence)

    @property
    def path(self) -> Path | None:
        """The path that its packets take; None: the default ways."""
        return self.placement.path if self.placement else None

    @property
    def meter(self) -> Meter | None:
        return self.placement.meter if self.placement else None

    @property
    def rate_bps(self) -> float | None:
        """What it may send in bits/s; None: as much as it can."""
        return min((claim.rate_bps for claim in self.claims.values() if claim.rate_bps is not None), default=None)

    @property
    def traffic_class(self) -> int | None:
        """None: what default traffic of the same host has."""
        return next((claim.traffic_class for claim in self.ranked if claim.traffic_class is not None), None)

    @property
    def lifetime_seconds(self) -> int:
        """After this the switch takes the entry out whatever it carries, unless it is renewed; 0: never."""
        return min((claim.lifetime_seconds for claim in self.claims.values() if claim.lifetime_seconds), default=0)

    @property
    def idle_timeout_seconds(self) -> int:
        if self.lifetime_seconds:
            return 0
        return min((claim.idle_timeout_seconds for claim in self.claims.values() if claim.idle_timeout_seconds),
                   default=0)

    def is_held(self, claimant: Claimant) -> bool:
        """Whether a system other than this one vouches for the flow, however still it stands."""
        return any(claim.lifetime_seconds for claim in self.claims.values() if claim.claimant != claimant)

    def withdraw(self, withdrawal: Withdrawal) -> None:
        claim = self.claims.get(withdrawal.claimant)
        if claim is not None and withdrawal.subject in (None, claim.subject):
            del self.claims[withdrawal.claimant]

    # --- what was counted ---

    def transferred_bytes(self, claimant: Claimant) -> int:
        """The bytes, without headers, since this system claims the flow for what it serves now."""
        before = self._before.get(claimant)
        return 0 if before is None else max(self.counters.transferred_bytes - before, 0)

    def goes_on(self, former: dict[Claimant, Claim]) -> bool:
        """Whether one of the former claims still serves what it did."""
        return any(_goes_on(former.get(claimant), claim) for claimant, claim in self.claims.items())

    def count_anew(self) -> None:
        """Nobody's claim goes on: the switch will count from 0."""
        self.counters = FlowCounters()
        self._before = dict.fromkeys(self.claims, 0)

    def count_on(self, former: dict[Claimant, Claim]) -> None:
        """Some claim goes on: those that are new see what is counted from the next reading on."""
        self._before = {claimant: self._before.get(claimant) if _goes_on(former.get(claimant), claim) else None
                        for claimant, claim in self.claims.items()}

    def counted(self, byte_count: int, packet_count: int, duration_seconds: float, now: float) -> None:
        """The entry's counters, and its age by the switch's clock."""
        self.counters.read(byte_count, packet_count, duration_seconds, now)
        for claimant, before in self._before.items():
            if before is None:
                self._before[claimant] = self.counters.transferred_bytes


class FlowRecords:
    """The flows that have an entry of their own, by 5-tuple and by the cookie of the entry."""

    def __init__(self, paths: ExplicitPaths) -> None:
        self._paths = paths
        self._state = paths.state
        self._records: dict[FiveTuple, FlowRecord] = {}
        self._at: dict[str, dict[int, FlowRecord]] = {}
        """By the switch that has the entry, and the entry's cookie."""
        self._on_default: dict[FiveTuple, FlowRecord] = {}
        self.ranks: Mapping[tuple[str, str], int] = {}
        """By source and destination of scheduled flows, which come first; who holds flows back goes by it."""
        self.priorities: Mapping[FiveTuple, int] = {}
        """Of flows that a policy ranks, 0 first. Hosts queue by it."""
        self.paces_bps: Mapping[FiveTuple, int] = {}
        """Of flows whose rates hosts keep."""
        self.host_orders_watchers: list[Callable[[Mapping[FiveTuple, int], Mapping[FiveTuple, int]], None]] = []
        # A restarted controller must not take an entry of its former life for one of its own.
        self._cookies = itertools.count(secrets.randbits(16) << 32)

    def __iter__(self) -> Iterator[FlowRecord]:
        """A snapshot: records may come and go while it is walked through."""
        return iter(list(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def get(self, five_tuple: FiveTuple) -> FlowRecord | None:
        return self._records.get(five_tuple)

    def claim_of(self, five_tuple: FiveTuple, claimant: Claimant) -> Claim | None:
        record = self._records.get(five_tuple)
        return record.claims.get(claimant) if record else None

    def with_cookie(self, number: int, dpid: str) -> FlowRecord | None:
        """The record whose entry a switch holds under this cookie."""
        return self._at.get(dpid, {}).get(number)

    # --- changes ---

    def order_hosts(self, priorities: Mapping[FiveTuple, int], paces_bps: Mapping[FiveTuple, int]) -> None:
        """Have flows these priorities and paces from now on; whoever watches is told of a change."""
        if (priorities, paces_bps) != (self.priorities, self.paces_bps):
            self.priorities, self.paces_bps = priorities, paces_bps
            for changed in self.host_orders_watchers:
                changed(priorities, paces_bps)

    def open(self, five_tuple: FiveTuple) -> FlowRecord:
        """The record of a flow, made if there is none."""
        record = self._records.get(five_tuple)
        if record is None:
            record = self._records[five_tuple] = FlowRecord(five_tuple)
        return record

    def place(self, record: FlowRecord, placement: EntryPlacement | None) -> None:
        """From now on the record's switch holds this for it, or nothing. That is always nothing for a record that was
        dropped while its flow was changed."""
        if self._records.get(record.five_tuple) is not record:
            placement = None
        if record.placement is not None:
            there = self._at[record.placement.dpid]
            there.pop(record.placement.entry.cookie, None)
            if not there:
                del self._at[record.placement.dpid]
        record.placement = placement
        self._on_default.pop(record.five_tuple, None)
        if placement is not None:
            self._at.setdefault(placement.dpid, {})[placement.entry.cookie] = record
            if placement.path is None:
                self._on_default[record.five_tuple] = record

    def drop(self, record: FlowRecord) -> None:
        """Forget a record."""
        self.place(record, None)
        if self._records.get(record.five_tuple) is record:
            del self._records[record.five_tuple]

    def new_cookie(self) -> int:
        return cookie(COOKIE_FLOWS, next(self._cookies) & (1 << 48) - 1)

    # --- what the entry should be ---

    def planned(self, record: FlowRecord, number: int, must_have_path: bool = True) -> EntryPlacement:
        """What the first switch should hold, under this cookie, its meter apart.

        Raises NoSuchPath if a path is wanted and none can be had; without `must_have_path` the flow is sent the
        default way then, at the switch where it is.
        """
        paths = self._paths_wanted(record)
        if must_have_path and paths:
            path = next(filter(self._state.network.has_path, paths), paths[0])
            return EntryPlacement(path.nodes[1], self._entry(record, path, number), path)
        for path in filter(self._state.network.has_path, paths):
            if record.placement is None or record.placement.dpid == path.nodes[1]:
                try:
                    return EntryPlacement(path.nodes[1], self._entry(record, path, number), path)
                except NoSuchPath:
                    continue
        return self.on_default(record, number, must_have_path)

    def is_as_claimed(self, record: FlowRecord) -> bool:
        """Whether a record's entry leads over the path that is claimed first, and that lives. With no such claim that
        is not known without planning."""
        path = record.path
        claimed = (claim.path for claim in record.ranked if claim.path is not None)
        return path is not None and path == next(claimed, None) and self._state.network.has_path(path)

    def _paths_wanted(self, record: FlowRecord) -> Sequence[Path]:
        """The claimed paths, the most binding first; for a flow with a class and no such path that of ECMP."""
        claimed = [claim.path for claim in record.ranked if claim.path is not None]
        if claimed or all(claim.traffic_class is None for claim in record.claims.values()):
            return claimed
        flow = record.five_tuple
        try:
            return [ecmp_path(self._state.network.shortest_paths(flow.source, flow.destination), flow)]
        except PolicyError:     # a host has gone, or there is no way to it
            return []

    def on_default(self, record: FlowRecord, number: int, may_move: bool = False) -> EntryPlacement:
        """What sends a flow the default way, at the switch that has its entry, or where its host is by now."""
        dpid = self._default_switch(record, may_move)
        entry = self._paths.default_entry(record.five_tuple, dpid, number, record.idle_timeout_seconds)
        return EntryPlacement(dpid, _with_lifetime(entry, record), None)

    def _entry(self, record: FlowRecord, path: Path, number: int) -> FlowEntry:
        entry = self._paths.entry(record.five_tuple, path, number, record.idle_timeout_seconds,
                                  record.traffic_class)
        return _with_lifetime(entry, record)

    def _default_switch(self, record: FlowRecord, may_move: bool) -> str:
        host = self._state.hosts.get(record.five_tuple.source)
        if record.placement is not None and (host is None or not may_move):
            return record.placement.dpid
        if host is None:
            raise NoSuchPath(f"the host {record.five_tuple.source} is not known")
        return host.dpid

    # --- links and switches that come and go ---

    def divert_dead(self) -> list[tuple[FlowRecord, Path]]:
        """Take flows off paths that lost a link, onto another claim's or the default way. Returns each with the path
        it had; its new entry is for the switch to modify."""
        has_path = self._state.network.has_path
        return [(record, path) for record in self if (path := record.path) is not None and not has_path(path)
                and self.redirect(record)]

    def refreshed(self) -> list[FlowRecord]:
        """Flows on the default way for which that came, went or changed: their entries are to be modified."""
        return [record for record in list(self._on_default.values()) if self.redirect(record)]

    def relabelled(self, moved: Collection[tuple[str, str]]) -> list[tuple[FlowRecord, Path]]:
        """Flows with a path between switches whose labels or groups are other ones now: their entries are to be
        modified. Returns each with the path it had; that is lost if there is no label for it any more."""
        return [(record, path) for record in (self if moved else ()) if (path := record.path) is not None
                and (path.nodes[1], path.nodes[-2]) in moved and self.redirect(record)]

    def redirect(self, record: FlowRecord) -> bool:
        """Send a flow where it is to go as things are now. Returns whether its entry is to be modified."""
        placement = record.placement
        assert placement is not None
        planned = replace(self.planned(record, placement.entry.cookie, must_have_path=False), meter=placement.meter)
        # A modify leaves timeouts as they are.
        planned = replace(planned, entry=replace(planned.entry, meter_id=placement.entry.meter_id,
                                                 idle_timeout_seconds=placement.entry.idle_timeout_seconds,
                                                 hard_timeout_seconds=placement.entry.hard_timeout_seconds))
        self.place(record, planned)
        return planned.entry != placement.entry

    def compare(self, dpid: str, found: Iterable[FlowEntry]) -> tuple[list[FlowEntry], list[FlowKey]]:
        """(entries that a switch lacks, keys of entries that would send packets astray).

        Entries of flows that nobody here knows are an earlier controller's; as long as they lead to their destination
        they are left to idle out.
        """
        there = {entry.key: entry for entry in found}
        missing = []
        for record in self.at(dpid):
            self.redirect(record)
            if record.placement is not None and there.get(record.placement.entry.key) != record.placement.entry:
                missing.append(record.placement.entry)
        return missing, self.astray(dpid, there.values())

    def astray(self, dpid: str, found: Iterable[FlowEntry]) -> list[FlowKey]:
        """Keys of entries of flows that nobody here knows and that do not lead to their destination."""
        known = {record.placement.entry.key for record in self.at(dpid) if record.placement}
        return [entry.key for entry in found if entry.key not in known and not self._leads_home(dpid, entry)]

    def _leads_home(self, dpid: str, entry: FlowEntry) -> bool:
        host = self._state.hosts.get(dict(entry.match).get("ipv4_dst", ""))
        if host is None:
            return False
        match entry.actions:
            case (Output(port_no=port_no),):
                return host.dpid == dpid and host.port_no == port_no
            case actions if self._paths.leads_to(dpid, actions) == host.dpid:
                return True
            case _:
                return entry.actions == self._paths.default_entry(
                    _five_tuple_of(entry), dpid, entry.cookie, entry.idle_timeout_seconds).actions

    def at(self, dpid: str) -> list[FlowRecord]:
        """The records whose entry is at a switch."""
        return list(self._at.get(dpid, {}).values())


def _goes_on(former: Claim | None, claim: Claim) -> bool:
    return former is not None and former.subject == claim.subject


def _with_lifetime(entry: FlowEntry, record: FlowRecord) -> FlowEntry:
    lifetime_seconds = record.lifetime_seconds
    return replace(entry, hard_timeout_seconds=lifetime_seconds) if lifetime_seconds else entry


def _five_tuple_of(entry: FlowEntry) -> FiveTuple:
    fields = dict(entry.match)
    return FiveTuple(fields.get("ipv4_src", ""), fields.get("ipv4_dst", ""), fields.get("ip_proto", 0),
                     fields.get("tcp_src", fields.get("udp_src", 0)), fields.get("tcp_dst", fields.get("udp_dst", 0)))
