"""Sinbad-R: Sinbad's load-aware placement turned round for reads (Mayflower, section 6.2).

Sinbad (Chowdhury et al., "Leveraging endpoint flexibility in data-intensive clusters", SIGCOMM 2013) sees
the load of the hosts' links only, and takes what the hosts below a switch send as the load of the links above it.
It picks the machine whose bottleneck has most bandwidth left. Two things differ for reads:

1. The links that count face the core: those that data takes from the replica up to where it turns.
2. If the client shares a pod with any replica, only the replicas in that pod are considered.

The policy `sinbad-r-measured` is one that nobody tells of the transfers placed: it has measurements only.

Tiers, racks and pods are read off the graph: a switch's tier is its distance from the nearest host, a pod
is what hangs below the second tier of switches. In a two-tier fabric that is everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from controller.policy.network import Link, Network, Path
from controller.policy.read_request import ReadRequest, Replica

SMOOTHING = 0.2
"""Weight of a new measurement in the moving average (Sinbad's alpha)."""

_POD_LEVEL = 2


class _Level(NamedTuple):
    """A rung of the way up from a host: the hosts below it and the links from it towards the core."""

    hosts: frozenset[str]
    uplinks: tuple[Link, ...]


class _Load:
    """Sinbad's estimate v for one host link: the moving average, and what was placed since it was measured.

    The next measurement replaces what was added, as in Sinbad's own code for HDFS.
    """

    __slots__ = ("_average_bps", "_interval_seconds", "_measured_at", "expected_bps")

    def __init__(self) -> None:
        self._average_bps: float | None = None
        self._measured_at = -math.inf
        self._interval_seconds = 0.0
        self.expected_bps = 0.0

    def measured(self, rate_bps: float, now: float) -> None:
        old_bps = rate_bps if self._average_bps is None else self._average_bps
        self._average_bps = self.expected_bps = SMOOTHING * rate_bps + (1 - SMOOTHING) * old_bps
        self._interval_seconds = now - self._measured_at
        self._measured_at = now

    def placed(self, size_bits: float, capacity_bps: float, now: float) -> None:
        """Expect the transfer to take all that is left, or what it needs to be done by the next measurement."""
        added_bps = max(capacity_bps - self.expected_bps, 0.0)
        seconds_left = self._measured_at + self._interval_seconds - now
        if 0 < seconds_left < math.inf:
            added_bps = min(added_bps, size_bits / seconds_left)
        self.expected_bps += added_bps


class SinbadR:
    """The replica whose bottleneck towards the core has most bandwidth left; ties at random."""

    def __init__(self, network: Network, generator: Random) -> None:
        self._network = network
        self._generator = generator
        self._loads: dict[Link, _Load] = {}
        self._version: int | None = None
        self._tiers: dict[str, int] = {}
        self._levels: dict[frozenset[str], _Level] = {}

    def choose(self, request: ReadRequest, reachable: Sequence[Replica], now: float) -> Replica:
        self._follow_network()
        in_pod = [replica for replica in reachable if replica.host in self._pod_of(request.client)]
        residuals = [
            (self._residual_bps(replica.host, request.client), replica) for replica in in_pod or reachable
        ]
        best = max(residual for residual, _ in residuals)
        return self._generator.choice([replica for residual, replica in residuals if residual == best])

    def link_measured(self, link: Link, rate_bps: float, now: float) -> None:
        """Take in the rate of a link; only what hosts send matters."""
        if self._network.is_host(link[0]):
            self._loads.setdefault(link, _Load()).measured(rate_bps, now)

    def flow_added(self, path: Path, size_bits: float, now: float) -> None:
        """Count a new transfer before the counters show it, so that requests do not all go the same way."""
        if path.links and self._network.has_link(path.links[0]):
            link = path.links[0]
            self._loads.setdefault(link, _Load()).placed(size_bits, self._network.capacity_bps(link), now)

    def _residual_bps(self, replica: str, client: str) -> float:
        """Bandwidth left at the tightest rung between the replica and where its data turns to the client."""
        residual_bps = math.inf
        group = frozenset((replica,))
        while group:
            level = self._level(group)
            if client in level.hosts or not level.uplinks:
                break
            capacity_bps = sum(self._network.capacity_bps(link) for link in level.uplinks)
            residual_bps = min(residual_bps, capacity_bps - self._sent_bps(level.hosts))
            group = frozenset(above for _, above in level.uplinks)
        return residual_bps

    def _sent_bps(self, hosts: frozenset[str]) -> float:
        loads = self._loads
        links = ((host, switch) for host in sorted(hosts) for switch in self._network.neighbours(host))
        return sum(loads[link].expected_bps for link in links if link in loads)

    def _pod_of(self, client: str) -> frozenset[str]:
        group = frozenset((client,))
        for _ in range(_POD_LEVEL):
            group = frozenset(above for _, above in self._level(group).uplinks) or group
        return self._level(group).hosts

    def _level(self, group: frozenset[str]) -> _Level:
        if group not in self._levels:
            links = [(node, other) for node in sorted(group) for other in self._network.neighbours(node)]
            uplinks = tuple(link for link in links if self._tiers.get(link[1], 0) > self._tiers[link[0]])
            self._levels[group] = _Level(self._hosts_below(group), uplinks)
        return self._levels[group]

    def _hosts_below(self, group: frozenset[str]) -> frozenset[str]:
        seen = set(group)
        waiting = list(group)
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
        self._levels.clear()
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
