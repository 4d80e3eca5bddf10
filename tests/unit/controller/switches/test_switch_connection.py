"""What is made of the bytes that a switch sends, however they come."""

from __future__ import annotations

import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ryu.controller import ofp_event
from ryu.controller.handler import MAIN_DISPATCHER
from ryu.ofproto import ofproto_parser, ofproto_v1_3, ofproto_v1_3_parser

from speedwell.controller.reader import Reader
from speedwell.controller.switches import replies, shapes, wire
from speedwell.controller.switches.connection import SwitchConnection
from speedwell.controller.switches.entries import (
    Bucket,
    FlowEntry,
    Group,
    LoadLabel,
    Output,
    PushLoaded,
    ToGroup,
    match,
)
from speedwell.controller.switches.openflow import decode_flow, decode_group, key_of_removed
from speedwell.controller.switches.replies import event_of

DATAPATH = SimpleNamespace(ofproto=ofproto_v1_3, ofproto_parser=ofproto_v1_3_parser, id=1)
ENTRIES = [FlowEntry(3, 300, match(eth_type=0x800, ipv4_src="10.0.0.1", ip_proto=6, tcp_src=number),
                     (Output(number),), None, 0x5710 << 48 | number, 30, True) for number in range(1, 4)]


def message(kind: int, xid: int, body: bytes = b"") -> bytes:
    return struct.pack("!BBHI", 4, kind, 8 + len(body), xid) + body


def flow_stats(entry: FlowEntry) -> bytes:
    rest = wire.match_bytes(entry.match) + wire._instructions(entry)
    return struct.pack("!HBxIIHHHHxxxxQQQ", 48 + len(rest), entry.table, 5, 7, entry.priority,
                       entry.idle_timeout_seconds, 0, 1, entry.cookie, 11, 1300) + rest


STATS = message(ofproto_v1_3.OFPT_MULTIPART_REPLY, 9,
                struct.pack("!HHxxxx", ofproto_v1_3.OFPMP_FLOW, 0) + b"".join(map(flow_stats, ENTRIES)))
REMOVED = message(ofproto_v1_3.OFPT_FLOW_REMOVED, 0,
                  struct.pack("!QHBBIIHHQQ", 0x5710 << 48 | 1, 300, 2, 3, 5, 7, 30, 0, 11, 1300)
                  + wire.match_bytes(ENTRIES[0].match))


def ryu_reads(data: bytes) -> Any:
    version, kind, length, xid = ofproto_parser.header(data)
    return ofproto_parser.msg(DATAPATH, version, kind, length, xid, bytearray(data))


def ours(data: bytes) -> Any:
    return event_of(DATAPATH, data[1], 9, data).msg


def test_flow_statistics_are_read_as_ryu_reads_them() -> None:
    read = ours(STATS)
    assert [decode_flow(stats) for stats in read.body] == ENTRIES
    for mine, theirs in zip(read.body, ryu_reads(STATS).body, strict=True):
        for name in ("cookie", "duration_sec", "duration_nsec", "packet_count", "byte_count", "flags", "table_id",
                     "priority", "idle_timeout", "hard_timeout", "length"):
            assert getattr(mine, name) == getattr(theirs, name)


def test_long_instructions_are_read_and_not_kept() -> None:
    replies._kept_instructions.cache_clear()
    for number in range(20):
        entry = replace(ENTRIES[0], actions=tuple(Output(number * 4000 + port) for port in range(4000)))
        stats = message(ofproto_v1_3.OFPT_MULTIPART_REPLY, 9,
                        struct.pack("!HHxxxx", ofproto_v1_3.OFPMP_FLOW, 0) + flow_stats(entry))
        assert decode_flow(ours(stats).body[0]).actions == entry.actions
    assert replies._kept_instructions.cache_info().currsize == 0
    assert decode_flow(ours(STATS).body[0]) == ENTRIES[0]
    assert replies._kept_instructions.cache_info().currsize == 1


def test_labels_in_registers_are_read_as_they_were_sent() -> None:
    entry = replace(ENTRIES[0], actions=(LoadLabel(5, 2), ToGroup(7)))
    data = message(ofproto_v1_3.OFPT_MULTIPART_REPLY, 9,
                   struct.pack("!HHxxxx", ofproto_v1_3.OFPMP_FLOW, 0) + flow_stats(entry))
    assert [decode_flow(stats) for stats in ours(data).body] == [entry]
    group = Group(9, (Bucket((PushLoaded(3, 4), Output(1)), 1), Bucket((PushLoaded(), Output(2)), 2)))
    buckets = b"".join(wire._bucket(bucket, 1) for bucket in group.buckets)
    description = struct.pack("!HBxI", 8 + len(buckets), wire.SELECT, group.group_id) + buckets
    reply = bytearray(message(ofproto_v1_3.OFPT_MULTIPART_REPLY, 9,
                              struct.pack("!HHxxxx", ofproto_v1_3.OFPMP_GROUP_DESC, 0) + description))
    shapes.check(reply)
    assert [decode_group(stats) for stats in ryu_reads(bytes(reply)).body] == [group]


def test_removed_entries_are_read_as_ryu_reads_them() -> None:
    mine, theirs = ours(REMOVED), ryu_reads(REMOVED)
    assert key_of_removed(mine) == key_of_removed(theirs) == ENTRIES[0].key
    assert (mine.cookie, mine.reason, mine.byte_count) == (theirs.cookie, theirs.reason, theirs.byte_count)


@given(st.binary(max_size=120), st.sampled_from([STATS, REMOVED]), st.integers(0, 300))
def test_any_bytes_are_a_message_or_an_error_that_ends_the_connection(noise: bytes, data: bytes, cut: int) -> None:
    try:
        event = event_of(DATAPATH, data[1], 0, (data[:cut] + noise))
        for stats in getattr(event.msg, "body", ()) if event else ():
            assert stats.byte_count >= 0
    except (struct.error, ValueError):
        pass


@given(st.sets(st.sampled_from(["eth_type", "ip_proto", "ipv4_src", "ipv4_dst", "tcp_src", "tcp_dst", "eth_src"])),
       st.integers(0, 12))
def test_a_match_is_taken_for_a_single_flows_only_if_it_can_be_parsed(names: set[str], cut: int) -> None:
    values = {"ipv4_src": "10.0.0.1", "ipv4_dst": "10.0.0.2", "eth_src": "02:00:00:00:00:01"}
    whole = wire.match_bytes(match(**{name: values.get(name, 6) for name in names}))
    assert shapes.is_of_single_flow(bytearray(REMOVED[:48] + whole)) == ("eth_src" not in names)
    damaged = bytearray(REMOVED[:48] + whole[:len(whole) - cut])
    if len(damaged) >= 52 and shapes.is_of_single_flow(damaged):
        assert event_of(DATAPATH, REMOVED[1], 0, bytes(damaged)).msg.match is not None


class OnePiece:
    """A socket that gives what came in pieces of given sizes, and then ends."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._pieces = []
        for size in sizes:
            self._pieces.append(data[:size])
            data = data[size:]
        self._pieces += [data] if data else []
        self._pieces = [piece for piece in self._pieces if piece]
        self.closed = False

    def recv(self, size: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def close(self) -> None:
        self.closed = True


@given(st.lists(st.integers(1, 90), max_size=12))
def test_messages_arrive_whole_and_in_order_however_they_are_cut(sizes: list[int]) -> None:
    arrived = []
    connection = SwitchConnection.__new__(SwitchConnection)
    connection.state, connection.is_admitted = MAIN_DISPATCHER, True
    connection._door = None
    connection._packet_ins = SimpleNamespace(connection_ended=lambda connection: None)
    connection.ofproto, connection.ofproto_parser = ofproto_v1_3, ofproto_v1_3_parser
    connection.ofp_brick = SimpleNamespace(send_event_to_observers=lambda event, state: arrived.append(event),
                                           get_handlers=lambda event, state: [])
    data = (message(ofproto_v1_3.OFPT_BARRIER_REPLY, 1) + STATS + message(ofproto_v1_3.OFPT_ECHO_REPLY, 2, b"data")
            + REMOVED + message(ofproto_v1_3.OFPT_BARRIER_REPLY, 3))
    connection.socket = OnePiece(data, sizes)
    connection._reader = Reader(connection.socket)
    connection._recv_loop()
    assert [event.__class__ for event in arrived] == [
        ofp_event.EventOFPBarrierReply, ofp_event.EventOFPFlowStatsReply, ofp_event.EventOFPEchoReply,
        ofp_event.EventOFPFlowRemoved, ofp_event.EventOFPBarrierReply]
    assert [event.msg.xid for event in arrived][0::4] == [1, 3]
    assert connection.socket.closed


def test_message_that_is_cut_short_inside_is_an_error() -> None:
    with pytest.raises((struct.error, ValueError)):
        event_of(DATAPATH, ofproto_v1_3.OFPT_MULTIPART_REPLY, 1, STATS[:-1])
