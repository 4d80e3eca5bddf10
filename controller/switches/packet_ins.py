"""Packets that switches hand up: a bounded queue for each switch, and one green thread that serves them in turn.

Hosts decide how many there are, so nothing here may grow with their number or wait for one switch: what does not fit
is dropped before it is even decoded, switches are served one packet each in turn, and LLDP comes first, so that what
hosts send starves neither the probes nor other switches.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import prometheus_client
from ryu.lib import hub

from speedwell.controller.loops import FAILURES, Loops
from speedwell.controller.switches.entries import ETH_LLDP

MAX_PROBES, MAX_PACKETS = 256, 64
"""How many packets of one switch may wait, LLDP and others."""
BATCH = 16
"""After so many packets, other green threads run."""
QUEUE_FULL, MALFORMED, FAILED = ("packet-in", "queue-full"), ("packet-in", "malformed"), ("packet-in", "failed")

_HEADER = struct.Struct("!BBHIIHBBQHH")
_FIELD = struct.Struct("!HBB")
_OPENFLOW_BASIC, _IN_PORT, _MATCH_OXM = 0x8000, 0, 1
_ETHERTYPE_AT = 12


class MalformedPacketIn(Exception):
    """A packet-in message that is cut short, or does not say by which port the packet came."""


class PacketIn(NamedTuple):
    """A packet that a switch handed up: by which port it came, and from which table."""

    datapath: Any
    in_port: int
    table_id: int
    data: bytes


Handler = Callable[[PacketIn], None]


def decode(datapath: Any, message: bytes) -> PacketIn:
    """The packet in an OFPT_PACKET_IN message of OpenFlow 1.3. Takes any bytes. Raises Malformed."""
    try:
        *_, table_id, _, kind, length = _HEADER.unpack_from(message)
        if kind != _MATCH_OXM or length < 4 or len(message) < _HEADER.size - 4 + length:
            raise MalformedPacketIn
        offset, end = _HEADER.size, _HEADER.size - 4 + length
        while offset < end:
            header = _FIELD.unpack_from(message, offset)
            if header[:2] == (_OPENFLOW_BASIC, _IN_PORT << 1) and header[2] == 4:
                (in_port,) = struct.unpack_from("!I", message, offset + _FIELD.size)
                return PacketIn(datapath, in_port, table_id, message[_data_at(length):])
            offset += _FIELD.size + header[2]
    except struct.error:
        pass
    raise MalformedPacketIn


def _data_at(match_length: int) -> int:
    """Where the packet begins: behind the match, filled up to 8 bytes, and 2 bytes that mean nothing."""
    return _HEADER.size - 4 + (match_length + 7) // 8 * 8 + 2


def _is_lldp(message: bytes) -> bool:
    if len(message) < _HEADER.size:
        return False
    at = _data_at(int.from_bytes(message[26:28])) + _ETHERTYPE_AT
    return int.from_bytes(message[at:at + 2]) == ETH_LLDP and len(message) >= at + 2


@dataclass(slots=True)
class _Waiting:
    """What one switch has handed up and nobody has looked at yet, as it came over the wire."""

    probes: deque[bytes] = field(default_factory=lambda: deque(maxlen=MAX_PROBES))
    packets: deque[bytes] = field(default_factory=deque)


class PacketIns:
    """Takes messages in and calls `on_probe` with LLDP frames, `on_packet` with all others.

    `counts` says, by ("packet-in", reason), how many messages found a queue full, could not be read, or made a
    handler raise an exception.
    """

    def __init__(self, loops: Loops | None = None) -> None:
        self._loops = loops or Loops()
        self.on_probe: Handler = lambda packet: None
        self.on_packet: Handler = lambda packet: None
        self.counts: Counter[tuple[str, str]] = Counter()
        self.taken = prometheus_client.Counter("speedwell_packet_ins", "Packets that switches handed up.",
                                               registry=None)
        self._waiting: OrderedDict[Any, _Waiting] = OrderedDict()
        self._is_serving = False

    def __len__(self) -> int:
        return sum(len(waiting.probes) + len(waiting.packets) for waiting in self._waiting.values())

    def arrived(self, datapath: Any, message: bytes) -> None:
        """A switch sent a packet-in message. Returns at once."""
        self.taken.inc()
        waiting = self._waiting.get(datapath)
        if waiting is None:
            waiting = self._waiting[datapath] = _Waiting()
        if _is_lldp(message):
            if len(waiting.probes) == MAX_PROBES:
                self.counts[QUEUE_FULL] += 1
            # Of probes the newest matter: the oldest one gives way.
            waiting.probes.append(message)
        elif len(waiting.packets) < MAX_PACKETS:
            waiting.packets.append(message)
        else:
            self.counts[QUEUE_FULL] += 1
        if not self._is_serving:
            self._is_serving = True
            self._loops.spawn(self._serve)

    def connection_ended(self, datapath: Any) -> None:
        """Nobody wants to know any more what this switch handed up."""
        self._waiting.pop(datapath, None)

    def _serve(self) -> None:
        """Until nothing waits any more."""
        try:
            while self._waiting:
                for _ in range(BATCH):
                    if self._waiting:
                        self._serve_one()
                hub.sleep(0)
        finally:
            self._is_serving = False

    def _serve_one(self) -> None:
        datapath = next((datapath for datapath, waiting in self._waiting.items() if waiting.probes),
                        next(iter(self._waiting)))
        waiting = self._waiting[datapath]
        handler, queue = ((self.on_probe, waiting.probes) if waiting.probes else (self.on_packet, waiting.packets))
        message = queue.popleft()
        if waiting.probes or waiting.packets:
            self._waiting.move_to_end(datapath)
        else:
            del self._waiting[datapath]
        try:
            handler(decode(datapath, message))
        except MalformedPacketIn:
            self.counts[MALFORMED] += 1
        except FAILURES as error:
            self.counts[FAILED] += 1
            self._loops.failed("packet-ins", error)
