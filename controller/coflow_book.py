"""The coflows that reports tell of, kept in step with a scheduler. No Ryu, no sockets, no clock.

The scheduler knows what is reported and reachable. What is not reported any more ends here, and so does what is not
worth believing: a coflow that moves more than it announced, and a flow that is announced and does not move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coflow.report import Flow, FlowReport
from controller.policy.coflow import Assignment, Coflow, CoflowFlow, CoflowScheduler, Schedule
from controller.policy.errors import PolicyError
from controller.policy.five_tuple import FiveTuple

LIE_FACTOR, LIE_SLACK_BYTES = 1.25, 2_000_000
"""A coflow may move this much more than it announced, for headers and what is sent twice; then it lied. Its flows may
take over from each other: a read takes more from the replica that is faster."""
MAX_COFLOWS, MAX_FLOWS = 4096, 65536
"""What is kept; others are turned away until there is room."""


@dataclass(slots=True, eq=False)
class ReportedFlow:
    """A live flow, from its announcement to its end; compared by identity. Times are on the clock that `now` is taken
    from."""

    five_tuple: FiveTuple
    remaining_bytes: int
    heard_at: float
    moved_at: float
    measured_bytes: int = 0


@dataclass(slots=True)
class ReportedCoflow:
    """A live coflow. `distrusted` says why its flows get no schedule, until it is not heard of any more."""

    id: bytes
    arrived_at: float
    flows: dict[FiveTuple, ReportedFlow] = field(default_factory=dict)
    lost: set[FiveTuple] = field(default_factory=set)
    """Flows that another coflow has named since."""
    announced_bytes: int = 0
    measured_bytes: int = 0
    """Of all flows so far, those that have ended too."""
    ended: int = 0
    heard_at: float = 0.0
    distrusted: str | None = None


class CoflowBook:
    """Takes news in and says whether there is another schedule than before.

    A coflow is forgotten when all its flows have ended, or `expiry_seconds` after it was last heard of. A flow that
    has not moved for `stall_seconds` loses its place until it moves; not one that the schedule held back meanwhile.
    """

    def __init__(self, scheduler: CoflowScheduler, expiry_seconds: float, stall_seconds: float) -> None:
        self._scheduler = scheduler
        self._expiry_seconds = expiry_seconds
        self._stall_seconds = stall_seconds
        self._coflows: dict[bytes, ReportedCoflow] = {}
        self._owner: dict[FiveTuple, bytes] = {}
        self._scheduled: set[FiveTuple] = set()
        """The flows that the scheduler knows."""
        self.refusals: dict[FiveTuple, str] = {}
        """Why flows are not scheduled, as the scheduler says: their host is not known, there is no path."""
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
        schedule: Schedule = self._scheduler.schedule
        return schedule.assignments  # type: ignore[return-value]  # flows are known to it by their 5-tuples

    @property
    def order(self) -> Sequence[bytes]:
        """The scheduled coflows in the order in which they are served."""
        return self._scheduler.schedule.order  # type: ignore[return-value]

    # --- reports ---

    def take(self, coflow_id: bytes, news: Sequence[FlowReport], now: float) -> bool:
        """Take the news of a report in. Returns whether there is another schedule."""
        coflow = self._coflows.get(coflow_id)
        if coflow is None:
            if all(each.remaining_bytes == 0 for each in news):
                return False
            if len(self._coflows) >= MAX_COFLOWS:
                self.turned_away += 1
                return False
            coflow = self._coflows[coflow_id] = ReportedCoflow(coflow_id, now)
        coflow.heard_at = now
        changed = False
        for each in news:
            changed |= self._take_flow(coflow, _five_tuple(each.flow), each.remaining_bytes, now)
        changed |= self._schedule_new(coflow, now)
        if not coflow.flows:
            self._forget(coflow)
        return changed or self._scheduler.again(now) is not None

    def _take_flow(self, coflow: ReportedCoflow, five_tuple: FiveTuple, remaining_bytes: int, now: float) -> bool:
        """Returns whether a scheduled flow ended, or there is another schedule because it is late."""
        flow = coflow.flows.get(five_tuple)
        if remaining_bytes == 0:
            return flow is not None and self._end_flow(coflow, five_tuple, now)
        if flow is None:
            return self._add_flow(coflow, five_tuple, remaining_bytes, now)
        flow.heard_at = now
        if remaining_bytes != flow.remaining_bytes:
            flow.moved_at = now
            if remaining_bytes > flow.remaining_bytes:
                coflow.announced_bytes += remaining_bytes - flow.remaining_bytes
            flow.remaining_bytes = remaining_bytes
        if five_tuple not in self._scheduled:
            return False
        self._scheduler.progress(five_tuple, remaining_bytes, now)
        return self._scheduler.correct(five_tuple, now) is not None

    def _add_flow(self, coflow: ReportedCoflow, five_tuple: FiveTuple, remaining_bytes: int, now: float) -> bool:
        """A connection may serve one transfer after the other, so a flow is the coflow's that named it last; once
        lost, it does not come back, or two that name it would take it from each other for ever."""
        if five_tuple in coflow.lost:
            return False
        former = self._coflows.get(self._owner.get(five_tuple, b""))
        if former is None and len(self._owner) >= MAX_FLOWS:
            self.turned_away += 1
            return False
        changed = False
        if former is not None:
            former.lost.add(five_tuple)
            changed = self._end_flow(former, five_tuple, now)
            if not former.flows:
                self._forget(former)
        self._owner[five_tuple] = coflow.id
        coflow.flows[five_tuple] = ReportedFlow(five_tuple, remaining_bytes, now, now)
        coflow.announced_bytes += remaining_bytes
        return changed

    def _schedule_new(self, coflow: ReportedCoflow, now: float) -> bool:
        """Tell the scheduler of flows that it does not know and that move. One at a time only if it refuses some."""
        new = [flow for flow in coflow.flows.values() if flow.five_tuple not in self._scheduled
               and now - flow.moved_at <= self._stall_seconds]
        if not new or coflow.distrusted:
            return False
        if self._arrived(coflow, new, now):
            return True
        arrived = [self._arrived(coflow, [flow], now) for flow in new] if len(new) > 1 else []
        return any(arrived)

    def _arrived(self, coflow: ReportedCoflow, flows: Sequence[ReportedFlow], now: float) -> bool:
        try:
            self._scheduler.coflow_arrived(Coflow(coflow.id, tuple(
                CoflowFlow(flow.five_tuple, flow.five_tuple.source, flow.five_tuple.destination, flow.remaining_bytes)
                for flow in flows), coflow.arrived_at), now)
        except PolicyError as error:
            self.refusals.update((flow.five_tuple, str(error)) for flow in flows)
            return False
        for flow in flows:
            self._scheduled.add(flow.five_tuple)
            self.refusals.pop(flow.five_tuple, None)
        return True

    # --- ends ---

    def _end_flow(self, coflow: ReportedCoflow, five_tuple: FiveTuple, now: float) -> bool:
        del coflow.flows[five_tuple]
        coflow.ended += 1
        self._owner.pop(five_tuple, None)
        self.refusals.pop(five_tuple, None)
        return self._unschedule(five_tuple, now)

    def _unschedule(self, five_tuple: FiveTuple, now: float) -> bool:
        if five_tuple not in self._scheduled:
            return False
        self._scheduled.remove(five_tuple)
        self._scheduler.flow_finished(five_tuple, now)
        return True

    def _forget(self, coflow: ReportedCoflow) -> None:
        self._coflows.pop(coflow.id, None)

    def remove(self, coflow_id: bytes, now: float, reason: str) -> bool:
        """Take a coflow's schedule away, until it has not been heard of for a while. Returns whether it had one."""
        coflow = self._coflows.get(coflow_id)
        if coflow is None or coflow.distrusted:
            return False
        coflow.distrusted = reason
        scheduled = self._scheduled.intersection(coflow.flows)
        if scheduled:
            self._scheduled -= scheduled
            self._scheduler.coflow_gone(coflow_id, now)
        return True

    def expire(self, now: float) -> bool:
        """Forget what was not heard of, and take places from flows that do not move. True if there was any."""
        changed = False
        for coflow in self:
            for flow in list(coflow.flows.values()):
                if now - flow.heard_at > self._expiry_seconds:
                    changed |= self._end_flow(coflow, flow.five_tuple, now)
                elif now - flow.moved_at > self._stall_seconds:
                    assignment = self.schedule.get(flow.five_tuple)
                    if assignment is not None and assignment.rate_bps == 0:
                        flow.moved_at = now
                    else:
                        changed |= self._unschedule(flow.five_tuple, now)
            if not coflow.flows:
                self._forget(coflow)
        return changed

    # --- what the switches and the network say ---

    def measured(self, five_tuple: FiveTuple, transferred_bytes: int, now: float) -> bool:
        """A switch has counted a flow's bytes. True if its coflow loses its schedule because it moves too much."""
        coflow = self._coflows.get(self._owner.get(five_tuple, b""))
        flow = coflow.flows.get(five_tuple) if coflow else None
        if coflow is None or flow is None:
            return False
        if transferred_bytes > flow.measured_bytes:
            coflow.measured_bytes += transferred_bytes - flow.measured_bytes
            flow.measured_bytes, flow.moved_at = transferred_bytes, now
        if coflow.measured_bytes > LIE_FACTOR * coflow.announced_bytes + LIE_SLACK_BYTES:
            return self.remove(coflow.id, now, "it moved more than it announced")
        return False

    def network_changed(self, now: float) -> None:
        """Links or hosts came or went: there is a new schedule."""
        self._scheduler.network_changed(now)
        for coflow in self:
            self._schedule_new(coflow, now)


def _five_tuple(flow: Flow) -> FiveTuple:
    return FiveTuple(flow.source, flow.destination, flow.protocol, flow.source_port, flow.destination_port)
