"""The messages of switches that come by the thousand: barrier replies, flow statistics, removed entries.

They have the attributes that Ryu's have, as far as anybody reads them. Matches and instructions are parsed when they
are asked for: whoever polls counters does not.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, NamedTuple

from ryu.controller import ofp_event
from ryu.ofproto import ofproto_v1_3 as ofproto
from ryu.ofproto import ofproto_v1_3_parser as parser

from speedwell.controller.switches import shapes

_MULTIPART = struct.Struct("!HHxxxx")
_FLOW_STATS = struct.Struct("!HBxIIHHHHxxxxQQQ")
_REMOVED = struct.Struct("!QHBBIIHHQQ")
HEADER_BYTES = 8
KEPT_BYTES = 256
"""Instructions that are longer are not the controller's own; kept, they could take gigabytes."""


class BarrierReply(NamedTuple):
    """See `OFPBarrierReply`."""

    datapath: Any
    xid: int


class FlowStats:
    """See `OFPFlowStats`."""

    __slots__ = ("_data", "_match_at", "byte_count", "cookie", "duration_nsec", "duration_sec", "flags",
                 "hard_timeout", "idle_timeout", "length", "packet_count", "priority", "table_id")

    def __init__(self, data: bytes, offset: int) -> None:
        (self.length, self.table_id, self.duration_sec, self.duration_nsec, self.priority, self.idle_timeout,
         self.hard_timeout, self.flags, self.cookie, self.packet_count, self.byte_count) = _FLOW_STATS.unpack_from(
            data, offset)
        self._data = data
        self._match_at = offset + _FLOW_STATS.size

    @property
    def match(self) -> Any:
        return parser.OFPMatch.parser(self._data, self._match_at)

    @property
    def instructions(self) -> list[Any]:
        """Raises BadMessage."""
        begin = self._match_at - _FLOW_STATS.size
        entry = bytearray(self._data[begin:begin + self.length])
        shapes.check_entry(entry)
        match_bytes: int = struct.unpack_from("!H", entry, _FLOW_STATS.size + 2)[0]
        data = bytes(entry[_FLOW_STATS.size + (match_bytes + 7) // 8 * 8:])
        return list(_kept_instructions(data) if len(data) <= KEPT_BYTES else _instructions(data))


@lru_cache(maxsize=1 << 14)
def _kept_instructions(data: bytes) -> tuple[Any, ...]:
    """Most entries of a fabric share theirs with others, and an entry has the same at the next reading."""
    return _instructions(data)


def _instructions(data: bytes) -> tuple[Any, ...]:
    found, offset = [], 0
    while offset < len(data):
        found.append(parser.OFPInstruction.parser(data, offset))
        offset += found[-1].len
    return tuple(found)


class FlowStatsReply:
    """See `OFPFlowStatsReply`."""

    def __init__(self, datapath: Any, xid: int, data: bytes) -> None:
        """Raises struct.error or ValueError for what is cut short."""
        self.datapath = datapath
        self.xid = xid
        self.type, self.flags = _MULTIPART.unpack_from(data, HEADER_BYTES)
        self.body: list[FlowStats] = []
        offset = HEADER_BYTES + _MULTIPART.size
        while offset < len(data):
            stats = FlowStats(data, offset)
            if stats.length < _FLOW_STATS.size or offset + stats.length > len(data):
                raise ValueError(f"flow statistics of {stats.length} bytes")
            self.body.append(stats)
            offset += stats.length


class FlowRemoved:
    """See `OFPFlowRemoved`."""

    def __init__(self, datapath: Any, xid: int, data: bytes) -> None:
        """Raises struct.error for what is cut short."""
        self.datapath = datapath
        self.xid = xid
        (self.cookie, self.priority, self.reason, self.table_id, self.duration_sec, self.duration_nsec,
         self.idle_timeout, self.hard_timeout, self.packet_count, self.byte_count) = _REMOVED.unpack_from(
            data, HEADER_BYTES)
        self._data = data

    @property
    def match(self) -> Any:
        return parser.OFPMatch.parser(self._data, HEADER_BYTES + _REMOVED.size)


def event_of(datapath: Any, kind: int, xid: int, data: bytes) -> Any:
    """The event for a message of these kinds; None for all others. Raises struct.error or ValueError."""
    if kind == ofproto.OFPT_BARRIER_REPLY:
        return ofp_event.EventOFPBarrierReply(BarrierReply(datapath, xid))
    if kind == ofproto.OFPT_FLOW_REMOVED:
        return ofp_event.EventOFPFlowRemoved(FlowRemoved(datapath, xid, data))
    if kind == ofproto.OFPT_MULTIPART_REPLY and _MULTIPART.unpack_from(data, HEADER_BYTES)[0] == ofproto.OFPMP_FLOW:
        return ofp_event.EventOFPFlowStatsReply(FlowStatsReply(datapath, xid, data))
    return None
