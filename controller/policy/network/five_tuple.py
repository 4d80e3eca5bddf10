"""What identifies one transport flow to a switch."""

from __future__ import annotations

from dataclasses import dataclass

TCP = 6


@dataclass(frozen=True, slots=True)
class FiveTuple:
    """Addresses (dotted IPv4), IP protocol number and ports of one direction of a connection."""

    source: str
    destination: str
    protocol: int
    source_port: int
    destination_port: int
