"""XCo's other directive: everybody sends at any time, at the bottleneck's capacity over the number of those on it.

Rajanna et al., XCo, HPDC 2010, section 3.3. A sender there has one V2V flow; here n counts the pairs that have a
backlog, so that a sender with two destinations does not get a link twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.timeslices.timeslice_policy import (
    SLICE_SECONDS,
    Directives,
    Pair,
    PinnedPaths,
    TimeslicePolicy,
)


class RateLimits(TimeslicePolicy):
    """Exactly C/n, at a pair's tightest link. No slice ever ends. See `TimeslicePolicy`."""

    def __init__(self, network: Network, slice_seconds: float = SLICE_SECONDS) -> None:
        self._network = network
        self.paths = PinnedPaths(network)
        self._rates_bps: dict[Pair, float] = {}

    def backlogged(self, source: str, destinations: Collection[str], now: float) -> Directives:
        """See `TimeslicePolicy`."""
        for d in destinations:
            self.paths.of((source, d))
        others = {pair for pair in self._rates_bps if pair[0] != source}
        return self._share(others | {(source, d) for d in destinations})

    def given_up(self, source: str, destination: str, now: float) -> Directives:
        """See `TimeslicePolicy`."""
        return self._share(self._rates_bps.keys() - {(source, destination)})

    def slice_ended(self, now: float) -> Directives:
        """See `TimeslicePolicy`."""
        return {}

    @property
    def next_end(self) -> float:
        return math.inf

    def _share(self, pairs: Collection[Pair]) -> Directives:
        links = {pair: self.paths.of(pair) for pair in pairs}
        n = Counter(link for path in links.values() for link in path)
        before = self._rates_bps
        self._rates_bps = {pair: min(self._network.capacity_bps(link) / n[link] for link in path)
                           for pair, path in links.items()}
        changed = {s for (s, d) in before.keys() | self._rates_bps.keys()
                   if before.get((s, d)) != self._rates_bps.get((s, d))}
        directives: Directives = {source: {} for source in changed}
        for (s, d), rate_bps in self._rates_bps.items():
            if s in changed:
                directives[s][d] = rate_bps
        return directives
