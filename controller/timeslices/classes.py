"""Tells the scheduler of turns which flows go first, so that hosts queue them as the network does."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated

import eventlet
from eventlet.event import Event
from pydantic import Field

from speedwell.controller.loops import in_turns
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.traffic_classes import PRIORITIES
from speedwell.controller.rest.fields import Ipv4, OutputModel, Port
from speedwell.controller.rest.roles import READER, SCHEDULER
from speedwell.controller.rest.routes import route

MAX_FLOWS = 4096
MOST_WAITING, MOST_WAIT_SECONDS = 8, 10.0
Revision = Annotated[int | None, Field(ge=0, le=1 << 53, description="That the scheduler knows.")]
WaitSeconds = Annotated[float, Field(ge=0, le=MOST_WAIT_SECONDS, allow_inf_nan=False, description=(
    "How long the answer may take if there is no news. Counts with `after` only."))]


class FlowPriority(OutputModel):
    source: Ipv4
    destination: Ipv4
    protocol: int
    source_port: Port
    destination_port: Port
    priority: int = Field(ge=0, lt=PRIORITIES, description="0 is served first.")
    pacing_bps: int = Field(ge=0, description="That the sender keeps to; 0: nothing limits it.")


class FlowPriorities(OutputModel):
    revision: int
    flows: list[FlowPriority] = Field(description="Those that a coflow policy ranks, or whose rates hosts keep; "
                                    f"{MAX_FLOWS} at most.")


class FlowClasses:
    def __init__(self) -> None:
        self._priorities: Mapping[FiveTuple, int] = {}
        self._paces_bps: Mapping[FiveTuple, int] = {}
        self._revision = secrets.randbits(32)   # whoever knows another controller's revision is told at once
        self._changed = Event()
        self._waiting = 0

    def tell(self, priorities: Mapping[FiveTuple, int], paces_bps: Mapping[FiveTuple, int]) -> None:
        """Flows have these priorities and paces now. Whoever waits is answered."""
        self._priorities, self._paces_bps = priorities, paces_bps
        self._revision += 1
        self._changed.send()
        self._changed = Event()

    @route("GET", "/v1/timeslices/classes", summary="Which flows hosts send first", tag="timeslices",
           response=FlowPriorities, query=("after", "wait_seconds"), roles=(READER, SCHEDULER))
    def classes(self, after: Revision = None, wait_seconds: WaitSeconds = 0.0) -> FlowPriorities:
        """As the coflow policy ranks them, where it ranks flows, and the rates that hosts keep (`coflow_rates`). With
        `after`, the answer comes as soon as the revision is another one, or after `wait_seconds`; at once where eight
        wait already."""
        if self._revision == after and wait_seconds and self._waiting < MOST_WAITING:
            self._waiting += 1
            try:
                with eventlet.Timeout(wait_seconds, False):
                    self._changed.wait()
            finally:
                self._waiting -= 1
        revision = self._revision
        paces_bps = self._paces_bps
        orders = dict.fromkeys(paces_bps, PRIORITIES - 1) | dict(self._priorities)
        first = sorted(orders.items(), key=lambda each: each[1])[:MAX_FLOWS]
        return FlowPriorities(revision=revision, flows=[
            FlowPriority(**flow._asdict(), priority=priority, pacing_bps=paces_bps.get(flow, 0))
            for flow, priority in in_turns(first)])
