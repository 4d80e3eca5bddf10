"""Tells the scheduler of turns which flows go first, so that hosts queue them as the network does."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from ryu.lib import hub

from speedwell.controller.loops import in_turns
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.traffic_classes import PRIORITIES
from speedwell.controller.rest.fields import Ipv4, OutputModel, Port
from speedwell.controller.rest.routes import route
from speedwell.controller.tables.flow_records import FlowRecords

MAX_FLOWS = 4096
MOST_WAITING, LOOK_SECONDS, MOST_WAIT_SECONDS = 8, 0.01, 10.0
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


class FlowPriorities(OutputModel):
    revision: int
    flows: list[FlowPriority] = Field(description=f"Those that a coflow policy ranks, the first {MAX_FLOWS} of them.")


class FlowClasses:
    def __init__(self) -> None:
        self.records: FlowRecords | None = None
        """None until the switches' tables are there."""
        self._told: Mapping[FiveTuple, int] = {}
        self._revision = secrets.randbits(32)   # whoever knows another controller's revision is told at once
        self._waiting = 0

    @route("GET", "/v1/timeslices/classes", summary="Which flows hosts send first", tag="timeslices",
           response=FlowPriorities, query=("after", "wait_seconds"))
    def classes(self, after: Revision = None, wait_seconds: WaitSeconds = 0.0) -> FlowPriorities:
        """As the coflow policy ranks them, where it ranks flows. With `after`, the answer comes as soon as the
        revision is another one, or after `wait_seconds`; at once where eight wait already."""
        until = time.monotonic() + wait_seconds
        if self._waiting < MOST_WAITING:
            self._waiting += 1
            try:
                while not self._is_new() and self._revision == after and time.monotonic() < until:
                    hub.sleep(LOOK_SECONDS)
            finally:
                self._waiting -= 1
        self._is_new()
        revision, first = self._revision, sorted(self._told.items(), key=lambda each: each[1])[:MAX_FLOWS]
        return FlowPriorities(revision=revision, flows=[
            FlowPriority(**flow._asdict(), priority=priority) for flow, priority in in_turns(first)])

    def _is_new(self) -> bool:
        if self.records is None or self.records.priorities is self._told:
            return False
        self._told = self.records.priorities
        self._revision += 1
        return True
