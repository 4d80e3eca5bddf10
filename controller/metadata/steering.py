"""Which entries take requests for keys to their servers: a pure function of blocks, places and links.

A client's edge switch knows its own rack's blocks by server and all others by pod. It gives them the pod's MAC as
destination and a label to one of the pod's racks; the aggregation switch that the label leads by takes the label off
again, knows the pod's blocks by rack, and hands the packet down with a label that says: deliver. Nothing is in the
core. docs/reference/switch-tables.md is the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from speedwell.controller.policy.metadata.blocks import SPACE, joined
from speedwell.controller.policy.network.graph import Link
from speedwell.controller.policy.network.prefixes import Prefix
from speedwell.controller.switches.entries import (
    ETH_ARP,
    ETH_IPV4,
    ETH_MPLS,
    Action,
    FlowEntry,
    LoadLabel,
    Output,
    PopLabel,
    PushLabel,
    SetField,
    ToGroup,
    match,
)
from speedwell.controller.switches.layout import Priority, Table
from speedwell.controller.tables.entries import masked
from speedwell.controller.tables.registry import OwnedTable, Step
from speedwell.controller.topology.state import HostLocation

NUMBER, COOKIE = 25, 0x5740 << 48
RACK_MAC = "03:53:70:64:00:02"
"""Where packets go that the last switch delivers by their block."""
DELIVER_LABEL = 0
"""IPv4 explicit null (RFC 3032, section 2.1): the next switch takes it off and looks at the address."""
PODS = Priority.HOST + 1
"""Blocks by pod, plus their length; so are those below."""
RACKS = PODS + 33
ARRIVED = RACKS + 36
"""What came to be delivered here and is none of this rack's: it must not be sent on its way again."""
SERVERS = RACKS + 33

_STEPS = ((SERVERS, Step.REACHED), (RACKS, Step.SENDING), (PODS, Step.ADMITTING))


def _step_of(entry: FlowEntry) -> Step:
    """What is reached is there first: racks before the aggregation, the aggregation before clients."""
    return next((step for lowest, step in _STEPS if entry.priority >= lowest), Step.REACHED)


def role_of(entry: FlowEntry) -> str:
    """What an entry is for: `servers`, `racks` and `pods` by block, `sources`, or `fixed`."""
    if entry.table == Table.SOURCES:
        return "sources"
    if entry.table != NUMBER or "ipv4_dst" not in dict(entry.match) or entry.priority == PODS:
        return "fixed"
    return next(role for lowest, role in ((SERVERS, "servers"), (RACKS, "racks"), (PODS, "pods"))
                if entry.priority >= lowest)


TABLE = OwnedTable("metadata", NUMBER, COOKIE, step_of=_step_of,
                   beside=frozenset({Table.SOURCES, Table.LABELS, Table.UNLABEL}))

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

    @cached_property
    def racks(self) -> dict[str, tuple[Prefix, ...]]:
        """The blocks of each switch with servers that own some."""
        found: dict[str, list[Prefix]] = {}
        for server, prefixes in self.blocks.items():
            if prefixes and server in self.places:
                found.setdefault(self.places[server].dpid, []).extend(prefixes)
        return {rack: tuple(joined(prefixes)) for rack, prefixes in sorted(found.items())}

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
                    frozenset.intersection(*(self.above[rack] for rack in racks)),
                    tuple(joined(prefix for rack in racks for prefix in self.racks[rack])))
                for racks, switches in pods]

    def entries(self, dpid: str) -> list[FlowEntry]:
        """What one switch shall have. Nothing before the first server owns a block."""
        if not self.racks:
            return []
        found = [_entry(NUMBER, PODS, match(eth_type=ETH_IPV4, ipv4_dst=masked(SPACE)))]
        for pod in self.pods:
            if dpid in pod.switches and len(pod.racks) > 1:
                found += self._down(dpid, pod)
            elif dpid in self.edges:
                found += self._up(dpid, pod)
        if dpid in self.edges:
            found += self._sources(dpid)
        if dpid in self.racks:
            found += self._deliveries(dpid)
        return found

    def _sources(self, dpid: str) -> Iterator[FlowEntry]:
        for server, place in self._servers_at(dpid):
            for prefix in self.senders.get(server, ()):
                yield _entry(Table.SOURCES, PODS + prefix[1], match(
                    eth_type=ETH_IPV4, in_port=place.port_no, eth_src=place.mac, ipv4_src=masked(prefix)),
                    goto=NUMBER)
        yield _entry(Table.SOURCES, PODS, match(eth_type=ETH_IPV4, ipv4_src=masked(SPACE)))
        yield _entry(Table.SOURCES, PODS, match(eth_type=ETH_ARP, arp_spa=masked(SPACE)))
        yield _entry(Table.SOURCES, PODS + 1, match(eth_type=ETH_ARP, arp_tpa=masked(SPACE)))

    def _deliveries(self, dpid: str) -> Iterator[FlowEntry]:
        yield _entry(Table.LABELS, PODS, match(eth_type=ETH_MPLS, mpls_label=DELIVER_LABEL), goto=Table.UNLABEL)
        yield _entry(Table.UNLABEL, PODS, match(eth_type=ETH_MPLS, eth_dst=RACK_MAC), PopLabel(), goto=NUMBER)
        yield _entry(NUMBER, ARRIVED, match(eth_type=ETH_IPV4, eth_dst=RACK_MAC))
        for server, place in self._servers_at(dpid):
            for prefix in self.blocks.get(server, ()):
                yield _entry(NUMBER, SERVERS + prefix[1], _to(prefix), SetField("eth_dst", place.mac),
                             Output(place.port_no))

    def _down(self, dpid: str, pod: Pod) -> Iterator[FlowEntry]:
        """At an aggregation switch: to each rack that it reaches."""
        yield _entry(Table.LABELS, PODS, match(eth_type=ETH_MPLS, eth_dst=pod.mac), PopLabel(), goto=NUMBER)
        yield _entry(NUMBER, RACKS, match(eth_type=ETH_IPV4, eth_dst=pod.mac))
        for rack in pod.racks:
            if (dpid, rack) in self.ports:
                for prefix in self.racks[rack]:
                    yield _entry(NUMBER, RACKS + prefix[1], _to(prefix), SetField("eth_dst", RACK_MAC),
                                 PushLabel(DELIVER_LABEL), Output(self.ports[dpid, rack]))

    def _up(self, dpid: str, pod: Pod) -> Iterator[FlowEntry]:
        """At a client's edge switch: to the pod where one rack's ways all go by switches that reach all of its
        racks, else to each rack by itself."""
        anchor = next((rack for rack in pod.racks if len(pod.racks) > 1 and rack != dpid and self.way(dpid, rack)
                       and self._entrances(dpid, rack) <= pod.reaching_all), None)
        if anchor is not None:
            yield from self._send(dpid, anchor, pod.mac, pod.prefixes)
            return
        for rack in pod.racks:
            if rack != dpid:
                yield from self._send(dpid, rack, RACK_MAC, self.racks[rack])

    def _entrances(self, dpid: str, rack: str) -> frozenset[str]:
        """The switches by which packets of one come to the other: the shortest way leads by a common one."""
        common = frozenset(switch for switch in self.above[rack] if (dpid, switch) in self.ports)
        return common or self.above[rack]

    def _send(self, dpid: str, rack: str, mac: str, prefixes: Iterable[Prefix]) -> Iterator[FlowEntry]:
        way = self.way(dpid, rack)
        actions: tuple[Action, ...] = (SetField("eth_dst", mac), LoadLabel(way[0]), ToGroup(way[1])) if way else ()
        for prefix in prefixes:
            yield _entry(NUMBER, PODS + prefix[1], _to(prefix), *actions)

    def _servers_at(self, dpid: str) -> Iterator[tuple[str, HostLocation]]:
        return ((server, place) for server, place in sorted(self.places.items()) if place.dpid == dpid)


@dataclass(frozen=True)
class Pod:
    """Racks that hang on common switches."""

    racks: tuple[str, ...]
    switches: frozenset[str]
    reaching_all: frozenset[str]
    """Those of the switches that have a live link to every rack."""
    prefixes: tuple[Prefix, ...]

    @property
    def mac(self) -> str:
        """Where packets go that an aggregation switch of this pod takes."""
        return "03:57:" + int(self.racks[0], 16).to_bytes(8)[4:].hex(":")


def _to(prefix: Prefix) -> tuple[tuple[str, object], ...]:
    return match(eth_type=ETH_IPV4, ipv4_dst=masked(prefix))


def _entry(table: int, priority: int, matching: tuple[tuple[str, object], ...], *actions: Action,
           goto: int | None = None) -> FlowEntry:
    return FlowEntry(table, int(priority), matching, actions, goto, COOKIE)
