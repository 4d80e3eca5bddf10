"""The writes in flight as chains with exact shares, and what else the links were measured to carry.

A chain crosses rungs, the links of a switch towards the next tier taken together: which of them its bytes take is
chosen elsewhere. Each replica's disk is one more place that its writes share. All hops of a chain have its one rate.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from controller.policy.errors import InvalidMeasurement
from controller.policy.network.graph import Link, Network
from controller.policy.network.maxmin import global_shares
from controller.policy.network.tiers import Rung, Tiers
from controller.policy.placements.sinbad import MeasuredBy

LEAST_SHARE = 0.1
"""Of a place that other traffic fills, writes still get this part."""
NEWEST = 0.7
"""Weight of the newest measurement of what else a link carries."""


@dataclass(slots=True)
class _Chain:
    places: tuple[int, ...]
    left_bits: float
    rate_bps: float = 0.0


@dataclass(slots=True)
class _Other:
    """What a link carries beside the chains, as of a measurement, and what the chains had carried until then."""

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
        self._places: dict[Hashable, int] = {}
        self._capacities_bps: list[float] = []
        self._links_of: list[Sequence[Link]] = []
        self._place_of: dict[Link, int] = {}
        self._others: dict[Link, _Other] = {}
        self._chains: dict[object, _Chain] = {}
        self._carried_bits: defaultdict[int, float] = defaultdict(float)
        self._now = -math.inf
        self._left_bps: list[float] = []
        self._taken_bps: defaultdict[int, float] = defaultdict(float)
        self._count: Counter[int] = Counter()
        self._measured_anew = True
        self._stale = True

    def __len__(self) -> int:
        return len(self._chains)

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
        carried_bits = part * self._carried_bits[place]
        if other is None or now == other.measured_at:
            self._others[link] = _Other(rate_bps, now, carried_bits)
        else:
            beside_bps = max(rate_bps - (carried_bits - other.carried_bits) / (now - other.measured_at), 0.0)
            self._others[link] = _Other(NEWEST * beside_bps + (1 - NEWEST) * other.rate_bps, now, carried_bits)
        self._measured_anew = True
        return True

    def added(self, chain_id: object, places: tuple[int, ...], size_bits: float) -> None:
        """A chain begins now, as of the last `carry_until`."""
        self._chains[chain_id] = _Chain(places, size_bits)
        self._stale = True

    def ended(self, chain_id: object) -> None:
        """Unknown ones are fine. Its bytes count as through: one faster than its share is no other traffic."""
        chain = self._chains.pop(chain_id, None)
        if chain is not None:
            self._carry(chain, chain.left_bits)
            self._stale = True

    def carry_until(self, now: float) -> None:
        """Let time pass."""
        while now > self._now:
            self._share()
            first_end = min((chain.left_bits / chain.rate_bps for chain in self._chains.values()), default=math.inf)
            seconds = min(now - self._now, first_end)
            self._now = now if seconds == now - self._now else self._now + seconds
            for chain_id, chain in list(self._chains.items()):
                self._carry(chain, min(chain.rate_bps * seconds, chain.left_bits))
                if chain.left_bits <= chain.rate_bps * 1e-6:
                    self.ended(chain_id)

    def _carry(self, chain: _Chain, bits: float) -> None:
        chain.left_bits -= bits
        for place in chain.places:
            self._carried_bits[place] += bits

    # --- what follows from it ---

    def places(self, hosts: Sequence[str], disks_bps: Sequence[float]) -> tuple[int, ...]:
        """The places that a chain of hosts crosses, the sender first, with the disks of the others."""
        self._follow_network()
        return (*(self._place((rung, down), rung.capacity_bps) for rung, down in self._crossings(hosts)),
                *(self._place(host, disk_bps) for host, disk_bps in zip(hosts[1:], disks_bps, strict=True)
                  if math.isfinite(disk_bps)))

    def way_down(self, host: str, disk_bps: float) -> tuple[int, ...]:
        """The places from the top of the network down to a host, and its disk."""
        self._follow_network()
        way = tuple(self._place((rung, True), rung.capacity_bps) for rung in self._rungs_below_top(host))
        return (*way, self._place(host, disk_bps)) if math.isfinite(disk_bps) else way

    def way_up(self, host: str) -> tuple[int, ...]:
        """The places from a host up to the top of the network."""
        self._follow_network()
        return tuple(self._place((rung, False), rung.capacity_bps) for rung in self._rungs_below_top(host))

    def spare_bps(self, places: Iterable[int]) -> float:
        """What one more chain would have at the tightest of these places if no other gave way further: what is free
        there, or an equal share. Infinite for none."""
        self._share()
        return min((max(self._left_bps[place] - self._taken_bps[place],
                        self._left_bps[place] / (1 + self._count[place])) for place in places), default=math.inf)

    def added_seconds(self, places: tuple[int, ...], size_bits: float) -> float:
        """By how much one more chain lengthens all that run, its own time included, at the shares of this moment
        (Mayflower's cost, section 4.2, over the whole network)."""
        self._share()
        shares_bps = global_shares([*(chain.places for chain in self._chains.values()), places], self._left_bps, {})
        return size_bits / shares_bps[-1] + sum(
            chain.left_bits / share_bps - chain.left_bits / chain.rate_bps
            for chain, share_bps in zip(self._chains.values(), shares_bps, strict=False))

    def _share(self) -> None:
        self._follow_network()
        if self._measured_anew or len(self._left_bps) < len(self._capacities_bps):
            self._measured_anew = False
            self._left_bps = [max(capacity_bps - sum(
                other.rate_bps for link in links if (other := self._others.get(link)) is not None),
                LEAST_SHARE * capacity_bps)
                for capacity_bps, links in zip(self._capacities_bps, self._links_of, strict=True)]
            self._stale = True
        if not self._stale:
            return
        self._stale = False
        shares_bps = global_shares([chain.places for chain in self._chains.values()], self._left_bps, {})
        self._taken_bps.clear()
        self._count.clear()
        for chain, share_bps in zip(self._chains.values(), shares_bps, strict=True):
            chain.rate_bps = share_bps
            for place in chain.places:
                self._taken_bps[place] += share_bps
                self._count[place] += 1

    def _rungs_below_top(self, host: str) -> list[Rung]:
        return [rung for rung in self._tiers.rungs_from(host) if rung.uplinks]

    def _crossings(self, hosts: Sequence[str]) -> Iterator[tuple[Rung, bool]]:
        for source, target in pairwise(hosts):
            if source in self._network:
                yield from ((rung, False) for rung in self._tiers.rungs_apart(source, target))
            yield from ((rung, True) for rung in self._tiers.rungs_apart(target, source))

    def _place(self, key: Hashable, capacity_bps: float) -> int:
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
        self._places.clear()
        self._capacities_bps.clear()
        self._links_of.clear()
        self._place_of.clear()
        self._chains.clear()
        self._carried_bits.clear()
        for host in self._network.hosts:
            for rung in self._tiers.rungs_from(host):
                for down, links in ((False, rung.uplinks), (True, rung.downlinks)):
                    if links and links[0] not in self._place_of:
                        self._place_of.update(dict.fromkeys(links, self._place((rung, down), rung.capacity_bps)))
        self._others = {link: _Other(other.rate_bps, other.measured_at, 0.0)
                        for link, other in self._others.items() if link in self._place_of}
        self._left_bps.clear()
