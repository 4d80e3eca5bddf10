"""Packets that switches hand up, and the connections they come by: garbage, floods, those who are not admitted."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from eventlet.green import socket
from hypothesis import given, settings
from hypothesis import strategies as st
from ryu.controller import ofp_event
from ryu.controller.handler import MAIN_DISPATCHER
from ryu.ofproto import ofproto_parser, ofproto_v1_3, ofproto_v1_3_parser

from speedwell.controller.loops import Loops
from speedwell.controller.services import Services
from speedwell.controller.switches.connection import SwitchConnection, bad_message_counter, serve_switch
from speedwell.controller.switches.packet_ins import (
    MAX_PACKETS,
    MAX_PROBES,
    MalformedPacketIn,
    PacketIn,
    PacketIns,
    decode,
)
from speedwell.controller.topology import arp
from speedwell.controller.topology.discovery import Discovery
from speedwell.controller.topology.hosts import Hosts
from speedwell.controller.topology.lldp import ETHERTYPE
from speedwell.controller.topology.state import HostLocation, NetworkState, PortInfo, PortKind, SwitchInfo
from tests.waiting import wait_until

DPID = "0000000000000001"
QUEUE_FULL, MALFORMED, FAILED = ("packet-in", "queue-full"), ("packet-in", "malformed"), ("packet-in", "failed")


class Switch:
    """Where packets come from."""

    ofproto = ofproto_v1_3
    ofproto_parser = ofproto_v1_3_parser

    def __init__(self, number: int = 1) -> None:
        self.id = number
        self.address = ("192.0.2.1", 40000 + number)
        self.is_backed_up = True


def message(frame: bytes, in_port: int = 3, table_id: int = 0, before: bytes = b"") -> bytes:
    """An OFPT_PACKET_IN message; `before` are other fields of its match."""
    fields = before + struct.pack("!HBBI", 0x8000, 0, 4, in_port)
    length = 4 + len(fields)
    match = struct.pack("!HH", 1, length) + fields + bytes(-length % 8)
    body = struct.pack("!IHBBQ", 0xFFFFFFFF, len(frame), 1, table_id, 7) + match + b"\0\0" + frame
    return struct.pack("!BBHI", 4, ofproto_v1_3.OFPT_PACKET_IN, 8 + len(body), 99) + body


def served(packet_ins: PacketIns) -> None:
    while len(packet_ins):
        eventlet.sleep(0)


@given(st.binary(max_size=1600), st.integers(1, 0xFFFFFFFF), st.integers(0, 254),
       st.sampled_from([b"", struct.pack("!HBBQ", 0x8000, 2 << 1, 8, 5), struct.pack("!HBBI", 0x8000, 1 << 1, 4, 9)]))
def test_a_packet_is_read_as_ryu_reads_it(frame: bytes, in_port: int, table_id: int, before: bytes) -> None:
    buffer = message(frame, in_port, table_id, before)
    theirs = ofproto_parser.msg(Switch(), *ofproto_parser.header(buffer), buffer)
    ours = decode(None, buffer)
    assert (ours.in_port, ours.table_id, ours.data) == (theirs.match["in_port"], theirs.table_id, theirs.data)
    assert ours.data == frame


@given(st.binary(max_size=300), st.integers(0, 60))
def test_any_message_is_read_or_malformed(garbage: bytes, kept: int) -> None:
    for buffer in (garbage, message(b"frame" * 10)[:kept] + garbage):
        try:
            decode(None, buffer)
        except MalformedPacketIn:
            continue


@pytest.fixture(name="known", scope="module")
def _known() -> SimpleNamespace:
    """Discovery and hosts as they are in the controller, knowing one switch with three ports and one host."""
    state, packet_ins = NetworkState(), PacketIns()
    services = Services(state, packet_ins, Loops())
    switch = Switch()
    discovery, hosts = (kind(services) for kind in (Discovery, Hosts))
    state.switch_connected(SwitchInfo(DPID, DPID, "192.0.2.1", True), switch)
    for port_no, kind in ((1, PortKind.EDGE), (2, PortKind.FABRIC), (3, PortKind.UNDETERMINED)):
        state.set_port(DPID, PortInfo(port_no, f"eth{port_no}", "02:00:00:00:00:01", True, 1e9, kind))
        discovery.probing.add_port((DPID, port_no), 0.0)
    state.set_host(HostLocation("10.0.0.1", "02:00:00:00:00:11", DPID, 1))
    return SimpleNamespace(state=state, packet_ins=packet_ins, switch=switch, discovery=discovery, hosts=hosts)


FRAMES = st.one_of(
    st.binary(max_size=1600),
    st.builds(lambda head, kind, tail: head + kind + tail, st.binary(min_size=12, max_size=12),
              st.sampled_from([ETHERTYPE, b"\x08\x06", b"\x08\x00", b"\x88\x47", b"\x86\xdd"]),
              st.binary(max_size=120)),
    st.integers(0, 60).map(lambda length: arp.build(arp.Packet(
        arp.REQUEST, arp.BROADCAST_MAC, "224.0.0.1", arp.NO_MAC, "255.255.255.255"))[:length]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(FRAMES, st.integers(0, 5), st.integers(0, 70)), max_size=8), st.binary(max_size=60))
def test_garbage_of_any_length_changes_nothing_and_raises_nothing(
        known: SimpleNamespace, frames: list[tuple[bytes, int, int]], garbage: bytes) -> None:
    state, packet_ins = known.state, known.packet_ins
    before = dict(state.hosts), dict(state.links), dict(state.ports), state.network.version
    for frame, in_port, table_id in frames:
        # An address that a host may have is no garbage.
        if frame[12:14] in (b"\x08\x06", b"\x08\x00") and in_port == 1:
            in_port = 2
        packet_ins.arrived(known.switch, message(frame, in_port, table_id))
    packet_ins.arrived(known.switch, garbage)
    served(packet_ins)
    assert (dict(state.hosts), dict(state.links), dict(state.ports), state.network.version) == before
    assert packet_ins.counts[FAILED] == 0


def test_a_flood_from_one_switch_fills_a_bounded_queue_and_others_are_served_in_turn() -> None:
    packet_ins, flooding, quiet = PacketIns(), Switch(1), Switch(2)
    order: list[PacketIn] = []
    packet_ins.on_packet = order.append
    for _ in range(10_000):
        packet_ins.arrived(flooding, message(b"unknown sender"))
    packet_ins.arrived(quiet, message(b"a host's first packet"))
    assert len(packet_ins) == MAX_PACKETS + 1
    served(packet_ins)
    assert [packet.datapath for packet in order].index(quiet) <= 1
    assert len(order) == MAX_PACKETS + 1
    assert packet_ins.counts[QUEUE_FULL] == 10_000 - MAX_PACKETS


def test_probes_are_read_before_what_hosts_send_and_of_too_many_the_newest() -> None:
    packet_ins, switches = PacketIns(), [Switch(number) for number in range(1, 4)]
    order: list[bytes] = []
    packet_ins.on_packet = packet_ins.on_probe = lambda packet: order.append(packet.data)
    for switch in switches:
        for _ in range(20):
            packet_ins.arrived(switch, message(bytes(12) + b"\x08\x00"))
    probes = [bytes(12) + ETHERTYPE + struct.pack("!I", number) for number in range(MAX_PROBES + 50)]
    for probe in probes:
        packet_ins.arrived(switches[2], message(probe))
    served(packet_ins)
    assert order[:MAX_PROBES] == probes[50:]
    assert packet_ins.counts[QUEUE_FULL] == 50


def test_a_packet_that_makes_a_handler_fail_does_not_stop_the_next_and_is_told() -> None:
    loops = Loops()
    packet_ins, seen = PacketIns(loops), []

    def handle(packet: PacketIn) -> None:
        seen.append(packet.data)
        raise RuntimeError("of this packet")

    packet_ins.on_packet = handle
    for number in range(40):
        packet_ins.arrived(Switch(), message(b"%d" % number))
    packet_ins.arrived(Switch(), b"\x04\x0a\x00\x08")
    served(packet_ins)
    assert len(seen) == 40
    assert (packet_ins.counts[FAILED], packet_ins.counts[MALFORMED]) == (40, 1)
    assert [(trouble.name, trouble.problem) for trouble in loops.troubles()] == [
        ("packet-ins", "RuntimeError: of this packet")]


def test_packets_are_served_on_after_serving_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = Loops()
    packet_ins, seen = PacketIns(loops), []
    packet_ins.on_packet = lambda packet: seen.append(packet.data)
    with monkeypatch.context() as patch:
        patch.setattr(packet_ins, "_serve_one", lambda: 1 / 0)
        packet_ins.arrived(Switch(), message(b"first"))
        eventlet.sleep(0.01)
    assert [trouble.name for trouble in loops.troubles()] == ["PacketIns._serve"]
    packet_ins.arrived(Switch(), message(b"second"))
    served(packet_ins)
    assert sorted(seen) == [b"first", b"second"]


def test_what_a_switch_handed_up_goes_with_its_connection() -> None:
    packet_ins, seen = PacketIns(), []
    packet_ins.on_packet = seen.append
    for number in range(10_000):
        switch = Switch(number)
        packet_ins.arrived(switch, message(b"frame"))
        packet_ins.connection_ended(switch)
    assert len(packet_ins) == 0 and not packet_ins._waiting
    eventlet.sleep(0)
    assert seen == []


class Wire:
    """A served connection, and the switch's end of it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.packets: list[PacketIn] = []
        self.packet_ins = PacketIns()
        self.packet_ins.on_packet = self.packets.append
        brick = SimpleNamespace(send_event_to_observers=self._note, get_handlers=lambda event, state=None: [])
        patch.setattr("ryu.base.app_manager.lookup_service_brick", lambda name: brick)
        self.connections: list[SwitchConnection] = []
        patch.setattr("speedwell.controller.switches.connection.SwitchConnection", self._made)
        listening = eventlet.listen(("127.0.0.1", 0))
        eventlet.spawn(lambda: serve_switch(*listening.accept(), self.packet_ins, Loops(), bad_message_counter()))
        self.switch = socket.create_connection(listening.getsockname())
        wait_until(lambda: eventlet.sleep(0) or self.connections, 5, "nobody serves the connection")
        [self.connection] = self.connections

    def _made(self, *arguments: Any) -> SwitchConnection:
        self.connections.append(SwitchConnection(*arguments))
        return self.connections[-1]

    def _note(self, event: Any, state: str) -> None:
        self.events.append(type(event).__name__)

    def sent(self, buffer: bytes) -> None:
        """Everything is sent and taken in; an echo request at the end tells."""
        before = self.events.count("EventOFPEchoRequest")
        self.switch.sendall(buffer + struct.pack("!BBHI", 4, ofproto_v1_3.OFPT_ECHO_REQUEST, 8, 1))
        wait_until(lambda: eventlet.sleep(0) or self.events.count("EventOFPEchoRequest") > before, 10,
                   "the echo request is not taken in")
        served(self.packet_ins)


@pytest.fixture(name="wire")
def _wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    wire = Wire(monkeypatch)
    yield wire
    wire.switch.close()


def test_messages_leave_in_their_order_when_the_switch_reads_slowly(wire: Wire) -> None:
    pieces = [bytes([number]) * 200_000 for number in range(1, 60)]
    sending = [eventlet.spawn(wire.connection.send, piece) for piece in pieces]
    expected, received = b"".join(pieces), bytearray()
    while len(received) < len(expected) + 8:        # behind Ryu's hello
        received += wire.switch.recv(1 << 16)
    assert all(each.wait() for each in sending) and received[8:] == expected


def flow_removed() -> bytes:
    body = struct.pack("!QHBBIIHHQQHH4x", 0x5710 << 48, 300, 0, 3, 1, 0, 30, 0, 0, 0, 1, 4)
    return struct.pack("!BBHI", 4, ofproto_v1_3.OFPT_FLOW_REMOVED, 8 + len(body), 2) + body


def test_a_connection_that_is_not_admitted_can_tell_nothing(wire: Wire) -> None:
    wire.connection.set_state(MAIN_DISPATCHER)
    wire.sent(flow_removed() + message(b"frame"))
    assert ofp_event.EventOFPFlowRemoved.__name__ not in wire.events and wire.packets == []
    wire.connection.is_admitted = True
    wire.sent(flow_removed() + message(b"frame"))
    assert wire.events.count(ofp_event.EventOFPFlowRemoved.__name__) == 1
    assert [packet.data for packet in wire.packets] == [b"frame"]


def test_messages_in_pieces_arrive_whole(wire: Wire) -> None:
    wire.connection.set_state(MAIN_DISPATCHER)
    wire.connection.is_admitted = True
    stream = b"".join(message(b"%d" % number) for number in range(30))
    for begin in range(0, len(stream), 7):
        wire.switch.sendall(stream[begin:begin + 7])
        eventlet.sleep(0)
    wire.sent(b"")
    assert [packet.data for packet in wire.packets] == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize("garbage", [bytes(8), b"\x04\x00\x00\x07\0\0\0\0",
                                     b"\x09" + bytes(1) + b"\x00\x08" + bytes(4), b"GET / HTTP/1.1\r\n\r\n" * 400])
def test_a_connection_that_does_not_speak_openflow_ends_and_nothing_else(
        wire: Wire, garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    wire.switch.sendall(garbage)
    wire.switch.settimeout(10)
    with eventlet.Timeout(10):
        while wire.switch.recv(4096):
            pass
    assert len(caplog.records) >= 1
