"""What every switch should hold: a pure function of the network state. docs/switch-tables.md is the reference."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controller.errors import NoSuchPath
from controller.network_state import HostLocation, NetworkState
from controller.openflow import (
    COOKIE_HOSTS,
    COOKIE_LABELS,
    COOKIE_ROUTES,
    COOKIE_STATIC,
    ETH_ARP,
    ETH_IPV4,
    ETH_LLDP,
    ETH_MPLS,
    IP_TCP,
    IP_UDP,
    PORT_CONTROLLER,
    PORT_IN_PORT,
    Action,
    Bucket,
    CopyField,
    FlowEntry,
    FlowKey,
    Match,
    Output,
    PopLabel,
    Priority,
    PushLabel,
    SelectGroup,
    SetField,
    SetQueue,
    Table,
    ToGroup,
    match,
)
from controller.policy.five_tuple import FiveTuple
from controller.policy.labels import LabelTable
from controller.policy.network import Path

MAX_BUCKETS = 64
ARP_REQUEST, ARP_REPLY = 1, 2
TO_CONTROLLER = Output(PORT_CONTROLLER)


@dataclass(slots=True)
class SwitchTables:
    """The planned part of one switch: everything but explicit paths."""

    flows: dict[FlowKey, FlowEntry] = field(default_factory=dict)
    groups: dict[int, SelectGroup] = field(default_factory=dict)

    def add(self, entries: Iterable[FlowEntry]) -> None:
        self.flows.update((entry.key, entry) for entry in entries)


def _static(
    table: Table, priority: Priority, matching: Match, *actions: Action, goto: Table | None = None
) -> FlowEntry:
    return FlowEntry(table, priority, matching, actions, goto, COOKIE_STATIC)


LLDP_ENTRY = _static(Table.CLASSIFY, Priority.CLASS, match(eth_type=ETH_LLDP), TO_CONTROLLER)
STATIC_ENTRIES = (
    LLDP_ENTRY,
    _static(Table.CLASSIFY, Priority.CLASS, match(eth_type=ETH_MPLS), goto=Table.LABELS),
    _static(Table.CLASSIFY, Priority.CLASS, match(eth_type=ETH_ARP), goto=Table.SOURCES),
    _static(Table.CLASSIFY, Priority.CLASS, match(eth_type=ETH_IPV4), goto=Table.SOURCES),
    _static(Table.CLASSIFY, Priority.MISS, match()),
    _static(Table.SOURCES, Priority.CLASS, match(eth_type=ETH_ARP), TO_CONTROLLER),
    _static(Table.SOURCES, Priority.CLASS, match(eth_type=ETH_IPV4), TO_CONTROLLER, goto=Table.ROUTES),
    _static(Table.ROUTES, Priority.NO_UNICAST, match(eth_type=ETH_IPV4, ipv4_dst=("224.0.0.0", "224.0.0.0"))),
    _static(Table.ROUTES, Priority.MISS, match(), TO_CONTROLLER),
    _static(Table.NEIGHBOURS, Priority.MISS, match(), TO_CONTROLLER),
)
"""What every switch holds whatever the network looks like."""


class Planner:
    """Plans tables from a network state. Labels, once given out, keep their meaning as long as the planner lives."""

    def __init__(self, state: NetworkState) -> None:
        self.state = state
        self.labels = LabelTable()
        self._group_ids: dict[str, int] = {}
        self._label_hops: dict[str, dict[int, str | None]] = {}
        self._edges: list[str] = []
        self._paths: dict[str, dict[str, tuple[Path, ...]]] = {}

    def assign_labels(self) -> None:
        """Give labels to all shortest paths between edge switches as the network is now.

        Call it after links or edge switches changed, and before `tables`. Raises LabelsExhausted.
        """
        self._edges = edges = self.state.edge_switches()
        network = self.state.network
        self._paths = {a: {b: network.shortest_paths(a, b)[:MAX_BUCKETS] for b in edges if a != b} for a in edges}
        for edge in edges:
            self.group_toward(edge)
        for label in self.labels.assign({(a, b): paths for a in edges for b, paths in self._paths[a].items()}):
            self._note_hops(label)

    def adopt_labels(self, installed: Mapping[str, SwitchTables]) -> None:
        """Take over the labels that switches hold from an earlier controller, by datapath id.

        Traffic under way then keeps its paths, even where this controller, which knows less of the past, would have
        numbered them otherwise. Call it before labels are assigned for the first time.
        """
        destinations: dict[int, set[str]] = {}
        next_hops: dict[int, dict[str, str]] = {}
        for dpid, tables in installed.items():
            for entry in tables.flows.values():
                if entry.table != Table.LABELS:
                    continue
                label = dict(entry.match).get("mpls_label", 0)
                match entry.actions:
                    case (PopLabel(),):
                        destinations.setdefault(label, set()).add(dpid)
                    case (Output(port_no=port_no),) if (dpid, port_no) in self.state.links:
                        next_hops.setdefault(label, {})[dpid] = self.state.links[dpid, port_no][0]
        for label, ends in destinations.items():
            if len(ends) == 1 and self.labels.adopt(label, ends.pop(), next_hops.get(label, {})):
                self._note_hops(label)

    def _note_hops(self, label: int) -> None:
        self._label_hops.setdefault(self.labels.destination(label), {})[label] = None
        for switch, neighbour in self.labels.next_hops(label).items():
            self._label_hops.setdefault(switch, {})[label] = neighbour

    def tables(self, dpid: str) -> SwitchTables:
        """What a switch should hold."""
        tables = SwitchTables()
        tables.add(STATIC_ENTRIES)
        tables.add(self._queue_entries(dpid))
        tables.add(self._label_entries(dpid))
        tables.groups = self.groups(dpid)
        if dpid in self._edges:
            for host in self.state.hosts.values():
                tables.add(self._host_entries(dpid, host, tables.groups))
        return tables

    def groups(self, dpid: str) -> dict[int, SelectGroup]:
        """One select group per edge switch that `dpid` can reach."""
        groups = {}
        for destination, paths in self._paths.get(dpid, {}).items():
            buckets = [bucket for path in paths if (bucket := self._bucket(path))]
            if buckets:
                group_id = self.group_toward(destination)
                groups[group_id] = SelectGroup(group_id, tuple(buckets))
        return groups

    def group_toward(self, dpid: str) -> int:
        """The id of the groups that lead to an edge switch.

        Derived from the datapath id, so that a controller that starts anew finds its groups unchanged.
        """
        if dpid not in self._group_ids:
            taken = set(self._group_ids.values())
            group_id = zlib.crc32(dpid.encode()) & 0xFFFFFF or 1
            while group_id in taken:
                group_id += 1
            self._group_ids[dpid] = group_id
        return self._group_ids[dpid]

    def label_hop(self, dpid: str, label: int) -> str | None:
        """The neighbour that a switch sends a label to; None at its destination and where it is not seen."""
        return self._label_hops.get(dpid, {}).get(label)

    def label_key(self, label: int) -> FlowKey:
        """The key of a label's entry, the same at every switch."""
        return Table.LABELS, Priority.CLASS, match(eth_type=ETH_MPLS, mpls_label=label)

    def _queue_entries(self, dpid: str) -> Iterable[FlowEntry]:
        """What takes labelled packets to the queue of their class where `set_queue` works."""
        for traffic_class in self.state.set_queue_classes.get(dpid, ()):
            yield _static(Table.CLASSIFY, Priority.QUEUE, match(eth_type=ETH_MPLS, mpls_tc=traffic_class),
                          SetQueue(traffic_class), goto=Table.LABELS)

    def _label_entries(self, dpid: str) -> Iterable[FlowEntry]:
        for label, neighbour in self._label_hops.get(dpid, {}).items():
            key = self.label_key(label)
            if neighbour is None:
                yield FlowEntry(*key, (PopLabel(),), Table.DELIVERY, COOKIE_LABELS)
                continue
            try:
                port_no = self.state.port_toward(dpid, neighbour)
            except NoSuchPath:
                continue
            yield FlowEntry(*key, (Output(port_no),), None, COOKIE_LABELS)

    def _host_entries(self, dpid: str, host: HostLocation, groups: dict[int, SelectGroup]) -> Iterable[FlowEntry]:
        to_host = match(eth_type=ETH_IPV4, ipv4_dst=host.ip)
        actions: tuple[Action, ...] = ()
        if host.dpid == dpid:
            actions = (Output(host.port_no),)
            yield from _local_host_entries(host)
        else:
            group_id = self.group_toward(host.dpid)
            if group_id in groups:
                actions = (ToGroup(group_id),)
        yield FlowEntry(Table.ROUTES, Priority.HOST, to_host, actions, None, COOKIE_ROUTES)
        yield FlowEntry(
            Table.NEIGHBOURS, Priority.HOST, match(eth_type=ETH_ARP, arp_op=ARP_REQUEST, arp_tpa=host.ip),
            (CopyField("eth_src", "eth_dst", 48), SetField("eth_src", host.mac), SetField("arp_op", ARP_REPLY),
             CopyField("arp_sha", "arp_tha", 48), SetField("arp_sha", host.mac),
             CopyField("arp_spa", "arp_tpa", 32), SetField("arp_spa", host.ip), Output(PORT_IN_PORT)),
            None, COOKIE_HOSTS,
        )

    def _bucket(self, path: Path) -> Bucket | None:
        """What takes a flow onto a path; None if the path lost a link since labels were assigned."""
        if not all(map(self.state.network.has_link, path.links)):
            return None
        port_no = self.state.port_toward(path.nodes[0], path.nodes[1])
        return Bucket((PushLabel(self.labels.label_for(path)), Output(port_no)), port_no)

    # --- explicit paths ---

    def explicit_entry(
        self, five_tuple: FiveTuple, path: Path, cookie: int, idle_timeout_seconds: int, traffic_class: int = 0
    ) -> FlowEntry:
        """The one entry, at the path's first switch, that puts a flow on a path from host to host.

        Raises NoSuchPath if a link of the path is not live or the path has no label.
        """
        network = self.state.network
        dead = next((link for link in path.links if not network.has_link(link)), None)
        if len(path.nodes) < 3 or dead is not None:
            where = f" from {self.state.name_of(dead[0])} to {self.state.name_of(dead[1])}" if dead else ""
            raise NoSuchPath(f"the path {' -> '.join(map(self.state.name_of, path.nodes))} has no live link{where}")
        switches = Path(path.nodes[1:-1])
        actions: tuple[Action, ...]
        if len(switches.nodes) == 1:
            actions = (Output(self.state.port_toward(switches.nodes[0], path.nodes[-1])),)
        else:
            queue = (SetQueue(traffic_class),) if traffic_class in self.state.set_queue_classes.get(
                switches.nodes[0], ()) else ()
            actions = (PushLabel(self.label_of(switches), traffic_class), *queue,
                       Output(self.state.port_toward(switches.nodes[0], switches.nodes[1])))
        return _explicit(five_tuple, actions, cookie, idle_timeout_seconds)

    def default_entry(self, five_tuple: FiveTuple, dpid: str, cookie: int, idle_timeout_seconds: int) -> FlowEntry:
        """A flow's own entry at its first switch, sending it where default traffic goes; nowhere if that is so."""
        host = self.state.hosts.get(five_tuple.destination)
        actions: tuple[Action, ...] = ()
        if host is not None and host.dpid == dpid:
            actions = (Output(host.port_no),)
        elif host is not None and (group_id := self.group_toward(host.dpid)) in self.groups(dpid):
            actions = (ToGroup(group_id),)
        return _explicit(five_tuple, actions, cookie, idle_timeout_seconds)

    def label_of(self, switches: Path) -> int:
        """The label of a path between edge switches. Raises NoSuchPath for one that is not a shortest path."""
        if switches not in self._paths.get(switches.nodes[0], {}).get(switches.nodes[-1], ()):
            raise NoSuchPath(f"no label for {' -> '.join(map(self.state.name_of, switches.nodes))}: it is not among "
                             "the shortest paths between edge switches")
        return self.labels.label_for(switches)


def _local_host_entries(host: HostLocation) -> Iterable[FlowEntry]:
    yield FlowEntry(Table.SOURCES, Priority.HOST,
                    match(eth_type=ETH_IPV4, in_port=host.port_no, eth_src=host.mac, ipv4_src=host.ip),
                    (), Table.ROUTES, COOKIE_HOSTS)
    yield FlowEntry(Table.SOURCES, Priority.HOST,
                    match(eth_type=ETH_ARP, in_port=host.port_no, arp_sha=host.mac, arp_spa=host.ip),
                    (), Table.NEIGHBOURS, COOKIE_HOSTS)
    yield FlowEntry(Table.DELIVERY, Priority.HOST, match(eth_type=ETH_IPV4, ipv4_dst=host.ip),
                    (Output(host.port_no),), None, COOKIE_HOSTS)


def known_hosts(tables: SwitchTables) -> Iterable[tuple[int, str, str]]:
    """(port number, MAC, address) of each host that a switch holds entries for."""
    for entry in tables.flows.values():
        fields = dict(entry.match)
        if entry.table == Table.SOURCES and "ipv4_src" in fields:
            yield fields["in_port"], fields["eth_src"], fields["ipv4_src"]


def explicit_match(five_tuple: FiveTuple) -> Match:
    """The match of a flow's own entry. Ports count for TCP and UDP only."""
    fields: dict[str, object] = {"eth_type": ETH_IPV4, "ipv4_src": five_tuple.source,
                                 "ipv4_dst": five_tuple.destination, "ip_proto": five_tuple.protocol}
    name = {IP_TCP: "tcp", IP_UDP: "udp"}.get(five_tuple.protocol)
    if name:
        fields |= {f"{name}_src": five_tuple.source_port, f"{name}_dst": five_tuple.destination_port}
    return match(**fields)


def explicit_key(five_tuple: FiveTuple, priority: Priority = Priority.EXPLICIT_PATH) -> FlowKey:
    """The key of a flow's own entry."""
    return Table.ROUTES, priority, explicit_match(five_tuple)


def _explicit(
    five_tuple: FiveTuple, actions: tuple[Action, ...], cookie: int, idle_timeout_seconds: int
) -> FlowEntry:
    return FlowEntry(*explicit_key(five_tuple), actions, None, cookie, idle_timeout_seconds, notify_removal=True)
