"""Nodes and links of the fabric by numbers that stay, so that a picture of a second is a list of loads."""

from __future__ import annotations

from typing import Any

from speedwell.controller.counters.measurements import Measurements, counter_of
from speedwell.controller.policy.network.graph import Link
from speedwell.controller.topology.state import NetworkState

IS_DOWN, NOT_MEASURED = -1, -2
FULL_LOAD = 1000
MOST_GONE = 4096


class FabricMap:
    """What is gone keeps its number, to be shown as missing, until more is gone than there is and than MOST_GONE.
    Then `epoch` is raised and numbers are given anew."""

    def __init__(self, state: NetworkState, measurements: Measurements) -> None:
        self._state = state
        self._measurements = measurements
        self._seen: object = None
        self.epoch = 0
        self._nodes: dict[str, int] = {}
        """Each node's tier: 0 a host, 1 a switch with hosts, 2 a switch above, and so on."""
        self._links: dict[Link, None] = {}
        """One of the two directions of each link."""

    def follow(self) -> bool:
        """Take in what has changed. False if nothing has."""
        network = self._state.network
        seen = network.version, tuple(self._state.name_of(dpid) for dpid in self._state.switches)
        if seen == self._seen:
            return False
        self._seen = seen
        links, nodes = set(network.links), len(network.switches) + len(network.hosts)
        if any(known - live > max(live, MOST_GONE)
               for known, live in ((2 * len(self._links), len(links)), (len(self._nodes), nodes))):
            self.epoch += 1
            self._nodes.clear()
            self._links.clear()
        self._nodes.update(self._tiers())
        for link in sorted(links):
            if link not in self._links and link[::-1] not in self._links:
                self._links[link] = None
        return True

    def description(self) -> dict[str, Any]:
        """Nodes as [id, name, tier], links as [number of one node, of the other, bits/s there, bits/s back]."""
        numbers = {node: number for number, node in enumerate(self._nodes)}
        return {"epoch": self.epoch,
                "nodes": [[node, self._state.name_of(node), tier] for node, tier in self._nodes.items()],
                "links": [[numbers[a], numbers[b], self._capacity((a, b)), self._capacity((b, a))]
                          for a, b in self._links]}

    def loads(self) -> list[int]:
        """For each link the load there and back, in thousandths of its capacity; IS_DOWN, NOT_MEASURED."""
        return [self._load(link) for there in self._links for link in (there, there[::-1])]

    def _load(self, link: Link) -> int:
        network = self._state.network
        if not network.has_link(link):
            return IS_DOWN
        counter = counter_of(self._state, self._measurements, link)
        rate_bps = counter.rate_bps if counter else None
        return NOT_MEASURED if rate_bps is None else round(FULL_LOAD * rate_bps / network.capacity_bps(link))

    def _capacity(self, link: Link) -> float | None:
        return self._state.network.capacity_bps(link) if self._state.network.has_link(link) else None

    def _tiers(self) -> dict[str, int]:
        network = self._state.network
        row = [dpid for dpid in self._state.edge_switches() if dpid in network]
        tiers = {**dict.fromkeys(network.hosts, 0), **dict.fromkeys(row, 1)}
        while row:
            row = list(dict.fromkeys(other for node in row for other in network.neighbours(node)
                                     if other not in tiers))
            tiers.update(dict.fromkeys(row, 1 + max(tiers.values())))
        return {**dict.fromkeys(sorted(network.switches), 1), **tiers}
