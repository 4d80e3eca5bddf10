"""Coflows: the flows of one transfer, scheduled together, and what a scheduler says about each of them.

A scheduler (MinCOF and everything that it is compared with) is told what happens and answers with a `Schedule`:

    scheduler = MinCOF(network)
    schedule = scheduler.coflow_arrived(Coflow("c1", (CoflowFlow("f1", "h1", "h2", 10_000_000),), now), now)
    scheduler.progress("f1", 4_000_000, now)            # a report; decides nothing
    schedule = scheduler.flow_finished("f1", now)       # None: the coflow goes on, the rest stays as it is
    schedule = scheduler.coflow_gone("c1", now)         # it was given up
    schedule = scheduler.network_changed(now)           # a link came or went

A schedule names every live flow, whether anything changes for it or not. What happens at one time may be told
together, for one decision:

    with scheduler.together(now) as decision:
        ...                                             # arrivals, reports, ends
    schedule = decision.schedule                        # None: nothing of it asked for a decision

Bytes are what is left to send, rates bits per second, `now` seconds on any one clock.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from speedwell.controller.policy.errors import InvalidRequest
from speedwell.controller.policy.network.graph import Path

BITS_PER_BYTE = 8
AGAIN_SECONDS = 1.0
"""So long after a decision a report leads to another one, for policies that decide as reports come."""


class ServiceClass(StrEnum):
    """The queues of a link from a leaf to a spine (MinCOF, section III-B)."""

    SCHEDULED = "scheduled"
    STARVED = "starved"
    BEST_EFFORT = "best_effort"


@dataclass(frozen=True, slots=True)
class CoflowFlow:
    """One TCP flow of a coflow, from one host of the network to another. Raises InvalidRequest."""

    flow_id: Hashable
    source: str
    destination: str
    remaining_bytes: float

    def __post_init__(self) -> None:
        require_bytes(self.remaining_bytes)
        if self.source == self.destination:
            raise InvalidRequest(f"flow {self.flow_id!r} goes from {self.source!r} to itself: it needs no network")


@dataclass(frozen=True, slots=True)
class Coflow:
    """Flows that count as one transfer: it ends when the last of them does. Raises InvalidRequest."""

    id: Hashable
    flows: tuple[CoflowFlow, ...]
    arrived_at: float

    def __post_init__(self) -> None:
        if not self.flows:
            raise InvalidRequest(f"coflow {self.id!r} has no flows")
        if len({flow.flow_id for flow in self.flows}) != len(self.flows):
            raise InvalidRequest(f"coflow {self.id!r} names a flow twice")


@dataclass(frozen=True, slots=True)
class Assignment:
    """What holds for one live flow.

    `path` leads from the flow's source to its destination; None leaves it to the switches' default (ECMP), as for
    flows of coflows below the size threshold. `rate_bps` is enforced at the flow's first switch (by the hosts, for
    policies that do so); None does not limit it. `priority` counts for policies that rank traffic instead of
    limiting it: 0 is served first, 7 last, strictly; None leaves the flow in the queue of its `service_class`.
    """

    flow_id: Hashable
    coflow_id: Hashable
    path: Path | None
    rate_bps: float | None
    service_class: ServiceClass
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """All live flows by id, and the live coflows in the order in which they are served."""

    assignments: Mapping[Hashable, Assignment] = field(default_factory=dict)
    order: tuple[Hashable, ...] = ()

    def of(self, service_class: ServiceClass) -> Iterator[Assignment]:
        """The flows of one queue."""
        return (assignment for assignment in self.assignments.values() if assignment.service_class is service_class)


class Decision:
    """What came of things that were told together: None if they asked for no decision, or before their end."""

    schedule: Schedule | None = None


class CoflowScheduler(ABC):
    """What every coflow policy offers.

    All methods raise UnknownFlow or UnknownCoflow for what they have not been told of (or whose end they have), and
    leave everything as it was when they refuse. Each decision looks at the network as it is at that moment, whether
    `network_changed` was called or not: a flow that cannot be reached any more stays live, without path, rate and
    priority, until there is a path again.
    """

    def __init__(self) -> None:
        self._puts_off = False
        self._is_due = False

    @contextmanager
    def together(self, now: float) -> Iterator[Decision]:
        """Inside, what happens is taken in; at the end there is one decision if any of it asks for one. Meanwhile
        methods return schedules without assignments: to tell all of thousands of flows would take longer than the
        decision."""
        decision = Decision()
        self._puts_off, self._is_due = True, False
        try:
            yield decision
        finally:
            self._puts_off = False
        if self._is_due:
            decision.schedule = self._decide_anew(now)

    def _decided(self, now: float) -> Schedule:
        if not self._puts_off:
            return self._decide_anew(now)
        self._is_due = True
        return Schedule()

    @abstractmethod
    def _decide_anew(self, now: float) -> Schedule:
        """Make the schedule that holds from now on."""

    @property
    @abstractmethod
    def schedule(self) -> Schedule:
        """The schedule that holds, flows that have ended since it was made left out."""

    @abstractmethod
    def coflow_arrived(self, coflow: Coflow, now: float) -> Schedule:
        """A coflow, or more flows of one that is live: every sender reports its own flows under the common id.

        Raises DuplicateFlow for a flow that is live, UnknownNode for a host that the network does not have, NoPath
        for a flow whose destination cannot be reached.
        """

    @abstractmethod
    def progress(self, flow_id: Hashable, remaining_bytes: float, now: float) -> None:
        """A report of what a flow has left. The next schedule counts with it."""

    def correct(self, flow_id: Hashable, now: float) -> Schedule | None:
        """A new schedule if reports show that the present one took too little for what a flow has left, so that its
        rate, made for that, lets links idle: its coflow would end much later than was planned.

        The paper has schedules at arrivals and completions only; work conservation, which it asks for too, needs this
        where reports are half a second old. Policies without rates have nothing to correct.
        """
        return None

    def again(self, now: float) -> Schedule | None:
        """A new schedule if the policy decides beside arrivals and completions too, as reports come, and it is time.
        MinCOF does not."""
        return None

    @abstractmethod
    def flow_finished(self, flow_id: Hashable, now: float) -> Schedule | None:
        """A flow has ended. None unless that makes a new schedule: a coflow's last flow always does."""

    @abstractmethod
    def coflow_gone(self, coflow_id: Hashable, now: float) -> Schedule:
        """A coflow was given up, or has not been heard of for too long: its flows are forgotten."""

    @abstractmethod
    def network_changed(self, now: float) -> Schedule:
        """Links came, went or changed their capacity: flows whose path is gone get another one."""


def require_bytes(remaining_bytes: float) -> None:
    """Raises InvalidRequest for what is not a number of bytes from 0 up."""
    if not (math.isfinite(remaining_bytes) and remaining_bytes >= 0):
        raise InvalidRequest(f"what a flow has left is a number of bytes from 0 up, not {remaining_bytes!r}")
