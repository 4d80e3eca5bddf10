"""Rack-aware placement that looks at no load: what a file gets where no controller answers, and HDFS's rule.

Ours (`fs/nameserver/replicas/placement.py`; Rizvi et al., "Mayflower", section 5): the first replica on the
writer's machine, the second in the same rack, each further one in another rack. HDFS's
(BlockPlacementPolicyDefault): the second in another rack, the third in that same rack, each further one anywhere.
"""

from __future__ import annotations

from random import Random

from speedwell.controller.policy.network.graph import Link, Network
from speedwell.controller.policy.placements.request import (
    Candidate,
    Destination,
    Placement,
    PlacementRequest,
    allowed,
    fitting,
    unfit,
)


class RackAware:
    """At random within the filesystem's rule. See `PlacementPolicy`; nothing is expected of what was placed."""

    def __init__(self, network: Network, generator: Random) -> None:
        self._network = network
        self._generator = generator

    def link_measured(self, link: Link, rate_bps: float, now: float) -> bool:
        """See `PlacementPolicy`: the load does not count."""
        return False

    def transfer_ended(self, transfer_id: object) -> None:
        """See `PlacementPolicy`."""

    def reserved(self, now: float) -> int:
        """See `PlacementPolicy`: never any."""
        return 0

    def place(self, transfer_id: object, request: PlacementRequest, now: float) -> Placement:
        """See `PlacementPolicy`."""
        able = fitting(request, self._network)
        chosen: list[Candidate] = []
        while len(chosen) < request.replicas:
            chosen.append(self._generator.choice(self._preferred(request, allowed(request, able, chosen), chosen)))
        slowest_bps = min(candidate.disk_bps for candidate in chosen)
        destinations = tuple(Destination(candidate.host, candidate.disk_bps) for candidate in chosen)
        taken = {candidate.host for candidate in chosen}
        return Placement(destinations, slowest_bps, request.size_bits / slowest_bps, {
            candidate.host: unfit(candidate, request, self._network) or "not drawn"
            for candidate in request.candidates if candidate.host not in taken}, request.writer)

    def _preferred(self, request: PlacementRequest, free: list[Candidate],
                   chosen: list[Candidate]) -> list[Candidate]:
        if not chosen:
            return [candidate for candidate in free if candidate.host == request.writer] or free
        racks = {(candidate.pod, candidate.rack) for candidate in chosen}
        inside = [candidate for candidate in free if (candidate.pod, candidate.rack) in racks]
        outside = [candidate for candidate in free if (candidate.pod, candidate.rack) not in racks]
        return self._next(len(chosen), inside, outside, chosen) or free

    def _next(self, number: int, inside: list[Candidate], outside: list[Candidate],
              chosen: list[Candidate]) -> list[Candidate]:
        """Of those in the racks of the chosen and those elsewhere, the ones that replica `number` prefers."""
        return inside if number == 1 else outside


class HdfsPlacement(RackAware):
    """At random within HDFS's rule."""

    def _next(self, number: int, inside: list[Candidate], outside: list[Candidate],
              chosen: list[Candidate]) -> list[Candidate]:
        if number == 1:
            return outside
        rack = (chosen[1].pod, chosen[1].rack)
        return [candidate for candidate in inside if (candidate.pod, candidate.rack) == rack] if number == 2 else []
