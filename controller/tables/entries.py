"""The entries of the plan, one function for each kind. docs/reference/switch-tables.md is the reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.prefixes import Prefix
from speedwell.controller.switches.entries import (
    CLASS_OF_DSCP,
    COOKIE_MASK,
    ETH_ARP,
    ETH_IPV4,
    ETH_MPLS,
    IP_TCP,
    IP_UDP,
    PORT_IN_PORT,
    Action,
    CopyField,
    FlowEntry,
    FlowKey,
    Group,
    LoadLabel,
    Match,
    Output,
    PopLabel,
    SetField,
    SetQueue,
    ToGroup,
    match,
)
from speedwell.controller.switches.layout import (
    COOKIE_HOSTS,
    COOKIE_LABELS,
    COOKIE_ROUTES,
    COOKIE_STATIC,
    Priority,
    Table,
)
from speedwell.controller.topology.state import HostLocation

ARP_REQUEST, ARP_REPLY = 1, 2
ARP_MAC = "03:53:70:64:00:01"
"""Where ARP between switches goes: by it the last switch knows what is behind a label."""


@dataclass(slots=True)
class SwitchTables:
    """The planned part of one switch: everything but explicit paths."""

    flows: dict[FlowKey, FlowEntry] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)

    def add(self, entries: Iterable[FlowEntry]) -> None:
        self.flows.update((entry.key, entry) for entry in entries)


@dataclass(slots=True)
class DirtyEntries:
    """What of a switch's plan changed since it was last asked for."""

    flows: set[FlowKey] = field(default_factory=set)
    groups: set[int] = field(default_factory=set)


def groups_reached(groups: Mapping[int, Group], actions: Iterable[Iterable[Action]]) -> set[int]:
    """The groups that these lists of actions lead to, from one to the next; `groups` are those that there are."""
    reached: set[int] = set()
    waiting = list(actions)
    while waiting:
        for group_id in {action.group_id for action in waiting.pop() if isinstance(action, ToGroup)} - reached:
            reached.add(group_id)
            if group_id in groups:
                waiting += [bucket.actions for bucket in groups[group_id].buckets]
    return reached


def static(table: Table, priority: Priority, matching: Match, *actions: Action, goto: int | None = None) -> FlowEntry:
    return FlowEntry(table, priority, matching, actions, goto, COOKIE_STATIC)


STATIC_ENTRIES = (
    static(Table.CLASSIFY, Priority.CLASS, match(eth_type=ETH_MPLS), goto=Table.LABELS),
    static(Table.CLASSIFY, Priority.CLASS, match(eth_type=ETH_ARP), goto=Table.SOURCES),
    static(Table.CLASSIFY, Priority.CLASS, match(eth_type=ETH_IPV4), goto=Table.SOURCES),
    static(Table.CLASSIFY, Priority.MISS, match()),
    static(Table.UNLABEL, Priority.HOST, match(eth_type=ETH_MPLS, eth_dst=ARP_MAC), PopLabel(ETH_ARP),
           goto=Table.DELIVERY),
    static(Table.UNLABEL, Priority.CLASS, match(eth_type=ETH_MPLS), PopLabel(), goto=Table.DELIVERY),
    static(Table.ROUTES, Priority.NO_UNICAST, match(eth_type=ETH_IPV4, ipv4_dst=("224.0.0.0", "224.0.0.0"))),
)
"""What every switch holds whatever the network looks like, beside the entries of `packet_in_limits`."""


def queue_entry(traffic_class: int) -> FlowEntry:
    """What takes labelled packets to the queue of their class where `set_queue` works."""
    return static(Table.CLASSIFY, Priority.QUEUE, match(eth_type=ETH_MPLS, mpls_tc=traffic_class),
                  SetQueue(traffic_class), goto=Table.LABELS)


def label_cookie(base: int, bits: int) -> int:
    """The cookie of a label's entry tells its block, for a controller that finds it."""
    return COOKIE_LABELS | base << 8 | bits


def is_label(entry: FlowEntry) -> bool:
    """Whether it is a label's entry, and not one that a system has in that table."""
    return entry.table == Table.LABELS and entry.cookie & COOKIE_MASK == COOKIE_LABELS


def block_of_cookie(cookie: int) -> tuple[int, int]:
    """(base, bits) of the block that an entry of a label belongs to."""
    number = cookie & ~COOKIE_MASK
    return number >> 8, number & 0xFF


@lru_cache(maxsize=1 << 18)
def label_key(label: int) -> FlowKey:
    """The key of a label's entry, the same at every switch."""
    return Table.LABELS, Priority.CLASS, match(eth_type=ETH_MPLS, mpls_label=label)


@lru_cache(maxsize=1 << 18)
def label_entry(label: int, cookie: int, port_no: int | None) -> FlowEntry:
    """A label's entry at a switch that sends it out of a port, or takes it off (None)."""
    if port_no is None:
        return FlowEntry(*label_key(label), (), goto=Table.UNLABEL, cookie=cookie)
    return FlowEntry(*label_key(label), (Output(port_no),), cookie=cookie)


def host_entries(host: HostLocation, after_sources: int, trust_dscp: bool = False) -> Iterable[FlowEntry]:
    """A host's entries at its own switch. `trust_dscp`: its packets have the class that their DSCP says."""
    yield FlowEntry(Table.SOURCES, Priority.HOST,
                    match(eth_type=ETH_IPV4, in_port=host.port_no, eth_src=host.mac, ipv4_src=host.ip),
                    (CLASS_OF_DSCP,) if trust_dscp else (), after_sources, COOKIE_HOSTS)
    yield FlowEntry(Table.SOURCES, Priority.HOST,
                    match(eth_type=ETH_ARP, in_port=host.port_no, arp_sha=host.mac, arp_spa=host.ip),
                    (), Table.NEIGHBOURS, COOKIE_HOSTS)
    to_host = match(eth_type=ETH_IPV4, ipv4_dst=host.ip)
    yield FlowEntry(Table.ROUTES, Priority.HOST, to_host, (Output(host.port_no),), None, COOKIE_ROUTES)
    yield FlowEntry(Table.DELIVERY, Priority.HOST, to_host, (Output(host.port_no),), None, COOKIE_HOSTS)
    yield FlowEntry(Table.DELIVERY, Priority.HOST, match(eth_type=ETH_ARP, arp_tpa=host.ip),
                    (SetField("eth_dst", host.mac), Output(host.port_no)), None, COOKIE_HOSTS)
    yield FlowEntry(
        Table.NEIGHBOURS, Priority.HOST, match(eth_type=ETH_ARP, arp_op=ARP_REQUEST, arp_tpa=host.ip),
        (CopyField("eth_src", "eth_dst", 48), SetField("eth_src", host.mac), SetField("arp_op", ARP_REPLY),
         CopyField("arp_sha", "arp_tha", 48), SetField("arp_sha", host.mac),
         CopyField("arp_spa", "arp_tpa", 32), SetField("arp_spa", host.ip), Output(PORT_IN_PORT)),
        None, COOKIE_HOSTS)


def route_entries(prefix: Prefix, way: tuple[int, int] | None) -> Iterable[FlowEntry]:
    """What takes packets and ARP for a prefix to another switch: `way` is (first label, group), None to drop them."""
    actions: tuple[Action, ...] = (LoadLabel(way[0]), ToGroup(way[1])) if way else ()
    to_switches: tuple[Action, ...] = (SetField("eth_dst", ARP_MAC), *actions) if way else ()
    for key, chosen in ((route_key(prefix), actions), (arp_route_key(prefix), to_switches)):
        yield FlowEntry(*key, chosen, cookie=COOKIE_ROUTES)


@lru_cache(maxsize=1 << 16)
def route_key(prefix: Prefix) -> FlowKey:
    return Table.ROUTES, Priority.ROUTE + prefix[1], match(eth_type=ETH_IPV4, ipv4_dst=masked(prefix))


@lru_cache(maxsize=1 << 16)
def arp_route_key(prefix: Prefix) -> FlowKey:
    return Table.NEIGHBOURS, Priority.ROUTE + prefix[1], match(eth_type=ETH_ARP, arp_tpa=masked(prefix))


def masked(prefix: Prefix) -> str | tuple[str, str]:
    """A prefix as a match has it."""
    address, length = prefix
    return dotted(address) if length == 32 else (dotted(address), dotted((1 << length) - 1 << 32 - length))


def dotted(address: int) -> str:
    return ".".join(str(byte) for byte in address.to_bytes(4))


def known_hosts(tables: SwitchTables) -> Iterable[tuple[int, str, str]]:
    """(port number, MAC, address) of each host that a switch holds entries for."""
    for entry in tables.flows.values():
        if entry.table == Table.SOURCES:
            fields = dict(entry.match)
            if isinstance(fields.get("ipv4_src"), str):
                yield fields["in_port"], fields["eth_src"], fields["ipv4_src"]


def ports_to_switches(tables: SwitchTables) -> frozenset[int]:
    """The ports by which a switch sends what has a label, or gets one from a group."""
    senders = [entry.actions for entry in tables.flows.values() if entry.table == Table.LABELS]
    senders += [bucket.actions for group in tables.groups.values() for bucket in group.buckets]
    return frozenset(action.port_no for actions in senders for action in actions if isinstance(action, Output))


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


def explicit_entry(five_tuple: FiveTuple, actions: tuple[Action, ...], cookie: int,
                   idle_timeout_seconds: int) -> FlowEntry:
    return FlowEntry(*explicit_key(five_tuple), actions, None, cookie, idle_timeout_seconds, notify_removal=True)
