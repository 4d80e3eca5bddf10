"""Switches that execute the controller's messages in memory, and a whole fabric of them to walk packets through.

Messages are taken as they go over the wire: serialised, and read again. A switch refuses what Open vSwitch refuses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ryu.ofproto import ofproto_parser, ofproto_v1_3, ofproto_v1_3_parser

from speedwell.controller.switches.entries import (
    FIRST_PACKET_METER,
    GROUP_ANY,
    LAST_PACKET_METER,
    PORT_CONTROLLER,
    PORT_IN_PORT,
    Action,
    Bucket,
    CopyField,
    FlowEntry,
    FlowKey,
    ForgetPort,
    Group,
    LoadLabel,
    Meter,
    Output,
    PacketMeter,
    PopLabel,
    PushLabel,
    PushLoaded,
    SetField,
    ToGroup,
)
from speedwell.controller.switches.openflow import decode_flow, decode_group
from speedwell.controller.topology.state import HostLocation, NetworkState, PortInfo, PortKind, SwitchInfo
from speedwell.topo.fabric import Fabric

MAX_HOPS = 32
METER_MOD_FAILED = "OFPET_METER_MOD_FAILED"


class Refused(Exception):
    """The switch answers with an OpenFlow error of a type."""

    def __init__(self, message: str, error_type: str = "OFPET_FLOW_MOD_FAILED") -> None:
        super().__init__(message)
        self.error_type = error_type


class FakeDatapath:
    """What messages are made with and sent to."""

    ofproto = ofproto_v1_3
    ofproto_parser = ofproto_v1_3_parser

    def __init__(self, dpid: int) -> None:
        self.id = dpid


@dataclass(frozen=True)
class Packet:
    """Header fields as in a match, and the label stack, outermost first."""

    fields: tuple[tuple[str, Any], ...]
    labels: tuple[int, ...] = ()
    loaded: tuple[int, int] = (0, 0)
    """Label and traffic class in registers, which a packet has within one switch."""
    traffic_classes: tuple[int, ...] = ()

    @staticmethod
    def of(**fields: Any) -> Packet:
        return Packet(tuple(sorted(fields.items())))

    def with_fields(self, **fields: Any) -> Packet:
        return replace(self, fields=tuple(sorted((dict(self.fields) | fields).items())))


@dataclass
class FakeSwitch:
    """Flow tables and groups that execute packets."""

    dpid: str
    flows: dict[FlowKey, FlowEntry] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    meters: dict[int, Meter] = field(default_factory=dict)
    packet_meters: dict[int, PacketMeter] = field(default_factory=dict)
    byte_counts: dict[FlowKey, int] = field(default_factory=dict)
    """What entries have counted, as tests set it."""
    max_meters: int = 1000
    has_no_packet_meters: bool = False
    max_flows: int = 1 << 20
    is_port_up: Callable[[int], bool] = lambda port_no: True

    def __post_init__(self) -> None:
        self.datapath = FakeDatapath(int(self.dpid, 16))
        self._by_table: dict[int, list[FlowEntry]] | None = None

    # --- messages ---

    def receive(self, messages: Iterable[Any]) -> None:
        """Take messages in. Raises Refused."""
        for message in messages:
            message.set_xid(1)
            message.serialize()
            self.take(bytes(message.buf))

    def take(self, buffer: bytes) -> None:
        """Take one message in, as it comes over the wire. Raises Refused."""
        self._by_table = None
        kind = buffer[1]
        if kind == ofproto_v1_3.OFPT_FLOW_MOD:
            self._flow_mod(ofproto_parser.msg(self.datapath, *ofproto_parser.header(buffer), buffer))
        elif kind == ofproto_v1_3.OFPT_GROUP_MOD:
            self._group_mod(buffer)
        elif kind == ofproto_v1_3.OFPT_METER_MOD:
            self._meter_mod(buffer)
        elif kind != ofproto_v1_3.OFPT_BARRIER_REQUEST:
            raise Refused(f"message type {kind}")

    def _flow_mod(self, message: Any) -> None:
        entry = decode_flow(message)
        if message.command == ofproto_v1_3.OFPFC_DELETE_STRICT:
            self.flows.pop(entry.key, None)
            self.byte_counts.pop(entry.key, None)
            return
        if message.command == ofproto_v1_3.OFPFC_DELETE:
            self.flows = {key: other for key, other in self.flows.items()
                          if (other.cookie ^ message.cookie) & message.cookie_mask}
            return
        if entry.goto is not None and entry.goto <= entry.table:
            raise Refused("an entry may only go to a higher table")
        if entry.meter_id is not None and entry.meter_id not in self.meters.keys() | self.packet_meters.keys():
            raise Refused("OFPMMFC_INVALID_METER", METER_MOD_FAILED)
        for action in entry.actions:
            if isinstance(action, ToGroup) and action.group_id not in self.groups:
                raise Refused(f"no group {action.group_id}")
            if isinstance(action, str):
                raise Refused(action)
        if message.command == ofproto_v1_3.OFPFC_ADD:
            if entry.key not in self.flows and len(self.flows) >= self.max_flows:
                raise Refused("OFPFMFC_TABLE_FULL")
            self.flows[entry.key] = entry
            if message.flags & ofproto_v1_3.OFPFF_RESET_COUNTS:
                self.byte_counts.pop(entry.key, None)
        elif message.command == ofproto_v1_3.OFPFC_MODIFY_STRICT:
            if entry.key in self.flows:
                self.flows[entry.key] = replace(self.flows[entry.key], actions=entry.actions, goto=entry.goto,
                                                meter_id=entry.meter_id)
        else:
            raise Refused(f"flow command {message.command}")

    def _group_mod(self, buffer: bytes) -> None:
        command, kind, group_id = struct.unpack_from("!HBxI", buffer, 8)
        buckets, offset = [], 16
        while offset < len(buffer):
            buckets.append(ofproto_v1_3_parser.OFPBucket.parser(buffer, offset))
            offset += buckets[-1].len
        stats = ofproto_v1_3_parser.OFPGroupDescStats(kind, group_id, buckets)
        group = decode_group(stats)
        if command == ofproto_v1_3.OFPGC_DELETE:
            self.groups.pop(group_id, None)
            for other in [other for other in self.groups.values()
                          if any(ToGroup(group_id) in bucket.actions for bucket in other.buckets)]:
                raise Refused(f"group {other.group_id} still leads to group {group_id}", "OFPET_GROUP_MOD_FAILED")
            self.flows = {key: entry for key, entry in self.flows.items() if ToGroup(group_id) not in entry.actions}
            return
        if (command == ofproto_v1_3.OFPGC_ADD) == (group_id in self.groups):
            raise Refused(f"group {group_id} is there already, or not there")
        for bucket in group.buckets:
            if sum(isinstance(action, PushLabel | PushLoaded) for action in bucket.actions) > 1:
                raise Refused("a bucket is an action set: only its last label would be pushed")
            for action in bucket.actions:
                if isinstance(action, ToGroup) and action.group_id not in self.groups:
                    raise Refused(f"no group {action.group_id}", "OFPET_GROUP_MOD_FAILED")
        self.groups[group_id] = group

    def _meter_mod(self, buffer: bytes) -> None:
        command, _, number = struct.unpack_from("!HHI", buffer, 8)
        if command == ofproto_v1_3.OFPMC_DELETE:
            self.meters.pop(number, None)
            self.packet_meters.pop(number, None)
            self.flows = {key: entry for key, entry in self.flows.items() if entry.meter_id != number}
            return
        _, _, rate, burst = struct.unpack_from("!HHII", buffer, 16)
        is_there = number in self.meters or number in self.packet_meters
        if (command == ofproto_v1_3.OFPMC_ADD) == is_there:
            raise Refused("OFPMMFC_METER_EXISTS" if is_there else "OFPMMFC_UNKNOWN_METER", METER_MOD_FAILED)
        if FIRST_PACKET_METER <= number <= LAST_PACKET_METER:
            if self.has_no_packet_meters:
                raise Refused("OFPMMFC_INVALID_METER", METER_MOD_FAILED)
            self.packet_meters[number] = PacketMeter(number, rate, burst)
            return
        if number not in self.meters and len(self.meters) >= self.max_meters:
            raise Refused("OFPMMFC_OUT_OF_METERS", METER_MOD_FAILED)
        self.meters[number] = Meter(number, rate, burst)

    # --- packets ---

    def execute(self, packet: Packet, in_port: int) -> list[tuple[int, Packet]]:
        """Every (port, packet) that may come out. A select group is followed through each live bucket."""
        return list(self._table(0, packet, in_port))

    def _table(self, table: int, packet: Packet, in_port: int) -> Iterator[tuple[int, Packet]]:
        entry = self.lookup(table, packet, in_port)
        if entry is None:
            return
        states = [packet]
        for action in entry.actions:
            if isinstance(action, (Output, ToGroup)):
                for state in states:
                    yield from self._leave(action, state, in_port)
            elif isinstance(action, ForgetPort):
                in_port = 0
            else:
                states = [_rewrite(action, state) for state in states]
        if entry.goto is not None:
            for state in states:
                yield from self._table(entry.goto, state, in_port)

    def _leave(self, action: Output | ToGroup, packet: Packet, in_port: int) -> Iterator[tuple[int, Packet]]:
        if isinstance(action, Output):
            left = replace(packet, loaded=(0, 0))
            if action.port_no == PORT_IN_PORT:
                yield in_port, left
            elif action.port_no != in_port:
                yield action.port_no, left
            return
        group = self.groups[action.group_id]
        for bucket in group.buckets:
            if self._is_live(bucket):
                changed = packet
                for step in bucket.actions:
                    if isinstance(step, Output | ToGroup):
                        yield from self._leave(step, changed, in_port)
                    else:
                        changed = _rewrite(step, changed)
                if group.is_failover:
                    return

    def _is_live(self, bucket: Bucket) -> bool:
        if bucket.watch_group_id != GROUP_ANY:
            watched = self.groups.get(bucket.watch_group_id)
            return watched is not None and any(map(self._is_live, watched.buckets))
        return self.is_port_up(bucket.watch_port_no)

    def _entries(self, table: int) -> list[FlowEntry]:
        if self._by_table is None:
            self._by_table = {}
            for entry in self.flows.values():
                self._by_table.setdefault(entry.table, []).append(entry)
        return self._by_table.get(table, [])

    def lookup(self, table: int, packet: Packet, in_port: int) -> FlowEntry | None:
        """The entry a packet hits. Two of the same priority are a mistake of the controller."""
        fields = dict(packet.fields) | {"in_port": in_port}
        if packet.labels:
            fields = {"in_port": in_port, "eth_type": 0x8847, "mpls_label": packet.labels[0],
                      "eth_dst": fields.get("eth_dst")}
        hits = [entry for entry in self._entries(table)
                if all(_fits(fields.get(name), value) for name, value in entry.match)]
        best = max((entry.priority for entry in hits), default=None)
        chosen = [entry for entry in hits if entry.priority == best]
        assert len(chosen) <= 1, f"overlap at {self.dpid}: {chosen}"
        return chosen[0] if chosen else None


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple) and value is not None:
        address, mask = (int.from_bytes(bytes(map(int, text.split(".")))) for text in wanted)
        return int.from_bytes(bytes(map(int, value.split(".")))) & mask == address
    return bool(value == wanted)


def _rewrite(action: Action, packet: Packet) -> Packet:
    match action:
        case PushLabel(label=label):
            return replace(packet, labels=(label, *packet.labels))
        case LoadLabel(label=label, traffic_class=traffic_class):
            return replace(packet, loaded=(label, packet.loaded[1] if traffic_class is None else traffic_class))
        case PushLoaded(choice=choice, bits=bits):
            label, traffic_class = packet.loaded
            return replace(packet, labels=(label >> bits << bits | choice, *packet.labels),
                           traffic_classes=(traffic_class, *packet.traffic_classes))
        case PopLabel(ethertype=ethertype):
            assert len(packet.labels) == 1, "the ethertype after a pop is that of the packet"
            assert dict(packet.fields)["eth_type"] == ethertype
            return replace(packet, labels=(), traffic_classes=())
        case SetField(field=name, value=value):
            return packet.with_fields(**{name: value})
        case CopyField(source=source, destination="reg1", bits=bits):
            value = dict(packet.fields).get(source, 0) & (1 << bits) - 1
            return replace(packet, loaded=(packet.loaded[0], value))
        case CopyField(source=source, destination=destination):
            return packet.with_fields(**{destination: dict(packet.fields)[source]})
    raise AssertionError(action)


@dataclass(frozen=True)
class Arrival:
    """Where one possible copy of a packet ended, and the switches it crossed."""

    where: str
    """A host's address, `controller`, `nowhere` (dropped) or `loop`."""
    switches: tuple[str, ...]
    packet: Packet


class FakeNetwork:
    """Switches wired as a fabric says. Links can fail."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.dead: set[frozenset[str]] = set()
        self.dpid_of = {switch.name: switch.dpid_hex for switch in fabric.switches}
        self.name_of = {dpid: name for name, dpid in self.dpid_of.items()}
        self.switches = {dpid: FakeSwitch(dpid) for dpid in self.name_of}
        for dpid, switch in self.switches.items():
            switch.is_port_up = lambda port_no, dpid=dpid: self.peer(dpid, port_no) is not None
        self.hosts = {host.name: host for host in fabric.hosts}

    def peer(self, dpid: str, port_no: int) -> str | None:
        """The name of the node at the other end of a port, None if the link is dead."""
        name = self.name_of[dpid]
        peer = next((port.peer for port in self.fabric.ports(name) if port.number == port_no), None)
        return None if peer is None or frozenset((name, peer)) in self.dead else peer

    def state(self) -> NetworkState:
        """A network state in which everything that lives is discovered."""
        state = NetworkState()
        for switch in self.fabric.switches:
            dpid = switch.dpid_hex
            state.switch_connected(SwitchInfo(dpid, switch.name, switch.management_ip, True),
                                   self.switches[dpid].datapath)
            for port in self.fabric.ports(switch.name):
                kind = PortKind.EDGE if port.peer in self.hosts else PortKind.FABRIC
                state.set_port(dpid, PortInfo(port.number, f"eth{port.number}", "02:00:00:00:00:00",
                                              self.peer(dpid, port.number) is not None, port.capacity_bps, kind))
        for link in self.fabric.links:
            if link.a in self.dpid_of and link.b in self.dpid_of and frozenset((link.a, link.b)) not in self.dead:
                state.add_link(*self.ends(link.a, link.b))
        for host in self.fabric.hosts:
            edge = self.fabric.edge_switch_of(host)
            state.set_host(HostLocation(host.ip, host.mac, edge.dpid_hex,
                                        self.fabric.port_toward(edge.name, host.name).number))
        return state

    def ends(self, a: str, b: str) -> tuple[tuple[str, int], tuple[str, int]]:
        """The two ports that a link between switches joins."""
        return ((self.dpid_of[a], self.fabric.port_toward(a, b).number),
                (self.dpid_of[b], self.fabric.port_toward(b, a).number))

    def send(self, host_name: str, packet: Packet) -> set[Arrival]:
        """Everywhere that a packet of a host may end up."""
        edge = self.fabric.edge_switch_of(host_name)
        start = edge.dpid_hex, self.fabric.port_toward(edge.name, host_name).number, packet, ()
        arrivals: set[Arrival] = set()
        pending: list[tuple[str, int, Packet, tuple[str, ...]]] = [start]
        while pending:
            dpid, in_port, packet, crossed = pending.pop()
            crossed = (*crossed, dpid)
            if len(crossed) > MAX_HOPS:
                arrivals.add(Arrival("loop", crossed, packet))
                continue
            outcomes = self.switches[dpid].execute(packet, in_port)
            if not outcomes:
                arrivals.add(Arrival("nowhere", crossed, packet))
            for port_no, changed in outcomes:
                peer = "controller" if port_no == PORT_CONTROLLER else self.peer(dpid, port_no)
                if peer in self.dpid_of:
                    name = self.name_of[dpid]
                    pending.append((self.dpid_of[peer], self.fabric.port_toward(peer, name).number, changed, crossed))
                else:
                    where = self.hosts[peer].ip if peer in self.hosts else peer or "nowhere"
                    arrivals.add(Arrival(where, crossed, changed))
        return arrivals

    def tcp(self, source: str, destination: str, source_port: int = 5000, destination_port: int = 6000) -> Packet:
        a, b = self.hosts[source], self.hosts[destination]
        return Packet.of(eth_type=0x0800, eth_src=a.mac, eth_dst=b.mac, ipv4_src=a.ip, ipv4_dst=b.ip, ip_proto=6,
                         tcp_src=source_port, tcp_dst=destination_port)
