"""The writes in flight as chains with exact shares, reads beside them, and what else links were measured to carry.

A chain crosses rungs, the links of a switch towards the next tier taken together: which of them its bytes take is
chosen elsewhere. Each replica's disk is one more place that its writes share. All hops of a chain have its one rate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise

import numpy as np

from speedwell.controller.policy.compiled import Integers, Reals
from speedwell.controller.policy.errors import InvalidMeasurement
from speedwell.controller.policy.network.graph import Link, Network
from speedwell.controller.policy.network.tiers import Rung, Tiers
from speedwell.controller.policy.placements import chain_kernels as kernels
from speedwell.controller.policy.placements.request import KnownFlow
from speedwell.controller.policy.placements.sinbad import MeasuredBy

LEAST_SHARE = 0.1
"""Of a place that other traffic fills, writes still get this part."""
NEWEST = 0.7
"""Weight of the newest measurement of what else a link carries, where what chains carry is expected, not counted."""
MOST_TOLD = 200
"""So many transfers that it is told of get a share of their own, the largest first; others are traffic beside them.
A decision must take milliseconds."""


@dataclass(slots=True)
class _Other:
    """What a link carries beside the chains, as of a measurement, and what the chains had carried until then. Below 0
    where they take other links of its rung: the links of a rung count together."""

    rate_bps: float
    measured_at: float
    carried_bits: float


class ChainShares:
    """Rates in bits/s, times in seconds that never run backwards.

    Between two events a chain is taken to move at its share. One that should be through is forgotten: if it still
    runs, the counters show it.
    """

    def __init__(self, network: Network, measured_by: MeasuredBy = MeasuredBy.SWITCHES) -> None:
        self._network = network
        self._measured_by = measured_by
        self._tiers = Tiers(network)
        self._version: int | None = None
        self._others: dict[Link, _Other] = {}
        self._now = -math.inf
        self._forget()
        kernels.compile_kernels()

    def _forget(self) -> None:
        self._places: dict[tuple[Rung, bool] | str, int] = {}
        self._ways: dict[str, list[tuple[Rung, int, int]]] = {}
        self._capacities_bps: list[float] = []
        self._links_of: list[Sequence[Link]] = []
        self._place_of: dict[Link, int] = {}
        self._ids: list[object] = []
        self._told: set[object] = set()
        self._through: set[object] = set()
        """Taken to be, though they run: all of their bytes count as carried."""
        self._routes: Integers = np.full((0, 0), -1)
        self._left_bits: Reals = np.zeros(0)
        self._rates_bps: Reals = np.zeros(0)
        self._carried_bits: Reals = np.zeros(0)
        self._left_bps: Reals = np.zeros(0)
        self._spares_bps: list[float] = []
        self._stale = self._measured_anew = True

    def __len__(self) -> int:
        return len(self._ids)

    # --- what is told ---

    def link_measured(self, link: Link, rate_bps: float, now: float) -> bool:
        """See `PlacementPolicy`."""
        if not (math.isfinite(rate_bps) and rate_bps >= 0):
            raise InvalidMeasurement(f"a link carries a number of bits per second from 0 up, not {rate_bps!r}")
        self._follow_network()
        place, other = self._place_of.get(link), self._others.get(link)
        if place is None or (other is not None and now < other.measured_at):
            return False
        self.carry_until(now)
        part = self._network.capacity_bps(link) / self._capacities_bps[place]
        carried_bits = part * float(self._carried_bits[place])
        if other is None or now == other.measured_at:
            self._others[link] = _Other(rate_bps, now, carried_bits)
        else:
            beside_bps = rate_bps - (carried_bits - other.carried_bits) / (now - other.measured_at)
            if not self._told:
                beside_bps = NEWEST * max(beside_bps, 0.0) + (1 - NEWEST) * other.rate_bps
            self._others[link] = _Other(beside_bps, now, carried_bits)
        self._measured_anew = True
        return True

    def added(self, chain_id: object, places: tuple[int, ...], size_bits: float) -> None:
        """A chain begins now, as of the last `carry_until`."""
        self._share()
        self._append({chain_id: places}, [size_bits])

    def _append(self, places: Mapping[object, tuple[int, ...]], sizes_bits: Sequence[float]) -> None:
        self._routes = _with_rows(self._routes, list(places.values()))
        self._left_bits = np.append(self._left_bits, sizes_bits)
        self._rates_bps = np.append(self._rates_bps, np.zeros(len(places)))
        self._ids += places
        self._stale = True

    def flows_told(self, flows: Iterable[KnownFlow], now: float) -> None:
        """See `FollowsFlows`: reads become chains of one hop; what is counted corrects what chains have left."""
        self.carry_until(now)
        self._share()
        hops: defaultdict[object, list[KnownFlow]] = defaultdict(list)
        for flow in flows:
            hops[flow.transfer_id].append(flow)
        left_bits = {each: max(left) for each, of_one in hops.items()
                     if (left := [flow.left_bits for flow in of_one if flow.left_bits is not None])}
        for each in self._told - hops.keys():
            self.ended(each)
        known = set(self._ids)
        self._told = known & hops.keys()
        done = known | (self._through - left_bits.keys())
        new = nlargest(max(MOST_TOLD - len(self._told), 0), [each for each in hops if each not in done],
                       key=lambda each: hops[each][0].size_bits)
        self._told.update(new)
        self._append({each: tuple([place for flow in hops[each]
                                   for place in self.hop(flow.source, flow.target, math.inf)]) for each in new},
                     [0.0 if each in self._through else hops[each][0].size_bits for each in new])
        self._through &= hops.keys() - self._told
        self._share()
        bits = np.array([own_bits - left_bits.get(each, own_bits)
                         for each, own_bits in zip(self._ids, self._left_bits.tolist(), strict=True)], float)
        kernels.carry(self._routes, self._left_bits, bits, self._carried_bits)

    def ended(self, chain_id: object) -> None:
        """Unknown ones are fine. Its bytes count as through: one faster than its share is no other traffic."""
        if chain_id in self._ids:
            chain = self._ids.index(chain_id)
            kernels.carry(self._routes[chain:chain + 1], self._left_bits[chain:chain + 1],
                          self._left_bits[chain:chain + 1].copy(), self._carried_bits)
            del self._ids[chain]
            self._routes = np.delete(self._routes, chain, axis=0)
            self._left_bits = np.delete(self._left_bits, chain)
            self._rates_bps = np.delete(self._rates_bps, chain)
            self._stale = True

    def carry_until(self, now: float) -> None:
        """Let time pass."""
        while now > self._now:
            self._share()
            first_end = float((self._left_bits / self._rates_bps).min(initial=math.inf))
            seconds = min(now - self._now, first_end)
            self._now = now if seconds == now - self._now else self._now + seconds
            if self._ids:
                bits = np.minimum(self._rates_bps * seconds, self._left_bits)
                kernels.carry(self._routes, self._left_bits, bits, self._carried_bits)
            for chain in np.flatnonzero(self._left_bits <= self._rates_bps * 1e-6)[::-1]:
                self._through.add(self._ids[chain])
                self.ended(self._ids[chain])

    # --- what follows from it ---

    def places(self, hosts: Sequence[str], disks_bps: Sequence[float]) -> tuple[int, ...]:
        """The places that a chain of hosts crosses, the sender first, with the disks of the others."""
        return tuple([place for (source, target), disk_bps in zip(pairwise(hosts), disks_bps, strict=True)
                      for place in self.hop(source, target, disk_bps)])

    def hop(self, source: str, target: str, disk_bps: float) -> tuple[int, ...]:
        """The places from a host to the next, and the disk of that one."""
        self._follow_network()
        way = []
        if source in self._network:
            for rung, up, _ in self._way(source):
                if target in rung.hosts:
                    break
                way.append(up)
        for rung, _, down in self._way(target):
            if source in rung.hosts:
                break
            way.append(down)
        return (*way, *self._disk(target, disk_bps))

    def way_down(self, host: str, disk_bps: float) -> tuple[int, ...]:
        """The places from the top of the network down to a host, and its disk."""
        self._follow_network()
        return (*(down for _, _, down in self._way(host)), *self._disk(host, disk_bps))

    def way_up(self, host: str) -> tuple[int, ...]:
        """The places from a host up to the top of the network."""
        self._follow_network()
        return tuple(up for _, up, _ in self._way(host))

    def spare_bps(self, places: Iterable[int]) -> float:
        """What one more chain would have at the tightest of these places if no other gave way further: what is free
        there, or an equal share. Infinite for none."""
        self._share()
        return min([self._spares_bps[place] for place in places], default=math.inf)

    def added_seconds(self, chains: Sequence[tuple[int, ...]], size_bits: float) -> list[float]:
        """By how much one more chain, each of these, lengthens all that run, its own time included, at the shares of
        this moment (Mayflower's cost, section 4.2, over the whole network)."""
        self._share()
        rows = _with_rows(self._routes, chains)
        running = len(self._ids)
        seconds: list[float] = kernels.added_seconds(rows[:running], self._left_bps, self._left_bits, self._rates_bps,
                                                     rows[running:], size_bits).tolist()
        return seconds

    def _share(self) -> None:
        self._follow_network()
        if self._measured_anew or len(self._left_bps) < len(self._capacities_bps):
            self._measured_anew = False
            self._left_bps = np.array([min(max(capacity_bps - sum(
                [other.rate_bps for link in links if (other := self._others.get(link)) is not None]),
                LEAST_SHARE * capacity_bps), capacity_bps)
                for capacity_bps, links in zip(self._capacities_bps, self._links_of, strict=True)], float)
            self._carried_bits = np.append(
                self._carried_bits, np.zeros(len(self._left_bps) - len(self._carried_bits)))
            self._stale = True
        if not self._stale:
            return
        self._stale = False
        kernels.fill(self._routes, self._left_bps, self._rates_bps)
        crossed = self._routes >= 0
        places, rates_bps = self._routes[crossed], np.repeat(self._rates_bps, crossed.sum(axis=1))
        taken_bps = np.bincount(places, rates_bps, len(self._left_bps))
        count = np.bincount(places, minlength=len(self._left_bps))
        self._spares_bps = np.maximum(self._left_bps - taken_bps, self._left_bps / (1 + count)).tolist()

    def _way(self, host: str) -> list[tuple[Rung, int, int]]:
        """The rungs from a host up that are joined with a next one, with their places on the way up and down."""
        if host not in self._ways:
            self._ways[host] = [(rung, self._place((rung, False), rung.capacity_bps),
                                 self._place((rung, True), rung.capacity_bps))
                                for rung in self._tiers.rungs_from(host) if rung.uplinks]
        return self._ways[host]

    def _disk(self, host: str, disk_bps: float) -> tuple[int, ...]:
        return (self._place(host, disk_bps),) if math.isfinite(disk_bps) else ()

    def _place(self, key: tuple[Rung, bool] | str, capacity_bps: float) -> int:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._capacities_bps)
            self._capacities_bps.append(capacity_bps)
            links: Sequence[Link] = ()
            if isinstance(key, tuple):
                rung, down = key
                if self._measured_by is MeasuredBy.HOSTS:
                    links = rung.host_links(self._network, down)
                else:
                    links = rung.downlinks if down else rung.uplinks
            self._links_of.append(links)
        elif self._capacities_bps[place] != capacity_bps:
            self._capacities_bps[place] = capacity_bps
            self._measured_anew = True
        return place

    def _follow_network(self) -> None:
        """On another network all places are other ones: chains that run show in the counters from now on."""
        if self._version == self._network.version:
            return
        self._version = self._network.version
        self._forget()
        for host in self._network.hosts:
            self._way(host)
        for key, place in self._places.items():
            if isinstance(key, tuple):
                self._place_of.update(dict.fromkeys(key[0].downlinks if key[1] else key[0].uplinks, place))
        self._carried_bits = np.zeros(len(self._places))
        self._others = {link: _Other(other.rate_bps, other.measured_at, 0.0)
                        for link, other in self._others.items() if link in self._place_of}


def _with_rows(routes: Integers, more: Sequence[tuple[int, ...]]) -> Integers:
    rows = np.full((len(routes) + len(more), max(routes.shape[1], *map(len, more), 1)), -1)
    rows[:len(routes), :routes.shape[1]] = routes
    for row, places in zip(rows[len(routes):], more, strict=True):
        row[:len(places)] = places
    return rows
