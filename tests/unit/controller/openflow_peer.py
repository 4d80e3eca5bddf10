"""A switch as the controller's process meets it: a TCP connection that speaks OpenFlow 1.3, or what it likes."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

from ryu.ofproto import ofproto_v1_3 as ofproto
from ryu.ofproto import ofproto_v1_3_parser as parser

from tests.unit.controller.fake_switch import FakeDatapath

HEADER = struct.Struct("!BBHI")
MULTIPART = struct.Struct("!HHI")


def message(kind: int, body: bytes = b"", xid: int = 0, version: int = 4) -> bytes:
    return HEADER.pack(version, kind, HEADER.size + len(body), xid) + body


def multipart(kind: int, body: bytes = b"", xid: int = 0, more: bool = False) -> bytes:
    return message(ofproto.OFPT_MULTIPART_REPLY, MULTIPART.pack(kind, more, 0) + body, xid)


def port(number: int) -> bytes:
    name, mac = b"eth%d" % number, number.to_bytes(6, "big")
    return struct.pack("!I4x6s2x16s8I", number, mac, name, 0, 0, 0, 0, 0, 0, 10, 10)


def port_statistics(number: int, count: int = 0) -> bytes:
    return struct.pack("!I4x12Q2I", number, *[count] * 12, 1, 0)



class Peer:
    """One switch. Blocking: `answer` reads and answers what has come."""

    def __init__(self, address: tuple[str, int], dpid: int, ports: int = 4) -> None:
        self.dpid = dpid
        self.ports = ports
        self.datapath = FakeDatapath(dpid)
        self.asked: list[tuple[int, int]] = []
        """(message type, xid) of every request, oldest first."""
        self.reply: Callable[[int, bytes, int], bytes | None] = self.right_reply
        self._received = b""
        self.socket = socket.create_connection(address, timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def join(self, seconds: float = 20.0) -> None:
        """Shake hands until the controller has the ports."""
        self.send(message(ofproto.OFPT_HELLO))
        self.answer(lambda: any(kind == ofproto.OFPT_FLOW_MOD for kind, _ in self.asked), seconds)

    def answer(self, until: Callable[[], bool], seconds: float = 20.0) -> None:
        """Answer what comes until something holds. Raises AssertionError if it does not in time."""
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, f"switch {self.dpid} was left alone, asked {self.asked[-5:]}"
            self.answer_once(0.05)

    def answer_once(self, seconds: float) -> bool:
        """Answer what has come, at most for so long. False if the connection is closed."""
        self.socket.settimeout(seconds)
        try:
            piece = self.socket.recv(1 << 16)
        except TimeoutError:
            return True
        except OSError:
            return False
        finally:
            self.socket.settimeout(10)
        if not piece:
            return False
        self._received += piece
        while len(self._received) >= HEADER.size:
            _, kind, length, xid = HEADER.unpack_from(self._received)
            if len(self._received) < length:
                break
            request, self._received = self._received[:length], self._received[length:]
            self.asked.append((kind, xid))
            reply = self.reply(kind, request, xid)
            if reply:
                try:
                    self.send(reply)
                except OSError:
                    return False
        return True

    def right_reply(self, kind: int, request: bytes, xid: int) -> bytes | None:
        """What a good switch without entries answers."""
        if kind == ofproto.OFPT_ECHO_REQUEST:
            return message(ofproto.OFPT_ECHO_REPLY, request[8:], xid)
        if kind == ofproto.OFPT_FEATURES_REQUEST:
            return message(ofproto.OFPT_FEATURES_REPLY, struct.pack("!QIBBxxII", self.dpid, 0, 254, 0, 0x4F, 0), xid)
        if kind == ofproto.OFPT_BARRIER_REQUEST:
            return message(ofproto.OFPT_BARRIER_REPLY, xid=xid)
        if kind != ofproto.OFPT_MULTIPART_REQUEST:
            return None
        (what,) = struct.unpack_from("!H", request, 8)
        bodies = {ofproto.OFPMP_DESC: struct.pack("!256s256s256s32s256s", b"", b"", b"", b"", b"peer"),
                  ofproto.OFPMP_PORT_DESC: b"".join(map(port, range(1, self.ports + 1))),
                  ofproto.OFPMP_PORT_STATS: b"".join(map(port_statistics, range(1, self.ports + 1))),
                  ofproto.OFPMP_METER_FEATURES: struct.pack("!IIIBBxx", 1000, 2, 5, 1, 8)}
        return multipart(what, bodies.get(what, b""), xid)


def corpus(datapath: FakeDatapath) -> list[bytes]:
    """A right message of every kind that a switch sends on its own or as an answer, with all there is in them."""
    match = parser.OFPMatch(in_port=1, eth_type=0x0800, ipv4_src="10.0.0.1", ipv4_dst=("10.0.0.0", "255.0.0.0"))
    actions = [parser.OFPActionPushMpls(), parser.OFPActionSetField(mpls_label=7), parser.OFPActionGroup(1),
               parser.NXActionRegMove("eth_src", "eth_dst", 48), parser.NXActionCT(0, "", 0, 255, 0, []),
               parser.OFPActionOutput(2)]
    instructions = [parser.OFPInstructionMeter(1), parser.OFPInstructionActions(4, actions),
                    parser.OFPInstructionGotoTable(3)]
    encoded = bytearray(48)
    match.serialize(encoded, 48)
    for instruction in instructions:
        instruction.serialize(encoded, len(encoded))
    struct.pack_into("!HBxIIHHHH4xQQQ", encoded, 0, len(encoded), 1, 5, 0, 9, 0, 0, 0, 0x5710 << 48, 3, 4)
    bucket = bytearray(16)
    for action in actions[:2]:
        action.serialize(bucket, len(bucket))
    struct.pack_into("!HHII", bucket, 0, len(bucket), 1, 2, 0xFFFFFFFF)
    arp = (b"\xff" * 6 + b"\x02\0\0\0\0\x01\x08\x06\0\x01\x08\0\x06\x04\0\x01\x02\0\0\0\0\x01\x0a\0\0\x01" + b"\0" * 6
           + b"\x0a\0\0\x02")
    in_port = bytearray()
    parser.OFPMatch(in_port=1).serialize(in_port, 0)
    packet_in = struct.pack("!IHBBQ", 0xFFFFFFFF, len(arp), 0, 0, 0x5701 << 48) + bytes(in_port) + b"\0\0"
    whole_match = bytearray()
    match.serialize(whole_match, 0)
    removed = struct.pack("!QHBBIIHHQQ", 0x5710 << 48 | 1, 9, 0, 1, 1, 0, 30, 0, 5, 6) + bytes(whole_match)
    description = struct.pack("!HBxI", 8 + len(bucket), 1, 1) + bytes(bucket)
    meter = struct.pack("!HHI", 24, 5, 1) + struct.pack("!HHII4x", 1, 16, 1000, 100)
    return [
        message(ofproto.OFPT_HELLO, struct.pack("!HHI", 1, 8, 1 << 4)),
        message(ofproto.OFPT_ECHO_REQUEST, b"hello?"), message(ofproto.OFPT_ECHO_REPLY, b"hello!"),
        message(ofproto.OFPT_ERROR, struct.pack("!HH", 5, 1) + message(ofproto.OFPT_FLOW_MOD, bytes(48))),
        message(ofproto.OFPT_FEATURES_REPLY, struct.pack("!QIBBxxII", datapath.id, 0, 254, 0, 0x4F, 0)),
        message(ofproto.OFPT_PACKET_IN, packet_in + arp),
        message(ofproto.OFPT_PACKET_IN, packet_in + arp[:12] + b"\x88\xcc" + bytes(30)),
        message(ofproto.OFPT_PACKET_IN, packet_in + arp[:12] + b"\x08\0\x45" + bytes(11) + b"\x0a\0\0\1\x0a\0\0\7"),
        message(ofproto.OFPT_FLOW_REMOVED, removed),
        *(message(ofproto.OFPT_PORT_STATUS, struct.pack("!B7x", reason) + port(number))
          for reason in (0, 1, 2) for number in (1, 9)),
        message(ofproto.OFPT_BARRIER_REPLY),
        multipart(ofproto.OFPMP_DESC, bytes(1056)), multipart(ofproto.OFPMP_FLOW, bytes(encoded) * 2),
        multipart(ofproto.OFPMP_PORT_STATS, port_statistics(1) + port_statistics(2)),
        multipart(ofproto.OFPMP_QUEUE, struct.pack("!II3QII", 1, 1, 1, 1, 1, 1, 1)),
        multipart(ofproto.OFPMP_GROUP_DESC, description * 2), multipart(ofproto.OFPMP_METER_CONFIG, meter * 2),
        multipart(ofproto.OFPMP_METER, struct.pack("!IH6xIQQII", 1, 56, 1, 1, 1, 1, 1) + struct.pack("!QQ", 1, 1)),
        multipart(ofproto.OFPMP_METER_FEATURES, struct.pack("!IIIBBxx", 1000, 2, 5, 1, 8)),
        multipart(ofproto.OFPMP_PORT_DESC, port(1) + port(2)),
        multipart(ofproto.OFPMP_FLOW, bytes(encoded), more=True),
    ]
