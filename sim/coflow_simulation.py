"""Coflows on a simulated fabric, scheduled by the controller's own policies (`controller/policy`).

A policy is told what the controller would be told: coflows as they arrive, reports of progress at an interval, the
end of flows. What it answers is enforced a little later: paths by the switches, rates by meters at the first switch
(for Varys by the hosts), queues on the links between switches. A flow that is moved loses what Eq. 2 to 4 of MinCOF
say it loses: it has that much more to send. Flows without a path take the one that ECMP's hash gives them.
"""

import heapq
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from speedwell.controller.policy.coflows.coflow import (
    BITS_PER_BYTE,
    Coflow,
    CoflowFlow,
    CoflowScheduler,
    Schedule,
    ServiceClass,
)
from speedwell.controller.policy.coflows.live_coflows import hashed
from speedwell.controller.policy.coflows.mincof import BEST_EFFORT_SHARE, SCHEDULED_SHARE, STARVED_SHARE
from speedwell.controller.policy.coflows.steady_classes import steady_classes
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.network.traffic_classes import LEAST_SHARE, PRIORITIES
from speedwell.controller.policy.reads.rerouting import Tcp, loss
from speedwell.sim.class_shares import class_rates, fits, ranked_rates
from speedwell.sim.errors import InvalidSetting

CLASSES = {ServiceClass.SCHEDULED: 0, ServiceClass.STARVED: 1, ServiceClass.BEST_EFFORT: 2}
WEIGHTS = np.array([SCHEDULED_SHARE, STARVED_SHARE, BEST_EFFORT_SHARE])
LOWEST_RANK = PRIORITIES - 1    # the last priority is best effort
ENDED_BITS = 1.0
WAIT_BPS = 1e-3         # a meter of less lets nothing pass


@dataclass(frozen=True)
class Enforcement:
    """Seconds, and what meters do. `sliced`: links between switches have the policy's queues (three by weight or
    eight by priority); `hosts_enforce`: hosts' own links as well, as host agents have it. Links without are shared
    fairly. `least_share` of a link is what each priority has for certain."""

    decision: float = 0.005         # from an event to the switches' doing what was decided
    report_interval: float = 1.0
    sliced: bool = True
    hosts_enforce: bool = False
    least_share: float = LEAST_SHARE
    meter_part: float = 1.0         # of a metered rate that TCP gets

    def __post_init__(self) -> None:
        """Raises InvalidSetting."""
        if not (self.decision >= 0 and self.report_interval > 0 and 0 < self.meter_part <= 1
                and 0 <= self.least_share <= 1 / PRIORITIES):
            raise InvalidSetting("enforcement: times are positive seconds, a meter lets up to all of its rate pass, "
                                 "the least shares of all priorities are a link at most")


@dataclass(slots=True)
class _Running:
    flow: CoflowFlow
    coflow_id: Hashable
    row: int


class CoflowSimulation:
    """One run. Deterministic: the same arguments give the same completion times."""

    def __init__(self, network: Network, scheduler: CoflowScheduler, enforcement: Enforcement | None = None,
                 tcp: Tcp | None = None) -> None:
        self._network = network
        self._scheduler = scheduler
        self._enforcement = enforcement or Enforcement()
        self._tcp = tcp or Tcp()
        self._capacities = np.array(network.capacities_bps())
        self._sliced = np.zeros(len(self._capacities), np.bool_)
        for link in network.links:
            of_host = network.is_host(link[0]) or network.is_host(link[1])
            self._sliced[network.link_index(link)] = (self._enforcement.hosts_enforce if of_host
                                                      else self._enforcement.sliced)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._running: dict[Hashable, _Running] = {}
        self._alive: dict[Hashable, int] = {}
        self._steady: dict[Hashable, int] = {}
        self._hidden: set[Hashable] = set()
        self._reports_due = False
        self._caps_changed = True
        self._caps_fit = False      # whether meters alone say what flows get
        self.now = 0.0
        self.moves = 0
        self.decisions = 0
        self.ends: dict[Hashable, float] = {}
        self._make_room(64)

    def _make_room(self, rows: int) -> None:
        self._links = np.full((rows, 8), -1, np.int64)
        self._left, self._caps, self._rates = np.zeros(rows), np.full(rows, np.inf), np.zeros(rows)
        self._class, self._rank = np.full(rows, 2, np.int64), np.full(rows, LOWEST_RANK, np.int64)
        self._owner: list[Hashable] = []

    def run(self, coflows: Sequence[Coflow], background: frozenset[Hashable] = frozenset()) -> dict[Hashable, float]:
        """Completion times in seconds by coflow. Coflows in `background` never tell the scheduler of themselves."""
        flows = sum(len(coflow.flows) for coflow in coflows)
        self._make_room(flows)
        self._hidden = set(background)
        for coflow in coflows:
            self._at(coflow.arrived_at, lambda coflow=coflow: self._arrive(coflow))     # type: ignore[misc]
        while self._events or self._running:
            self._step()
        return {coflow.id: self.ends[coflow.id] - coflow.arrived_at for coflow in coflows}

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), action))

    def _step(self) -> None:
        rows = len(self._owner)
        left, rates = self._left[:rows], self._rates[:rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            until = np.where(rates > 0, left / rates, np.inf)
        soonest = self.now + (float(until.min()) if rows else math.inf)
        event = self._events[0][0] if self._events else math.inf
        if min(soonest, event) == math.inf:
            raise RuntimeError(f"{len(self._running)} flows are left that no schedule lets go on")
        time = min(soonest, event)
        left -= rates * (time - self.now)
        self.now = time
        if event <= soonest:
            heapq.heappop(self._events)[2]()
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
        for row in sorted(np.flatnonzero(left <= ENDED_BITS).tolist(), reverse=True):
            if row < len(self._owner) and self._left[row] <= ENDED_BITS:
                self._end(self._owner[row])
        self._share()

    # --- what happens ---

    def _arrive(self, coflow: Coflow) -> None:
        self._alive[coflow.id] = len(coflow.flows)
        self._caps_changed = True
        for flow in coflow.flows:
            row = len(self._owner)
            self._owner.append(flow.flow_id)
            self._left[row] = flow.remaining_bytes * BITS_PER_BYTE
            self._caps[row], self._rank[row] = math.inf, LOWEST_RANK
            self._class[row] = CLASSES[ServiceClass.BEST_EFFORT]
            self._running[flow.flow_id] = _Running(flow, coflow.id, row)
            self._route(row, self._default_links(flow))
        if coflow.id not in self._hidden:
            self._decided(self._scheduler.coflow_arrived(coflow, self.now))
            if not self._reports_due:
                self._reports_due = True
                self._at(self.now + self._enforcement.report_interval, self._report)

    def _end(self, flow_id: Hashable) -> None:
        running = self._running.pop(flow_id)
        last = len(self._owner) - 1
        if running.row != last:         # the last row takes its place
            for array in (self._links, self._left, self._caps, self._rates, self._class, self._rank):
                array[running.row] = array[last]
            self._owner[running.row] = self._owner[last]
            self._running[self._owner[last]].row = running.row
        self._owner.pop()
        self._alive[running.coflow_id] -= 1
        if self._alive[running.coflow_id] == 0:
            self.ends[running.coflow_id] = self.now
        if running.coflow_id not in self._hidden:
            schedule = self._scheduler.flow_finished(flow_id, self.now)
            if schedule is not None:
                self._decided(schedule)

    def _report(self) -> None:
        """Every application tells what its flows have left."""
        told = [running for running in self._running.values() if running.coflow_id not in self._hidden]
        for running in told:
            left_bits = max(float(self._left[running.row]), 0.0)        # less by rounding when it is just done
            self._scheduler.progress(running.flow.flow_id, left_bits / BITS_PER_BYTE, self.now)
        if told and (schedule := self._scheduler.again(self.now)) is not None:
            self._decided(schedule)
        self._reports_due = bool(told)
        if told:
            self._at(self.now + self._enforcement.report_interval, self._report)

    def _decided(self, schedule: Schedule) -> None:
        self.decisions += 1
        self._at(self.now + self._enforcement.decision, lambda: self._enforce(schedule))

    def _enforce(self, schedule: Schedule) -> None:
        self._caps_changed = True
        self._steady = steady_classes({flow_id: own.priority for flow_id, own in schedule.assignments.items()
                                       if own.priority is not None}, self._steady)
        for flow_id, own in schedule.assignments.items():
            running = self._running.get(flow_id)
            if running is None:
                continue
            row = running.row
            self._caps[row] = math.inf
            if own.rate_bps is not None:
                metered = own.rate_bps * self._enforcement.meter_part
                self._caps[row] = metered if metered > WAIT_BPS else 0.0
            self._class[row] = CLASSES[own.service_class]
            self._rank[row] = self._steady.get(flow_id, LOWEST_RANK)
            if own.path is not None:
                links = tuple(self._network.link_index(link) for link in own.path.links)
                if links != tuple(self._links[row, : len(links)]):
                    self._move(row, links)

    def _move(self, row: int, links: tuple[int, ...]) -> None:
        """A flow that runs loses part of its window; one that has just begun has nothing to lose."""
        rate = self._rates[row]
        self._route(row, links)
        if rate > 0:
            self.moves += 1
            round_trips = self._tcp.round_trips(self._left[row] / rate)
            self._left[row] += self._tcp.bits(loss(round_trips, self._tcp.window(rate)))

    # --- links and rates ---

    def _default_links(self, flow: CoflowFlow) -> tuple[int, ...]:
        paths = self._network.shortest_path_links(flow.source, flow.destination)
        return paths[hashed(flow, len(paths))]

    def _route(self, row: int, links: Sequence[int]) -> None:
        self._links[row] = -1
        self._links[row, : len(links)] = links

    def _share(self) -> None:
        rows = len(self._owner)
        links, caps, rates = self._links[:rows], self._caps[:rows], self._rates[:rows]
        if rows == 0:
            return
        if self._caps_changed:
            self._caps_changed, self._caps_fit = False, fits(links, caps, self._capacities)
        if self._caps_fit:
            rates[:] = caps
        elif (self._rank[:rows] < LOWEST_RANK).any():
            ranked_rates(links, caps, self._rank[:rows], self._capacities, self._sliced,
                         self._enforcement.least_share, rates)
        else:
            class_rates(links, caps, self._class[:rows], self._capacities, self._sliced, WEIGHTS, rates)
