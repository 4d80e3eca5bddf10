"""The coflows that run now, as the schedulers keep them, and the part of a scheduler that is the same for all."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from hashlib import blake2b
from itertools import count
from operator import attrgetter

from speedwell.controller.policy.coflows.coflow import (
    AGAIN_SECONDS,
    BITS_PER_BYTE,
    Assignment,
    Coflow,
    CoflowFlow,
    CoflowScheduler,
    Schedule,
    ServiceClass,
    require_bytes,
)
from speedwell.controller.policy.errors import DuplicateFlow, InvalidRequest, NoPath, UnknownCoflow, UnknownFlow
from speedwell.controller.policy.network.graph import Network, Path

UNREPORTED_PART = 0.01
"""Of what a flow reported: so much is taken to be left at least, until it says otherwise."""
LATE_PART, LATE_SECONDS = 0.25, 1.0
"""A coflow is late if it ends so much of its planned time, and at least so long, after it: what was moved between the
last report and the decision was estimated wrongly. Less is what TCP does not get of a rate."""


class LiveFlow:
    """A flow that has not ended, and what the schedule in force says of it. Compared by identity.

    `links` are the indices of the links that the scheduler counts it on: those of its path, or its hosts' own links
    only, if the policy leaves the path to the switches. A flow `is_stranded` while the network has no path for it, or
    one of its hosts is gone: it stays live, and waits in the best-effort queue.
    """

    __slots__ = ("_assignment", "_left_bits", "_reported_bits", "_settled_at", "coflow", "destination", "flow_id",
                 "is_stranded", "links", "path", "priority", "rate_bps", "service_class", "source")

    def __init__(self, flow: CoflowFlow, coflow: LiveCoflow, now: float) -> None:
        self.flow_id = flow.flow_id
        self.coflow = coflow
        self.source = flow.source
        self.destination = flow.destination
        self.path: Path | None = None
        self.links: tuple[int, ...] = ()
        self.is_stranded = False
        self.rate_bps: float | None = None
        self.service_class = ServiceClass.BEST_EFFORT
        self.priority: int | None = None
        self._assignment: Assignment | None = None
        self.report(flow.remaining_bytes, now)

    def report(self, remaining_bytes: float, now: float) -> None:
        self._left_bits = self._reported_bits = remaining_bytes * BITS_PER_BYTE
        self._settled_at = now

    def remaining_bits(self, now: float) -> float:
        """d: what was last reported, less what a rate that is enforced has moved since.

        Without an enforced rate nobody can say what was moved, and the report stands. A flow is never taken to be
        done before it says so: a hundredth of what it reported is left at least.
        """
        moved_bits = (self.rate_bps or 0.0) * (now - self._settled_at)
        return max(self._left_bits - moved_bits, UNREPORTED_PART * self._reported_bits)

    def settle(self, now: float) -> None:
        """Account for what was moved so far, before the rate changes."""
        self._left_bits = self.remaining_bits(now)
        self._settled_at = now

    def seconds_left(self, now: float) -> float:
        """How long it takes yet at its rate; 0 for one without a rate."""
        return self.remaining_bits(now) / self.rate_bps if self.rate_bps else 0.0

    def assignment(self) -> Assignment:
        """The same object for as long as it says the same: for most flows, most decisions change nothing."""
        told = self._assignment
        if told is None or (told.rate_bps, told.service_class, told.priority, told.path) != (
                self.rate_bps, self.service_class, self.priority, self.path):
            told = self._assignment = Assignment(self.flow_id, self.coflow.id, self.path, self.rate_bps,
                                                 self.service_class, self.priority)
        return told


class LiveCoflow:
    """A coflow of which at least one flow has not ended. `number` counts coflows in the order of their arrival.

    Sizes are what was announced: of the whole, and of each transfer from one host to another.
    """

    __slots__ = ("age", "arrived_at", "flows", "id", "largest_transfer_bits", "latest_at", "number", "size_bits",
                 "transfers_bits")

    def __init__(self, coflow_id: Hashable, arrived_at: float, number: int) -> None:
        self.id = coflow_id
        self.arrived_at = arrived_at
        self.number = number
        self.age = arrived_at, number
        """What sorts coflows by arrival."""
        self.flows: dict[Hashable, LiveFlow] = {}
        self.size_bits = self.largest_transfer_bits = 0.0
        self.transfers_bits: dict[tuple[str, str], float] = {}
        self.latest_at = math.inf

    def plan(self, now: float) -> None:
        """Note when the coflow has to have ended by the rates it has now, if it is not to be late."""
        seconds = 0.0
        for flow in self.flows.values():
            if flow.rate_bps:
                seconds = max(seconds, flow.seconds_left(now))
        self.latest_at = now + seconds + max(LATE_SECONDS, LATE_PART * seconds)

    def add(self, flow: LiveFlow, now: float) -> None:
        bits, ends = flow.remaining_bits(now), (flow.source, flow.destination)
        self.flows[flow.flow_id] = flow
        self.size_bits += bits
        transfer_bits = self.transfers_bits[ends] = self.transfers_bits.get(ends, 0.0) + bits
        self.largest_transfer_bits = max(self.largest_transfer_bits, transfer_bits)


class TableScheduler(CoflowScheduler):
    """A scheduler that decides anew over all live flows whenever a coflow comes or its last flow ends. One that
    `decides_often` does so at the end of each flow too, and as reports come `AGAIN_SECONDS` after the last decision.

    A policy says where flows go when they arrive (`_place`) and sets each flow's rate, queue and perhaps path when
    it decides (`_decide`). Between decisions nothing changes.
    """

    decides_often = True

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network
        self._decided_at = -math.inf
        self._version = network.version
        self._coflows: dict[Hashable, LiveCoflow] = {}
        self._flows: dict[Hashable, LiveFlow] = {}
        self._unplaced: list[LiveFlow] = []
        """Flows that have just come, or lost their path, and were not told to the policy since."""
        self._schedule: Schedule | None = Schedule()
        """What the last decision says; None if flows have ended since."""
        self._order: tuple[Hashable, ...] = ()
        self._numbers = count()

    # --- what a policy adds ---

    @abstractmethod
    def _place(self, flows: Iterable[LiveFlow], now: float) -> None:
        """Give flows that have just come, or lost their path, their `links` and perhaps a `path`. All of them can be
        reached."""

    @abstractmethod
    def _decide(self, now: float) -> Iterable[LiveCoflow]:
        """Set `rate_bps`, `service_class` and `priority` of all live flows; gives the order of the coflows.

        What it says of stranded flows does not count, and `_by_age` has no coflow of which all flows are stranded.
        """

    # --- what the world tells ---

    @property
    def schedule(self) -> Schedule:
        if self._schedule is None:
            self._schedule = Schedule({flow_id: flow.assignment() for flow_id, flow in self._flows.items()},
                                      tuple(coflow_id for coflow_id in self._order if coflow_id in self._coflows))
        return self._schedule

    def coflow_arrived(self, coflow: Coflow, now: float) -> Schedule:
        for flow in coflow.flows:
            if flow.flow_id in self._flows:
                raise DuplicateFlow(f"flow {flow.flow_id!r} is live already")
            self._require_reachable(flow)
        live = self._coflows.get(coflow.id)
        if live is None:
            live = self._coflows[coflow.id] = LiveCoflow(coflow.id, coflow.arrived_at, next(self._numbers))
        for flow in coflow.flows:
            own = self._flows[flow.flow_id] = LiveFlow(flow, live, now)
            live.add(own, now)
            self._unplaced.append(own)
        return self._decided(now)

    def progress(self, flow_id: Hashable, remaining_bytes: float, now: float) -> None:
        require_bytes(remaining_bytes)
        self._flow(flow_id).report(remaining_bytes, now)

    def correct(self, flow_id: Hashable, now: float) -> Schedule | None:
        flow = self._flow(flow_id)
        is_late = bool(flow.rate_bps) and now + flow.seconds_left(now) > flow.coflow.latest_at
        return self._decided(now) if is_late else None

    def again(self, now: float) -> Schedule | None:
        is_time = self.decides_often and self._flows and now - self._decided_at >= AGAIN_SECONDS
        return self._decided(now) if is_time else None

    def flow_finished(self, flow_id: Hashable, now: float) -> Schedule | None:
        flow = self._flow(flow_id)
        del self._flows[flow_id], flow.coflow.flows[flow_id]
        self._schedule = None
        if flow.coflow.flows:
            return self._decided(now) if self.decides_often else None
        return self._forget(flow.coflow, now)

    def coflow_gone(self, coflow_id: Hashable, now: float) -> Schedule:
        coflow = self._coflows.get(coflow_id)
        if coflow is None:
            raise UnknownCoflow(coflow_id)
        for flow_id in coflow.flows:
            del self._flows[flow_id]
        return self._forget(coflow, now)

    def network_changed(self, now: float) -> Schedule:
        return self._decided(now)

    # --- helpers ---

    def _forget(self, coflow: LiveCoflow, now: float) -> Schedule:
        del self._coflows[coflow.id]
        self._schedule = None
        return self._decided(now)

    def _decide_anew(self, now: float) -> Schedule:
        """Over all live flows, on the network as it is at this moment."""
        self._follow_network()
        self._decided_at = now
        for flow in self._flows.values():
            flow.settle(now)
        unplaced = [flow for flow in self._unplaced if self._flows.get(flow.flow_id) is flow]
        for flow in unplaced:
            flow.is_stranded = not self._is_reachable(flow)
        self._place([flow for flow in unplaced if not flow.is_stranded], now)
        self._unplaced = []
        self._order = tuple(coflow.id for coflow in self._decide(now))
        without_rates((flow for flow in self._flows.values() if flow.is_stranded), ServiceClass.BEST_EFFORT)
        for coflow in self._coflows.values():
            coflow.plan(now)
        self._schedule = None
        return self.schedule

    def _follow_network(self) -> None:
        """Take flows off paths that are gone, or are shortest paths no more: only these can be had."""
        if self._version == self._network.version:
            return
        for flow in self._flows.values():
            if flow.path is None or not self._is_shortest(flow.path):
                flow.path, flow.links = None, ()
                self._unplaced.append(flow)
        self._version = self._network.version

    def _flow(self, flow_id: Hashable) -> LiveFlow:
        if flow_id not in self._flows:
            raise UnknownFlow(flow_id)
        return self._flows[flow_id]

    def _require_reachable(self, flow: CoflowFlow) -> None:
        for node in (flow.source, flow.destination):
            if node in self._network and not self._network.is_host(node):
                raise InvalidRequest(f"flow {flow.flow_id!r}: {node!r} is a switch, not a host")
        if self._network.distance(flow.source, flow.destination) is None:
            raise NoPath(f"flow {flow.flow_id!r}: no path from {flow.source!r} to {flow.destination!r}")

    def _is_reachable(self, flow: LiveFlow) -> bool:
        network = self._network
        return (network.is_host(flow.source) and network.is_host(flow.destination)
                and network.distance(flow.source, flow.destination) is not None)

    def _is_shortest(self, path: Path) -> bool:
        return (self._network.has_path(path)
                and len(path.links) == self._network.distance(path.nodes[0], path.nodes[-1]))

    def _by_age(self) -> Iterator[LiveCoflow]:
        coflows: Iterable[LiveCoflow] = self._coflows.values()
        if any(flow.is_stranded for flow in self._flows.values()):
            coflows = [coflow for coflow in coflows if not all(flow.is_stranded for flow in coflow.flows.values())]
        return iter(sorted(coflows, key=attrgetter("age")))


def without_rates(flows: Iterable[LiveFlow], service_class: ServiceClass) -> None:
    """Put flows into a queue in which nothing limits them."""
    for flow in flows:
        flow.rate_bps, flow.service_class, flow.priority = None, service_class, None

def hashed(flow: LiveFlow | CoflowFlow, choices: int) -> int:
    """Which of so many paths ECMP gives a flow: always the same one for the same flow, each equally often."""
    key = blake2b(f"{flow.flow_id!r} {flow.source} {flow.destination}".encode(), digest_size=8).digest()
    return int.from_bytes(key, "big") * choices >> 64
