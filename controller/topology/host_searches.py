"""Which hosts are being looked for, and on whose behalf. No clock, no sockets.

Looking for a host costs one packet for each edge port of the fabric, so no port causes more than a few a second.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from speedwell.controller.topology.arp import Packet
from speedwell.controller.topology.state import PortKey

PAUSE_SECONDS = 1.0
"""How long an address that packets ask for, but nobody answers to, is not asked for again."""
SEARCHES_PER_PORT = 20
"""Addresses that one port may have looked for within the pause."""
MAX_SEARCHES = 1000
"""Addresses that are looked for at the same time."""


@dataclass(slots=True)
class _Search:
    asked_at: float
    asker: PortKey
    waiting: dict[PortKey, Packet] = field(default_factory=dict)


class HostSearches:
    """The addresses looked for within the last second. Times are in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _Search] = OrderedDict()
        self._of_port: dict[PortKey, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def is_open(self, ip: str, now: float) -> bool:
        """Whether an address is being looked for."""
        self._close_old(now)
        return ip in self._open

    def asked(self, now: float) -> list[str]:
        """The addresses that were looked for within the pause."""
        self._close_old(now)
        return list(self._open)

    def may_search(self, ip: str, asker: PortKey, now: float, request: Packet | None = None) -> bool:
        """Whether to look for an address now; it then counts as asked for. `request` is to be answered some time."""
        self._close_old(now)
        search = self._open.get(ip)
        is_new = search is None
        if search is None:
            if len(self._open) >= MAX_SEARCHES or self._of_port.get(asker, 0) >= SEARCHES_PER_PORT:
                return False
            search = self._open[ip] = _Search(now, asker)
            self._of_port[asker] = self._of_port.get(asker, 0) + 1
        if request is not None and (asker in search.waiting or len(search.waiting) < MAX_SEARCHES):
            search.waiting[asker] = request
        return is_new

    def answered(self, ip: str) -> dict[PortKey, Packet]:
        """The requests that waited for a host that was found, by the port they came from."""
        search = self._open.get(ip)
        if search is None:
            return {}
        waiting, search.waiting = search.waiting, {}
        return waiting

    def _close_old(self, now: float) -> None:
        while self._open:
            ip, search = next(iter(self._open.items()))
            if now - search.asked_at < PAUSE_SECONDS:
                return
            del self._open[ip]
            self._of_port[search.asker] -= 1
            if not self._of_port[search.asker]:
                del self._of_port[search.asker]
