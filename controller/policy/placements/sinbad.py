"""Sinbad: new replicas go where the network is idle.

Chowdhury, Kandula, Stoica: "Leveraging endpoint flexibility in data-intensive clusters", SIGCOMM 2013, sections 4
and 5. Every link has an estimate v (`link_estimate`). Destinations are chosen one by one: machines that would break a
constraint are dropped, the rest ranked by the bandwidth left at the tightest link into them, capped by their disk;
the best is taken, ties at random. Then the estimate of every link that the transfer crosses is raised for
D = S / rate.

Three things are this filesystem's: a set of replicas is placed at once; its bytes run through the replicas in a
chain, all of whose hops have the chain's one rate (GFS-style relaying), where the paper prices single transfers; and
on a link that placements have filled, one more is expected to get an equal share, so that many files at once spread
by number where there is nothing left to spread them by.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import pairwise
from random import Random

from speedwell.controller.policy.network.graph import Link, Network
from speedwell.controller.policy.network.link_estimate import LinkEstimates
from speedwell.controller.policy.network.tiers import Rung, Tiers, apart
from speedwell.controller.policy.placements.request import (
    Candidate,
    Destination,
    Placement,
    PlacementRequest,
    allowed,
    fitting,
    unfit,
)

TIDY_SECONDS = 1.0
"""How often what is over is looked for and forgotten; it counts no more before that."""
LEAST_SHARE = 0.05
"""Of links that are fully taken, a new transfer still gets this part: its rate is never taken for nothing."""


class MeasuredBy(Enum):
    """Who measures links above the hosts: the switches (the paper's wish), or the hosts alone, whose links' sum is
    taken for the load of what is above them (as the paper's system does)."""

    SWITCHES = "switches"
    HOSTS = "hosts"


class Sinbad:
    """Places replicas by what links are expected to carry. See `PlacementPolicy`."""

    def __init__(self, network: Network, generator: Random, measured_by: MeasuredBy = MeasuredBy.SWITCHES) -> None:
        self._network = network
        self._generator = generator
        self._measured_by = measured_by
        self._tiers = Tiers(network)
        self._estimates = LinkEstimates(network)
        self._placed: dict[object, frozenset[Link]] = {}
        self._tidied_at = -math.inf
        self._lefts_bps: dict[tuple[Rung, bool], float] = {}
        """What is left at each rung, up or down, at a moment, in a version of the network: files of a batch ask for
        the same."""
        self._lefts_at = -math.inf, -1

    # --- what is told ---

    def link_measured(self, link: Link, rate_bps: float, now: float) -> bool:
        """See `PlacementPolicy`."""
        self._lefts_bps.clear()
        return self._network.has_link(link) and self._estimates.of(link).measured(rate_bps, now)

    def transfer_ended(self, transfer_id: object) -> None:
        """See `PlacementPolicy`."""
        self._lefts_bps.clear()
        for estimate in self._estimates.known(self._placed.pop(transfer_id, ())):
            estimate.forget(transfer_id)

    def reserved(self, now: float) -> int:
        """See `PlacementPolicy`."""
        self._tidied_at = now
        self._placed = {transfer_id: links for transfer_id, links in self._placed.items()
                        if any(estimate.placements(now) for estimate in self._estimates.known(links))}
        return len(self._placed)

    # --- decisions ---

    def place(self, transfer_id: object, request: PlacementRequest, now: float) -> Placement:
        """See `PlacementPolicy`."""
        if now - self._tidied_at >= TIDY_SECONDS:
            self.reserved(now)
        if self._lefts_at != (now, self._network.version):
            self._lefts_bps.clear()
            self._lefts_at = now, self._network.version
        able = fitting(request, self._network)
        chosen: list[Candidate] = []
        destinations: list[Destination] = []
        source = request.writer
        known: dict[str, dict[str, tuple[float, ...]]] = {}
        while len(chosen) < request.replicas:
            free = allowed(request, able, chosen)
            free = [candidate for candidate in free if candidate.host == request.writer] or free
            residuals = self._residuals_bps(source, free, now, known.setdefault(source, {}))
            best = max(residuals)
            taken = self._generator.choice([candidate for candidate, left_bps in zip(free, residuals, strict=True)
                                            if left_bps == best])
            chosen.append(taken)
            destinations.append(Destination(taken.host, best[0]))
            source = taken.host
        passed_over = self._passed_over(request, chosen, now, known[request.writer])
        rate_bps, duration_seconds = self._expect(transfer_id, request, chosen, now)
        return Placement(tuple(destinations), rate_bps, duration_seconds, passed_over, request.writer)

    def _residuals_bps(self, source: str, candidates: Sequence[Candidate], now: float,
                       known: dict[str, tuple[float, ...]]) -> list[tuple[float, ...]]:
        """What is left at each rung of the way to each candidate and at its disk, the bottleneck first. `known` has
        those that were asked for before, from this source at this moment.

        The paper compares the ways down alone, as it prices single transfers between racks. A chain's next hop may
        stay in the rack: so the way up counts, but for the source's own link, which all share. Behind one bottleneck
        that many hosts share, the next tightest tells them apart.
        """
        above: dict[Rung, list[float]] = {}
        """Of rungs that many candidates have in common, what is left there and on the rest of the way."""
        up = self._tiers.rungs_from(source)[1:]
        for candidate in candidates:
            if candidate.host in known:
                continue
            rungs = self._tiers.rungs_from(candidate.host)
            lefts = [candidate.disk_bps, math.inf]
            if len(rungs) > 1 and candidate.host != source:
                if rungs[1] not in above:
                    above[rungs[1]] = [self._left_bps(rung, True, now) for rung in apart(rungs[1:], source)]
                    above[rungs[1]] += [self._left_bps(rung, False, now) for rung in apart(up, candidate.host)]
                lefts += [self._left_bps(rungs[0], True, now), *above[rungs[1]]]
            lefts.sort()
            known[candidate.host] = tuple(lefts)
        return [known[candidate.host] for candidate in candidates]

    def _left_bps(self, rung: Rung, down: bool, now: float) -> float:
        left_bps = self._lefts_bps.get((rung, down))
        if left_bps is None:
            left_bps = self._lefts_bps[rung, down] = self._computed_left_bps(rung, down, now)
        return left_bps

    def _computed_left_bps(self, rung: Rung, down: bool, now: float) -> float:
        """What one more transfer would have between a rung and the next, in one direction: the capacity less what is
        expected to be carried, or where that is less, an equal share of what the transfers placed there have."""
        estimates = self._estimates.known(self._measured_links(rung, down))
        left_bps = rung.capacity_bps - sum([estimate.expected_bps(now) for estimate in estimates])
        shared_by = 1 + max([estimate.placements(now) for estimate in estimates], default=0)
        if shared_by == 1:
            return left_bps
        return max(left_bps, (rung.capacity_bps - sum(estimate.measured_bps for estimate in estimates)) / shared_by)

    def _measured_links(self, rung: Rung, down: bool) -> Sequence[Link]:
        """The links whose rates add up to what crosses from a rung to the next, or back."""
        if self._measured_by is MeasuredBy.HOSTS:
            return rung.host_links(self._network, down)
        return rung.downlinks if down else rung.uplinks

    def _expect(self, transfer_id: object, request: PlacementRequest, chosen: Sequence[Candidate],
                now: float) -> tuple[float, float]:
        """Raise the estimates of all links of the chain by its one rate, for D. Returns the rate in bits/s, and D."""
        crossings = Counter(self._crossings([request.writer, *(candidate.host for candidate in chosen)]))
        rate_bps = min([candidate.disk_bps for candidate in chosen] + [
            max(self._left_bps(rung, down, now), LEAST_SHARE * rung.capacity_bps) / times
            for (rung, down), times in crossings.items()])
        duration_seconds = request.size_bits / rate_bps
        if duration_seconds > 0:
            added_bps: Counter[Link] = Counter()
            for (rung, down), times in crossings.items():
                links = rung.downlinks if down else rung.uplinks
                added_bps.update({link: times * rate_bps / len(links) for link in links})
            for link, link_bps in added_bps.items():
                self._estimates.of(link).placed_for_duration(transfer_id, link_bps, duration_seconds, now)
            self._placed[transfer_id] = frozenset(added_bps)
            self._lefts_bps = {way: left_bps for way, left_bps in self._lefts_bps.items()
                               if added_bps.keys().isdisjoint(self._measured_links(*way))}
        return rate_bps, duration_seconds

    def _crossings(self, chain: Sequence[str]) -> Iterator[tuple[Rung, bool]]:
        """The rungs that a chain of hosts crosses, up from each and down to the next."""
        for source, target in pairwise(chain):
            if source in self._network:
                yield from ((rung, False) for rung in self._tiers.rungs_apart(source, target))
            yield from ((rung, True) for rung in self._tiers.rungs_apart(target, source))

    def _passed_over(self, request: PlacementRequest, chosen: Sequence[Candidate], now: float,
                     known: dict[str, tuple[float, ...]]) -> dict[str, str]:
        taken = {candidate.host for candidate in chosen}
        others = [candidate for candidate in request.candidates if candidate.host not in taken]
        reasons = {candidate.host: reason for candidate in others
                   if (reason := unfit(candidate, request, self._network)) is not None}
        able = [candidate for candidate in others if candidate.host not in reasons]
        residuals = self._residuals_bps(request.writer, able, now, known)
        return reasons | {
            candidate.host: f"{tightest_bps:.0f} bit/s left into it, or its rack or pod was not wanted"
            for candidate, (tightest_bps, *_) in zip(able, residuals, strict=True)}
