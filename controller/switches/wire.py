"""Flow entries and groups in the bytes of OpenFlow 1.3 (sections 7.2.2, 7.2.3.7, 7.2.4, 7.3.4), for the messages that
come by the thousand. Ryu's classes say the same in a hundred times the time; what is not here is left to them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from operator import and_
from socket import inet_aton
from typing import Any

from speedwell.controller.switches.entries import (
    ETH_MPLS,
    GROUP_ANY,
    HEADER_BYTES,
    NO_BUFFER,
    PORT_ANY,
    PORT_CONTROLLER,
    Action,
    Bucket,
    CopyField,
    FlowEntry,
    ForgetPort,
    Group,
    LoadLabel,
    Match,
    Output,
    PopLabel,
    PushLabel,
    PushLoaded,
    SetField,
    SetQueue,
    ToGroup,
)

VERSION, FLOW_MOD, GROUP_MOD, BARRIER_REQUEST = 4, 14, 15, 20
SELECT, FAST_FAILOVER = 1, 3
GOTO_TABLE, APPLY_ACTIONS, METER = 1, 4, 6
OUTPUT, PUSH_MPLS, POP_MPLS, SET_QUEUE, GROUP, SET_FIELD, EXPERIMENTER = 0, 19, 20, 21, 22, 25, 0xFFFF
NICIRA, REG_MOVE, REG_LOAD = 0x2320, 6, 7
LABEL_BITS, CLASS_BITS = 20, 3
KEPT_BUCKETS = 4096
SEND_FLOW_REMOVED, RESET_COUNTS = 1, 4
OPENFLOW_BASIC = 0x8000
STANDARD_MATCH = 1

_HEADER = struct.Struct("!BBHI")
_FLOW_MOD = struct.Struct("!QQBBHHHIIIHxx")
_TYPE_LENGTH = struct.Struct("!HH")
_FIELD = struct.Struct("!HBB")
_OUTPUT = struct.Struct("!HHIHxxxxxx")
_NUMBER = struct.Struct("!HHI")
_ETHERTYPE = struct.Struct("!HHHxx")
_REG_LOAD = struct.Struct("!HHIHH4sQ")
_GROUP_MOD = struct.Struct("!HBxI")
_BUCKET = struct.Struct("!HHII4x")
IN_PORT = struct.pack("!HBB", 0, 0, 2)
LABEL_REGISTER, CLASS_REGISTER = struct.pack("!HBB", 1, 0 << 1, 4), struct.pack("!HBB", 1, 1 << 1, 4)
"""Headers of the registers 0 and 1 (nicira-ext.h)."""
_REG_MOVE = struct.Struct("!HHIHHHH")
_PADDING = tuple(bytes(count) for count in range(8))


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _integer(width: int) -> Callable[[Any], bytes]:
    return lambda value: int(value).to_bytes(width)


def _address(text: str) -> bytes:
    if text.count(".") != 3:
        raise ValueError(f"not an IPv4 address: {text!r}")
    return inet_aton(text)


_FIELDS: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "in_port": (0, _integer(4)), "eth_dst": (3, _mac), "eth_src": (4, _mac), "eth_type": (5, _integer(2)),
    "ip_dscp": (8, _integer(1)), "ip_proto": (10, _integer(1)), "ipv4_src": (11, _address),
    "ipv4_dst": (12, _address), "tcp_src": (13, _integer(2)), "tcp_dst": (14, _integer(2)),
    "udp_src": (15, _integer(2)), "udp_dst": (16, _integer(2)), "arp_op": (21, _integer(2)),
    "arp_spa": (22, _address), "arp_tpa": (23, _address), "arp_sha": (24, _mac), "arp_tha": (25, _mac),
    "mpls_label": (34, _integer(4)), "mpls_tc": (35, _integer(1)),
}
"""Number and encoding of each field. Numbers go up such that a field comes after what it presupposes."""
_SINGLE_FLOW, _SINGLE_FLOW_BYTES = struct.Struct("!HH4sH4sB4s4s4s4s4sH4sH5x"), 43
_SINGLE_FLOWS: dict[tuple[str, ...], tuple[bytes, ...]] = {}
"""By the names in the match of a single flow, of which most messages are about, the headers of its fields."""
_ZEROS: dict[Callable[[Any], bytes], str] = {_mac: "00:00:00:00:00:00", _address: "0.0.0.0"}


class Packed:
    """A message about an entry or a group, or a barrier. It is used as one of Ryu's is."""

    __slots__ = ("_body", "_kind", "buf", "xid")

    def __init__(self, kind: int, body: bytes) -> None:
        self._kind = kind
        self._body = body
        self.xid: int | None = None
        self.buf = b""

    def set_xid(self, xid: int) -> None:
        self.xid = xid

    def serialize(self) -> None:
        self.buf = _HEADER.pack(VERSION, self._kind, 8 + len(self._body), self.xid or 0) + self._body


def flow_mod(entry: FlowEntry, command: int) -> Packed:
    """Raises KeyError for a field that is not known here, ValueError or struct.error if a value does not fit."""
    flags = SEND_FLOW_REMOVED * entry.notify_removal | RESET_COUNTS * entry.reset_counts
    fixed = _FLOW_MOD.pack(entry.cookie, 0, entry.table, command, entry.idle_timeout_seconds,
                           entry.hard_timeout_seconds, entry.priority, NO_BUFFER, PORT_ANY,
                           GROUP_ANY, flags)
    return Packed(FLOW_MOD, fixed + match_bytes(entry.match) + _instructions(entry))


def group_mod(group: Group, command: int) -> Packed:
    """Adds, changes or deletes a group."""
    kind = FAST_FAILOVER if group.is_failover else SELECT
    return Packed(GROUP_MOD, _GROUP_MOD.pack(command, kind, group.group_id) + _buckets(group))


_kept_buckets: dict[int, tuple[tuple[Bucket, ...], bool, bytes]] = {}
"""By identity. Groups of many switches share their buckets: to compare these would take longer than all else."""


def _buckets(group: Group) -> bytes:
    kept = _kept_buckets.get(id(group.buckets))
    if kept is None or kept[0] is not group.buckets or kept[1] != group.is_failover:
        if len(_kept_buckets) >= KEPT_BUCKETS:
            _kept_buckets.clear()
        weight = 0 if group.is_failover else 1
        kept = group.buckets, group.is_failover, b"".join([_bucket(bucket, weight) for bucket in group.buckets])
        _kept_buckets[id(group.buckets)] = kept
    return kept[2]


def _bucket(bucket: Bucket, weight: int) -> bytes:
    actions = b"".join(_actions(bucket.actions))
    actions += _PADDING[-len(actions) % 8]
    return _BUCKET.pack(_BUCKET.size + len(actions), weight, bucket.watch_port_no, bucket.watch_group_id) + actions


def match_bytes(match: Match) -> bytes:
    """An OXM match, padded."""
    headers = _SINGLE_FLOWS.get(tuple([name for name, _ in match]))
    if headers is not None:
        (_, eth_type), (_, protocol), (_, destination), (_, source), (_, to_port), (_, from_port) = match
        values = eth_type, protocol, destination, source, to_port, from_port
        if tuple not in map(type, values):
            return _SINGLE_FLOW.pack(
                STANDARD_MATCH, _SINGLE_FLOW_BYTES, headers[0], eth_type, headers[1], protocol, headers[2],
                _address(source), headers[3], _address(destination), headers[4], from_port, headers[5], to_port)
    fields = b"".join([field for _, field in sorted(_field(name, value) for name, value in match)])
    length = 4 + len(fields)
    return _TYPE_LENGTH.pack(STANDARD_MATCH, length) + fields + _PADDING[-length % 8]


def _field(name: str, value: Any) -> tuple[int, bytes]:
    number, encode = _FIELDS[name]
    if isinstance(value, tuple):
        wanted, mask = encode(value[0]), encode(value[1])
        content = bytes(map(and_, wanted, mask)) + mask
        return number, _FIELD.pack(OPENFLOW_BASIC, number << 1 | 1, len(content)) + content
    content = encode(value)
    return number, _FIELD.pack(OPENFLOW_BASIC, number << 1, len(content)) + content


def _instructions(entry: FlowEntry) -> bytes:
    packed = b""
    if entry.meter_id is not None:
        packed += _NUMBER.pack(METER, 8, entry.meter_id)
    if entry.actions:
        actions = b"".join(_actions(entry.actions))
        packed += _NUMBER.pack(APPLY_ACTIONS, 8 + len(actions), 0) + actions
    if entry.goto is not None:
        packed += struct.pack("!HHBxxx", GOTO_TABLE, 8, entry.goto)
    return packed


def _actions(actions: Iterable[Action]) -> Iterator[bytes]:
    for action in actions:
        match action:
            case Output(port_no):
                most_bytes = HEADER_BYTES if port_no == PORT_CONTROLLER else 0
                yield _OUTPUT.pack(OUTPUT, 16, port_no, most_bytes)
            case PushLabel(label):
                yield _ETHERTYPE.pack(PUSH_MPLS, 8, ETH_MPLS)
                yield _set_field("mpls_label", label)
            case ToGroup(group_id):
                yield _NUMBER.pack(GROUP, 8, group_id)
            case SetQueue(queue):
                yield _NUMBER.pack(SET_QUEUE, 8, queue)
            case PopLabel(ethertype):
                yield _ETHERTYPE.pack(POP_MPLS, 8, ethertype)
            case LoadLabel(label, traffic_class):
                yield _reg_load(LABEL_REGISTER, LABEL_BITS, label)
                if traffic_class is not None:
                    yield _reg_load(CLASS_REGISTER, CLASS_BITS, traffic_class)
            case PushLoaded(choice, bits):
                yield _ETHERTYPE.pack(PUSH_MPLS, 8, ETH_MPLS)
                yield _reg_move(LABEL_REGISTER, _field_header("mpls_label"), LABEL_BITS)
                if bits:
                    yield _reg_load(_field_header("mpls_label"), bits, choice)
                yield _reg_move(CLASS_REGISTER, _field_header("mpls_tc"), CLASS_BITS)
            case SetField(name, value):
                yield _set_field(name, value)
            case ForgetPort():
                yield _reg_load(IN_PORT, 16, 0)
            case CopyField(source, destination, bits):
                yield _reg_move(_field_header(source), _field_header(destination), bits)


def _reg_move(source: bytes, destination: bytes, bits: int) -> bytes:
    return _REG_MOVE.pack(EXPERIMENTER, 24, NICIRA, REG_MOVE, bits, 0, 0) + source + destination


def _reg_load(destination: bytes, bits: int, value: int) -> bytes:
    """Load a value into the lowest bits."""
    return _REG_LOAD.pack(EXPERIMENTER, 24, NICIRA, REG_LOAD, bits - 1, destination, value)


def _set_field(name: str, value: Any) -> bytes:
    field = _field(name, value)[1]
    length = (4 + len(field) + 7) // 8 * 8
    return _TYPE_LENGTH.pack(SET_FIELD, length) + field + bytes(length - 4 - len(field))


def _field_header(name: str) -> bytes:
    if name == "reg1":
        return CLASS_REGISTER
    return _field(name, _ZEROS.get(_FIELDS[name][1], 0))[1][:_FIELD.size]


for _kind in ("tcp", "udp"):
    _SINGLE_FLOWS["eth_type", "ip_proto", "ipv4_dst", "ipv4_src", f"{_kind}_dst", f"{_kind}_src"] = tuple(map(
        _field_header, ("eth_type", "ip_proto", "ipv4_src", "ipv4_dst", f"{_kind}_src", f"{_kind}_dst")))
