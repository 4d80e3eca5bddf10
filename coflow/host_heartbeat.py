"""The datagram by which a host tells what its link to the network has carried (Sinbad, section 5.2), and its sender.

It goes where reports go, under the same key: docs/reference/coflow-protocol.md describes it byte by byte.
"""

from __future__ import annotations

import fcntl
import secrets
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from speedwell.coflow.errors import InvalidReport, InvalidSetting
from speedwell.coflow.report import MAC_BYTES, is_signed, mac, other_version
from speedwell.coflow.settings import SchedulerAddress

MAGIC = b"SPHB"
VERSION = 1
INTERVAL_SECONDS = 1.0
"""The paper's Delta."""
SIOCGIFADDR = 0x8915
"""Linux's number, which Python has no name for."""

_BODY = struct.Struct("!4sB3x4s5Q")
DATAGRAM_BYTES = _BODY.size + MAC_BYTES
_MOST = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class HostHeartbeat:
    """What the interface with the address `host` has received and sent since it came up.

    `sender` is a number the sender drew at its start; `sent_at_microseconds` is its clock (Unix time),
    `uptime_microseconds` one that is never set.
    """

    host: str
    sender: int
    sent_at_microseconds: int
    uptime_microseconds: int
    received_bytes: int
    sent_bytes: int


def is_heartbeat(datagram: bytes) -> bool:
    """Whether it is to be decoded here, not as a report."""
    return datagram[:4] == MAGIC


def encode(heartbeat: HostHeartbeat, key: bytes) -> bytes:
    """The datagram, signed with the shared key. Raises InvalidReport for numbers that have no room in it."""
    numbers = (heartbeat.sender, heartbeat.sent_at_microseconds, heartbeat.uptime_microseconds,
               heartbeat.received_bytes, heartbeat.sent_bytes)
    if not all(0 <= number <= _MOST for number in numbers):
        raise InvalidReport("malformed", "a heartbeat's numbers are in 0 ... 2**64 - 1")
    message = _BODY.pack(MAGIC, VERSION, IPv4Address(heartbeat.host).packed, *numbers)
    return message + mac(message, key)


def decode(datagram: bytes, key: bytes) -> HostHeartbeat:
    """Raises InvalidReport for anything but a heartbeat that the key has signed, or that of its host (`host_key`)."""
    if len(datagram) != DATAGRAM_BYTES or not is_heartbeat(datagram):
        raise InvalidReport("malformed", "this is not a heartbeat")
    if datagram[4] != VERSION:
        raise InvalidReport("version", other_version(datagram[4], VERSION))
    message = datagram[:-MAC_BYTES]
    if not is_signed(datagram, key, [message[8:12]]):
        raise InvalidReport("unauthentic", "it is not signed with our key")
    _, _, host, *numbers = _BODY.unpack(message)
    return HostHeartbeat(socket.inet_ntoa(host), *numbers)


# --- the sending side ---


def interface_of(host: str) -> str:
    """The interface that has an IPv4 address. Raises InvalidSetting if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):     # it has no IPv4 address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == host:
                    return name
    raise InvalidSetting(f"no interface of this machine has the address {host}")


def counters_of(interface: str) -> tuple[int, int]:
    """(bytes received, bytes sent) since it came up. Raises InvalidSetting if there is no such interface (any more).

    /sys/class/net would show another network namespace's interfaces where that has not its own /sys.
    """
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            numbers = counters.split()
            return int(numbers[0]), int(numbers[8])
    raise InvalidSetting(f"this machine has no interface {interface}")


class HostHeartbeats:
    """Sends a host's heartbeats in a thread of its own between `start` and `stop`. An interface that goes, and a
    controller that is away, cost nothing but the heartbeats of that time."""

    def __init__(self, controller: SchedulerAddress, host: str, interval_seconds: float = INTERVAL_SECONDS) -> None:
        """Raises InvalidSetting if no interface has the address `host`."""
        self._controller = controller
        self._host = host
        self._interface = interface_of(host)
        self._interval_seconds = interval_seconds
        self._sender = secrets.randbits(63) + 1
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run_forever, name="host heartbeats", daemon=True)

    def start(self) -> None:
        """Begin sending."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()
        self._socket.close()

    def run_once(self) -> None:
        """Send one. Raises OSError, InvalidSetting."""
        received_bytes, sent_bytes = counters_of(self._interface)
        beat = HostHeartbeat(self._host, self._sender, time.time_ns() // 1000, time.monotonic_ns() // 1000,
                             received_bytes, sent_bytes)
        self._controller.send(self._socket, encode(beat, self._controller.key))

    def _run_forever(self) -> None:
        while not self._stopped.wait(self._interval_seconds):
            with suppress(OSError, InvalidSetting):
                self.run_once()
