"""What the scheduler of turns says of itself, for people to see. Nothing is decided by it."""

from __future__ import annotations

import time
from typing import Annotated

from pydantic import BaseModel, Field

from speedwell.controller.rest.fields import InputModel, Ipv4, NodeName, OutputModel
from speedwell.controller.rest.roles import SCHEDULER
from speedwell.controller.rest.routes import route
from speedwell.controller.topology.state import NetworkState

MAX_TURNS = 256
MAX_BPS, MAX_SECONDS = 1e15, 1e9


class _Turn(BaseModel):
    source: Ipv4
    destination: Ipv4
    queued_bytes: int | None = Field(ge=0, le=1 << 62, description="As the sender's agent reported it last; null: it "
                                     "reported others.")
    waited_seconds: float = Field(ge=0, le=MAX_SECONDS, description="Since its last slice; 0 while it has one.")
    rate_bps: float = Field(ge=0, le=MAX_BPS, description="At which it may send now; 0: it has no slice.")


class TurnReport(_Turn, InputModel):
    """A pair of hosts that has turns."""


class TurnsReport(InputModel):
    policy: Annotated[str, Field(min_length=1, max_length=64)]
    slice_seconds: float = Field(gt=0, le=MAX_SECONDS)
    agents: int = Field(ge=0, description="That report.")
    total: int = Field(ge=0, description="Pairs that have turns.")
    turns: list[TurnReport] = Field(max_length=MAX_TURNS, description="Of these, those that wait longest first.")


class Turn(_Turn, OutputModel):
    source_name: NodeName
    destination_name: NodeName


class Turns(OutputModel):
    """Who may send when, as the scheduler said it last."""

    heard_seconds_ago: float | None = Field(description="null: no scheduler has been heard of.")
    policy: str | None
    slice_seconds: float | None
    agents: int
    total: int
    turns: list[Turn] = Field(description=f"At most {MAX_TURNS}, those that wait longest first.")


class TurnsTold:
    def __init__(self, state: NetworkState) -> None:
        self._state = state
        self._report: TurnsReport | None = None
        self._heard_at = 0.0

    @route("PUT", "/v1/timeslices/turns", summary="The scheduler says who has turns", tag="timeslices",
           request=TurnsReport, status=204, roles=(SCHEDULER,))
    def tell(self, body: TurnsReport) -> None:
        self._report, self._heard_at = body, time.monotonic()

    @route("GET", "/v1/timeslices/turns", summary="Which pairs of hosts have turns", tag="timeslices", response=Turns)
    def turns(self) -> Turns:
        report, name = self._report, self._state.name_of
        if report is None:
            return Turns(heard_seconds_ago=None, policy=None, slice_seconds=None, agents=0, total=0, turns=[])
        return Turns(
            heard_seconds_ago=time.monotonic() - self._heard_at, policy=report.policy, agents=report.agents,
            slice_seconds=report.slice_seconds, total=report.total, turns=[
                Turn(**each.model_dump(), source_name=name(each.source), destination_name=name(each.destination))
                for each in report.turns])
