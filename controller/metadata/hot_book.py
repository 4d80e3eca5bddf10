"""The keys that are read most, and which servers answer them beside their owners. Knows nothing of switches.

A replica is told first; its switch lets it answer from the address, and sends requests there once all replicas that
share a key in a rack have a route to it. When that ends, the switch stops first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from speedwell.controller.policy.metadata.hot_keys import NONE, HotKeys, planned
from speedwell.controller.policy.metadata.layout import Layout
from speedwell.controller.policy.network.prefixes import ADDRESS_BITS, Prefix

PLAN_SECONDS = 3.0
SMOOTHING = 0.5
"""The weight of what a server said last, in the mean of what it said."""
MOST_KEYS = 512

Place = tuple[str, int]
"""(edge switch, address)"""


@dataclass(frozen=True, slots=True)
class Said:
    """What a server counts, in reads/s, and the addresses that it has routes to as a replica."""

    reads: float
    hottest: Mapping[int, float]
    answers_for: frozenset[int] = frozenset()


class HotBook:
    """`version` grows with what tables are made of; set `synced_version` once switches hold it."""

    def __init__(self, room: Callable[[], int]) -> None:
        """`room`: how many more entries the fullest switch takes."""
        self._room = room
        self._said: dict[str, Said] = {}
        self._plan: HotKeys = NONE
        self._planned_at = -PLAN_SECONDS
        self._prepared: dict[Place, tuple[tuple[str, ...], int]] = {}
        """Who is told to answer, and since which version its switch lets it."""
        self._ending: dict[Place, tuple[tuple[str, ...], int]] = {}
        """Who is to answer until switches hold this version."""
        self.in_force: dict[Place, tuple[str, ...]] = {}
        """Where requests are sent, by the last bits of the client's address."""
        self.version = 0
        self.synced_version = 0

    def said(self, host: str, now_said: Said) -> None:
        before = self._said.get(host, now_said)
        addresses = before.hottest.keys() | now_said.hottest.keys()
        mean = {address: _mean(before.hottest.get(address, 0.0), now_said.hottest.get(address, 0.0))
                for address in addresses}
        self._said[host] = Said(_mean(before.reads, now_said.reads),
                                {address: rate for address, rate in mean.items() if rate >= 0.1},
                                now_said.answers_for)

    @property
    def rates(self) -> dict[int, float]:
        """Reads/s by address, of those that some server counts."""
        found: dict[int, float] = {}
        for said in self._said.values():
            for address, rate in said.hottest.items():
                found[address] = found.get(address, 0.0) + rate
        return found

    def go_on(self, now: float, layout: Layout | None, alive: Collection[str]) -> None:
        """Do what is due; `alive` are the servers that were heard lately."""
        self._said = {host: said for host, said in self._said.items() if host in alive}
        gone = any(server not in alive or (layout is not None and server not in layout.above)
                   for servers, _ in self._prepared.values() for server in servers)
        if now - self._planned_at >= PLAN_SECONDS or gone:
            self._planned_at = now
            self._plan_anew(layout, alive)
        if self.synced_version >= self.version:
            self._ending.clear()
        for place, (servers, since) in self._prepared.items():
            if place not in self.in_force and self.synced_version >= since and all(
                    server in self._said and place[1] in self._said[server].answers_for for server in servers):
                self.in_force[place] = servers
                self.version += 1

    def _plan_anew(self, layout: Layout | None, alive: Collection[str]) -> None:
        rates = self.rates
        if layout is None or not layout.above or not layout.above.keys() <= set(alive):
            self._plan = NONE
        else:
            rest = max(sum(said.reads for said in self._said.values()) - sum(rates.values()), 0.0)
            self._plan = planned(layout, rates, rest, self._plan, min(self._room(), MOST_KEYS))
        wanted = {(switch, prefix[0]): servers for switch, table in self._plan.entries.items()
                  for prefix, servers in table.items()}
        changed = {place: servers for place, (servers, _) in self._prepared.items() if wanted.get(place) != servers}
        begun = {place: servers for place, servers in wanted.items()
                 if place not in self._prepared or place in changed}
        if changed or begun:
            self.version += 1
        for place, servers in changed.items():
            self.in_force.pop(place, None)
            del self._prepared[place]
            self._ending[place] = servers, self.version
        self._prepared |= {place: (servers, self.version) for place, servers in begun.items()}

    @property
    def _told(self) -> list[tuple[int, tuple[str, ...]]]:
        return [(place[1], servers) for known in (self._prepared, self._ending)
                for place, (servers, _) in known.items()]

    def replicated(self, host: str) -> set[int]:
        """The addresses that a server is to answer beside their owners."""
        return {address for address, servers in self._told if host in servers}

    @property
    def addresses(self) -> set[int]:
        """Those that requests are sent to replicas of, somewhere."""
        return {address for _, address in self.in_force}

    @property
    def senders(self) -> dict[str, list[Prefix]]:
        """From which addresses each server may answer beside its own."""
        found: dict[str, set[int]] = {}
        for address, servers in self._told:
            for server in servers:
                found.setdefault(server, set()).add(address)
        return {server: [(address, ADDRESS_BITS) for address in sorted(addresses)]
                for server, addresses in found.items()}


def _mean(before: float, now: float) -> float:
    return before + SMOOTHING * (now - before)
