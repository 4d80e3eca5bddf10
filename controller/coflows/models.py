"""What `/v1/coflows` and `/v1/meters` answer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from speedwell.controller.rest.fields import Dpid, Ipv4, Node, NodeName, OutputModel, Port
from speedwell.controller.rest.pages import Page

CoflowId = Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="A coflow's id, 32 hex digits.")]
CoflowState = Literal["scheduled", "starved", "best-effort", "refused"]
FlowState = Literal["placed", "default", "failed", "waiting"]


class CoflowMember(OutputModel):
    """A flow of a coflow, in the direction of its bytes."""

    source: Ipv4
    source_name: NodeName
    destination: Ipv4
    destination_name: NodeName
    source_port: Port
    destination_port: Port
    protocol: Literal["tcp", "udp"]
    remaining_bytes: int = Field(ge=0, description="As last reported.")
    measured_bytes: int = Field(ge=0, description="Counted by the first switch since it has an entry.")
    queue: str = Field(description="Named as in `/v1/queues`.")
    rate_bps: float | None = Field(description="What its meter lets pass, in bits/s; null without one.")
    meter: int | None = Field(description="The number of its meter at the path's first switch.")
    path: list[Node] = Field(description="Empty: the switches' default.")
    path_names: list[NodeName]
    state: FlowState = Field(
        description="default: it takes the default path; waiting: it does so until the switches are ready, its hosts "
                    "are found, or it moves; failed: `problem` says why.")
    problem: str | None


class CoflowFlow(CoflowMember):
    """A flow, and which of its coflow it is."""

    coflow: CoflowId
    number: int = Field(ge=0, description="Its place in the `members` of `/v1/coflows/{id}`, from 0.")
    coflow_state: CoflowState
    position: int | None = Field(description="Its coflow's place in the order of service, from 0; null without one.")


class CoflowFlowList(Page):
    flows: list[CoflowFlow]


class CoflowSummary(OutputModel):
    """A coflow that is live."""

    id: CoflowId
    state: CoflowState = Field(
        description="scheduled: its flows have rates or priorities; refused: `problem` says why it gets no schedule.")
    problem: str | None
    position: int | None = Field(description="Its place in the order of service, from 0; null without one.")
    flows: int = Field(ge=0)
    ended_flows: int = Field(ge=0)
    remaining_bytes: int = Field(ge=0)
    rate_bps: float = Field(ge=0, description="The rates of its flows in all.")
    age_seconds: float = Field(ge=0)
    silent_seconds: float = Field(ge=0, description="Since it was last heard of.")


class CoflowDetails(CoflowSummary):
    """A coflow with its flows."""

    members: list[CoflowMember]
    next_offset: int | None = Field(description="The `offset` of the members that come next; null with the last.")


class CoflowList(Page):
    coflows: list[CoflowSummary]


class FlowMeter(OutputModel):
    """A meter that the controller made."""

    dpid: Dpid
    switch_name: NodeName
    meter: int = Field(ge=1)
    rate_bps: int
    burst_bits: int
    source: Ipv4
    source_name: NodeName
    source_port: int
    destination: Ipv4
    destination_name: NodeName
    destination_port: int


class MeterList(OutputModel):
    meters: list[FlowMeter]
    without_meter: int = Field(ge=0, description="Placements so far that had to do without a meter.")
