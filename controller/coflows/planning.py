"""From updates of coflows to the schedule that they are to have. No Ryu, no sockets, no clock.

A decision over thousands of coflows takes longer than a controller may keep silent. So the scheduler is owned by a
`CoflowPlanner` that works on a copy of the network: `plan` may run in another thread, as long as one plan is made at
a time and `follow_network` and `start_over` are called between plans. What happens meanwhile is told with the next
plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from speedwell.controller.policy.coflows.coflow import Assignment, Coflow, CoflowScheduler, Schedule
from speedwell.controller.policy.coflows.steady_classes import steady_classes
from speedwell.controller.policy.errors import PolicyError
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Network

Assignments = Mapping[FiveTuple, Assignment]

REST_FACTOR, CORRECTION_REST_FACTOR, MOST_REST_SECONDS = 4, 16, 1.0


class Rests:
    """How long nothing is planned after a plan, so that who asks for something else has the processor.

    So many times as long as the plan took, up to a second. What flows have left waits longer: where thousands of them
    are behind their plan at all times, a fifth of the processor would go into saying the same again.
    """

    LOOK_SECONDS = 0.02
    """While what flows have left waits, it is looked so often whether more has happened."""

    def __init__(self) -> None:
        self.correct_from = 0.0
        """Before, nothing is planned for what flows have left alone."""

    def planned(self, began: float, now: float) -> float:
        """A plan is made. Gives the seconds of rest for everything."""
        self.correct_from = now + min(CORRECTION_REST_FACTOR * (now - began), MOST_REST_SECONDS)
        return min(REST_FACTOR * (now - began), MOST_REST_SECONDS)


@dataclass(frozen=True, slots=True)
class CoflowUpdates:
    """What has happened since the last plan, each flow named once: it ended, came, or has so many bytes left."""

    ended: Sequence[FiveTuple] = ()
    arrived: Sequence[Coflow] = ()
    progress: Mapping[FiveTuple, int] = field(default_factory=dict)
    network_changed: bool = False

    def __len__(self) -> int:
        """How many flows it is about."""
        return len(self.ended) + len(self.progress) + sum(len(coflow.flows) for coflow in self.arrived)


@dataclass(frozen=True, slots=True)
class CoflowPlan:
    """What came of updates. Without `assignments` those of before hold, less the flows that have ended.

    `enforced` is what the switches are told of the assignments, flows about which there is nothing to tell left out.
    """

    refused: Mapping[FiveTuple, str] = field(default_factory=dict)
    assignments: dict[FiveTuple, Assignment] | None = None
    enforced: dict[FiveTuple, Assignment] = field(default_factory=dict)
    order: Sequence[bytes] = ()
    ranks: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By source and destination, the place of the first coflow between them in the order of service."""


class CoflowPlanner:
    """`make` gives a scheduler for a network; `enforce` what the switches are told of its assignments."""

    def __init__(self, make: Callable[[Network], CoflowScheduler], network: Network,
                 enforce: Callable[[Assignments, Network], dict[FiveTuple, Assignment]]) -> None:
        self._make, self._enforce = make, enforce
        self._source = network
        self._classes: dict[FiveTuple, int] = {}
        self.start_over()

    @property
    def network(self) -> Network:
        """The planner's own, as the last plan has it."""
        return self._network

    def start_over(self) -> None:
        """With a scheduler that has been told nothing."""
        self._network = self._source.copy()
        self.scheduler = self._make(self._network)

    def follow_network(self) -> None:
        """Take over what has changed in the network."""
        self._network.follow(self._source)

    def plan(self, updates: CoflowUpdates, now: float) -> CoflowPlan:
        """The schedule after the updates: one decision, if they ask for any."""
        scheduler = self.scheduler
        refused: dict[FiveTuple, str] = {}
        with scheduler.together(now) as decision:
            for five_tuple in updates.ended:
                scheduler.flow_finished(five_tuple, now)
            for coflow in updates.arrived:
                self._arrive(coflow, refused, now)
            for five_tuple, remaining_bytes in updates.progress.items():
                scheduler.progress(five_tuple, remaining_bytes, now)
            for five_tuple in updates.progress:
                scheduler.correct(five_tuple, now)
            scheduler.again(now)
            if updates.network_changed:
                scheduler.network_changed(now)
        if decision.schedule is None:
            return CoflowPlan(refused)
        assignments = self._with_steady_classes(decision.schedule)
        return CoflowPlan(refused, assignments, self._enforce(assignments, self._network),
                          decision.schedule.order,  # type: ignore[arg-type]  # coflows are known to it by their ids
                          _ranks(decision.schedule))

    def _with_steady_classes(self, schedule: Schedule) -> dict[FiveTuple, Assignment]:
        assignments: dict[FiveTuple, Assignment] = dict(schedule.assignments)  # type: ignore[arg-type]
        self._classes = steady_classes({flow: own.priority for flow, own in assignments.items()
                                        if own.priority is not None}, self._classes)
        for flow, steady in self._classes.items():
            if assignments[flow].priority != steady:
                assignments[flow] = replace(assignments[flow], priority=steady)
        return assignments

    def _arrive(self, coflow: Coflow, refused: dict[FiveTuple, str], now: float) -> None:
        """One flow at a time only if some are refused."""
        try:
            self.scheduler.coflow_arrived(coflow, now)
        except PolicyError as error:
            if len(coflow.flows) == 1:
                refused[coflow.flows[0].flow_id] = str(error)  # type: ignore[index]  # a 5-tuple
                return
            for flow in coflow.flows:
                self._arrive(Coflow(coflow.id, (flow,), coflow.arrived_at), refused, now)


def _ranks(schedule: Schedule) -> dict[tuple[str, str], int]:
    places = {coflow_id: place for place, coflow_id in enumerate(schedule.order)}
    ranks: dict[tuple[str, str], int] = {}
    for five_tuple, assignment in schedule.assignments.items():
        pair = five_tuple[:2]       # type: ignore[index]  # flows are 5-tuples here
        place = places.get(assignment.coflow_id, len(places))
        if place <= ranks.get(pair, place):
            ranks[pair] = place
    return ranks
