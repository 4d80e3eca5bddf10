"""What the kernel tells of TCP connections (linux/inet_diag.h), and the pace of their senders."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from speedwell.coflow.report import TCP, Flow
from speedwell.host_agent import netlink

_ALL_FAMILIES = 18
"""The older request (TCPDIAG_GETSOCK): one walk through the kernel's table, of which each takes 0.2 ms, not two."""
_REQUEST = struct.Struct("=3xB48xII")
_ANSWER = struct.Struct("!B3xHH16s16s4x8s")
_NUMBERS = struct.Struct("=IIIII")
_INFO = 2
_SEGMENTS, _BYTES = struct.Struct("=I"), struct.Struct("=Q")
_RETRANSMITTED_AT, _ACKNOWLEDGED_AT, _UNSENT_AT = 100, 120, 144
"""`tcpi_total_retrans`, `tcpi_bytes_acked` and `tcpi_notsent_bytes` of `struct tcp_info`."""
_SENDING_STATES = sum(1 << state for state in (1, 2, 4, 8, 9, 11))
"""Established or about to be, and the ways of closing in which data may still go."""
_V4_IN_V6 = bytes(10) + b"\xff\xff"
SO_MAX_PACING_RATE = 47
UNPACED = (1 << 64) - 1
_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


class Connection(NamedTuple):
    """A TCP connection, seen from its sender. `cookie` tells it from any other of this machine's; `unsent_bytes` are
    those of the queued ones that TCP has not sent once."""

    flow: Flow
    cookie: bytes
    inode: int
    queued_bytes: int
    acknowledged_bytes: int
    retransmitted_segments: int
    unsent_bytes: int = 0


def connections(diagnostics: socket.socket) -> Iterator[Connection]:
    """Those of this network namespace that can send, by IPv4, also from sockets of IPv6; `diagnostics` is of
    `netlink.connect(NETLINK_SOCK_DIAG)`. Raises KernelRefused."""
    diagnostics.send(netlink.message(_ALL_FAMILIES, netlink.REQUEST | netlink.DUMP,
                                     _REQUEST.pack(1 << (_INFO - 1), _SENDING_STATES, 0)))
    is_done = False
    while not is_done:
        for kind, _, body in netlink.messages(diagnostics.recv(netlink.RECEIVE_BYTES)):
            is_done |= kind == netlink.DONE
            if kind == netlink.ERROR:
                raise netlink.refused("the kernel's TCP connections", netlink.error_of(body))
            if kind == _ALL_FAMILIES and (connection := _connection(body)):
                yield connection


def _connection(body: bytes) -> Connection | None:
    family, port, to_port, source, destination, cookie = _ANSWER.unpack_from(body)
    _, _, queued_bytes, _, inode = _NUMBERS.unpack_from(body, _ANSWER.size)
    if family == socket.AF_INET6:
        if not source.startswith(_V4_IN_V6):
            return None
        source, destination = source[12:], destination[12:]
    acknowledged = retransmitted = unsent = 0
    for kind, begin, end in netlink.attributes(body, _ANSWER.size + _NUMBERS.size):
        if kind == _INFO and end - begin >= _UNSENT_AT + _SEGMENTS.size:
            retransmitted = _SEGMENTS.unpack_from(body, begin + _RETRANSMITTED_AT)[0]
            acknowledged = _BYTES.unpack_from(body, begin + _ACKNOWLEDGED_AT)[0]
            unsent = _SEGMENTS.unpack_from(body, begin + _UNSENT_AT)[0]
    flow = Flow(socket.inet_ntoa(source[:4]), socket.inet_ntoa(destination[:4]), port, to_port, TCP)
    return Connection(flow, cookie, inode, queued_bytes, acknowledged, retransmitted, unsent)


@dataclass(slots=True)
class Sending:
    """All large flows to a destination: bytes that wait in their sockets, and what has gone since the count began."""

    queued_bytes: int = 0
    sent_bytes: int = 0
    retransmitted_segments: int = 0
    unsent_bytes: int = 0


class Senders:
    """Adds connections up by destination. Those that ended stay in the sums until `drop`."""

    def __init__(self, address: str, threshold_bytes: int) -> None:
        self._address = address
        self.threshold_bytes = threshold_bytes
        self._known: dict[bytes, tuple[int, int]] = {}
        self._live: set[str] = set()
        """Destinations that have a large flow now."""
        self.sums: dict[str, Sending] = {}

    def count(self, now: list[Connection]) -> dict[str, Sending]:
        """By destination, all that had a large flow: `sums`."""
        for sending in self.sums.values():
            sending.queued_bytes = sending.unsent_bytes = 0
        known = {}
        for each in now:
            is_large = each.acknowledged_bytes + each.queued_bytes >= self.threshold_bytes
            if each.flow.source != self._address or not is_large:
                continue
            sending = self.sums.setdefault(each.flow.destination, Sending())
            acknowledged, retransmitted = self._known.get(each.cookie, (0, 0))
            known[each.cookie] = each.acknowledged_bytes, each.retransmitted_segments
            sending.queued_bytes += each.queued_bytes
            sending.unsent_bytes += each.unsent_bytes
            sending.sent_bytes += each.acknowledged_bytes - acknowledged
            sending.retransmitted_segments += each.retransmitted_segments - retransmitted
        self._known = known
        self._live = {each.flow.destination for each in now if each.cookie in known}
        return self.sums

    def drop(self, told: Collection[str]) -> None:
        """Forget sums that were told, of destinations without a large flow by now."""
        for destination in self.sums.keys() & set(told) - self._live:
            del self.sums[destination]


def pace(rates_bps: Mapping[int, int]) -> set[int]:
    """Limit what sockets send, by their inodes and whosever they are; 0: no longer. Returns those that somebody has
    open. TCP keeps to it by itself, whatever the qdisc."""
    left = {f"socket:[{inode}]": inode for inode in rates_bps}
    for pid, descriptor, name in _holders(left):
        with suppress(OSError), socket.socket(fileno=_copy_of(pid, descriptor)) as copy:
            rate_bps = rates_bps[left[name]]
            copy.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", rate_bps // 8 or UNPACED))
            del left[name]
            if not left:
                break
    return rates_bps.keys() - left.values()


def _holders(names: Collection[str]) -> Iterator[tuple[int, int, str]]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for link in (process / "fd").iterdir():
                with suppress(OSError):
                    if (name := str(link.readlink())) in names:
                        yield int(process.name), int(link.name), name


def _copy_of(pid: int, descriptor: int) -> int:
    """pidfd_getfd(2). Raises OSError."""
    process = os.pidfd_open(pid)
    try:
        copy = _libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)
    if copy < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return int(copy)
