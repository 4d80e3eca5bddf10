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
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from random import Random

from controller.policy.errors import ImpossiblePlacement, InvalidRequest
from controller.policy.network.graph import Link, Network
from controller.policy.network.link_estimate import LinkEstimate
from controller.policy.network.tiers import Rung, Tiers

TIDY_SECONDS = 1.0
"""How often what is over is looked for and forgotten; it counts no more before that."""
LEAST_SHARE = 0.05
"""Of links that are fully taken, a new transfer still gets this part: its rate is never taken for nothing."""


class MeasuredBy(Enum):
    """Who measures links above the hosts: the switches (the paper's wish), or the hosts alone, whose links' sum is
    taken for the load of what is above them (as the paper's system does)."""

    SWITCHES = "switches"
    HOSTS = "hosts"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A machine that may take a replica. `disk_bps` is what its disk writes, in bits/s."""

    host: str
    rack: str
    pod: str = ""
    free_bytes: float = math.inf
    disk_bps: float = math.inf


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """Where `replicas` copies of `size_bits` that `writer` writes may go. Raises InvalidRequest."""

    writer: str
    size_bits: float
    candidates: tuple[Candidate, ...]
    replicas: int = 3
    least_racks: int = 2
    least_pods: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.size_bits) and self.size_bits >= 0):
            raise InvalidRequest(f"a transfer's size is a number of bits from 0 up, not {self.size_bits!r}")
        if self.replicas < 1:
            raise InvalidRequest(f"a placement is of 1 replica or more, not {self.replicas}")
        if not (1 <= self.least_pods <= self.least_racks <= self.replicas):
            raise InvalidRequest(f"{self.replicas} replicas can be in 1 to {self.replicas} racks, and in no more "
                                 f"pods than racks; wanted: {self.least_racks} racks, {self.least_pods} pods")
        if len({candidate.host for candidate in self.candidates}) != len(self.candidates):
            raise InvalidRequest("a placement names each candidate's host once")
        for candidate in self.candidates:
            if not candidate.disk_bps > 0 or math.isnan(candidate.free_bytes):
                raise InvalidRequest(f"{candidate.host}: a disk writes more than 0 bits per second, and its free "
                                     "space is a number of bytes")


@dataclass(frozen=True, slots=True)
class Destination:
    """A machine that was chosen, and the bandwidth that was left into it when it was."""

    host: str
    residual_bps: float


@dataclass(frozen=True, slots=True)
class Placement:
    """The destinations in the chain's order, what rate the chain is expected to have, and for how long.

    `passed_over` says of every other candidate why it was not taken.
    """

    destinations: tuple[Destination, ...]
    rate_bps: float
    duration_seconds: float
    passed_over: dict[str, str]


class Sinbad:
    """Places replicas by what links are expected to carry. `now` is in seconds and never runs backwards."""

    def __init__(self, network: Network, generator: Random, measured_by: MeasuredBy = MeasuredBy.SWITCHES) -> None:
        self._network = network
        self._generator = generator
        self._measured_by = measured_by
        self._tiers = Tiers(network)
        self._estimates: dict[Link, LinkEstimate] = {}
        self._placed: dict[object, frozenset[Link]] = {}
        self._tidied_at = -math.inf

    # --- what is told ---

    def link_measured(self, link: Link, rate_bps: float, now: float) -> bool:
        """Take in a link's rate. False, and nothing is changed, for a link that the network has not, or a time before
        the last one's. Raises InvalidMeasurement for what no link can carry."""
        return self._network.has_link(link) and self._estimate(link).measured(rate_bps, now)

    def transfer_ended(self, transfer_id: object) -> None:
        """A placement's transfer is over, or is told of by other means from now on. Unknown ones are fine."""
        for link in self._placed.pop(transfer_id, ()):
            self._estimates[link].forget(transfer_id)

    def reserved(self, now: float) -> int:
        """How many placements count for their expected duration."""
        self._tidied_at = now
        for link, estimate in list(self._estimates.items()):
            estimate.expected_bps(now)
            if not self._network.has_link(link):
                del self._estimates[link]
        self._placed = {transfer_id: links for transfer_id, links in self._placed.items()
                        if any(link in self._estimates and self._estimates[link].reserves for link in links)}
        return len(self._placed)

    # --- decisions ---

    def place_batch(self, requests: Sequence[tuple[object, PlacementRequest]],
                    now: float) -> dict[object, Placement | ImpossiblePlacement]:
        """OPT' (section 4.2): the requests of one quantum q, smallest first, each seeing what was placed before it.

        Of a request that cannot be placed, why.
        """
        placements: dict[object, Placement | ImpossiblePlacement] = {}
        for transfer_id, request in sorted(requests, key=lambda pending: pending[1].size_bits):
            try:
                placements[transfer_id] = self.place(transfer_id, request, now)
            except ImpossiblePlacement as error:
                placements[transfer_id] = error
        return placements

    def place(self, transfer_id: object, request: PlacementRequest, now: float) -> Placement:
        """Choose the destinations of a request, and expect its transfer. Raises ImpossiblePlacement, naming the
        constraint that fails; then nothing is expected."""
        if now - self._tidied_at >= TIDY_SECONDS:
            self.reserved(now)
        fitting = [candidate for candidate in request.candidates
                   if 8 * candidate.free_bytes >= request.size_bits and candidate.host in self._network]
        _require_possible(request, fitting)
        chosen: list[Candidate] = []
        destinations: list[Destination] = []
        source = request.writer
        while len(chosen) < request.replicas:
            allowed = _allowed(request, fitting, chosen)
            local = [candidate for candidate in allowed if candidate.host == request.writer]
            residuals = {candidate: self._residuals_bps(source, candidate, now) for candidate in local or allowed}
            best = max(residuals.values())
            taken = self._generator.choice([candidate for candidate, left in residuals.items() if left == best])
            chosen.append(taken)
            destinations.append(Destination(taken.host, best[0]))
            source = taken.host
        rate_bps, duration_seconds = self._expect(transfer_id, request, chosen, now)
        return Placement(tuple(destinations), rate_bps, duration_seconds, self._passed_over(request, chosen, now))

    def _residuals_bps(self, source: str, candidate: Candidate, now: float) -> tuple[float, ...]:
        """What is left at each rung of the way down to a candidate and at its disk, the bottleneck first.

        The way up from the source is the same for all candidates beyond a rung, so it does not rank them. The paper
        compares bottlenecks alone; behind one bottleneck that many hosts share, the next tightest tells them apart.
        """
        rungs = self._tiers.rungs_apart(candidate.host, source)
        return (*sorted([candidate.disk_bps, *(self._left_bps(rung, True, now) for rung in rungs)]), math.inf)

    def _left_bps(self, rung: Rung, down: bool, now: float) -> float:
        """What one more transfer would have between a rung and the next, in one direction: the capacity less what is
        expected to be carried, or where that is less, an equal share of what the transfers placed there have."""
        capacity_bps = _capacity_bps(self._network, rung.uplinks)
        estimates = [self._estimates[link] for link in self._measured_links(rung, down) if link in self._estimates]
        shared_by = 1 + max((estimate.placements(now) for estimate in estimates), default=0)
        return max(capacity_bps - sum(estimate.expected_bps(now) for estimate in estimates),
                   (capacity_bps - sum(estimate.measured_bps for estimate in estimates)) / shared_by
                   if shared_by > 1 else -math.inf)

    def _measured_links(self, rung: Rung, down: bool) -> Sequence[Link]:
        """The links whose rates add up to what crosses from a rung to the next, or back."""
        if self._measured_by is MeasuredBy.SWITCHES:
            return rung.downlinks if down else rung.uplinks
        ends = [(host, switch) for host in sorted(rung.hosts) for switch in self._network.neighbours(host)]
        return [(switch, host) for host, switch in ends] if down else ends

    def _expect(self, transfer_id: object, request: PlacementRequest, chosen: Sequence[Candidate],
                now: float) -> tuple[float, float]:
        """Raise the estimates of all links of the chain by its one rate, for D. Returns the rate in bits/s, and D."""
        crossings = Counter(self._crossings([request.writer, *(candidate.host for candidate in chosen)]))
        rate_bps = min([candidate.disk_bps for candidate in chosen] + [
            max(self._left_bps(rung, down, now), LEAST_SHARE * _capacity_bps(self._network, rung.uplinks)) / times
            for (rung, down), times in crossings.items()])
        duration_seconds = request.size_bits / rate_bps
        if duration_seconds > 0:
            added_bps: Counter[Link] = Counter()
            for (rung, down), times in crossings.items():
                links = rung.downlinks if down else rung.uplinks
                added_bps.update({link: times * rate_bps / len(links) for link in links})
            for link, link_bps in added_bps.items():
                self._estimate(link).placed_for_duration(transfer_id, link_bps, duration_seconds, now)
            self._placed[transfer_id] = frozenset(added_bps)
        return rate_bps, duration_seconds

    def _crossings(self, chain: Sequence[str]) -> Iterator[tuple[Rung, bool]]:
        """The rungs that a chain of hosts crosses, up from each and down to the next."""
        for source, target in pairwise(chain):
            if source in self._network:
                yield from ((rung, False) for rung in self._tiers.rungs_apart(source, target))
            yield from ((rung, True) for rung in self._tiers.rungs_apart(target, source))

    def _passed_over(self, request: PlacementRequest, chosen: Sequence[Candidate], now: float) -> dict[str, str]:
        reasons = {}
        for candidate in request.candidates:
            if candidate in chosen:
                continue
            if candidate.host not in self._network:
                reasons[candidate.host] = "not attached to the network"
            elif 8 * candidate.free_bytes < request.size_bits:
                reasons[candidate.host] = f"has {candidate.free_bytes:.0f} bytes free of {request.size_bits / 8:.0f}"
            else:
                left_bps, *_ = self._residuals_bps(request.writer, candidate, now)
                reasons[candidate.host] = f"{left_bps:.0f} bit/s left into it, or its rack or pod was not wanted"
        return reasons

    def _estimate(self, link: Link) -> LinkEstimate:
        return self._estimates.setdefault(link, LinkEstimate())


def _capacity_bps(network: Network, links: Sequence[Link]) -> float:
    return sum(map(network.capacity_bps, links))


def _require_possible(request: PlacementRequest, fitting: Sequence[Candidate]) -> None:
    racks, pods = {(candidate.pod, candidate.rack) for candidate in fitting}, {candidate.pod for candidate in fitting}
    for constraint, wanted, there in (("hosts", request.replicas, len(fitting)),
                                      ("racks", request.least_racks, len(racks)),
                                      ("pods", request.least_pods, len(pods))):
        if there < wanted:
            raise ImpossiblePlacement(constraint, wanted, there)


def _allowed(request: PlacementRequest, fitting: Sequence[Candidate],
             chosen: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that leave the constraints fulfillable: a new pod or rack where one is still owed each time."""
    left = request.replicas - len(chosen)
    pods, racks = {candidate.pod for candidate in chosen}, {(candidate.pod, candidate.rack) for candidate in chosen}
    free = [candidate for candidate in fitting if candidate not in chosen]
    if request.least_pods - len(pods) >= left:
        return [candidate for candidate in free if candidate.pod not in pods]
    if request.least_racks - len(racks) >= left:
        return [candidate for candidate in free if (candidate.pod, candidate.rack) not in racks]
    return free
