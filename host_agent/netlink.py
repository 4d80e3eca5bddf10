"""Netlink's messages (linux/netlink.h, linux/netfilter/nfnetlink.h), as far as the agent needs them."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator

from speedwell.host_agent.errors import KernelRefused

NETLINK_SOCK_DIAG, NETLINK_NETFILTER = 4, 12
REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
ERROR, DONE = 2, 3
NESTED = 0x8000
SOL_NETLINK, ADD_MEMBERSHIP, DROP_MEMBERSHIP = 270, 1, 2
RECEIVE_BYTES = 1 << 16

HEADER = struct.Struct("=IHHII")
NETFILTER_HEADER = struct.Struct("!BBH")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """(kind, begin, end) of the value of each attribute in `data` from `at` on."""
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & ~NESTED, at + _ATTRIBUTE.size, at + length
        at += (length + 3) & ~3


def message(kind: int, flags: int, body: bytes, sequence: int = 0) -> bytes:
    """A whole message."""
    return HEADER.pack(HEADER.size + len(body), kind, flags, sequence, 0) + body


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(kind, sequence, body) of each message in what was received."""
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, _, sequence, _ = HEADER.unpack_from(data, at)
        if length < HEADER.size:
            return
        yield kind, sequence, data[at + HEADER.size:at + length]
        at += (length + 3) & ~3


def error_of(body: bytes) -> int:
    """The errno in the body of an ERROR message; 0 is an acknowledgement."""
    return -int(_ERROR.unpack_from(body)[0])


def connect(protocol: int, receive_buffer_bytes: int = 1 << 20) -> socket.socket:
    """A netlink socket. Raises KernelRefused."""
    try:
        connection = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        connection.bind((0, 0))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    except OSError as error:
        raise KernelRefused(f"this kernel has no netlink protocol {protocol}: {error.strerror}") from None
    return connection


def refused(what: str, number: int) -> KernelRefused:
    """The error to raise for an errno."""
    hint = " (is it run as root?)" if number in (errno.EPERM, errno.EACCES) else ""
    return KernelRefused(f"{what}: {os.strerror(number)}{hint}")
