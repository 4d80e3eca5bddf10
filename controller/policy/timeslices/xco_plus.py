"""Timeslices for whole fabrics: rates inside slices, several destinations at once, and a bound on everybody's wait.

XCo (`xco`) lets a node send to one destination at its full rate, or not at all: a link that is slower than its
senders, or has a rest that is less than a sender's rate, stays idle, and a flow over several contended links waits
until all happen to be free. Here a slice is filled pair by pair, oldest wait first; each gets what is left on its
tightest link, if that is worth it.

**No link is given more than it carries**, as a pair gets no more than the rest. **Nobody waits for ever**: whoever
keeps a pair from its turn shares a link with it and has waited longer; once served it stands behind. So a pair is
served after at most as many slices as there are pairs that share a link with it.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from speedwell.controller.policy.network.graph import Link, Network
from speedwell.controller.policy.timeslices.timeslice_policy import (
    ROUNDING,
    SLICE_SECONDS,
    Directives,
    Pair,
    PinnedPaths,
    TimeslicePolicy,
)

LEAST_PART = 0.25
"""A pair for which less than this part of its path's capacity is left waits for the next slice: to start at a trickle
costs more than it brings."""


AGED_SLICES, UNRANKED = 20, 1 << 30
"""A pair that has waited for so many slices comes before all ranks."""


class XCoPlus(TimeslicePolicy):
    """All slices begin and end together. See `TimeslicePolicy`."""

    def __init__(self, network: Network, slice_seconds: float = SLICE_SECONDS) -> None:
        self._network = network
        self.paths = PinnedPaths(network)
        self._slice_seconds = slice_seconds
        self._number = 0
        self._end = math.inf
        self._waits_since: dict[Pair, int] = {}
        self._given_bps: dict[Pair, float] = {}
        self.ranks = {}

    def backlogged(self, source: str, destinations: Collection[str], now: float) -> Directives:
        """See `TimeslicePolicy`."""
        pairs = {(source, d) for d in destinations}
        for pair in pairs:
            self.paths.of(pair)
        before = set(self._given_bps)
        for pair in [pair for pair in self._waits_since if pair[0] == source and pair not in pairs]:
            self._drop(pair)
        for pair in sorted(pairs):
            self._waits_since.setdefault(pair, self._number)
        return self._go_on(before, now)

    def given_up(self, source: str, destination: str, now: float) -> Directives:
        """See `TimeslicePolicy`."""
        before = set(self._given_bps)
        self._drop((source, destination))
        return self._go_on(before, now)

    def slice_ended(self, now: float) -> Directives:
        """See `TimeslicePolicy`."""
        before = set(self._given_bps)
        self._number += 1
        self._given_bps = {}
        filled = self._fill()
        for pair in filled:     # to the end of the line: equal waits are served in its order
            del self._waits_since[pair]
            self._waits_since[pair] = self._number
        self._end = now + self._slice_seconds if filled else math.inf
        return self._directives(before.union(filled))

    @property
    def next_end(self) -> float:
        """See `TimeslicePolicy`."""
        return self._end

    def _go_on(self, before: set[Pair], now: float) -> Directives:
        """In the middle of a slice what is free goes to the next in order, and does not count as their turn. Where
        nobody sends any more, the next slice begins."""
        if not self._given_bps:
            return {source: {} for source, _ in before} | self.slice_ended(now)
        return self._directives((before - self._given_bps.keys()).union(self._fill()))

    def _fill(self) -> list[Pair]:
        left_bps: dict[Link, float] = {}

        def left(link: Link) -> float:
            return left_bps.setdefault(link, self._network.capacity_bps(link))

        for pair, rate_bps in self._given_bps.items():
            for link in self.paths.of(pair):
                left_bps[link] = left(link) - rate_bps
        filled = []
        waiting = [pair for pair in self._waits_since if pair not in self._given_bps]
        for pair in sorted(waiting, key=self._turn):
            links = self.paths.of(pair)
            rate_bps = min(map(left, links))
            if rate_bps * ROUNDING >= LEAST_PART * self.paths.carries_bps(pair):
                for link in links:
                    left_bps[link] -= rate_bps
                self._given_bps[pair] = rate_bps
                filled.append(pair)
        return filled

    def _turn(self, pair: Pair) -> tuple[int, int]:
        since = self._waits_since[pair]
        has_aged = self._number - since >= AGED_SLICES
        return -1 if has_aged else self.ranks.get(pair, UNRANKED), since

    def _drop(self, pair: Pair) -> None:
        self._waits_since.pop(pair, None)
        self._given_bps.pop(pair, None)

    def _directives(self, changed: Collection[Pair]) -> Directives:
        directives: Directives = {source: {} for source, _ in changed}
        for (source, destination), rate_bps in self._given_bps.items():
            if source in directives:
                directives[source][destination] = rate_bps
        return directives
