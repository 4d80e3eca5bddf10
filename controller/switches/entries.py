"""What switch tables hold, as plain data. controller/switches/layout.py has the tables, priorities and cookies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

COOKIE_MASK = 0xFFFF << 48
"""The part of a cookie that says whose entry it is."""

ETH_IPV4 = 0x0800
ETH_ARP = 0x0806
ETH_MPLS = 0x8847
ETH_LLDP = 0x88CC
IP_TCP = 6
IP_UDP = 17

PORT_MAX = 0xFFFFFF00
PORT_IN_PORT = 0xFFFFFFF8
PORT_CONTROLLER = 0xFFFFFFFD
PORT_ANY = GROUP_ANY = 0xFFFFFFFF
NO_BUFFER = 0xFFFFFFFF
HEADER_BYTES = 128
"""How much of a packet the controller is sent: all headers of ARP, LLDP and IPv4."""


@dataclass(frozen=True, slots=True)
class Output:
    """Send out of a port."""

    port_no: int


@dataclass(frozen=True, slots=True)
class ToGroup:
    """Hand to a group."""

    group_id: int


@dataclass(frozen=True, slots=True)
class PushLabel:
    """Push an MPLS label, in the lowest traffic class."""

    label: int


@dataclass(frozen=True, slots=True)
class SetQueue:
    """Put into a queue of the port it will leave by. The userspace datapath ignores it."""

    queue: int


@dataclass(frozen=True, slots=True)
class PopLabel:
    """Take the only MPLS label off a packet, IPv4 or of another ethertype."""

    ethertype: int = ETH_IPV4


@dataclass(frozen=True, slots=True)
class LoadLabel:
    """Keep a label and a traffic class in registers, for a group whose buckets push them.

    None leaves the class that the packet has: none, or by CLASS_OF_DSCP the one that its sender's agent gave it.
    """

    label: int
    traffic_class: int | None = None


@dataclass(frozen=True, slots=True)
class PushLoaded:
    """Push the label and the traffic class that registers hold, the lowest `bits` bits of the label overwritten."""

    choice: int = 0
    bits: int = 0


@dataclass(frozen=True, slots=True)
class SetField:
    """Overwrite a header field, named as in a match."""

    field: str
    value: str | int


@dataclass(frozen=True, slots=True)
class CopyField:
    """Copy one header field over another (Nicira extension, as Open vSwitch has it)."""

    source: str
    destination: str
    bits: int


CLASS_OF_DSCP = CopyField("ip_dscp", "reg1", 3)
"""Takes the low bits of a packet's DSCP for its traffic class, until another action names one."""


@dataclass(frozen=True, slots=True)
class ForgetPort:
    """Let a packet leave by the port by which it came, too (Nicira extension: `in_port` becomes 0)."""


Action = (Output | ToGroup | PushLabel | SetQueue | PopLabel | LoadLabel | PushLoaded | SetField | CopyField
          | ForgetPort)
Match = tuple[tuple[str, Any], ...]
FlowKey = tuple[int, int, Match]


def dpid_hex(dpid: int) -> str:
    """A datapath id as it is written everywhere: 16 hex digits."""
    return f"{dpid:016x}"


def match(**fields: Any) -> Match:
    """A match with its fields in a fixed order; a masked field is a pair (value, mask)."""
    return tuple(sorted(fields.items()))


@dataclass(frozen=True, slots=True)
class FlowEntry:
    """One flow entry: apply `actions`, then go on to table `goto`, if any."""

    table: int
    priority: int
    match: Match
    actions: tuple[Action, ...] = ()
    goto: int | None = None
    cookie: int = 0
    idle_timeout_seconds: int = 0
    notify_removal: bool = False
    meter_id: int | None = None
    hard_timeout_seconds: int = 0
    reset_counts: bool = field(default=False, compare=False)
    """Whether an entry that is added in the place of another counts from 0, and not from where that one was."""

    @property
    def key(self) -> FlowKey:
        """What makes two entries of a switch the same one."""
        return self.table, self.priority, self.match

    def metered(self, meter_id: int | None, reset_counts: bool) -> FlowEntry:
        """The same with this meter; `reset_counts` as above. In a quarter of the time that `replace` takes."""
        return FlowEntry(self.table, self.priority, self.match, self.actions, self.goto, self.cookie,
                         self.idle_timeout_seconds, self.notify_removal, meter_id, self.hard_timeout_seconds,
                         reset_counts)


@dataclass(frozen=True, slots=True)
class Bucket:
    """One choice of a group. The switch leaves it out by itself while the port or the group it watches is down."""

    actions: tuple[Action, ...]
    watch_port_no: int = PORT_ANY
    watch_group_id: int = GROUP_ANY


@dataclass(frozen=True, slots=True)
class Group:
    """A group that sends each flow through one of its buckets, all of the same weight, or through the first one that
    lives (`is_failover`)."""

    group_id: int
    buckets: tuple[Bucket, ...]
    is_failover: bool = False


@dataclass(frozen=True, slots=True)
class Meter:
    """Drops what comes faster than a rate. OpenFlow counts in kbit/s and kbit."""

    meter_id: int
    rate_kbps: int
    burst_kbits: int


FIRST_PACKET_METER, LAST_PACKET_METER = 0x1FFFE, 0x2FFFF
"""Numbers of meters that limit what switches hand up; meters of flows have higher ones."""


@dataclass(frozen=True, slots=True)
class PacketMeter:
    """Drops packets beyond so many a second. Its burst is in packets."""

    meter_id: int
    rate_per_second: int
    burst_packets: int


def cookie(prefix: int, number: int) -> int:
    """The cookie of an entry: a prefix (controller/switches/layout.py) and a number below 2**48."""
    if prefix & ~COOKIE_MASK or not 0 <= number < 1 << 48:
        raise ValueError(f"no cookie of prefix {prefix:#x} and number {number}")
    return prefix | number
