"""The rungs of the way from a host up to the core, read off the graph.

A switch's tier is its distance from the nearest host. A rung is a set of nodes that serve the same hosts: the host
itself, its edge switches, its pod's second tier, and so on. In a two-tier fabric everything is one pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from speedwell.controller.policy.network.graph import Link, Network

_POD_RUNGS = 2


@dataclass(frozen=True, slots=True, eq=False)
class Rung:
    """The hosts below a rung, the directed links that join it with the next one, and what these carry one way in
    bits/s. Compared by identity: a network has each of its rungs once."""

    hosts: frozenset[str]
    uplinks: tuple[Link, ...]
    downlinks: tuple[Link, ...]
    capacity_bps: float

    def host_links(self, network: Network, down: bool) -> list[Link]:
        """The links of the hosts below, towards them or from them: what these carry goes through the rung."""
        ends = [(host, switch) for host in sorted(self.hosts) for switch in network.neighbours(host)]
        return [(switch, host) for host, switch in ends] if down else ends


def apart(rungs: Iterable[Rung], other: str) -> Iterator[Rung]:
    """Of rungs from somewhere upwards, those that a path to the host `other` crosses."""
    return takewhile(lambda rung: other not in rung.hosts and rung.uplinks, rungs)


class Tiers:
    """The rungs of a network that may change; they are computed anew when it has."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._version: int | None = None
        self._tiers: dict[str, int] = {}
        self._ladders: dict[frozenset[str], list[Rung]] = {}
        """The rungs from a set of nodes upwards."""
        self._of_host: dict[str, list[Rung]] = {}

    def rungs_from(self, host: str) -> list[Rung]:
        """The rungs from a host upwards; the last one has no uplinks. A host that is not attached has that one."""
        self._follow_network()
        if host not in self._of_host:
            self._of_host[host] = self._ladder(frozenset((host,)))
        return self._of_host[host]

    def rungs_apart(self, host: str, other: str) -> Iterator[Rung]:
        """The rungs of a host that a path between the two crosses: those without `other` below them."""
        return apart(self.rungs_from(host), other)

    def pod_of(self, host: str) -> frozenset[str]:
        """The hosts in a host's pod: what hangs below its second tier of switches."""
        rungs = self.rungs_from(host)
        return rungs[min(_POD_RUNGS, len(rungs) - 1)].hosts

    def _ladder(self, group: frozenset[str]) -> list[Rung]:
        if group not in self._ladders:
            links = [(node, other) for node in sorted(group) if node in self._network
                     for other in self._network.neighbours(node)]
            uplinks = tuple(link for link in links if self._tiers.get(link[1], 0) > self._tiers[link[0]])
            rung = Rung(self._hosts_below(group), uplinks, tuple((above, below) for below, above in uplinks),
                        sum(map(self._network.capacity_bps, uplinks)))
            higher = self._ladder(frozenset(above for _, above in uplinks)) if uplinks else []
            self._ladders[group] = [rung, *higher]
        return self._ladders[group]

    def _hosts_below(self, group: frozenset[str]) -> frozenset[str]:
        if all(map(self._network.is_host, group)):
            return group
        seen = {node for node in group if node in self._network}
        waiting = list(seen)
        while waiting:
            node = waiting.pop()
            for other in self._network.neighbours(node):
                if other not in seen and self._tiers.get(other, 0) < self._tiers[node]:
                    seen.add(other)
                    waiting.append(other)
        return frozenset(node for node in seen if self._network.is_host(node))

    def _follow_network(self) -> None:
        if self._version == self._network.version:
            return
        self._version = self._network.version
        self._ladders.clear()
        self._of_host.clear()
        self._tiers = dict.fromkeys(self._network.hosts, 0)
        row = list(self._network.hosts)
        while row:
            following = []
            for node in row:
                for other in self._network.neighbours(node):
                    if other not in self._tiers:
                        self._tiers[other] = self._tiers[node] + 1
                        following.append(other)
            row = following
