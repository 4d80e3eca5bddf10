"""Under any mix of what the five systems do, docs/together.md holds: one owner of each part of a flow, each byte in
one account, and nothing left at the end."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import eventlet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speedwell.coflow.report import Flow
from speedwell.controller.coflows.api import CLAIMANT as COFLOWS
from speedwell.controller.coflows.book import _five_tuple
from speedwell.controller.metadata.api import MetadataApi
from speedwell.controller.metadata.app import Metadata
from speedwell.controller.metadata.models import Announcement
from speedwell.controller.placements.app import Placements
from speedwell.controller.policy.network.five_tuple import TCP, FiveTuple
from speedwell.controller.policy.network.maxmin import global_shares
from speedwell.controller.policy.placements.request import Candidate, PlacementRequest
from speedwell.controller.reads.scheduler import CLAIMANT as READS
from speedwell.controller.switches.entries import FlowEntry, LoadLabel
from speedwell.controller.switches.layout import Priority
from speedwell.controller.timeslices.app import KEEP_SECONDS, PairOfHosts, PairsRequest, Timeslices
from speedwell.topo.fabric import Fabric, spine_leaf, three_tier
from tests.unit.controller.house import House
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated
from tests.unit.controller.test_after_random_events import require_none

FABRICS: list[Fabric] = [
    spine_leaf(leaves=3, spines=2, hosts_per_leaf=2),
    three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, aggregations_per_pod=2, cores=2),
]
TICK_SECONDS = 0.25
UNTOLD_PART = 0.3
"""Of a host's link, what background traffic sends."""
SETTLE_SECONDS = 12.0
"""Six polls: by then each account has measured what there is."""
TOLERANCE = 0.05
"""Of a link: counters are read at other moments than bytes move."""
ANNOUNCED_LATER = 10_000
"""A house reports a byte less at each round."""
Link = tuple[str, str]


class Seen(NamedTuple):
    """A connection's links, and what it sends in bits/s."""

    links: tuple[Link, ...]
    rate_bps: float


class Busy(House):
    """All five systems; switches count what connections carry at fair shares, at most as their meters let them."""

    size_bytes = 1 << 40

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._received: Counter[tuple[str, int]] = Counter()
        self._sent: Counter[tuple[str, int]] = Counter()
        self.untold: list[FiveTuple] = []
        self.chains: list[list[FiveTuple]] = []
        self.pairs: list[tuple[str, str]] = []
        self.servers: dict[str, set[str]] = {}
        """Metadata servers, with the blocks whose records they have."""
        super().__init__(*arguments, **named, others=(Placements, Timeslices, Metadata))
        self.ips = {host.ip: host.name for host in self.network.fabric.hosts}
        self._moving = [eventlet.spawn(self._move), eventlet.spawn(self._say_again)]

    def end(self) -> None:
        for thread in self._moving:
            thread.kill()
        super().end()

    def app(self, kind: type[Any]) -> Any:
        return self.life.services.get(kind)

    # --- what moves ---

    def in_flight(self) -> set[FiveTuple]:
        told = {_five_tuple(flow) for flows in self.reported.values() for flow in flows}
        return told | {part.five_tuple for read in self.reads.values() for part in read.parts if part.is_flow} | {
            *self.untold}

    def switches_of(self, flow: FiveTuple) -> tuple[str, ...]:
        """Those that its packets cross: one of the ways of ECMP, where its way is none of its own."""
        source, destination = self.ips[flow.source], self.ips[flow.destination]
        ways = sorted(each.switches for each in self.network.send(source, self.network.tcp(
            source, destination, flow.source_port, flow.destination_port)) if each.where == flow.destination)
        return ways[flow.destination_port % len(ways)] if ways else ()

    def entries_of(self, flow: FiveTuple) -> list[tuple[str, FlowEntry]]:
        return [(dpid, entry) for dpid, switch in self.switches.items() for entry in switch.flows.values()
                if entry.priority == Priority.EXPLICIT_PATH and dict(entry.match).items() >= {
                    ("ipv4_src", flow.source), ("ipv4_dst", flow.destination), ("tcp_src", flow.source_port),
                    ("tcp_dst", flow.destination_port)}]

    def seen(self) -> dict[FiveTuple, Seen]:
        """Each connection's way and its max-min fair share; the hops of a chain are as fast as the slowest."""
        host_bps = self.network.fabric.links[0].capacity_bps
        capacities: dict[Any, float] = {
            ends: link.capacity_bps for link in self.network.fabric.links
            for ends in pairwise((self._node(link.a), self._node(link.b), self._node(link.a)))}
        ways: dict[FiveTuple, tuple[Link, ...]] = {}
        for flow in sorted(self.in_flight()):
            if switches := self.switches_of(flow):
                ways[flow] = tuple(pairwise((flow.source, *switches, flow.destination)))
                metered = [self.switches[dpid].meters[entry.meter_id].rate_kbps * 1e3
                           for dpid, entry in self.entries_of(flow) if entry.meter_id]
                capacities[flow] = min([*metered, host_bps * (UNTOLD_PART if flow in self.untold else 1)])
        numbers = {name: number for number, name in enumerate(capacities)}
        shares = global_shares([(numbers[flow], *(numbers[link] for link in links)) for flow, links in ways.items()],
                               list(capacities.values()), {})
        rates = dict(zip(ways, shares, strict=True))
        for chain in self.chains:
            slowest_bps = min((rates[flow] for flow in chain if flow in rates), default=0.0)
            rates |= {flow: slowest_bps for flow in chain if flow in rates}
        return {flow: Seen(links, rates[flow]) for flow, links in ways.items()}

    def _node(self, name: str) -> str:
        return self.network.dpid_of.get(name) or self.network.hosts[name].ip

    def _move(self) -> None:
        while True:
            eventlet.sleep(TICK_SECONDS)
            for flow, (links, rate_bps) in self.seen().items():
                count = int(rate_bps * TICK_SECONDS / 8)
                for dpid, entry in self.entries_of(flow):
                    counts = self.switches[dpid].byte_counts
                    counts[entry.key] = counts.get(entry.key, 0) + count
                for (near, far), (_, after) in pairwise([*links, ("", "")]):
                    name, peer = self._name(far), self._name(near)
                    if far in self.switches:
                        self._received[far, self.network.fabric.port_toward(name, peer).number] += count
                        self._sent[far, self.network.fabric.port_toward(name, self._name(after)).number] += count

    def _name(self, node: str) -> str:
        return self.network.name_of.get(node) or self.ips.get(node, "")

    def entry_bytes(self, dpid: str, entry: FlowEntry, age_seconds: float) -> int:
        return self.switches[dpid].byte_counts.get(entry.key, 0)

    def port_bytes(self, dpid: str, port_no: int) -> tuple[int, int]:
        return self._received[dpid, port_no], self._sent[dpid, port_no]

    # --- what says that it is there, again and again ---

    def _say_again(self) -> None:
        while True:
            eventlet.sleep(0.5)
            for host, owned in list(self.servers.items()):
                self._announce(host, owned)
            if self.pairs:
                self.app(Timeslices).pin(PairsRequest(pairs=[PairOfHosts(source=a, destination=b)
                                                             for a, b in self.pairs]))

    def _announce(self, host: str, owned: set[str]) -> None:
        api = MetadataApi(self.app(Metadata), self.life.state)
        incoming = [each.block for each in api.announce(self._said(host, owned, [])).incoming]
        orders = api.announce(self._said(host, owned, incoming))
        owned |= {each.block for each in orders.incoming if each.take}
        owned -= {each.block for each in orders.leaving}

    @staticmethod
    def _said(host: str, owned: set[str], ready: Sequence[str]) -> Announcement:
        return Announcement(host=host, port=7200, id=host, owned=sorted(owned), ready=list(ready))

    # --- what may happen ---

    def write(self, writer: str) -> None:
        hosts = self.network.fabric.hosts
        [expected] = self.app(Placements).place([PlacementRequest(
            self.network.hosts[writer].ip, 8.0 * (self.size_bytes - ANNOUNCED_LATER),
            tuple(Candidate(host.ip, host.rack, host.pod or "") for host in hosts if host.name != writer))])
        chain = [expected.placement.source, *(each.host for each in expected.placement.destinations)]
        coflow_id = self.report([(self.ips[source], self.ips[target]) for source, target in pairwise(chain)])
        self.chains.append([_five_tuple(flow) for flow in self.reported[coflow_id]])

    def background(self, source: str, destination: str) -> None:
        hosts = self.network.hosts
        self.untold.append(FiveTuple(hosts[source].ip, hosts[destination].ip, TCP, next(self._ports), 9999))


def problems(house: Busy) -> Iterator[str]:
    """Where what there is differs from the page's tables."""
    records, seen = house.life.forwarding.records, house.seen()
    model = house.life.flowserver.model()
    pinned = {(each.source, each.destination): tuple(each.path) for each in house.app(Timeslices).list_pairs().pairs}
    for flow, (links, _) in seen.items():
        record, entries = records.get(flow), house.entries_of(flow)
        if len(entries) != (record is not None):
            yield f"{flow}: {len(entries)} entries"
        path = tuple(itertools.chain([links[0][0]], [far for _, far in links]))
        claims = {claim.claimant: claim for claim in record.ranked} if record else {}
        coflow, read = claims.pop(COFLOWS, None), claims.pop(READS, None)
        if claims:
            yield f"{flow}: claimed by {claims}"
        owners = [claim.path.nodes for claim in (coflow, read) if claim is not None and claim.path is not None]
        pair = pinned.get((flow.source, flow.destination))
        wanted = owners[0] if owners else pair if pair and not (coflow and coflow.traffic_class) else None
        if wanted is not None and path != wanted:
            yield f"{flow}: goes {path} instead of {wanted}"
        if entries:
            traffic_class = next((each.traffic_class for each in entries[0][1].actions
                                  if isinstance(each, LoadLabel)), 0) or 0      # None: the default's
            if len(links) > 2 and traffic_class != ((coflow.traffic_class or 0) if coflow else 0):
                yield f"{flow}: class {traffic_class} instead of that of {coflow}"
            meter = house.switches[entries[0][0]].meters.get(entries[0][1].meter_id or 0)
            rates = [claim.rate_bps for claim in (coflow, read) if claim and claim.rate_bps is not None]
            if (meter is not None) != bool(rates) or (meter and abs(meter.rate_kbps * 1e3 / min(rates) - 1) > 0.01):
                yield f"{flow}: meter {meter} instead of {rates}"
        part = house.life.reads.part_on(flow)
        if (part is None) != (read is None):
            yield f"{flow}: {part} and {read}"
        if part is not None and not {*pairwise(path)} <= {*model[part.flow_id].path.links}:
            yield f"{flow}: Mayflower has it on {model[part.flow_id].path}"
    if {record.five_tuple for record in records} - seen.keys():
        yield "records of no connection"
    yield from _loads(house, seen)


def _loads(house: Busy, seen: dict[FiveTuple, Seen]) -> Iterator[str]:
    """Where an account has more or less than what a link carries."""
    selector, network = house.life.flowserver._selector, house.life.state.network
    shares = house.app(Placements)._policy._shares
    known = {flow for flow in seen if house.life.reads.part_on(flow) is not None}
    for link in network.links:
        untold_bps = sum(rate_bps for flow, (links, rate_bps) in seen.items() if link in links and flow not in known)
        capacity_bps = network.capacity_bps(link)
        if abs(selector.background_bps(link) - untold_bps) > TOLERANCE * capacity_bps:
            yield (f"{link}: Mayflower takes {selector.background_bps(link):.0f} for others' traffic "
                   f"where there is {untold_bps:.0f}")
    for place, rung in enumerate(shares._links_of):
        others_bps = sum(shares._others[link].rate_bps for link in rung if link in shares._others)
        untold_bps = sum(rate_bps * len({*links} & {*rung}) for flow, (links, rate_bps) in seen.items()
                         if flow not in known)
        if others_bps > untold_bps + TOLERANCE * shares._capacities_bps[place]:
            yield f"{rung}: sinbad-plus takes {others_bps:.0f} for others' traffic where there is {untold_bps:.0f}"


ACTIONS = ("read", "read as coflow", "write", "coflow", "pair", "unpin", "background", "server", "server leaves",
           "end read", "end coflow", "end background", "end placement")
EVENTS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 10_000)), min_size=4, max_size=14)


def happen(house: Busy, action: str, number: int) -> None:
    hosts = sorted(house.network.hosts)
    first, second, third = ([*hosts, *hosts][(number + number // len(hosts) * step) % len(hosts) + step]
                            for step in range(3))
    if len({first, second, third}) < 3:
        first, second, third = hosts[:3]
    ip = house.network.hosts[first].ip
    match action:
        case "read" | "read as coflow":
            before = {*house.reads}
            house.read(first, [second, third], 1 + number % 2)
            for read_id in house.reads.keys() - before if "coflow" in action else ():
                house.report_flows([_told(part.five_tuple) for part in house.reads[read_id].parts if part.is_flow])
        case "write":
            house.write(first)
        case "coflow":
            house.report([(first, second), (third, second)][:1 + number % 2])
        case "pair":
            house.pairs.append((ip, house.network.hosts[second].ip))
        case "unpin":
            house.pairs[:1] = []
        case "background":
            house.background(first, second)
        case "server":
            house.servers.setdefault(ip, set())
        case "server leaves" if len(house.servers) > 1 and ip in house.servers:
            del house.servers[ip]
            house.app(Metadata).remove(ip, lost=True)
        case "end read" if house.reads:
            house.end_read(sorted(house.reads)[number % len(house.reads)])
        case "end coflow" if house.reported:
            house.end_coflow(sorted(house.reported)[number % len(house.reported)], True)
        case "end placement" if (placements := house.app(Placements).expected()):
            house.app(Placements).end(placements[number % len(placements)].id)
        case "end background" if house.untold:
            house.untold.pop(number % len(house.untold))


def _told(flow: FiveTuple) -> Flow:
    return Flow(flow.source, flow.destination, flow.source_port, flow.destination_port)


def end_all(house: Busy) -> None:
    for read_id in list(house.reads):
        house.end_read(read_id)
    for coflow_id in list(house.reported):
        house.end_coflow(coflow_id, True)
    house.pairs.clear()
    house.untold.clear()
    for placement in house.app(Placements).expected():
        if not placement.announced_bytes:       # its writer gave up before it began
            house.app(Placements).end(placement.id)
    eventlet.sleep(KEEP_SECONDS + SETTLE_SECONDS)


def left(house: Busy) -> dict[str, Any]:
    """What is to be nothing when all has ended."""
    life, placements, pairs = house.life, house.app(Placements), house.app(Timeslices)
    links = life.state.network.links
    return {
        "records": list(life.forwarding.records), "ranks": life.forwarding.records.ranks,
        "entries": [entry for switch in house.switches.values() for entry in switch.flows.values()
                    if entry.priority == Priority.EXPLICIT_PATH],
        "meters": [meter for switch in house.switches.values() for meter in switch.meters],
        "reads": list(life.reads.flows()), "modelled": life.flowserver.model(), "coflows": list(life.coflows.book),
        "transfers": [*life.flowserver.transfers._running, *life.flowserver.transfers._placed],
        "placements": placements.expected(), "chains": placements._policy._shares._ids,
        "pairs": pairs.list_pairs().pairs,
        "pinned": [entry for switch in house.switches.values() for entry in switch.flows.values()
                   if entry.cookie >> 48 == 0x5750 and entry.match],
        "background": [link for link in links if life.flowserver._selector.background_bps(link) > 1],
        "measured": [link for link in links if placements._policy._shares._others[link].rate_bps > 1e5
                     if link in placements._policy._shares._others],
    }


def run(fabric: Fabric, policy: str, events: Sequence[tuple[str, int]]) -> None:
    def scenario(hub: SimulatedHub) -> None:
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
            house = Busy(hub, patch, Path(directory), fabric, 1, policy)
            eventlet.sleep(5)
            for place in house.places:
                house.announce(place)
            eventlet.sleep(5)
            for action, number in events:
                happen(house, action, number)
                eventlet.sleep(number % 7 / 3)
            eventlet.sleep(SETTLE_SECONDS)
            require_none([*problems(house)])
            end_all(house)
            require_none([f"{name}: {rest}" for name, rest in left(house).items() if rest])
            house.end()
            require_none(house.failures)

    run_simulated(scenario)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(FABRICS), st.sampled_from(["coflow-plus", "mincof"]), EVENTS)
def test_each_part_of_a_flow_has_one_owner_each_byte_one_account_and_nothing_is_left(
        fabric: Fabric, policy: str, events: list[tuple[str, int]]) -> None:
    run(fabric, policy, events)
