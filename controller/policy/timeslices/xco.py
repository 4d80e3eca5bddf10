"""XCo's Algorithm 1: who may send to whom in the next timeslice, so that no link gets more than it carries.

Rajanna, Shah, Jahagirdar, Lemoine, Gopalan: "XCo: Explicit coordination to prevent network fabric congestion in
cloud computing cluster platforms", HPDC 2010, section 3.2.1. Names and symbols are the paper's: backlog group B_x,
directive D_x, path P_xd, contention group beta_ij, active contention group alpha_ij, feasibility F, affected set A,
newly scheduled N. A comment gives the algorithm's line.

What the text leaves open, and what is taken:

* Traversal order (lines 28, 30): who began a slice the longest ago comes first, nodes and destinations alike; ties by
  name. So schedules differ, and nobody is passed over for ever by those that share its links.
* Pre-emption: a node that has sent for less than `protection_seconds` (a slice) is left out of A, the node that
  triggered the event excepted. Nodes whose slices end together can still pre-empt each other.
* D = null: lines 58 to 61 tell the newly scheduled alone, and nobody would ever stop. A node that was sending, was
  looked at and got nothing, is told to hold.
* A node that goes on to the same destination keeps the end of its slice, unless that has just ended.
* Links slower than C_x: as printed no sender is ever feasible on them. C_x is the least capacity on P_xd here, and
  the directive names it as a rate.
* A report that leaves out the destination being served gives it up. One that adds destinations is a scheduling event
  if the node is not sending.
* Reset: a node that leaves, or registers again, is taken out of all groups; its links go to those that wait for them.
* Spanning tree: ours are ECMP fabrics, so pairs are pinned (`PinnedPaths`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable

from speedwell.controller.policy.network.graph import Link, Network
from speedwell.controller.policy.timeslices.timeslice_policy import (
    ROUNDING,
    SLICE_SECONDS,
    Directives,
    Pair,
    PinnedPaths,
)

CLOCK_SECONDS = 1e-7
"""What is over by less than this is over: the sum of two times is not exact."""


class XCo:
    """Algorithm 1 with the groups that it keeps. See `TimeslicePolicy`."""

    def __init__(self, network: Network, slice_seconds: float = SLICE_SECONDS,
                 protection_seconds: float | None = None) -> None:
        self._network = network
        self.paths = PinnedPaths(network)
        self._slice_seconds = slice_seconds
        self._protection_seconds = slice_seconds if protection_seconds is None else protection_seconds
        self._backlog: dict[str, set[str]] = {}                                         # B_x
        self._contention: defaultdict[Link, set[str]] = defaultdict(set)                # beta_ij
        self._active: defaultdict[Link, dict[str, float]] = defaultdict(dict)           # alpha_ij, with C_x
        self._directive: dict[str, str] = {}                                            # D_x, where it is not null
        self._path: dict[str, tuple[Link, ...]] = {}                                    # P_xDx
        self._began: dict[str, float] = {}
        self._turn = 0
        self._last_turn: dict[Pair | tuple[str, None], int] = {}

    # --- scheduling events ---

    def slice_ended(self, now: float) -> Directives:
        """Event 1, for each node whose slice is over. See `TimeslicePolicy`."""
        changed: Directives = {}
        due = [x for x in self._directive if self._is_over(x, self._slice_seconds, now)]
        for x in sorted(due, key=self._order):
            if x in self._directive and self._is_over(x, self._slice_seconds, now):
                changed |= self._schedule(x, now)
        return changed

    def given_up(self, source: str, destination: str, now: float) -> Directives:
        """Event 2, work conservation. See `TimeslicePolicy`."""
        if destination not in self._backlog.get(source, ()):
            return {}
        if self._directive.get(source) == destination:
            return self._schedule(source, now, conserves=True)
        self._set_backlog(source, self._backlog[source] - {destination})
        return {}

    def backlogged(self, source: str, destinations: Collection[str], now: float) -> Directives:
        """Event 3. See `TimeslicePolicy`."""
        for d in destinations:
            self.paths.of((source, d))
        served = self._directive.get(source)
        self._set_backlog(source, set(destinations) | ({served} if served else set()))
        if served is not None and served not in destinations:
            return self.given_up(source, served, now)
        return self._schedule(source, now) if served is None and destinations else {}

    def left(self, source: str, now: float) -> Directives:
        """See `TimeslicePolicy`."""
        affected = self._affected_by(self._path.get(source, ())) - {source}
        self._hold(source)
        self._set_backlog(source, set())
        self.paths.release_all_of(source)
        self._last_turn = {key: turn for key, turn in self._last_turn.items() if key[0] != source}
        return self._assign({x for x in affected if not self._is_protected(x, now)}, now)

    @property
    def next_end(self) -> float:
        """See `TimeslicePolicy`."""
        return min(self._began.values(), default=math.inf) + self._slice_seconds

    # --- Algorithm 1 ---

    def _schedule(self, t: str, now: float, conserves: bool = False) -> Directives:
        affected: set[str] = set()                                                      # lines 12 to 17
        for d in self._backlog[t]:
            affected |= self._affected_by(self.paths.of((t, d)))
        affected = {x for x in affected if x == t or not self._is_protected(x, now)}
        self._stop_counting(t, self._path.get(t, ()))                                   # lines 18 to 21
        if conserves:                                                                   # lines 22 to 24
            self._set_backlog(t, self._backlog[t] - {self._directive[t]})
        return self._assign(affected | {t}, now, t)

    def _assign(self, affected: set[str], now: float, t: str | None = None) -> Directives:
        scheduled: set[str] = set()                                                     # line 26
        held: set[str] = set()
        changed: Directives = {}
        while affected:                                                                 # line 27
            x = min(affected, key=self._order)
            affected.remove(x)                                                          # line 52
            d = self._feasible_destination(x)
            if d is None:
                held.add(x)
                continue
            new_path = self.paths.of((x, d))
            freed = set(self._path.get(x, ())) - set(new_path)                          # lines 40 to 46
            self._stop_counting(x, freed)
            affected |= {y for y in self._affected_by(freed) - scheduled - {x} if not self._is_protected(y, now)}
            rate_bps = self.paths.carries_bps((x, d))
            if self._directive.get(x) != d or x == t:
                self._directive[x] = d
                self._began[x] = now
                self._turn += 1
                self._last_turn[x, None] = self._last_turn[x, d] = self._turn
                changed[x] = {d: rate_bps}
            self._path[x] = new_path
            for link in new_path:                                                       # lines 47 to 49
                self._active[link][x] = rate_bps
            scheduled.add(x)                                                            # line 55
        for x in held - scheduled:
            if x in self._directive:
                self._hold(x)
                changed[x] = {}
        return changed

    def _feasible_destination(self, x: str) -> str | None:
        """The first of B_x for which F holds on each link, lines 30 to 38."""
        for d in sorted(self._backlog.get(x, ()), key=lambda d: (self._last_turn.get((x, d), 0), d)):
            path = self.paths.of((x, d))
            own_bps = self.paths.carries_bps((x, d))
            if all(own_bps + sum(bps for y, bps in self._active[link].items() if y != x)
                   <= self._network.capacity_bps(link) * ROUNDING for link in path):
                return d
        return None

    def _affected_by(self, links: Iterable[Link]) -> set[str]:
        return set().union(*(self._contention[link] for link in links))

    def _order(self, x: str) -> tuple[int, str]:
        return self._last_turn.get((x, None), 0), x

    def _is_over(self, x: str, seconds: float, now: float) -> bool:
        return self._began[x] + seconds <= now + CLOCK_SECONDS

    def _is_protected(self, x: str, now: float) -> bool:
        return x in self._directive and not self._is_over(x, self._protection_seconds, now)

    # --- groups ---

    def _set_backlog(self, x: str, destinations: set[str]) -> None:
        for members in self._contention.values():
            members.discard(x)
        self._backlog[x] = destinations
        for d in destinations:
            for link in self.paths.of((x, d)):
                self._contention[link].add(x)
        if not destinations:
            del self._backlog[x]

    def _stop_counting(self, x: str, links: Iterable[Link]) -> None:
        for link in links:
            self._active[link].pop(x, None)

    def _hold(self, x: str) -> None:
        self._stop_counting(x, self._path.pop(x, ()))
        self._directive.pop(x, None)
        self._began.pop(x, None)
