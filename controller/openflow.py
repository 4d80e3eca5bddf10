"""What switch tables hold, as plain data, and its translation to and from OpenFlow 1.3 messages.

docs/switch-tables.md describes the tables. Nothing here imports Ryu: messages are made with the parser that a
datapath carries.
"""

from __future__ import annotations

from enum import IntEnum

COOKIE_MASK = 0xFFFF << 48
"""The part of a cookie that says whose entry it is."""
COOKIE_STATIC = 0x5701 << 48
COOKIE_LABELS = 0x5702 << 48
COOKIE_HOSTS = 0x5703 << 48
COOKIE_ROUTES = 0x5704 << 48
COOKIE_READS = 0x5710 << 48
"""Entries of single reads, put in by `Forwarding.install_path` on behalf of the flowserver."""


class Table(IntEnum):
    """The tables a packet may cross, in this order."""

    CLASSIFY = 0
    LABELS = 1
    SOURCES = 2
    ROUTES = 3
    DELIVERY = 4


def cookie(prefix: int, number: int) -> int:
    """The cookie of an entry: one of the prefixes above and a number below 2**48."""
    if prefix & ~COOKIE_MASK or not 0 <= number < 1 << 48:
        raise ValueError(f"no cookie of prefix {prefix:#x} and number {number}")
    return prefix | number
