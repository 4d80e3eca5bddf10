"""How a fabric is emulated, whichever fabric it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal

from speedwell.topo.emulation.errors import InvalidSettings
from speedwell.topo.fabric.addresses import MACHINE_ADDRESS

LABELS_BYTES = 100  # what the links between switches carry beyond a host's packet: a stack of MPLS labels
_MAX_MTU = 65535 - LABELS_BYTES

FailMode = Literal["secure", "standalone"]

INSECURE = ("insecure: no certificates here, so every user of this machine may ask the controller and its switches "
            "anything")
"""Said where a controller is started without identities."""


@dataclass(frozen=True)
class Settings:
    """What all nodes and links of one emulation share. Raises `InvalidSettings`.

    `mtu` (bytes) is that of the hosts; links have `LABELS_BYTES` more. `queue_packets` is the length of each
    shaped queue: jumbo frames and 10 to 30 packets carry several times what the defaults do on a small machine.
    `host_queue_packets` is that of the hosts' own queues, if another: where one host sends on more connections than
    its queue has places, they lose what they send before it has left, and give up within seconds.
    `congestion_control` is TCP's on the hosts; None means cubic where namespaces may use it, else the machine's own.
    `controller` is where the switches look for one, as (address, TCP port), or None for no controller; `standby`
    where another one is that may take its place.
    `queues` lets the ports between switches classify packets by their MPLS traffic class, so that a controller can
    give each class a queue (docs/reference/switch-tables.md); `best_effort_packets` is then the length of
    the queue of class 0.
    `host_queues` has the queues of ports to hosts, by DSCP, only where host agents vouch for it: of each class from 0
    on the share of the port that it has for certain, and its precedence for what is left (0 first). None: one queue.
    `identities` has a directory for each switch with the key and certificate of its datapath id
    (`speedwell.fs.identity.bundle`): then OpenFlow and the switches' databases are over TLS alone.
    With `fail_mode` "standalone" a switch without a controller learns addresses like a bridge, which suits
    fabrics without loops only.
    """

    controller: tuple[str, int] | None = None
    standby: tuple[str, int] | None = None
    mtu: int = 9000
    queue_packets: int = 20
    host_queue_packets: int | None = None
    shaped: bool = True
    congestion_control: str | None = None
    fail_mode: FailMode = "secure"
    queues: bool = False
    best_effort_packets: int = 2
    host_queues: Sequence[tuple[float, int]] = ()
    identities: Path | None = None

    def __post_init__(self) -> None:
        if not 576 <= self.mtu <= _MAX_MTU:
            raise InvalidSettings(f"mtu: must be in 576 ... {_MAX_MTU} bytes, not {self.mtu}")
        if not 1 <= self.queue_packets <= 100_000:
            raise InvalidSettings(f"queue_packets: must be in 1 ... 100000, not {self.queue_packets}")
        if self.host_queue_packets is not None and not 1 <= self.host_queue_packets <= 100_000:
            raise InvalidSettings(f"host_queue_packets: must be in 1 ... 100000, not {self.host_queue_packets}")
        if not 1 <= self.best_effort_packets <= 100_000:
            raise InvalidSettings(f"best_effort_packets: must be in 1 ... 100000, not {self.best_effort_packets}")
        if (self.queues or self.host_queues) and not self.shaped:
            raise InvalidSettings("queues: a link that is not shaped has no queues to choose from")
        if self.fail_mode not in ("secure", "standalone"):
            raise InvalidSettings(f"fail_mode: must be secure or standalone, not {self.fail_mode!r}")
        if self.congestion_control is not None and not self.congestion_control.isidentifier():
            raise InvalidSettings(f"congestion_control: {self.congestion_control!r} is no algorithm's name")
        for address, port in self.controllers:
            _check_controller(address, port)

    @property
    def controllers(self) -> tuple[tuple[str, int], ...]:
        """All that the switches look for."""
        return tuple(each for each in (self.controller, self.standby) if each is not None)

    @property
    def fabric_mtu(self) -> int:
        """MTU of the links, in bytes."""
        return self.mtu + LABELS_BYTES


def _check_controller(address: str, port: int) -> None:
    try:
        loopback = IPv4Address(address).is_loopback
    except ValueError:
        raise InvalidSettings(f"controller: {address!r} is not an IPv4 address") from None
    if loopback:
        raise InvalidSettings(f"controller: switches cannot reach {address}; let the controller listen on "
                              f"{MACHINE_ADDRESS}, this machine's address on the management network")
    if not 1 <= port <= 65535:
        raise InvalidSettings(f"controller: the port must be in 1 ... 65535, not {port}")
