"""The datagram of the 1-way protocol (MinCOF, section III-C), byte by byte in docs/reference/coflow-protocol.md."""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv4Address
from socket import inet_ntoa
from typing import NamedTuple

from speedwell.coflow.errors import InvalidReport

MAGIC = b"SPCF"
VERSION = 1
ID_BYTES = 16
MAC_BYTES = 16
MAX_FLOWS = 58
"""As many as fit a datagram that no Ethernet splits."""
MAX_REMAINING_BYTES = 1 << 50
MIN_KEY_BYTES = 16
TCP, UDP = 6, 17

_HEADER = struct.Struct("!4sBBH16sQQQ")
_FLOW = struct.Struct("!4s4sHHB3xQ")
MAX_DATAGRAM_BYTES = _HEADER.size + MAX_FLOWS * _FLOW.size + MAC_BYTES


class Flow(NamedTuple):
    """The 5-tuple of a flow in the direction in which its bytes go. Addresses as text."""

    source: str
    destination: str
    source_port: int
    destination_port: int
    protocol: int = TCP


@dataclass(frozen=True, slots=True)
class FlowReport:
    """What one flow has left to send; 0 says that it has ended."""

    flow: Flow
    remaining_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """One datagram: the flows of `coflow_id` that one sender has.

    `sender` is a number the sender drew at its start, `sequence` counts its datagrams from 1, `sent_at_microseconds`
    is its clock (Unix time).
    """

    coflow_id: bytes
    sender: int
    sequence: int
    sent_at_microseconds: int
    flows: tuple[FlowReport, ...]


def encode(report: Report, key: bytes) -> bytes:
    """The datagram of a report, signed with the key: the one that all share, or a host's.

    Raises InvalidReport for what `decode` would refuse.
    """
    _check(report)
    if len(key) < MIN_KEY_BYTES:
        raise InvalidReport("key", f"the key must have at least {MIN_KEY_BYTES} bytes, not {len(key)}")
    parts = [_HEADER.pack(MAGIC, VERSION, 0, len(report.flows), report.coflow_id, report.sender, report.sequence,
                          report.sent_at_microseconds)]
    for each in report.flows:
        flow = each.flow
        parts.append(_FLOW.pack(IPv4Address(flow.source).packed, IPv4Address(flow.destination).packed,
                                flow.source_port, flow.destination_port, flow.protocol, each.remaining_bytes))
    message = b"".join(parts)
    return message + mac(message, key)


def decode(datagram: bytes, key: bytes) -> Report:
    """The report in a datagram. Raises InvalidReport for anything but a well-formed one that the key has signed, or
    that of the host (`host_key`) at which all its flows begin or end."""
    if len(datagram) > MAX_DATAGRAM_BYTES:
        raise InvalidReport("oversized", f"more than {MAX_DATAGRAM_BYTES} bytes")
    if len(datagram) < _HEADER.size + MAC_BYTES or datagram[:4] != MAGIC:
        raise InvalidReport("malformed", "this is not a coflow report")
    _, version, flags, count, coflow_id, sender, sequence, sent_at = _HEADER.unpack_from(datagram)
    if version != VERSION:
        raise InvalidReport("version", other_version(version, VERSION))
    message = datagram[:-MAC_BYTES]
    if not is_signed(datagram, key, _common_ends(message)):
        raise InvalidReport("unauthentic", "it is not signed with our key")
    if flags or len(message) != _HEADER.size + count * _FLOW.size:
        raise InvalidReport("malformed", "its length does not fit its number of flows, or it has unknown flags")
    flows = tuple(_flow(datagram, _HEADER.size + number * _FLOW.size) for number in range(count))
    report = Report(coflow_id, sender, sequence, sent_at, flows)
    _check(report)
    return report


def other_version(theirs: int, ours: int) -> str:
    """Why a datagram is not read, and what helps."""
    return (f"it is of version {theirs}, this process reads version {ours}: upgrade "
            f"{'this process' if theirs > ours else 'the sender'} (docs/upgrades.md)")


def _flow(datagram: bytes, offset: int) -> FlowReport:
    source, destination, source_port, destination_port, protocol, remaining = _FLOW.unpack_from(datagram, offset)
    if any(datagram[offset + 13:offset + 16]):
        raise InvalidReport("malformed", "bytes that must be zero are not")
    return FlowReport(Flow(inet_ntoa(source), inet_ntoa(destination), source_port, destination_port, protocol),
                      remaining)


def _check(report: Report) -> None:
    if len(report.coflow_id) != ID_BYTES:
        raise InvalidReport("malformed", f"a coflow's id has {ID_BYTES} bytes, not {len(report.coflow_id)}")
    for name, value in (("sender", report.sender), ("sequence", report.sequence),
                        ("sent_at_microseconds", report.sent_at_microseconds)):
        if not 1 <= value < 1 << 64:
            raise InvalidReport("malformed", f"{name} must be in 1 ... 2**64 - 1")
    if not 1 <= len(report.flows) <= MAX_FLOWS:
        raise InvalidReport("malformed", f"a report has 1 to {MAX_FLOWS} flows, not {len(report.flows)}")
    _check_flows(report.flows)


def crosses_network(flow: Flow) -> bool:
    """Whether a flow goes from one host to another, by addresses that reports can carry."""
    return flow.source != flow.destination and _is_host(flow.source) and _is_host(flow.destination)


def _check_flows(flows: Sequence[FlowReport]) -> None:
    if len({each.flow for each in flows}) < len(flows):
        raise InvalidReport("malformed", "a flow is named twice")
    for each in flows:
        flow = each.flow
        if not crosses_network(flow):
            raise InvalidReport("malformed", f"no flow goes from {flow.source} to {flow.destination}")
        if flow.protocol not in (TCP, UDP):
            raise InvalidReport("malformed", f"protocol {flow.protocol} is neither TCP nor UDP")
        if not all(1 <= port <= 65535 for port in (flow.source_port, flow.destination_port)):
            raise InvalidReport("malformed", "a port must be in 1 ... 65535")
        if not 0 <= each.remaining_bytes <= MAX_REMAINING_BYTES:
            raise InvalidReport("malformed", f"a flow has 0 ... {MAX_REMAINING_BYTES} bytes left, "
                                             f"not {each.remaining_bytes}")


@lru_cache(maxsize=1 << 16)
def _is_host(text: str) -> bool:
    try:
        address = IPv4Address(text)
    except ValueError:
        return False
    return not (address.is_multicast or address.is_loopback or address.is_unspecified or address.is_reserved)


def host_key(key: bytes, host: str) -> bytes:
    """Of the host with this IPv4 address, from the key of the installation: who has it speaks for no other host."""
    return hmac.digest(key, b"speedwell coflow host " + IPv4Address(host).packed, sha256).hex().encode()


def mac(message: bytes, key: bytes) -> bytes:
    """What stands at the end of a datagram."""
    return hmac.digest(key, message, sha256)[:MAC_BYTES]


def is_signed(datagram: bytes, key: bytes, hosts: Iterable[bytes]) -> bool:
    """With the key, or with one of these hosts' (4 bytes each)."""
    message, shown = datagram[:-MAC_BYTES], datagram[-MAC_BYTES:]
    return hmac.compare_digest(shown, mac(message, key)) or any(
        hmac.compare_digest(shown, mac(message, host_key(key, inet_ntoa(host)))) for host in hosts)


def _common_ends(message: bytes) -> set[bytes]:
    flows = [{message[offset:offset + 4], message[offset + 4:offset + 8]}
             for offset in range(_HEADER.size, len(message) - _FLOW.size + 1, _FLOW.size)]
    return set.intersection(*flows) if flows else set()
