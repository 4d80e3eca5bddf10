"""Every table, priority, cookie and group number that the controller uses in a switch.

A later system adds a table of its own by a declaration (`speedwell.controller.tables.registry`). The reference is
docs/reference/switch-tables.md.
"""

from __future__ import annotations

from enum import IntEnum

COOKIE_STATIC = 0x5701 << 48
COOKIE_LABELS = 0x5702 << 48
COOKIE_HOSTS = 0x5703 << 48
COOKIE_ROUTES = 0x5704 << 48
COOKIE_FLOWS = 0x5710 << 48
"""Entries of single flows, one each whoever claims it (`speedwell.controller.tables.flow_records`)."""
EXPLICIT_COOKIES = frozenset({COOKIE_FLOWS})
PLANNED_COOKIES = frozenset({COOKIE_STATIC, COOKIE_LABELS, COOKIE_HOSTS, COOKIE_ROUTES})
FIRST_OWNED_COOKIE, LAST_OWNED_COOKIE = 0x5720 << 48, 0x57FF << 48
"""Of tables that systems own."""


class Table(IntEnum):
    """The tables a packet may cross; it only ever goes to a higher one.

    Those that systems own stand from `FIRST_OWNED_TABLE` to `LAST_OWNED_TABLE`: between `SOURCES` and `ROUTES`.
    """

    CLASSIFY = 0
    LABELS = 10
    UNLABEL = 15
    SOURCES = 20
    ROUTES = 40
    NEIGHBOURS = 50
    DELIVERY = 60


FIRST_GROUP, LAST_GROUP = 0x57000000, 0x57FFFFFF
"""Numbers of the controller's groups. All others are somebody else's."""
FIRST_OWNED_TABLE, LAST_OWNED_TABLE = 21, 39


class Priority(IntEnum):
    """All priorities in use. Entries of one table and priority never overlap."""

    MISS = 0
    CLASS = 100
    EDGE_PORT = 120
    QUEUE = 150
    ROUTE = 151
    """Plus the length of the prefix: 151 to 183."""
    HOST = 200
    NO_UNICAST = 250
    EXPLICIT_PATH = 300
