"""What is asked of a placement policy, what it answers, and the constraints that every answer keeps to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from speedwell.controller.policy.errors import ImpossiblePlacement, InvalidRequest
from speedwell.controller.policy.network.graph import Link, Network


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
    """Where `replicas` copies of `size_bits` that `writer` writes may go. Raises InvalidRequest.

    `sources` are the hosts that could send the bytes, where that is not the writer alone: the holders of a replica
    that is to be copied, or where a task may still be started. `expected_reads` is how often the file is expected to
    be read as a whole soon.
    """

    writer: str
    size_bits: float
    candidates: tuple[Candidate, ...]
    replicas: int = 3
    least_racks: int = 2
    least_pods: int = 1
    sources: tuple[str, ...] = ()
    expected_reads: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.size_bits) and self.size_bits >= 0):
            raise InvalidRequest(f"a transfer's size is a number of bits from 0 up, not {self.size_bits!r}")
        if self.replicas < 1:
            raise InvalidRequest(f"a placement is of 1 replica or more, not {self.replicas}")
        if not (1 <= self.least_pods <= self.least_racks <= self.replicas):
            raise InvalidRequest(f"{self.replicas} replicas can be in 1 to {self.replicas} racks, and in no more "
                                 f"pods than racks; wanted: {self.least_racks} racks, {self.least_pods} pods")
        if not (math.isfinite(self.expected_reads) and self.expected_reads >= 0):
            raise InvalidRequest(f"a file is read a number of times from 0 up, not {self.expected_reads!r}")
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

    `passed_over` says of every other candidate why it was not taken, `source` who sends.
    """

    destinations: tuple[Destination, ...]
    rate_bps: float
    duration_seconds: float
    passed_over: dict[str, str]
    source: str


class PlacementPolicy(Protocol):
    """Chooses where replicas go. `now` is in seconds and never runs backwards."""

    def place(self, transfer_id: object, request: PlacementRequest, now: float) -> Placement:
        """Choose the destinations of a request, and expect its transfer. Raises ImpossiblePlacement, naming the
        constraint that fails; then nothing is expected."""

    def link_measured(self, link: Link, rate_bps: float, now: float) -> bool:
        """Take in a link's rate. False, and nothing is changed, for a link that the network has not, or a time before
        the last one's. Raises InvalidMeasurement for what no link can carry."""

    def transfer_ended(self, transfer_id: object) -> None:
        """A placement's transfer is over, or is told of by other means from now on. Unknown ones are fine."""

    def reserved(self, now: float) -> int:
        """How many placements count for their expected duration."""


class KnownFlow(NamedTuple):
    """A connection that carries a placement's transfer, by whose id it goes, or a read. `left_bits` is None where
    nothing was counted since it was told before."""

    transfer_id: object
    source: str
    target: str
    size_bits: float
    left_bits: float | None


@runtime_checkable
class FollowsFlows(Protocol):
    """A placement policy that wants to know of single flows, too."""

    def flows_told(self, flows: Sequence[KnownFlow], now: float) -> None:
        """All flows that are known, before `place` and before `link_measured`: those told of before that are not
        among them have ended."""


def place_in_turn(policy: PlacementPolicy, requests: Sequence[tuple[object, PlacementRequest]],
                  clock: Callable[[], float]) -> Iterator[tuple[object, Placement | ImpossiblePlacement]]:
    """OPT' (Sinbad, section 4.2): the requests of one quantum q, smallest first, each seeing what was placed before.

    Of a request that cannot be placed, why. `clock` gives the time of each decision: others may come between two.
    """
    for transfer_id, request in sorted(requests, key=lambda pending: pending[1].size_bits):
        try:
            yield transfer_id, policy.place(transfer_id, request, clock())
        except ImpossiblePlacement as error:
            yield transfer_id, error


def place_batch(policy: PlacementPolicy, requests: Sequence[tuple[object, PlacementRequest]],
                now: float) -> dict[object, Placement | ImpossiblePlacement]:
    """As `place_in_turn`, all at one time."""
    return dict(place_in_turn(policy, requests, lambda: now))


def fitting(request: PlacementRequest, network: Network) -> list[Candidate]:
    """The candidates that are attached and have the space. Raises ImpossiblePlacement if they are too few: where they
    would be enough with more space, for want of that."""
    attached = [candidate for candidate in request.candidates if candidate.host in network]
    able = [candidate for candidate in attached if 8 * candidate.free_bytes >= request.size_bits]
    _require_possible(request, attached)
    try:
        _require_possible(request, able)
    except ImpossiblePlacement as error:
        raise ImpossiblePlacement("space", error.wanted, error.there, f"{error.constraint} with "
                                  f"{request.size_bits / 8:.0f} bytes free") from None
    return able


def unfit(candidate: Candidate, request: PlacementRequest, network: Network) -> str | None:
    """Why a candidate cannot be taken whatever the load; None for one that can."""
    if candidate.host not in network:
        return "not attached to the network"
    if 8 * candidate.free_bytes < request.size_bits:
        return f"has {candidate.free_bytes:.0f} bytes free of {request.size_bits / 8:.0f}"
    return None


def _require_possible(request: PlacementRequest, able: Sequence[Candidate]) -> None:
    racks, pods = {(candidate.pod, candidate.rack) for candidate in able}, {candidate.pod for candidate in able}
    for constraint, wanted, there in (("hosts", request.replicas, len(able)),
                                      ("racks", request.least_racks, len(racks)),
                                      ("pods", request.least_pods, len(pods))):
        if there < wanted:
            raise ImpossiblePlacement(constraint, wanted, there)


def allowed(request: PlacementRequest, able: Sequence[Candidate],
            chosen: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that leave the constraints fulfillable: a new pod or rack where one is still owed each time."""
    left = request.replicas - len(chosen)
    pods, racks = {candidate.pod for candidate in chosen}, {(candidate.pod, candidate.rack) for candidate in chosen}
    taken = {candidate.host for candidate in chosen}
    free = [candidate for candidate in able if candidate.host not in taken]
    if request.least_pods - len(pods) >= left:
        return [candidate for candidate in free if candidate.pod not in pods]
    if request.least_racks - len(racks) >= left:
        return [candidate for candidate in free if (candidate.pod, candidate.rack) not in racks]
    return free
