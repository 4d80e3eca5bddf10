"""The coflows that reports tell of, and the schedule that they have. No Ryu, no sockets, no clock.

What is not reported any more ends here, and so does what is not worth believing: a coflow that moves more than it
announced, and a flow that is announced and does not move. The others are told to a scheduler: `updates` says what has
changed since it was last told, `planned` takes in what came of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from speedwell.coflow.report import Flow, FlowReport
from speedwell.controller.coflows.planning import CoflowPlan, CoflowUpdates
from speedwell.controller.policy.coflows.coflow import Assignment, Coflow, CoflowFlow
from speedwell.controller.policy.network.five_tuple import FiveTuple

LIE_FACTOR, LIE_SLACK_BYTES = 1.25, 2_000_000
"""A coflow may move this much more than it announced, for headers and what is sent twice; then it lied. Its flows may
take over from each other: a read takes more from the replica that is faster."""
MAX_COFLOWS, MAX_FLOWS = 16384, 65536
"""What is kept; others are turned away until there is room."""
MAX_LOST = 1024
"""How many flows a coflow remembers to have lost to others."""
MAX_UPDATES = 1000
"""Flows told to the scheduler at once: what it takes to collect them holds up everything else."""


@dataclass(slots=True, eq=False)
class ReportedFlow:
    """A live flow, from its announcement to its end; compared by identity. Times are on the clock that `now` is taken
    from. One that has `stalled` has no place until it moves."""

    five_tuple: FiveTuple
    remaining_bytes: int
    heard_at: float
    moved_at: float
    measured_bytes: int = 0
    stalled: bool = False

    def moved(self, now: float) -> None:
        self.moved_at, self.stalled = now, False


@dataclass(slots=True)
class ReportedCoflow:
    """A live coflow. `distrusted` says why its flows get no schedule, until it is not heard of any more."""

    id: bytes
    arrived_at: float
    flows: dict[FiveTuple, ReportedFlow] = field(default_factory=dict)
    lost: dict[FiveTuple, None] = field(default_factory=dict)
    """Flows that another coflow has named since, the latest last."""
    announced_bytes: int = 0
    measured_bytes: int = 0
    """Of all flows so far, those that have ended too."""
    ended: int = 0
    heard_at: float = 0.0
    distrusted: str | None = None


class CoflowBook:
    """What is live, and what holds for it.

    A coflow is forgotten when all its flows have ended, or `expiry_seconds` after it was last heard of. A flow that
    has not moved for `stall_seconds` loses its place until it moves; not one that the schedule held back meanwhile.
    """

    def __init__(self, expiry_seconds: float, stall_seconds: float) -> None:
        self._expiry_seconds = expiry_seconds
        self._stall_seconds = stall_seconds
        self._coflows: dict[bytes, ReportedCoflow] = {}
        self._owner: dict[FiveTuple, bytes] = {}
        self._told: dict[FiveTuple, ReportedFlow] = {}
        """The flows that the scheduler knows."""
        self._untold: dict[FiveTuple, None] = {}
        """The flows of which it has not heard the latest."""
        self._network_changed = False
        self._assignments: dict[FiveTuple, Assignment] = {}
        self._enforced: dict[FiveTuple, Assignment] = {}
        self._order: Sequence[bytes] = ()
        self.revision = 0
        """Changes with the schedule."""
        self.refusals: dict[FiveTuple, str] = {}
        """Why flows are not scheduled, as the scheduler says: their host is not known, there is no path."""
        self._news: dict[FiveTuple, int] = {}
        self.turned_away = 0
        """How often a flow or a whole coflow was not taken because there was no room."""

    def __iter__(self) -> Iterator[ReportedCoflow]:
        return iter(list(self._coflows.values()))

    def __len__(self) -> int:
        return len(self._coflows)

    def get(self, coflow_id: bytes) -> ReportedCoflow | None:
        return self._coflows.get(coflow_id)

    def flow(self, five_tuple: FiveTuple) -> ReportedFlow | None:
        coflow = self._coflows.get(self._owner.get(five_tuple, b""))
        return coflow.flows.get(five_tuple) if coflow else None

    @property
    def schedule(self) -> Mapping[FiveTuple, Assignment]:
        """What holds for each scheduled flow now."""
        return self._assignments

    @property
    def enforced(self) -> Mapping[FiveTuple, Assignment]:
        """What the switches are told of the schedule."""
        return self._enforced

    @property
    def order(self) -> tuple[bytes, ...]:
        """The scheduled coflows in the order in which they are served."""
        return tuple(coflow_id for coflow_id in self._order if coflow_id in self._coflows)

    @property
    def withdrawn(self) -> list[FiveTuple]:
        """The live flows of coflows that were deleted, or that lied."""
        return [flow for coflow in self._coflows.values() if coflow.distrusted for flow in coflow.flows]

    # --- reports ---

    def report(self, coflow_id: bytes, reports: Sequence[FlowReport], now: float) -> None:
        """Take in what a report says of a coflow's flows."""
        coflow = self._coflows.get(coflow_id)
        if coflow is None:
            if all(each.remaining_bytes == 0 for each in reports):
                return
            if len(self._coflows) >= MAX_COFLOWS:
                self.turned_away += 1
                return
            coflow = self._coflows[coflow_id] = ReportedCoflow(coflow_id, now)
        coflow.heard_at = now
        for each in reports:
            self._report_flow(coflow, _five_tuple(each.flow), each.remaining_bytes, now)
        if not coflow.flows:
            self._forget(coflow)

    def _report_flow(self, coflow: ReportedCoflow, five_tuple: FiveTuple, remaining_bytes: int, now: float) -> None:
        flow = coflow.flows.get(five_tuple)
        if remaining_bytes == 0:
            if flow is not None:
                self._end_flow(coflow, five_tuple)
            return
        if flow is None:
            self._add_flow(coflow, five_tuple, remaining_bytes, now)
            return
        flow.heard_at = now
        if remaining_bytes != flow.remaining_bytes:
            flow.moved(now)
            if remaining_bytes > flow.remaining_bytes:
                coflow.announced_bytes += remaining_bytes - flow.remaining_bytes
            flow.remaining_bytes = remaining_bytes
        self._untold[five_tuple] = None

    def _add_flow(self, coflow: ReportedCoflow, five_tuple: FiveTuple, remaining_bytes: int, now: float) -> None:
        """A connection may serve one transfer after the other, so a flow is the coflow's that named it last; once
        lost, it does not come back, or two that name it would take it from each other for ever."""
        if five_tuple in coflow.lost:
            return
        former = self._coflows.get(self._owner.get(five_tuple, b""))
        if former is None and len(self._owner) >= MAX_FLOWS:
            self.turned_away += 1
            return
        if former is not None:
            while len(former.lost) >= MAX_LOST:
                del former.lost[next(iter(former.lost))]
            former.lost[five_tuple] = None
            self._end_flow(former, five_tuple)
            if not former.flows:
                self._forget(former)
        self._owner[five_tuple] = coflow.id
        coflow.flows[five_tuple] = ReportedFlow(five_tuple, remaining_bytes, now, now)
        coflow.announced_bytes += remaining_bytes
        self._untold[five_tuple] = None
        self._news[five_tuple] = remaining_bytes

    def news(self) -> tuple[tuple[FiveTuple, int], ...]:
        """The flows that began since the last call with the bytes that they have to move, and those that ended, with
        0; of a connection the latest."""
        news, self._news = tuple(self._news.items()), {}
        return news

    # --- ends ---

    def _end_flow(self, coflow: ReportedCoflow, five_tuple: FiveTuple) -> None:
        del coflow.flows[five_tuple]
        coflow.ended += 1
        self._news[five_tuple] = 0
        self._owner.pop(five_tuple, None)
        self.refusals.pop(five_tuple, None)
        self._unschedule(five_tuple)

    def _unschedule(self, five_tuple: FiveTuple) -> None:
        if five_tuple in self._told:
            self._untold[five_tuple] = None
        else:
            self._untold.pop(five_tuple, None)
        if self._assignments.pop(five_tuple, None) is not None:
            self._enforced.pop(five_tuple, None)
            self.revision += 1

    def _forget(self, coflow: ReportedCoflow) -> None:
        if self._coflows.get(coflow.id) is coflow:
            del self._coflows[coflow.id]

    def remove(self, coflow_id: bytes, reason: str) -> bool:
        """Take a coflow's schedule away, until it has not been heard of for a while. Returns whether it had one."""
        coflow = self._coflows.get(coflow_id)
        if coflow is None or coflow.distrusted:
            return False
        coflow.distrusted = reason
        for five_tuple in coflow.flows:
            self._unschedule(five_tuple)
        return True

    def expire(self, coflow: ReportedCoflow, now: float) -> float:
        """Forget what of a coflow was not heard of, and take places from flows that do not move. Returns until when
        nothing of that can happen to it, nor to one that comes after `now`."""
        earliest = now + min(self._expiry_seconds, self._stall_seconds)
        for flow in list(coflow.flows.values()):
            if now - flow.heard_at > self._expiry_seconds:
                self._end_flow(coflow, flow.five_tuple)
                continue
            if now - flow.moved_at > self._stall_seconds and not flow.stalled:
                assignment = self._assignments.get(flow.five_tuple)
                if assignment is not None and assignment.rate_bps == 0:
                    flow.moved_at = now
                else:
                    flow.stalled = True
                    self._unschedule(flow.five_tuple)
            earliest = min(earliest, flow.heard_at + self._expiry_seconds,
                           math.inf if flow.stalled else flow.moved_at + self._stall_seconds)
        if not coflow.flows:
            self._forget(coflow)
        return earliest

    # --- what the switches and the network say ---

    def measured(self, five_tuple: FiveTuple, transferred_bytes: int, now: float) -> bool:
        """A switch has counted a flow's bytes. True if its coflow loses its schedule because it moves too much."""
        coflow = self._coflows.get(self._owner.get(five_tuple, b""))
        flow = coflow.flows.get(five_tuple) if coflow else None
        if coflow is None or flow is None:
            return False
        if transferred_bytes > flow.measured_bytes:
            coflow.measured_bytes += transferred_bytes - flow.measured_bytes
            flow.measured_bytes = transferred_bytes
            flow.moved(now)
        if coflow.measured_bytes > LIE_FACTOR * coflow.announced_bytes + LIE_SLACK_BYTES:
            return self.remove(coflow.id, "it moved more than it announced")
        return False

    def network_changed(self) -> None:
        """Links or hosts came or went: there has to be another schedule, and what was refused is asked for again."""
        self._network_changed = True
        self._untold.update(dict.fromkeys(self.refusals))

    # --- the scheduler ---

    @property
    def has_updates(self) -> bool:
        return bool(self._untold) or self._network_changed

    @property
    def has_only_progress(self) -> bool:
        """Whether none of the updates is of a flow that comes or ends, or of the network."""
        return not self._network_changed and all(
            self._told.get(five_tuple) is self._schedulable(five_tuple) for five_tuple in self._untold)

    def updates(self) -> CoflowUpdates:
        """What the scheduler has to be told; it counts as told from here on. Of many flows, the first."""
        ended: list[FiveTuple] = []
        arrived: dict[bytes, list[CoflowFlow]] = {}
        progress: dict[FiveTuple, int] = {}
        for five_tuple in list(islice(self._untold, MAX_UPDATES)):
            del self._untold[five_tuple]
            told, flow = self._told.get(five_tuple), self._schedulable(five_tuple)
            if told is not None and told is not flow:
                ended.append(five_tuple)
                del self._told[five_tuple]
            if flow is None:
                continue
            if told is flow:
                progress[five_tuple] = flow.remaining_bytes
            else:
                self._told[five_tuple] = flow
                self.refusals.pop(five_tuple, None)
                arrived.setdefault(self._owner[five_tuple], []).append(
                    CoflowFlow(five_tuple, five_tuple.source, five_tuple.destination, flow.remaining_bytes))
        network_changed, self._network_changed = self._network_changed, False
        return CoflowUpdates(ended, [Coflow(coflow_id, tuple(flows), self._coflows[coflow_id].arrived_at)
                                     for coflow_id, flows in arrived.items()], progress, network_changed)

    def _schedulable(self, five_tuple: FiveTuple) -> ReportedFlow | None:
        """The flow as the scheduler should know it; None if it should not."""
        coflow = self._coflows.get(self._owner.get(five_tuple, b""))
        if coflow is None or coflow.distrusted:
            return None
        flow = coflow.flows[five_tuple]
        return None if flow.stalled else flow

    def planned(self, plan: CoflowPlan) -> None:
        """Take in what came of updates. Flows with further updates since are left out of the schedule."""
        for five_tuple, reason in plan.refused.items():
            if self._told.pop(five_tuple, None) is self.flow(five_tuple) is not None:
                self.refusals[five_tuple] = reason
        if plan.assignments is None:
            return
        self._assignments, self._enforced, self._order = plan.assignments, plan.enforced, plan.order
        self.revision += 1
        for five_tuple in self._untold:
            if self._told.get(five_tuple) is not self._schedulable(five_tuple):
                self._assignments.pop(five_tuple, None)
                self._enforced.pop(five_tuple, None)

    def start_over(self) -> None:
        """The scheduler has been told nothing yet. The schedule holds until there is another one."""
        self._told.clear()
        self._untold = dict.fromkeys(self._owner)
        self._network_changed = True


def _five_tuple(flow: Flow) -> FiveTuple:
    return FiveTuple(flow.source, flow.destination, flow.protocol, flow.source_port, flow.destination_port)
