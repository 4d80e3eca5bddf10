"""sinbad-plus: a write goes where it, and all writes that run, are through the soonest.

Our own. Beyond Sinbad (`sinbad`) it knows which writes run, and gives each its exact share of every link and disk; it
judges whole chains, not one destination after the other, by Mayflower's cost (Rizvi et al., section 4.2): the time of
the new write and what it adds to the others'. The first replica need not be the writer's own, and where several
hosts could send, the sender is chosen too. A file that will be read is drawn to where reads will find an idle way up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from speedwell.controller.policy.network.graph import Link, Network
from speedwell.controller.policy.placements.chain_shares import ChainShares
from speedwell.controller.policy.placements.request import (
    Candidate,
    Destination,
    KnownFlow,
    Placement,
    PlacementRequest,
    allowed,
    fitting,
    unfit,
)
from speedwell.controller.policy.placements.sinbad import MeasuredBy

WIDTH = 4
"""So many beginnings of chains are continued, and so many racks are looked at beside the senders'."""
OF_A_RACK = 2
TRIED = 8
"""So many whole chains are compared by their exact cost."""


class _Chain(NamedTuple):
    """Who sends, through whom, what that crosses, and what the tightest of it has to spare."""

    source: str
    chosen: tuple[Candidate, ...]
    places: tuple[int, ...]
    spare_bps: float


class SinbadPlus:
    """See `PlacementPolicy`."""

    def __init__(self, network: Network, generator: Random, measured_by: MeasuredBy = MeasuredBy.SWITCHES) -> None:
        self._network = network
        self._generator = generator
        self._shares = ChainShares(network, measured_by)

    def link_measured(self, link: Link, rate_bps: float, now: float) -> bool:
        """See `PlacementPolicy`."""
        return self._shares.link_measured(link, rate_bps, now)

    def flows_told(self, flows: Sequence[KnownFlow], now: float) -> None:
        """See `FollowsFlows`."""
        self._shares.flows_told(flows, now)

    def transfer_ended(self, transfer_id: object) -> None:
        """See `PlacementPolicy`."""
        self._shares.ended(transfer_id)

    def reserved(self, now: float) -> int:
        """See `PlacementPolicy`."""
        self._shares.carry_until(now)
        return len(self._shares)

    def place(self, transfer_id: object, request: PlacementRequest, now: float) -> Placement:
        """See `PlacementPolicy`."""
        able = fitting(request, self._network)
        self._shares.carry_until(now)
        ways = [(candidate.host, self._shares.way_down(candidate.host, candidate.disk_bps))
                for candidate in request.candidates]
        spares_bps = {host: self._shares.spare_bps(way) for host, way in ways}
        chains = self._chains(request, self._shortlist(request, able, spares_bps))
        best = self._cheapest(request, chains)
        if request.size_bits > 0 and best.places:
            self._shares.added(transfer_id, best.places, request.size_bits)
        taken = {candidate.host for candidate in best.chosen}
        return Placement(
            tuple(Destination(candidate.host, spares_bps[candidate.host]) for candidate in best.chosen),
            best.spare_bps, request.size_bits / best.spare_bps, {
                candidate.host: unfit(candidate, request, self._network) or
                f"{spares_bps[candidate.host]:.0f} bit/s to spare into it, or a chain through it would end later"
                for candidate in request.candidates if candidate.host not in taken}, best.source)

    def _shortlist(self, request: PlacementRequest, able: Sequence[Candidate],
                   spares_bps: dict[str, float]) -> Sequence[Candidate]:
        """The best of the best racks, of every pod and of the senders' racks; all where these are too few."""
        ranked = sorted(able, key=lambda candidate: (spares_bps[candidate.host], self._generator.random()),
                        reverse=True)
        senders = {*request.sources, request.writer}
        racks = {(candidate.pod, candidate.rack) for candidate in able if candidate.host in senders}
        pods: set[str] = set()
        for candidate in ranked:
            if len(racks) < WIDTH + len(senders) or candidate.pod not in pods:
                racks.add((candidate.pod, candidate.rack))
                pods.add(candidate.pod)
        taken: Counter[tuple[str, str]] = Counter()
        short = []
        for candidate in ranked:
            rack = (candidate.pod, candidate.rack)
            if candidate.host in senders or (rack in racks and taken[rack] < OF_A_RACK):
                taken[rack] += 1
                short.append(candidate)
        return short if len(short) >= request.replicas and len(racks) >= request.least_racks else able

    def _chains(self, request: PlacementRequest, able: Sequence[Candidate]) -> list[_Chain]:
        """The most promising chains, by what is to spare at their tightest places; ties at random."""
        begun = [_Chain(source, (), (), math.inf) for source in request.sources or (request.writer,)]
        for position in range(request.replicas):
            longer = []
            for chain in begun:
                last = chain.chosen[-1].host if chain.chosen else chain.source
                for candidate in allowed(request, able, chain.chosen):
                    hop = self._shares.hop(last, candidate.host, candidate.disk_bps)
                    spare_bps = min(chain.spare_bps, self._shares.spare_bps(hop))
                    longer.append((-spare_bps, len(chain.places) + len(hop), self._generator.random(), chain,
                                   candidate, hop))
            longer.sort()
            begun = [_Chain(chain.source, (*chain.chosen, candidate), (*chain.places, *hop), -spare_bps)
                     for spare_bps, _, _, chain, candidate, hop in
                     longer[:TRIED if position == request.replicas - 1 else WIDTH]]
        return begun

    def _cheapest(self, request: PlacementRequest, chains: Sequence[_Chain]) -> _Chain:
        costs = self._shares.added_seconds([chain.places for chain in chains], request.size_bits)
        if request.expected_reads:
            for number, chain in enumerate(chains):
                costs[number] += request.expected_reads * request.size_bits / max(
                    self._shares.spare_bps(self._shares.way_up(candidate.host)) for candidate in chain.chosen)
        return chains[costs.index(min(costs))]
