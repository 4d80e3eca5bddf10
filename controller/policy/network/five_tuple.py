"""What identifies one transport flow to a switch."""

from __future__ import annotations

from typing import NamedTuple

TCP = 6


class FiveTuple(NamedTuple):
    """Addresses (dotted IPv4), IP protocol number and ports of one direction of a connection."""

    source: str
    destination: str
    protocol: int
    source_port: int
    destination_port: int
