"""Marks of live connections, and news of those that begin (ctnetlink, linux/netfilter/nfnetlink_conntrack.h)."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address

from speedwell.coflow.report import Flow
from speedwell.host_agent import netlink
from speedwell.host_agent.uplink import MARK_MASK

_SET = 1 << 8
_NEW_GROUP = 1
_TUPLE, _REPLY, _MARK, _MARK_MASK = 1, 2, 8, 21
_TUPLE_ADDRESSES, _TUPLE_PORTS = 1, 2
_SOURCE, _DESTINATION = 1, 2
_PROTOCOL, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3


class Marks:
    """Sets the class bits of connections' marks."""

    def __init__(self) -> None:
        """Raises KernelRefused."""
        self._socket = netlink.connect(netlink.NETLINK_NETFILTER)
        self._socket.settimeout(1.0)
        self._sequence = 0

    def set(self, flow: Flow, mark: int) -> bool:
        """Mark the connection that a flow, in either direction, is part of. False: there is none (yet).

        Raises KernelRefused.
        """
        self._sequence += 1
        body = netlink.NETFILTER_HEADER.pack(socket.AF_INET, 0, 0) + _tuple(flow) + netlink.attribute(
            _MARK, struct.pack("!I", mark)) + netlink.attribute(_MARK_MASK, struct.pack("!I", MARK_MASK))
        self._socket.send(netlink.message(_SET, netlink.REQUEST | netlink.ACK, body, self._sequence))
        while True:
            for kind, sequence, answer in netlink.messages(self._socket.recv(netlink.RECEIVE_BYTES)):
                if kind == netlink.ERROR and sequence == self._sequence:
                    number = netlink.error_of(answer)
                    if number not in (0, errno.ENOENT):
                        raise netlink.refused("a connection's mark", number)
                    return number == 0

    def close(self) -> None:
        self._socket.close()


class Beginnings:
    """Connections that begin, in either direction, while somebody wants to hear of them."""

    def __init__(self) -> None:
        """Raises KernelRefused."""
        self.socket = netlink.connect(netlink.NETLINK_NETFILTER)
        self.socket.setblocking(False)
        self._is_wanted = False

    def want(self, is_wanted: bool) -> None:
        """The kernel makes no news that nobody wants. Raises OSError."""
        if is_wanted != self._is_wanted:
            self.socket.setsockopt(netlink.SOL_NETLINK, netlink.ADD_MEMBERSHIP if is_wanted
                                   else netlink.DROP_MEMBERSHIP, _NEW_GROUP)
            self._is_wanted = is_wanted

    def receive(self) -> Iterator[Flow]:
        """Since the last call, without waiting for any. Where there were too many, some are missing."""
        with suppress(OSError):
            while data := self.socket.recv(netlink.RECEIVE_BYTES):
                for _, _, body in netlink.messages(data):
                    for kind, begin, end in netlink.attributes(body, netlink.NETFILTER_HEADER.size):
                        if kind in (_TUPLE, _REPLY) and body[0] == socket.AF_INET:
                            yield _flow(body[begin:end])

    def close(self) -> None:
        self.socket.close()


def _flow(body: bytes) -> Flow:
    parts = {kind: {inner: body[at:to] for inner, at, to in netlink.attributes(body[:end], begin)}
             for kind, begin, end in netlink.attributes(body, 0)}
    addresses, ports = parts[_TUPLE_ADDRESSES], parts[_TUPLE_PORTS]
    from_port, to_port = (int.from_bytes(ports.get(kind, b"")) for kind in (_SOURCE_PORT, _DESTINATION_PORT))
    return Flow(socket.inet_ntoa(addresses[_SOURCE]), socket.inet_ntoa(addresses[_DESTINATION]), from_port, to_port,
                ports[_PROTOCOL][0])


def _tuple(flow: Flow) -> bytes:
    addresses = (netlink.attribute(_SOURCE, IPv4Address(flow.source).packed)
                 + netlink.attribute(_DESTINATION, IPv4Address(flow.destination).packed))
    ports = (netlink.attribute(_PROTOCOL, bytes([flow.protocol]))
             + netlink.attribute(_SOURCE_PORT, struct.pack("!H", flow.source_port))
             + netlink.attribute(_DESTINATION_PORT, struct.pack("!H", flow.destination_port)))
    return netlink.attribute(_TUPLE | netlink.NESTED, netlink.attribute(_TUPLE_ADDRESSES | netlink.NESTED, addresses)
                             + netlink.attribute(_TUPLE_PORTS | netlink.NESTED, ports))
