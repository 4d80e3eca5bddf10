"""sinbad-plus: a write goes where it, and all writes that run, are through the soonest.

Our own. Beyond Sinbad (`sinbad`) it knows which writes run, and gives each its exact share of every link and disk; it
judges whole chains, not one destination after the other, by Mayflower's cost (Rizvi et al., section 4.2): the time of
the new write and what it adds to the others'. The first replica need not be the writer's own, and where several
hosts could send, the sender is chosen too. A file that will be read is drawn to where reads will find an idle way up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from controller.policy.network.graph import Link, Network
from controller.policy.placements.chain_shares import ChainShares
from controller.policy.placements.request import (
    Candidate,
    Destination,
    Placement,
    PlacementRequest,
    allowed,
    fitting,
    unfit,
)
from controller.policy.placements.sinbad import MeasuredBy

WIDTH = 4
"""So many beginnings of chains are continued, and so many racks are looked at beside the senders'."""
OF_A_RACK = 2
TRIED = 8
"""So many whole chains are compared by their exact cost."""

Chain = tuple[str, tuple[Candidate, ...]]
"""Who sends, and through whom."""


class SinbadPlus:
    """See `PlacementPolicy`."""

    def __init__(self, network: Network, generator: Random, measured_by: MeasuredBy = MeasuredBy.SWITCHES) -> None:
        self._network = network
        self._generator = generator
        self._shares = ChainShares(network, measured_by)

    def link_measured(self, link: Link, rate_bps: float, now: float) -> bool:
        """See `PlacementPolicy`."""
        return self._shares.link_measured(link, rate_bps, now)

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
        spares_bps = self._spares_bps(request)
        chains = self._chains(request, self._shortlist(request, able, spares_bps))
        costs = [self._cost(request, *chain) for chain in chains]
        source, chosen = chains[costs.index(min(costs))]
        places = self._places(source, chosen)
        rate_bps = self._shares.spare_bps(places)
        if request.size_bits > 0 and places:
            self._shares.added(transfer_id, places, request.size_bits)
        return Placement(tuple(Destination(candidate.host, spares_bps[candidate]) for candidate in chosen), rate_bps,
                         request.size_bits / rate_bps, {
            candidate.host: unfit(candidate, request, self._network) or (
                f"{spares_bps[candidate]:.0f} bit/s to spare into it, or a chain through it would end later")
            for candidate in request.candidates if candidate not in chosen}, source)

    def _spares_bps(self, request: PlacementRequest) -> dict[Candidate, float]:
        """What is to spare on the way from the core down to each candidate, and at its disk."""
        ways = [(candidate, self._shares.way_down(candidate.host, candidate.disk_bps))
                for candidate in request.candidates]
        return {candidate: self._shares.spare_bps(way) for candidate, way in ways}

    def _shortlist(self, request: PlacementRequest, able: Sequence[Candidate],
                   spares_bps: dict[Candidate, float]) -> Sequence[Candidate]:
        """The best of the best racks, of every pod and of the senders' racks; all where these are too few."""
        ranked = sorted(able, key=lambda candidate: (spares_bps[candidate], self._generator.random()), reverse=True)
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

    def _chains(self, request: PlacementRequest, able: Sequence[Candidate]) -> list[Chain]:
        """The most promising chains, by what is to spare at their tightest places; ties at random."""
        begun: list[Chain] = [(source, ()) for source in request.sources or (request.writer,)]
        for position in range(request.replicas):
            longer = [(source, (*chosen, candidate)) for source, chosen in begun
                      for candidate in allowed(request, able, chosen)]
            ways = [self._places(*chain) for chain in longer]
            ranks = [(-self._shares.spare_bps(way), len(way), self._generator.random()) for way in ways]
            most = TRIED if position == request.replicas - 1 else WIDTH
            begun = [longer[index] for index in sorted(range(len(longer)), key=ranks.__getitem__)[:most]]
        return begun

    def _cost(self, request: PlacementRequest, source: str, chosen: Sequence[Candidate]) -> float:
        seconds = self._shares.added_seconds(self._places(source, chosen), request.size_bits)
        if request.expected_reads == 0:
            return seconds
        fastest_bps = max(self._up_bps(candidate.host) for candidate in chosen)
        return seconds + request.expected_reads * request.size_bits / fastest_bps

    def _up_bps(self, host: str) -> float:
        """What a reader elsewhere would have on the way up from a host."""
        return self._shares.spare_bps(self._shares.way_up(host))

    def _places(self, source: str, chosen: Sequence[Candidate]) -> tuple[int, ...]:
        return self._shares.places((source, *(candidate.host for candidate in chosen)),
                                   [candidate.disk_bps for candidate in chosen])
