"""Packets that the kernel holds until it is told to let them go (NFQUEUE, linux/netfilter/nfnetlink_queue.h).

One queue a destination, so that a single message sets free all that waits for it.
"""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from speedwell.host_agent import netlink

_SUBSYSTEM = 3 << 8
_PACKET, _VERDICT_BATCH, _CONFIG = _SUBSYSTEM | 0, _SUBSYSTEM | 3, _SUBSYSTEM | 2
_VERDICT_HEADER = 2
_COMMAND, _PARAMETERS, _MAX_LENGTH, _MASK, _FLAGS = 1, 2, 3, 4, 5
_BIND, _UNBIND = 1, 2
_COPY_PACKET = 2
_FAIL_OPEN, _GSO = 1, 4
_ACCEPT = 1
_COPIED_BYTES = 20
"""Of each packet: the header, which tells its length."""
_MAX_PACKETS = 4096
"""A queue that is full lets packets pass."""
_NUMBER = struct.Struct("!I")
_QUEUE, _NUMBER_AT = struct.Struct("!2xH"), 8
_LENGTH, _LENGTH_AT = struct.Struct("!H"), 2
"""A packet's message begins with its header attribute, and ends with what was copied."""
_VERDICT = struct.Struct("!II")
WAITING_FILE = Path("/proc/net/netfilter/nfnetlink_queue")
"""One line a queue of this network namespace."""


class Packet(NamedTuple):
    """`number` counts the packets of a queue."""

    queue: int
    number: int
    size_bytes: int


class PacketQueues:
    """Who has this socket, also as an inherited descriptor, may let packets go."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        """Raises KernelRefused."""
        self.socket = connection or netlink.connect(netlink.NETLINK_NETFILTER, 1 << 22)
        self.socket.setblocking(False)
        self._unread: list[Packet] = []
        self._sequence = 0

    def bind(self, queue: int, in_frames: bool = True) -> None:
        """Hold what rules send to this queue; frame by frame, or what the host's segmentation offload gets at once.

        Raises KernelRefused, as where another process has the queue.
        """
        self._request(queue, netlink.attribute(_COMMAND, struct.pack("!BBH", _BIND, 0, socket.AF_INET)))
        flags = netlink.attribute(_FLAGS, _NUMBER.pack(_FAIL_OPEN | (0 if in_frames else _GSO)))
        mask = netlink.attribute(_MASK, _NUMBER.pack(_FAIL_OPEN | _GSO))
        self._request(queue, netlink.attribute(_PARAMETERS, struct.pack("!IB", _COPIED_BYTES, _COPY_PACKET))
                      + netlink.attribute(_MAX_LENGTH, _NUMBER.pack(_MAX_PACKETS)) + flags + mask)

    def unbind(self, queue: int) -> None:
        """Its packets are lost: accept them before, and take the rule away before that. Raises KernelRefused."""
        self._request(queue, netlink.attribute(_COMMAND, struct.pack("!BBH", _UNBIND, 0, socket.AF_INET)))

    def receive(self) -> list[Packet]:
        """What has come to wait since the last call, without waiting for any."""
        packets, self._unread = self._unread, []
        while data := self._read():
            packets += self._packets(data)
        return packets

    def accept(self, queue: int, number: int) -> None:
        """Let go all packets of a queue up to one."""
        self._send(_VERDICT_BATCH, netlink.REQUEST, queue,
                   netlink.attribute(_VERDICT_HEADER, _VERDICT.pack(_ACCEPT, number)))

    def accept_all(self) -> int:
        """Let go whatever waits in queues of this socket; how many packets that were."""
        while self._read():
            pass
        self._unread = []
        total, port = 0, self.socket.getsockname()[0]
        for line in WAITING_FILE.read_text().splitlines():
            queue, owner, waiting, *_, last, _ = map(int, line.split())
            if owner == port and waiting:
                self.accept(queue, last)
                total += waiting
        return total

    def _read(self) -> bytes:
        try:
            return self.socket.recv(netlink.RECEIVE_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno != errno.ENOBUFS:    # then packets passed, since the queue fails open
                raise
            return b""

    @staticmethod
    def _packets(data: bytes) -> list[Packet]:
        return [Packet(_QUEUE.unpack_from(body)[0], _NUMBER.unpack_from(body, _NUMBER_AT)[0],
                       _LENGTH.unpack_from(body, len(body) - _COPIED_BYTES + _LENGTH_AT)[0])
                for kind, _, body in netlink.messages(data) if kind == _PACKET]

    def _send(self, kind: int, flags: int, queue: int, attributes: bytes, sequence: int = 0) -> None:
        header = netlink.NETFILTER_HEADER.pack(socket.AF_UNSPEC, 0, queue)
        self.socket.send(netlink.message(kind, flags, header + attributes, sequence))

    def _request(self, queue: int, attributes: bytes) -> None:
        """The kernel answers within `send`; packets may stand before its answer."""
        self._sequence += 1
        self._send(_CONFIG, netlink.REQUEST | netlink.ACK, queue, attributes, self._sequence)
        while data := self._read():
            for kind, sequence, body in netlink.messages(data):
                if kind == netlink.ERROR and sequence == self._sequence:
                    if number := netlink.error_of(body):
                        raise netlink.refused(f"NFQUEUE {queue}", number)
                    return
            self._unread += self._packets(data)
