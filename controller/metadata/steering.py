"""Which entries take requests for keys to their servers: a pure function of blocks, places and links.

Prefixes are those of `controller/policy/metadata/tables.py`. A client's edge switch gives requests for a pod the
pod's MAC as destination and a label to one of the pod's racks; the aggregation switch that the label leads by takes
the label off again, and hands the packet down with a label that says: deliver. docs/reference/switch-tables.md is
the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from speedwell.controller.policy.metadata.blocks import SPACE, Node, runs
from speedwell.controller.policy.metadata.tables import Also, Span, from_clients, towards
from speedwell.controller.policy.network.graph import Link
from speedwell.controller.policy.network.prefixes import Prefix
from speedwell.controller.switches.entries import (
    ETH_ARP,
    ETH_IPV4,
    ETH_MPLS,
    Action,
    FlowEntry,
    ForgetPort,
    LoadLabel,
    Output,
    PopLabel,
    PushLabel,
    SetField,
    ToGroup,
    match,
)
from speedwell.controller.switches.layout import Priority, Table
from speedwell.controller.tables.entries import dotted, masked
from speedwell.controller.tables.registry import OwnedTable, Step
from speedwell.controller.topology.state import HostLocation

NUMBER, DELIVERIES, COOKIE = 25, 27, 0x5740 << 48
RACK_MAC = "03:53:70:64:00:02"
"""Where packets go that the last switch delivers by their address."""
DELIVER_LABEL = 0
"""IPv4 explicit null (RFC 3032, section 2.1): the next switch takes it off and looks at the address."""
PODS = Priority.HOST + 1
"""Prefixes at edge switches, plus their length."""
HOT = PODS + 33
"""Exact entries at edge switches."""
RACKS = HOT + 1
"""Prefixes at aggregation switches, plus their length."""
_OWN: Node = ("own rack",)


def _step_of(entry: FlowEntry) -> Step:
    """What is reached is there first: deliveries before the aggregation, the aggregation before clients."""
    return Step.SENDING if entry.priority >= RACKS else Step.ADMITTING


def role_of(entry: FlowEntry) -> str:
    """What an entry is for: `servers`, `racks` and `pods` by prefix, `hot`, `sources`, or `fixed`."""
    if entry.table == Table.SOURCES:
        return "sources"
    if entry.table == DELIVERIES:
        return "servers"
    if entry.table != NUMBER or entry.priority == PODS:
        return "fixed"
    return "racks" if entry.priority >= RACKS else "hot" if entry.priority == HOT else "pods"


TABLE = OwnedTable("metadata", NUMBER, COOKIE, step_of=_step_of,
                   beside=frozenset({Table.SOURCES, Table.LABELS, Table.UNLABEL, DELIVERIES}))

Way = Callable[[str, str], tuple[int, int] | None]
"""(first label, group) by which an edge switch sends to another; None if there is no way."""


@dataclass(frozen=True)
class Steering:
    """What the entries are made of."""

    blocks: Mapping[str, Collection[Prefix]]
    """The blocks whose requests each server gets. None overlap."""
    senders: Mapping[str, Collection[Prefix]]
    """The blocks from whose addresses each server may answer."""
    places: Mapping[str, HostLocation]
    """Where servers are; those that are not here get nothing."""
    edges: Collection[str]
    """Switches that hosts may be at."""
    ports: Mapping[Link, int]
    """The live links between switches, with the port of the first one."""
    way: Way
    also: Also = ()
    space: Prefix = SPACE
    """What all blocks are within."""
    hot: Mapping[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    """By switch and address the servers there that share its requests: 1, 2, 4, and so on."""
    traffic_class: int | None = None
    """Of requests and answers between switches; None: they have none of their own."""

    @cached_property
    def spans(self) -> list[Span]:
        return sorted((first, end, server) for server, prefixes in self.blocks.items()
                      for first, end in runs(prefixes))

    @cached_property
    def racks(self) -> list[str]:
        """The switches with servers that are asked."""
        owners = {server for *_, server in self.spans} | {server for _, server, _ in self.also}
        return sorted({self.places[server].dpid for server in owners if server in self.places})

    @cached_property
    def above(self) -> dict[str, frozenset[str]]:
        """The switches that each rack hangs on by live links."""
        found: dict[str, set[str]] = {rack: set() for rack in self.racks}
        for near, far in self.ports:
            if near in self.racks and far not in self.racks:
                found[near].add(far)
        return {rack: frozenset(switches) for rack, switches in found.items()}

    @cached_property
    def pods(self) -> list[Pod]:
        """Racks that hang on common switches, by twos or more; any other rack is a pod of its own."""
        pods: list[tuple[set[str], set[str]]] = []
        for rack, above in self.above.items():
            racks, switches = {rack}, set(above)
            for pod in [pod for pod in pods if pod[1] & above]:
                pods.remove(pod)
                racks |= pod[0]
                switches |= pod[1]
            pods.append((racks, switches))
        return [Pod(tuple(sorted(racks)), frozenset(switches),
                    frozenset.intersection(*(self.above[rack] for rack in racks)))
                for racks, switches in pods]

    def entries(self, dpid: str) -> list[FlowEntry]:
        """What one switch shall have. Nothing before the first server owns a block."""
        if not self.racks:
            return []
        found = [_entry(NUMBER, PODS, match(eth_type=ETH_IPV4, ipv4_dst=masked(self.space)))]
        pod = next((pod for pod in self.pods if dpid in pod.switches and len(pod.racks) > 1), None)
        if pod is not None:
            found += self._down(dpid, pod)
        if dpid in self.edges:
            found += self._sources(dpid)
            if pod is None:
                found += self._up(dpid)
            found += self._hot(dpid)
        if dpid in self.racks:
            found += self._deliveries(dpid)
        return found

    def _sources(self, dpid: str) -> Iterator[FlowEntry]:
        for server, place in self._servers_at(dpid):
            for prefix in self.senders.get(server, ()):
                yield _entry(Table.SOURCES, PODS + prefix[1], match(
                    eth_type=ETH_IPV4, in_port=place.port_no, eth_src=place.mac, ipv4_src=masked(prefix)),
                    *self._class(), goto=NUMBER)
        yield _entry(Table.SOURCES, PODS, match(eth_type=ETH_IPV4, ipv4_src=masked(self.space)))
        yield _entry(Table.SOURCES, PODS, match(eth_type=ETH_ARP, arp_spa=masked(self.space)))
        yield _entry(Table.SOURCES, PODS + 1, match(eth_type=ETH_ARP, arp_tpa=masked(self.space)))

    def _class(self) -> tuple[Action, ...]:
        """Kept until a route loads its own label."""
        return () if self.traffic_class is None else (LoadLabel(0, self.traffic_class),)

    def _deliveries(self, dpid: str) -> Iterator[FlowEntry]:
        yield _entry(Table.LABELS, PODS, match(eth_type=ETH_MPLS, mpls_label=DELIVER_LABEL), goto=Table.UNLABEL)
        yield _entry(Table.UNLABEL, PODS, match(eth_type=ETH_MPLS, eth_dst=RACK_MAC), PopLabel(), goto=DELIVERIES)
        stops = {server: (server,) for server, _ in self._servers_at(dpid)}
        for prefix, (server,) in towards(self.spans, stops, self.also, self.space).items():
            place = self.places[server]
            yield _entry(DELIVERIES, PODS + prefix[1], _to(prefix), SetField("eth_dst", place.mac),
                         Output(place.port_no))

    def _down(self, dpid: str, pod: Pod) -> Iterator[FlowEntry]:
        """At an aggregation switch: to each rack, if it reaches it. Without the port a packet may go back where it
        came from."""
        yield _entry(Table.LABELS, PODS, match(eth_type=ETH_MPLS, eth_dst=pod.mac), PopLabel(),
                     ForgetPort(), goto=NUMBER)
        stops = {server: (place.dpid,) for server, place in self.places.items() if place.dpid in pod.racks}
        for prefix, (rack,) in towards(self.spans, stops, self.also, self.space).items():
            port = self.ports.get((dpid, rack))
            actions = (SetField("eth_dst", RACK_MAC), PushLabel(DELIVER_LABEL), Output(port)) if port else ()
            yield _entry(NUMBER, RACKS + prefix[1], _to(prefix), *actions)

    def _up(self, dpid: str) -> Iterator[FlowEntry]:
        """At a client's edge switch: to the pod where one rack's ways all go by switches that reach all of its
        racks, else to each rack by itself."""
        stop_of: dict[str, Node] = {}
        for pod in self.pods:
            anchor = next((rack for rack in pod.racks if len(pod.racks) > 1 and rack != dpid and self.way(dpid, rack)
                           and self._entrances(dpid, rack) <= pod.reaching_all), None)
            stop_of |= {rack: (rack, RACK_MAC) if anchor is None else (anchor, pod.mac) for rack in pod.racks}
            if anchor is None and dpid in pod.racks:
                stop_of[dpid] = _OWN
        stops = {server: stop_of[place.dpid] for server, place in self.places.items() if place.dpid in stop_of}
        own = {server: _OWN for server, _ in self._servers_at(dpid)}
        for prefix, stop in from_clients(self.spans, stops, own, self.space).items():
            yield self._send(dpid, prefix, stop)

    def _hot(self, dpid: str) -> Iterator[FlowEntry]:
        """Straight to servers here, which one by the last bits of the client's address."""
        for address, servers in ((place[1], servers) for place, servers in self.hot.items() if place[0] == dpid):
            for last, server in enumerate(servers):
                if (place := self.places.get(server)) is not None and place.dpid == dpid:
                    client = {"ipv4_src": (dotted(last), dotted(len(servers) - 1))} if len(servers) > 1 else {}
                    yield _entry(NUMBER, HOT, match(eth_type=ETH_IPV4, ipv4_dst=dotted(address), **client),
                                 SetField("eth_dst", place.mac), Output(place.port_no))

    def _send(self, dpid: str, prefix: Prefix, stop: Node) -> FlowEntry:
        if stop == _OWN:
            return _entry(NUMBER, PODS + prefix[1], _to(prefix), goto=DELIVERIES)
        rack, mac = stop
        way = self.way(dpid, rack)
        actions: tuple[Action, ...] = ()
        if way is not None:
            actions = SetField("eth_dst", mac), LoadLabel(way[0], self.traffic_class), ToGroup(way[1])
        return _entry(NUMBER, PODS + prefix[1], _to(prefix), *actions)

    def _entrances(self, dpid: str, rack: str) -> frozenset[str]:
        """The switches by which packets of one come to the other: the shortest way leads by a common one."""
        common = frozenset(switch for switch in self.above[rack] if (dpid, switch) in self.ports)
        return common or self.above[rack]

    def _servers_at(self, dpid: str) -> Iterator[tuple[str, HostLocation]]:
        return ((server, place) for server, place in sorted(self.places.items()) if place.dpid == dpid)


@dataclass(frozen=True)
class Pod:
    """Racks that hang on common switches."""

    racks: tuple[str, ...]
    switches: frozenset[str]
    reaching_all: frozenset[str]
    """Those of the switches that have a live link to every rack."""

    @property
    def mac(self) -> str:
        """Where packets go that an aggregation switch of this pod takes."""
        return "03:57:" + int(self.racks[0], 16).to_bytes(8)[4:].hex(":")


def _to(prefix: Prefix) -> tuple[tuple[str, object], ...]:
    return match(eth_type=ETH_IPV4, ipv4_dst=masked(prefix))


def _entry(table: int, priority: int, matching: tuple[tuple[str, object], ...], *actions: Action,
           goto: int | None = None) -> FlowEntry:
    return FlowEntry(table, int(priority), matching, actions, goto, COOKIE)
