"""Switches of a fabric that speak OpenFlow 1.3 over TCP and forward nothing: something for a controller to control.

Each keeps the entries, groups and meters that it is sent, answers barriers, echoes and statistics, passes probes on
to its neighbours, and has hosts that announce themselves at the first probe and answer ARP. Entries count bytes at
rates that are fixed when they are added, such that so many FLOWS fit the hosts' links; ports count a third of their
capacity, with `uneven` each a part of its own.
`openflow_switches.py HOST PORT FLOWS [uneven] < FABRIC_JSON` prints `ready` when all are connected.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from collections.abc import Iterable
from ipaddress import IPv4Address
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from speedwell.topo.fabric import Fabric, Host, Switch

HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY, FEATURES_REQUEST, FEATURES_REPLY = 0, 1, 2, 3, 5, 6
GET_CONFIG_REQUEST, GET_CONFIG_REPLY, PACKET_IN, FLOW_REMOVED, PACKET_OUT = 7, 8, 10, 11, 13
FLOW_MOD, GROUP_MOD, MULTIPART_REQUEST, MULTIPART_REPLY, BARRIER_REQUEST, BARRIER_REPLY = 14, 15, 18, 19, 20, 21
METER_MOD = 29
DESC, FLOW, PORT_STATS, GROUP_DESC, METER, METER_CONFIG, METER_FEATURES, PORT_DESC = 0, 1, 4, 7, 9, 10, 11, 13
ADD, MODIFY, MODIFY_STRICT, DELETE, DELETE_STRICT = range(5)
SEND_FLOW_REMOVED, REPLY_MORE, ALL_TABLES, NO_BUFFER = 1, 1, 0xFF, 0xFFFFFFFF
OUTPUT, RESERVED_PORTS = 0, 0xFFFFFF00
LLDP, ARP = b"\x88\xcc", b"\x08\x06"
ARP_HEADER = ARP + b"\x00\x01\x08\x00\x06\x04"
MOST_REPLY_BYTES = 60_000
LOADED = 1 / 3
FRAME_BYTES = 1500

HEADER = struct.Struct("!BBHI")
FLOW_MOD_FIXED = struct.Struct("!QQBBHHHIIIHxx")
FLOW_STATS = struct.Struct("!HBxIIHHHHxxxxQQQ")
REMOVED = struct.Struct("!QHBBIIHHQQ")


class Entry:
    """A flow entry as it came over the wire, and how fast it counts."""

    __slots__ = ("added_at", "bytes_per_second", "cookie", "flags", "idle", "instructions", "lifetime", "match",
                 "priority", "table")

    def counts(self, now: float) -> tuple[int, int, int, int]:
        """Seconds and nanoseconds since it was added, packets, bytes."""
        age = now - self.added_at
        counted = int(age * self.bytes_per_second)
        return int(age), int(age % 1 * 1e9), counted // FRAME_BYTES, counted


class FakeSwitch(asyncio.Protocol):
    def __init__(self, network: Network, switch: Switch) -> None:
        self._network = network
        self._switch = switch
        self._ports = {port.number: port for port in network.fabric.ports(switch.name)}
        self._entries: dict[tuple[int, int, bytes], Entry] = {}
        self._groups: dict[int, bytes] = {}
        self._meters: dict[int, bytes] = {}
        self._announced: set[int] = set()
        self._buffer = b""
        self._began_at = time.monotonic()
        self._transport: asyncio.Transport | None = None
        self._random = Random(switch.dpid)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send(HELLO, 0)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._network.lost(self._switch.name)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        offset, end = 0, len(buffer)
        answers: list[bytes] = []
        while end - offset >= 8:
            _, kind, length, xid = HEADER.unpack_from(buffer, offset)
            if end - offset < length:
                break
            answers += self._answers(kind, xid, buffer[offset + 8:offset + length])
            offset += length
        self._buffer = buffer[offset:]
        if answers and self._transport is not None:
            self._transport.write(b"".join(answers))

    def _answers(self, kind: int, xid: int, body: bytes) -> Iterable[bytes]:
        if kind == FLOW_MOD:
            return self._flow_mod(xid, body)
        if kind == BARRIER_REQUEST:
            return (_message(BARRIER_REPLY, xid),)
        if kind == MULTIPART_REQUEST:
            return self._statistics(xid, *struct.unpack_from("!HH", body), body[8:])
        if kind == PACKET_OUT:
            self._packet_out(body)
        elif kind == ECHO_REQUEST:
            return (_message(ECHO_REPLY, xid, body),)
        elif kind == FEATURES_REQUEST:
            self._network.connected(self._switch.name)
            return (_message(FEATURES_REPLY, xid, struct.pack("!QIBBxxII", self._switch.dpid, 0, 254, 0, 0x4F, 0)),)
        elif kind == GET_CONFIG_REQUEST:
            return (_message(GET_CONFIG_REPLY, xid, struct.pack("!HH", 0, 128)),)
        elif kind == GROUP_MOD:
            self._store(self._groups, body, is_delete=struct.unpack_from("!H", body)[0] == 2,
                        description=body[2:4] + body[4:8] + body[8:])
        elif kind == METER_MOD:
            self._store(self._meters, body, is_delete=struct.unpack_from("!H", body)[0] == 2,
                        description=body[2:4] + body[4:8] + body[8:])
        return ()

    @staticmethod
    def _store(held: dict[int, bytes], body: bytes, is_delete: bool, description: bytes) -> None:
        number = struct.unpack_from("!I", body, 4)[0]
        if is_delete:
            held.pop(number, None)
        else:
            held[number] = struct.pack("!H", len(description) + 2) + description

    # --- entries ---

    def _flow_mod(self, xid: int, body: bytes) -> Iterable[bytes]:
        cookie, mask, table, command, idle, lifetime, priority, _, _, _, flags = FLOW_MOD_FIXED.unpack_from(body)
        padded = (struct.unpack_from("!H", body, 42)[0] + 7) // 8 * 8
        match = body[40:40 + padded]
        key = table, priority, match
        if command == ADD:
            entry = Entry()
            entry.table, entry.priority, entry.match, entry.cookie = table, priority, match, cookie
            entry.flags, entry.idle, entry.lifetime = flags, idle, lifetime
            entry.instructions = body[40 + padded:]
            entry.added_at = time.monotonic()
            entry.bytes_per_second = self._random.uniform(0.2, 1.0) * self._network.fair_bytes_per_second
            self._entries[key] = entry
        elif command == MODIFY_STRICT:
            if key in self._entries:
                self._entries[key].instructions = body[40 + padded:]
        elif command == DELETE_STRICT:
            found = self._entries.pop(key, None)
            return () if found is None else self._removed([found])
        elif command == DELETE:
            gone = [key for key, entry in self._entries.items()
                    if table in (ALL_TABLES, entry.table) and entry.cookie & mask == cookie & mask]
            return self._removed([self._entries.pop(key) for key in gone])
        return ()

    @staticmethod
    def _removed(entries: Iterable[Entry]) -> list[bytes]:
        now = time.monotonic()
        answers = []
        for entry in entries:
            if entry.flags & SEND_FLOW_REMOVED:
                seconds, nanoseconds, packets, counted = entry.counts(now)
                answers.append(_message(FLOW_REMOVED, 0, REMOVED.pack(
                    entry.cookie, entry.priority, 2, entry.table, seconds, nanoseconds, entry.idle, entry.lifetime,
                    packets, counted) + entry.match))
        return answers

    # --- statistics ---

    def _statistics(self, xid: int, kind: int, _: int, body: bytes) -> Iterable[bytes]:
        now = time.monotonic()
        if kind == DESC:
            name = self._switch.name.encode()
            return _replies(xid, kind, [struct.pack("!256s256s256s32s256s", b"Speedwell", b"", b"", b"", name)])
        if kind == PORT_DESC:
            return _replies(xid, kind, [self._port(number) for number in self._ports])
        if kind == PORT_STATS:
            return _replies(xid, kind, [self._port_stats(number, now) for number in self._ports])
        if kind == FLOW:
            table, cookie, mask = struct.unpack_from("!B15xQQ", body)
            return _replies(xid, kind, [_flow_stats(entry, now) for entry in self._entries.values()
                                        if table in (ALL_TABLES, entry.table) and entry.cookie & mask == cookie])
        if kind == GROUP_DESC:
            return _replies(xid, kind, self._groups.values())
        if kind == METER_CONFIG:
            return _replies(xid, kind, self._meters.values())
        if kind == METER:
            age = int(now - self._began_at)
            return _replies(xid, kind, [struct.pack("!IHxxxxxxIQQII", number, 40, 1, 0, 0, age, 0)
                                        for number in self._meters])
        if kind == METER_FEATURES:
            return _replies(xid, kind, [struct.pack("!IIIBBxx", 1 << 18, 2, 0xF, 1, 0)])
        return _replies(xid, kind, [])

    def _port(self, number: int) -> bytes:
        speed_kbps = int(self._ports[number].capacity_bps / 1000)
        hw_addr = struct.pack("!HI", 0x0200, (self._switch.dpid << 8 | number) & 0xFFFFFFFF)
        return struct.pack("!I4x6s2x16s8I", number, hw_addr, f"eth{number}".encode(), 0, 0, 0, 0, 0, 0,
                           speed_kbps, speed_kbps)

    def _port_stats(self, number: int, now: float) -> bytes:
        age = now - self._began_at
        load = Random(self._switch.dpid << 8 | number).random() ** 2 if self._network.is_uneven else LOADED
        counted = int(load * self._ports[number].capacity_bps / 8 * age)
        return struct.pack("!I4x12QII", number, counted // FRAME_BYTES, counted // FRAME_BYTES, counted, counted,
                           0, 0, 0, 0, 0, 0, 0, 0, int(age), int(age % 1 * 1e9))

    # --- packets ---

    def _packet_out(self, body: bytes) -> None:
        _, _, actions_bytes = struct.unpack_from("!IIH", body)
        frame = body[16 + actions_bytes:]
        offset = 16
        while offset < 16 + actions_bytes:
            kind, length = struct.unpack_from("!HH", body, offset)
            if kind == OUTPUT:
                self._leave(struct.unpack_from("!I", body, offset + 4)[0], frame)
            offset += length

    def _leave(self, number: int, frame: bytes) -> None:
        port = self._ports.get(number)
        if port is None:
            return
        peer = self._network.switches.get(port.peer)
        if peer is not None and frame[12:14] == LLDP:
            peer.packet_in(self._network.fabric.port_toward(port.peer, self._switch.name).number, frame)
        elif peer is None:
            self._reach_host(number, self._network.fabric.host(port.peer), frame)

    def _reach_host(self, number: int, host: Host, frame: bytes) -> None:
        """It answers questions for its address, and announces that address when it first hears something."""
        mac, ip = bytes.fromhex(host.mac.replace(":", "")), IPv4Address(host.ip).packed
        if frame[12:14] == ARP and frame[20:22] == b"\x00\x01" and frame[38:42] == ip:
            answer = b"\x00\x02" + mac + ip + frame[22:32] + bytes(18)
            self.packet_in(number, frame[6:12] + mac + frame[12:20] + answer)
        elif number not in self._announced:
            self._announced.add(number)
            announcement = b"\x00\x01" + mac + ip + bytes(6) + ip + bytes(18)
            self.packet_in(number, b"\xff" * 6 + mac + ARP_HEADER + announcement)

    def packet_in(self, in_port: int, frame: bytes) -> None:
        match = struct.pack("!HHIIxxxx", 1, 12, 0x80000004, in_port)
        self._send(PACKET_IN, 0, struct.pack("!IHBBQ", NO_BUFFER, len(frame), 1, 0, 0) + match + b"\0\0" + frame)

    def _send(self, kind: int, xid: int, body: bytes = b"") -> None:
        if self._transport is not None:
            self._transport.write(_message(kind, xid, body))


class Network:
    """All switches of a fabric, each with a connection of its own."""

    def __init__(self, fabric: Fabric, most_flows: int, is_uneven: bool) -> None:
        self.fabric = fabric
        self.is_uneven = is_uneven
        self.fair_bytes_per_second = (min(link.capacity_bps for link in fabric.links) / 8
                                      / max(most_flows / len(fabric.hosts), 1))
        self.switches = {switch.name: FakeSwitch(self, switch) for switch in fabric.switches}
        self._missing = set(self.switches)
        self._ended = asyncio.Event()

    async def run(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        for switch in self.switches.values():
            await loop.create_connection(lambda switch=switch: switch, host, port)
        await self._ended.wait()

    def connected(self, name: str) -> None:
        self._missing.discard(name)
        if not self._missing:
            print(f"ready {len(self.switches)} switches", flush=True)

    def lost(self, name: str) -> None:
        print(f"switch {name} lost its controller", file=sys.stderr, flush=True)
        self._ended.set()


def _message(kind: int, xid: int, body: bytes = b"") -> bytes:
    return HEADER.pack(4, kind, 8 + len(body), xid) + body


def _replies(xid: int, kind: int, pieces: Iterable[bytes]) -> list[bytes]:
    """A multipart reply, in as many messages as it takes."""
    bodies, size = [[]], 0
    for piece in pieces:
        if size + len(piece) > MOST_REPLY_BYTES:
            bodies.append([])
            size = 0
        bodies[-1].append(piece)
        size += len(piece)
    return [_message(MULTIPART_REPLY, xid, struct.pack("!HHxxxx", kind, REPLY_MORE if number < len(bodies) else 0)
                     + b"".join(body)) for number, body in enumerate(bodies, 1)]


def _flow_stats(entry: Entry, now: float) -> bytes:
    seconds, nanoseconds, packets, counted = entry.counts(now)
    rest = entry.match + entry.instructions
    return FLOW_STATS.pack(FLOW_STATS.size + len(rest), entry.table, seconds, nanoseconds, entry.priority, entry.idle,
                           entry.lifetime, entry.flags, entry.cookie, packets, counted) + rest


if __name__ == "__main__":
    host, port, most_flows, *uneven = sys.argv[1:]
    asyncio.run(Network(Fabric.from_json(sys.stdin.read()), int(most_flows), bool(uneven)).run(host, int(port)))
