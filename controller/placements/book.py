"""The placements whose transfers are expected to run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from speedwell.controller.errors import ControllerError
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.placements.request import Placement, PlacementRequest

MAX_EXPECTED = 50_000
REST_SECONDS = 2.0
"""A file may come in many appends over one connection: between two of them its flow rests for so long at most."""


class UnknownPlacement(ControllerError):
    """No transfer of a placement with this id is expected."""

    status = 404

    def __init__(self, placement_id: str) -> None:
        super().__init__(f"no transfer of a placement {placement_id} is expected: it ended, its time is over, or it "
                         "never was", id=placement_id)


class TooManyPlacements(ControllerError):
    """So many transfers are expected that no more can be."""

    status = 503

    def __init__(self) -> None:
        super().__init__(f"the transfers of {MAX_EXPECTED} placements are expected already: ask again later")


Hop = tuple[str, str]


@dataclass(slots=True, eq=False)
class Expected:
    """A placement made at `placed_at`, in seconds of the monotonic clock, and what was reported of its transfer."""

    id: str
    request: PlacementRequest
    placement: Placement
    placed_at: float
    flows: dict[FiveTuple, float] = field(default_factory=dict)
    """Since when each rests; those that run, since for ever from now."""
    announced_bytes: Counter[Hop] = field(default_factory=Counter)
    """By all flows so far, for each hop of the chain."""

    @property
    def size_bytes(self) -> int:
        return int(self.request.size_bits / 8)

    @property
    def hops(self) -> set[Hop]:
        """The ways between hosts that the chain goes, from its source on."""
        chain = [self.placement.source, *(destination.host for destination in self.placement.destinations)]
        return {hop for hop in pairwise(chain) if hop[0] != hop[1]}

    def owed_bytes(self, hop: Hop) -> int:
        """What is still to be announced on a hop of the chain."""
        return self.size_bytes - self.announced_bytes[hop]

    @property
    def is_done(self) -> bool:
        """All of it was announced, and has ended."""
        return not self.flows and bool(self.announced_bytes) and all(self.owed_bytes(hop) <= 0 for hop in self.hops)

    def is_over(self, now: float) -> bool:
        """Its time has passed, and nothing of it runs."""
        return not self.flows and now - self.placed_at >= self.placement.duration_seconds


class PlacementBook:
    """At most MAX_EXPECTED of them; each for its expected duration, or for as long as its flows run."""

    def __init__(self) -> None:
        self._expected: dict[str, Expected] = {}
        self._by_hop: dict[Hop, dict[str, Expected]] = {}
        """Those that owe bytes on a hop, the oldest first."""
        self._by_flow: dict[FiveTuple, Expected] = {}

    def __len__(self) -> int:
        return len(self._expected)

    def __iter__(self) -> Iterator[Expected]:
        return iter(self._expected.values())

    def require_space(self, number: int) -> None:
        """Raises TooManyPlacements if there is none for so many more."""
        if len(self._expected) + number > MAX_EXPECTED:
            raise TooManyPlacements

    def add(self, expected: Expected) -> None:
        self._expected[expected.id] = expected
        for hop in expected.hops:
            self._by_hop.setdefault(hop, {})[expected.id] = expected

    def remove(self, placement_id: str) -> Expected:
        """Forget a placement, and its flows. Raises UnknownPlacement."""
        expected = self._expected.pop(placement_id, None)
        if expected is None:
            raise UnknownPlacement(placement_id)
        for hop in expected.hops:
            self._owes_no_more(expected, hop)
        for flow in expected.flows:
            del self._by_flow[flow]
        return expected

    def end_those_over(self, now: float) -> None:
        """Forget those whose expected duration has passed while nothing of them runs."""
        for expected in [expected for expected in self if expected.is_over(now)]:
            self.remove(expected.id)

    # --- flows ---

    def whose(self, flow: FiveTuple, size_bytes: int) -> Expected | None:
        """The placement whose bytes a flow that begins carries: of those that owe some on its hop the oldest that
        owes just as many, else the latest. Others may have been made for files that are never written."""
        hop = flow.source, flow.destination
        owing = self._by_hop.get(hop, {})
        return next((expected for expected in owing.values() if expected.owed_bytes(hop) == size_bytes),
                    owing[next(reversed(owing))] if owing else None)

    def flow_began(self, flow: FiveTuple, size_bytes: int, expected: Expected) -> None:
        """A flow carries so many bytes of a placement, on a hop of its chain."""
        self._by_flow[flow] = expected
        self._announce(flow, size_bytes, expected)

    def flow_goes_on(self, flow: FiveTuple, size_bytes: int) -> bool:
        """A flow carries so many more bytes. False, and nothing is changed, if its placement waits for none of it."""
        expected = self._by_flow.get(flow)
        if expected is None or expected.owed_bytes((flow.source, flow.destination)) <= 0:
            return False
        self._announce(flow, size_bytes, expected)
        return True

    def flow_rests(self, flow: FiveTuple, now: float) -> bool:
        """What a flow had to carry is there. Whether it was the last that its placement waits for on that hop."""
        expected = self._by_flow.get(flow)
        if expected is None:
            return False
        expected.flows[flow] = now
        return expected.owed_bytes((flow.source, flow.destination)) <= 0

    def flow_ended(self, flow: FiveTuple) -> Expected | None:
        """The placement whose flow it was."""
        expected = self._by_flow.pop(flow, None)
        if expected is not None:
            del expected.flows[flow]
        return expected

    def rested(self, now: float) -> list[FiveTuple]:
        """The flows that have rested for too long."""
        return [flow for flow, expected in self._by_flow.items() if now - expected.flows[flow] > REST_SECONDS]

    def _announce(self, flow: FiveTuple, size_bytes: int, expected: Expected) -> None:
        hop = flow.source, flow.destination
        expected.flows[flow] = math.inf
        expected.announced_bytes[hop] += size_bytes
        if expected.owed_bytes(hop) <= 0:
            self._owes_no_more(expected, hop)

    def _owes_no_more(self, expected: Expected, hop: Hop) -> None:
        owing = self._by_hop.get(hop, {})
        owing.pop(expected.id, None)
        if not owing:
            self._by_hop.pop(hop, None)
