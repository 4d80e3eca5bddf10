"""What switch tables hold, as plain data, and its translation to and from OpenFlow 1.3 messages.

docs/switch-tables.md describes the tables. Nothing here imports Ryu: messages are made with the parser that a
datapath carries, so all of this works without a switch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

COOKIE_MASK = 0xFFFF << 48
"""The part of a cookie that says whose entry it is."""
COOKIE_STATIC = 0x5701 << 48
COOKIE_LABELS = 0x5702 << 48
COOKIE_HOSTS = 0x5703 << 48
COOKIE_ROUTES = 0x5704 << 48
COOKIE_READS = 0x5710 << 48
"""Entries of single reads, put in by `Forwarding.install_path` on behalf of the flowserver."""
COOKIE_COFLOWS = 0x5711 << 48
"""Entries of flows that a coflow schedule places, above those of reads."""
EXPLICIT_COOKIES = frozenset({COOKIE_READS, COOKIE_COFLOWS})
PLANNED_COOKIES = frozenset({COOKIE_STATIC, COOKIE_LABELS, COOKIE_HOSTS, COOKIE_ROUTES})

ETH_IPV4 = 0x0800
ETH_ARP = 0x0806
ETH_MPLS = 0x8847
ETH_LLDP = 0x88CC
IP_TCP = 6
IP_UDP = 17

PORT_MAX = 0xFFFFFF00
PORT_IN_PORT = 0xFFFFFFF8
PORT_CONTROLLER = 0xFFFFFFFD
PORT_ANY = GROUP_ANY = 0xFFFFFFFF
NO_BUFFER = 0xFFFFFFFF
HEADER_BYTES = 128
"""How much of a packet the controller is sent: all headers of ARP, LLDP and IPv4."""


class Table(IntEnum):
    """The tables a packet may cross; it only ever goes to a higher one."""

    CLASSIFY = 0
    LABELS = 1
    SOURCES = 2
    ROUTES = 3
    DELIVERY = 4
    NEIGHBOURS = 5


class Priority(IntEnum):
    """All priorities in use. Entries of one table and priority never overlap."""

    MISS = 0
    CLASS = 100
    QUEUE = 150
    HOST = 200
    NO_UNICAST = 250
    EXPLICIT_PATH = 300
    COFLOW = 310


@dataclass(frozen=True, slots=True)
class Output:
    """Send out of a port."""

    port_no: int


@dataclass(frozen=True, slots=True)
class ToGroup:
    """Hand to a group."""

    group_id: int


@dataclass(frozen=True, slots=True)
class PushLabel:
    """Push an MPLS label; `traffic_class` picks the queue wherever the packet then goes."""

    label: int
    traffic_class: int = 0


@dataclass(frozen=True, slots=True)
class SetQueue:
    """Put into a queue of the port it will leave by. The userspace datapath ignores it."""

    queue: int


@dataclass(frozen=True, slots=True)
class PopLabel:
    """Take the only MPLS label off an IPv4 packet."""


@dataclass(frozen=True, slots=True)
class SetField:
    """Overwrite a header field, named as in a match."""

    field: str
    value: str | int


@dataclass(frozen=True, slots=True)
class CopyField:
    """Copy one header field over another (Nicira extension, as Open vSwitch has it)."""

    source: str
    destination: str
    bits: int


Action = Output | ToGroup | PushLabel | SetQueue | PopLabel | SetField | CopyField
Match = tuple[tuple[str, Any], ...]
FlowKey = tuple[int, int, Match]


def match(**fields: Any) -> Match:
    """A match with its fields in a fixed order; a masked field is a pair (value, mask)."""
    return tuple(sorted(fields.items()))


@dataclass(frozen=True, slots=True)
class FlowEntry:
    """One flow entry: apply `actions`, then go on to table `goto`, if any."""

    table: int
    priority: int
    match: Match
    actions: tuple[Action, ...] = ()
    goto: int | None = None
    cookie: int = 0
    idle_timeout_seconds: int = 0
    notify_removal: bool = False
    meter_id: int | None = None
    hard_timeout_seconds: int = 0
    reset_counts: bool = field(default=False, compare=False)
    """Whether an entry that is added in the place of another counts from 0, and not from where that one was."""

    @property
    def key(self) -> FlowKey:
        """What makes two entries of a switch the same one."""
        return self.table, self.priority, self.match


@dataclass(frozen=True, slots=True)
class Bucket:
    """One choice of a select group. The switch leaves it out by itself while `watch_port_no` is down."""

    actions: tuple[Action, ...]
    watch_port_no: int


@dataclass(frozen=True, slots=True)
class SelectGroup:
    """A group that sends each flow through one of its buckets, all of the same weight."""

    group_id: int
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class Meter:
    """Drops what comes faster than a rate. OpenFlow counts in kbit/s and kbit."""

    meter_id: int
    rate_kbps: int
    burst_kbits: int


def cookie(prefix: int, number: int) -> int:
    """The cookie of an entry: one of the prefixes above and a number below 2**48."""
    if prefix & ~COOKIE_MASK or not 0 <= number < 1 << 48:
        raise ValueError(f"no cookie of prefix {prefix:#x} and number {number}")
    return prefix | number


# --- to OpenFlow ---


def flow_add(datapath: Any, entry: FlowEntry) -> Any:
    """Add an entry, replacing the one with its key, if any, counters included."""
    return _flow_mod(datapath, entry, datapath.ofproto.OFPFC_ADD)


def flow_modify(datapath: Any, entry: FlowEntry) -> Any:
    """Give the entry with this key other actions; its cookie, timeouts and counters stay."""
    return _flow_mod(datapath, entry, datapath.ofproto.OFPFC_MODIFY_STRICT)


def flow_delete(datapath: Any, key: FlowKey) -> Any:
    """Delete the entry with this key, if there is one."""
    return _flow_mod(datapath, FlowEntry(*key), datapath.ofproto.OFPFC_DELETE_STRICT)


def flows_delete(datapath: Any, exact_cookie: int) -> Any:
    """Delete all entries with exactly this cookie."""
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    return parser.OFPFlowMod(
        datapath, cookie=exact_cookie, cookie_mask=(1 << 64) - 1, table_id=ofproto.OFPTT_ALL,
        command=ofproto.OFPFC_DELETE, out_port=PORT_ANY, out_group=GROUP_ANY,
    )


def _flow_mod(datapath: Any, entry: FlowEntry, command: int) -> Any:
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    instructions = []
    if entry.meter_id is not None:
        instructions.append(parser.OFPInstructionMeter(entry.meter_id))
    if entry.actions:
        actions = _encode_actions(datapath, entry.actions)
        instructions.append(parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions))
    if entry.goto is not None:
        instructions.append(parser.OFPInstructionGotoTable(entry.goto))
    return parser.OFPFlowMod(
        datapath, command=command, table_id=entry.table, priority=entry.priority,
        match=parser.OFPMatch(**dict(entry.match)), instructions=instructions, cookie=entry.cookie,
        idle_timeout=entry.idle_timeout_seconds, hard_timeout=entry.hard_timeout_seconds,
        flags=(ofproto.OFPFF_SEND_FLOW_REM * entry.notify_removal | ofproto.OFPFF_RESET_COUNTS * entry.reset_counts),
        out_port=PORT_ANY, out_group=GROUP_ANY,
    )


def group_add(datapath: Any, group: SelectGroup) -> Any:
    return _group_mod(datapath, group, datapath.ofproto.OFPGC_ADD)


def group_modify(datapath: Any, group: SelectGroup) -> Any:
    return _group_mod(datapath, group, datapath.ofproto.OFPGC_MODIFY)


def group_delete(datapath: Any, group_id: int) -> Any:
    """Delete a group, if it is there; OpenFlow deletes the entries that still use it with it."""
    return _group_mod(datapath, SelectGroup(group_id, ()), datapath.ofproto.OFPGC_DELETE)


def _group_mod(datapath: Any, group: SelectGroup, command: int) -> Any:
    parser = datapath.ofproto_parser
    buckets = [
        parser.OFPBucket(weight=1, watch_port=bucket.watch_port_no, watch_group=GROUP_ANY,
                         actions=_encode_actions(datapath, bucket.actions))
        for bucket in group.buckets
    ]
    return parser.OFPGroupMod(datapath, command, datapath.ofproto.OFPGT_SELECT, group.group_id, buckets)


def meter_add(datapath: Any, meter: Meter) -> Any:
    return _meter_mod(datapath, meter, datapath.ofproto.OFPMC_ADD)


def meter_modify(datapath: Any, meter: Meter) -> Any:
    """Give a meter another rate; the entries that use it stay."""
    return _meter_mod(datapath, meter, datapath.ofproto.OFPMC_MODIFY)


def meter_delete(datapath: Any, meter_id: int) -> Any:
    """Delete a meter, if it is there; OpenFlow deletes the entries that still use it with it."""
    parser, ofproto = datapath.ofproto_parser, datapath.ofproto
    return parser.OFPMeterMod(datapath, ofproto.OFPMC_DELETE, 0, meter_id, [])


def _meter_mod(datapath: Any, meter: Meter, command: int) -> Any:
    parser, ofproto = datapath.ofproto_parser, datapath.ofproto
    return parser.OFPMeterMod(datapath, command, ofproto.OFPMF_KBPS | ofproto.OFPMF_BURST, meter.meter_id,
                              [parser.OFPMeterBandDrop(meter.rate_kbps, meter.burst_kbits)])


def packet_out(datapath: Any, port_numbers: Iterable[int], data: bytes) -> Any:
    """Send a packet of the controller's own out of some ports."""
    parser = datapath.ofproto_parser
    actions = [parser.OFPActionOutput(port_no) for port_no in port_numbers]
    return parser.OFPPacketOut(datapath, buffer_id=NO_BUFFER, in_port=PORT_CONTROLLER, actions=actions, data=data)


def flow_stats_request(datapath: Any, table: int | None = None, cookie_prefix: int | None = None) -> Any:
    """Ask for all entries, or those of one table or cookie prefix alone."""
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    return parser.OFPFlowStatsRequest(
        datapath, 0, ofproto.OFPTT_ALL if table is None else table, PORT_ANY, GROUP_ANY,
        cookie_prefix or 0, COOKIE_MASK if cookie_prefix else 0, parser.OFPMatch(),
    )


def _encode_actions(datapath: Any, actions: Iterable[Action]) -> list[Any]:
    parser = datapath.ofproto_parser
    encoded: list[Any] = []
    for action in actions:
        match action:
            case Output(port_no):
                encoded.append(parser.OFPActionOutput(port_no, HEADER_BYTES if port_no == PORT_CONTROLLER else 0))
            case ToGroup(group_id):
                encoded.append(parser.OFPActionGroup(group_id))
            case PushLabel(label, traffic_class):
                encoded += [parser.OFPActionPushMpls(ETH_MPLS), parser.OFPActionSetField(mpls_label=label)]
                if traffic_class:
                    encoded.append(parser.OFPActionSetField(mpls_tc=traffic_class))
            case SetQueue(queue):
                encoded.append(parser.OFPActionSetQueue(queue))
            case PopLabel():
                encoded.append(parser.OFPActionPopMpls(ETH_IPV4))
            case SetField(field, value):
                encoded.append(parser.OFPActionSetField(**{field: value}))
            case CopyField(source, destination, bits):
                encoded.append(parser.NXActionRegMove(source, destination, bits))
    return encoded


# --- from OpenFlow ---


def decode_flow(stats: Any) -> FlowEntry:
    """The entry that an OFPFlowStats describes. What Speedwell never installs comes out as an entry like no other."""
    actions: tuple[Any, ...] = ()
    goto = meter_id = None
    for instruction in stats.instructions:
        if hasattr(instruction, "meter_id"):
            meter_id = instruction.meter_id
        elif hasattr(instruction, "actions"):
            actions += _decode_actions(instruction.actions)
        elif hasattr(instruction, "table_id"):
            goto = instruction.table_id
        else:
            actions += (repr(instruction),)
    return FlowEntry(
        stats.table_id, stats.priority, tuple(sorted(stats.match.items())), actions, goto, stats.cookie,
        stats.idle_timeout, bool(stats.flags & 1), meter_id, stats.hard_timeout,
    )


def key_of_removed(message: Any) -> FlowKey:
    """The key of the entry that an OFPFlowRemoved is about."""
    return message.table_id, message.priority, tuple(sorted(message.match.items()))


def decode_meter(stats: Any) -> Meter:
    """The meter that an OFPMeterConfigStats describes."""
    band = stats.bands[0] if stats.bands else None
    return Meter(stats.meter_id, band.rate if band else 0, band.burst_size if band else 0)


def decode_group(stats: Any) -> SelectGroup:
    """The group that an OFPGroupDescStats describes."""
    return SelectGroup(stats.group_id, tuple(
        Bucket(_decode_actions(bucket.actions), bucket.watch_port) for bucket in stats.buckets))


def _decode_actions(actions: Iterable[Any]) -> tuple[Any, ...]:
    decoded: list[Any] = []
    for action in actions:
        kind = type(action).__name__
        if kind == "OFPActionOutput":
            decoded.append(Output(action.port))
        elif kind == "OFPActionGroup":
            decoded.append(ToGroup(action.group_id))
        elif kind == "OFPActionPushMpls":
            decoded.append(PushLabel(0))
        elif kind == "OFPActionSetQueue":
            decoded.append(SetQueue(action.queue_id))
        elif kind == "OFPActionPopMpls":
            decoded.append(PopLabel())
        elif kind == "NXActionRegMove":
            # Ryu names the fields of the same header after their Nicira codes on the way back.
            source, destination = (name.removesuffix("_nxm") for name in (action.src_field, action.dst_field))
            decoded.append(CopyField(source, destination, action.n_bits))
        elif kind == "OFPActionSetField" and decoded and isinstance(decoded[-1], PushLabel) \
                and action.key in ("mpls_label", "mpls_tc"):
            pushed = decoded[-1]
            decoded[-1] = (PushLabel(action.value, pushed.traffic_class) if action.key == "mpls_label"
                           else PushLabel(pushed.label, action.value))
        elif kind == "OFPActionSetField":
            decoded.append(SetField(action.key, action.value))
        else:
            decoded.append(repr(action))
    return tuple(decoded)
