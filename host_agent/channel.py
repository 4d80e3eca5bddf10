"""The datagrams between agents and the scheduler that gives turns (XCo, section 3.1), and their bytes.

docs/reference/host-agent-channel.md describes them, and who sends which when.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Address
from socket import inet_ntoa

from speedwell.coflow.report import MAC_BYTES, MIN_KEY_BYTES, TCP, UDP, Flow, crosses_network, other_version
from speedwell.host_agent.errors import InvalidDatagram

MAGIC = b"SPHA"
VERSION = 1
NONCE_BYTES = 16
MAX_SLICES = 4
MAX_TURNS = 16
MAX_FLOWS = 48
MAX_BACKLOGS = 32
LEASE_SLICES = 3
CLASS_LEASE_SECONDS = 3.0
"""All classes are told anew each second: that a flow has none any more may get lost."""
MAX_MICROSECONDS = 10_000_000
"""No slice, lease or start lies further ahead."""
PRIORITIES = 8
MAX_BPS = 1 << 50

_HEADER = struct.Struct("!4sBBH4sQQ")
_REGISTRATION = struct.Struct("!16sQ")
_WELCOME = struct.Struct("!16sI4x")
_TURN = struct.Struct("!4sIB3x")
_SLICE = struct.Struct("!IIQ")
_FLOW = struct.Struct("!4s4sHHBB2xQ")
_BACKLOG = struct.Struct("!4s4xQQQ")
_DROPS = struct.Struct("!Q")
MAX_DATAGRAM_BYTES = _HEADER.size + max(
    MAX_TURNS * (_TURN.size + MAX_SLICES * _SLICE.size), MAX_FLOWS * _FLOW.size,
    _DROPS.size + MAX_BACKLOGS * _BACKLOG.size) + MAC_BYTES


@dataclass(frozen=True, slots=True)
class Registration:
    """An agent's first word. `agent` is its host's address on the network whose turns are given, `nonce` is drawn
    anew each time, `uplink_bps` is what its host can send."""

    agent: str
    nonce: bytes
    uplink_bps: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to the registration with this nonce: `epoch`, drawn anew, is in every later datagram of both."""

    agent: str
    epoch: int
    nonce: bytes
    slice_microseconds: int


@dataclass(frozen=True, slots=True)
class Slice:
    """From `start_microseconds` after the directive arrives, at most `rate_bps` may go; 0: whatever the host can."""

    start_microseconds: int
    duration_microseconds: int
    rate_bps: int = 0


@dataclass(frozen=True, slots=True)
class Turns:
    """All that holds from now on for large flows to `destination`: they go in these slices, are held outside of them,
    and are free again after the lease. No slices: D = null. A lease of 0 sets them free at once."""

    destination: str
    lease_microseconds: int
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True)
class Directive:
    """What a host may send. Destinations that are not named keep their turns, or are free.
    No turns: a sign of life."""

    agent: str
    epoch: int
    sequence: int
    turns: tuple[Turns, ...]


@dataclass(frozen=True, slots=True)
class FlowClass:
    """`priority` 0 is served first, 7 as what has none; `pacing_bps` limits the sender's socket, 0 does not."""

    flow: Flow
    priority: int
    pacing_bps: int = 0


@dataclass(frozen=True, slots=True)
class FlowClasses:
    """The classes of flows that the host sends. Who is not named for CLASS_LEASE_SECONDS has none any more."""

    agent: str
    epoch: int
    sequence: int
    flows: tuple[FlowClass, ...]


@dataclass(frozen=True, slots=True)
class Backlog:
    """Large flows to a destination: bytes that wait in sockets and at the gate, bytes acknowledged and segments sent
    again since the agent began, or since a report that left when there was no such flow."""

    destination: str
    queued_bytes: int
    sent_bytes: int
    retransmitted_segments: int


@dataclass(frozen=True, slots=True)
class BacklogReport:
    """Every destination that has something queued or moved since the last report; none: a sign of life.
    `dropped_packets` are those of the host's own uplink, since it came up."""

    agent: str
    epoch: int
    sequence: int
    dropped_packets: int
    backlogs: tuple[Backlog, ...]


Message = Registration | Welcome | Directive | FlowClasses | BacklogReport
_KINDS: dict[type, int] = {Registration: 1, Welcome: 2, Directive: 3, FlowClasses: 4, BacklogReport: 5}


def agent_key(master_key: bytes, agent: str) -> bytes:
    """The key that the agent with this address shares with the scheduler. Who has it cannot speak for another."""
    return hmac.digest(master_key, b"speedwell host agent " + IPv4Address(agent).packed, sha256).hex().encode()


def agent_of(datagram: bytes) -> str:
    """The agent that a datagram names, for the choice of the key. Raises InvalidDatagram."""
    if not _HEADER.size + MAC_BYTES <= len(datagram) <= MAX_DATAGRAM_BYTES or datagram[:4] != MAGIC:
        raise InvalidDatagram("malformed", "this is no datagram of an agent or its scheduler")
    if datagram[4] != VERSION:
        raise InvalidDatagram("version", other_version(datagram[4], VERSION))
    return inet_ntoa(datagram[8:12])


def encode(message: Message, key: bytes) -> bytes:
    """The datagram, signed with the agent's key. Raises InvalidDatagram for what `decode` would refuse."""
    _check(message)
    if len(key) < MIN_KEY_BYTES:
        raise InvalidDatagram("key", f"the key must have at least {MIN_KEY_BYTES} bytes, not {len(key)}")
    plain = _plain(message)
    return plain + _mac(plain, key)


def decode(datagram: bytes, key: bytes) -> Message:
    """Raises InvalidDatagram for anything but a well-formed message that the key has signed."""
    agent = agent_of(datagram)
    plain, mac = datagram[:-MAC_BYTES], datagram[-MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(plain, key)):
        raise InvalidDatagram("unauthentic", "it is not signed with our key")
    _, _, kind, count, _, epoch, sequence = _HEADER.unpack_from(plain)
    try:
        message: Message | None = _message(kind, count, agent, epoch, sequence, plain[_HEADER.size:])
    except struct.error:
        message = None
    if message is not None:
        _check(message)
    if message is None or _plain(message) != plain:
        raise InvalidDatagram("malformed", "its length does not fit what it counts, or bytes that must be zero "
                                           "are not")
    return message


def _plain(message: Message) -> bytes:
    count, body = _body(message)
    return _HEADER.pack(MAGIC, VERSION, _KINDS[type(message)], count, _packed(message.agent),
                        getattr(message, "epoch", 0), getattr(message, "sequence", 0)) + body


def _body(message: Message) -> tuple[int, bytes]:
    match message:
        case Registration():
            return 0, _REGISTRATION.pack(message.nonce, message.uplink_bps)
        case Welcome():
            return 0, _WELCOME.pack(message.nonce, message.slice_microseconds)
        case Directive():
            return len(message.turns), b"".join(map(_turns_bytes, message.turns))
        case FlowClasses():
            return len(message.flows), b"".join(
                _FLOW.pack(_packed(each.flow.source), _packed(each.flow.destination), each.flow.source_port,
                           each.flow.destination_port, each.flow.protocol, each.priority, each.pacing_bps)
                for each in message.flows)
        case BacklogReport():
            return len(message.backlogs), _DROPS.pack(message.dropped_packets) + b"".join(
                _BACKLOG.pack(_packed(each.destination), each.queued_bytes, each.sent_bytes,
                              each.retransmitted_segments) for each in message.backlogs)


def _turns_bytes(turns: Turns) -> bytes:
    return _TURN.pack(_packed(turns.destination), turns.lease_microseconds, len(turns.slices)) + b"".join(
        _SLICE.pack(each.start_microseconds, each.duration_microseconds, each.rate_bps) for each in turns.slices)


def _message(kind: int, count: int, agent: str, epoch: int, sequence: int, body: bytes) -> Message:
    match kind:
        case 1:
            nonce, uplink_bps = _REGISTRATION.unpack(body)
            return Registration(agent, nonce, uplink_bps)
        case 2:
            nonce, slice_microseconds = _WELCOME.unpack(body)
            return Welcome(agent, epoch, nonce, slice_microseconds)
        case 3:
            return Directive(agent, epoch, sequence, _turns(count, body))
        case 4:
            return FlowClasses(agent, epoch, sequence, tuple(
                FlowClass(Flow(inet_ntoa(source), inet_ntoa(destination), port, to_port, protocol), *settings)
                for source, destination, port, to_port, protocol, *settings in _FLOW.iter_unpack(body)))
        case 5:
            (dropped_packets,) = _DROPS.unpack_from(body)
            return BacklogReport(agent, epoch, sequence, dropped_packets, tuple(
                Backlog(inet_ntoa(destination), *numbers)
                for destination, *numbers in _BACKLOG.iter_unpack(body[_DROPS.size:])))
    raise InvalidDatagram("malformed", f"there is no message of kind {kind}")


def _turns(count: int, body: bytes) -> tuple[Turns, ...]:
    turns, at = [], 0
    for _ in range(count):
        destination, lease_microseconds, slices = _TURN.unpack_from(body, at)
        at += _TURN.size
        turns.append(Turns(inet_ntoa(destination), lease_microseconds, tuple(
            Slice(*_SLICE.unpack_from(body, at + number * _SLICE.size)) for number in range(slices))))
        at += slices * _SLICE.size
    return tuple(turns)


def _check(message: Message) -> None:
    _packed(message.agent)
    match message:
        case Registration():
            _hold("a nonce's bytes", len(message.nonce), NONCE_BYTES, NONCE_BYTES)
            _hold("uplink_bps", message.uplink_bps, 1, MAX_BPS)
            return
        case Welcome():
            _hold("a nonce's bytes", len(message.nonce), NONCE_BYTES, NONCE_BYTES)
            _hold("slice_microseconds", message.slice_microseconds, 1, MAX_MICROSECONDS // LEASE_SLICES)
        case Directive():
            _distinct("destinations", [each.destination for each in message.turns], 0, MAX_TURNS)
            for turns in message.turns:
                _check_turns(turns)
        case FlowClasses():
            _distinct("flows", [each.flow for each in message.flows], 1, MAX_FLOWS)
            for flow in message.flows:
                _check_flow(flow)
        case BacklogReport():
            _distinct("destinations", [each.destination for each in message.backlogs], 0, MAX_BACKLOGS)
            for number in (message.dropped_packets, *(number for each in message.backlogs for number in (
                    each.queued_bytes, each.sent_bytes, each.retransmitted_segments))):
                _hold("a count", number, 0, (1 << 64) - 1)
    _hold("epoch", message.epoch, 1, (1 << 64) - 1)
    if not isinstance(message, Welcome):
        _hold("sequence", message.sequence, 1, (1 << 64) - 1)


def _check_turns(turns: Turns) -> None:
    _hold("lease_microseconds", turns.lease_microseconds, 0, MAX_MICROSECONDS)
    _hold("the number of slices", len(turns.slices), 0, MAX_SLICES)
    end = 0
    for each in turns.slices:
        _hold("start_microseconds", each.start_microseconds, end, MAX_MICROSECONDS)
        _hold("duration_microseconds", each.duration_microseconds, 1, MAX_MICROSECONDS)
        _hold("rate_bps", each.rate_bps, 0, MAX_BPS)
        end = each.start_microseconds + each.duration_microseconds


def _check_flow(each: FlowClass) -> None:
    flow = each.flow
    if not crosses_network(flow) or flow.protocol not in (TCP, UDP):
        raise InvalidDatagram("malformed", f"no TCP or UDP flow goes from {flow.source} to {flow.destination}")
    _hold("a port", min(flow.source_port, flow.destination_port), 1, 65535)
    _hold("a port", max(flow.source_port, flow.destination_port), 1, 65535)
    _hold("priority", each.priority, 0, PRIORITIES - 1)
    _hold("pacing_bps", each.pacing_bps, 0, MAX_BPS)


def _distinct(name: str, things: list[str] | list[Flow], low: int, high: int) -> None:
    _hold(f"the number of {name}", len(things), low, high)
    if len(set(things)) < len(things):
        raise InvalidDatagram("malformed", f"{name} are named twice")


def _hold(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidDatagram("malformed", f"{name} must be in {low} ... {high}, not {value}")


def _packed(address: str) -> bytes:
    try:
        return IPv4Address(address).packed
    except ValueError:
        raise InvalidDatagram("malformed", f"{address!r} is not an IPv4 address") from None


def _mac(message: bytes, key: bytes) -> bytes:
    return hmac.digest(key, message, sha256)[:MAC_BYTES]
