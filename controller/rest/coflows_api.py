"""`/v1/coflows` and `/v1/meters`: what is scheduled, and what holds it to its rates."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from controller.coflow_book import CoflowBook, ReportedCoflow, ReportedFlow
from controller.errors import UnknownCoflow
from controller.network_state import NetworkState
from controller.policy.coflow import Assignment
from controller.policy.five_tuple import FiveTuple
from controller.queues import PRIORITY_QUEUES, class_of_priority
from controller.rest.fields import Dpid, Ipv4, Node, NodeName, Output, Port
from controller.rest.routes import route

CoflowId = Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="A coflow's id, 32 hex digits.")]
FlowState = Literal["placed", "default", "failed", "waiting"]
_PRIORITY_NAMES = {queue.number: queue.name for queue in PRIORITY_QUEUES}


class CoflowService(Protocol):
    """What these routes need of the coflow application."""

    book: CoflowBook
    failures: dict[FiveTuple, str]
    forwarding: Any

    def remove(self, coflow_id: bytes) -> None: ...


class CoflowFlow(Output):
    """A flow of a coflow, in the direction of its bytes."""

    source: Ipv4
    destination: Ipv4
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


class CoflowSummary(Output):
    """A coflow that is live."""

    id: CoflowId
    state: Literal["scheduled", "starved", "best-effort", "refused"] = Field(
        description="scheduled: its flows have rates or priorities; refused: `problem` says why it gets no schedule.")
    problem: str | None
    position: int | None = Field(description="Its place in the order of service, from 0; null without one.")
    flows: int = Field(ge=0)
    ended_flows: int = Field(ge=0)
    remaining_bytes: int = Field(ge=0)
    rate_bps: float = Field(ge=0, description="The rates of its flows in all.")
    age_seconds: float = Field(ge=0)
    silent_seconds: float = Field(ge=0, description="Since it was last heard of.")


class Coflow(CoflowSummary):
    """A coflow with its flows."""

    members: list[CoflowFlow]


class CoflowList(Output):
    coflows: list[CoflowSummary]


class Meter(Output):
    """A meter that the controller made."""

    dpid: Dpid
    switch_name: NodeName
    meter: int = Field(ge=1)
    rate_bps: int
    burst_bits: int
    source: Ipv4
    source_port: int
    destination: Ipv4
    destination_port: int


class MeterList(Output):
    meters: list[Meter]
    without_meter: int = Field(ge=0, description="Placements so far that had to do without a meter.")


class CoflowsApi:
    def __init__(self, service: CoflowService, state: NetworkState) -> None:
        self._service = service
        self._state = state

    @route("GET", "/v1/coflows", summary="The live coflows, in the order in which they are served", tag="coflows",
           response=CoflowList)
    def list_coflows(self) -> CoflowList:
        places = self._places()
        coflows = sorted(self._service.book, key=lambda each: places.get(each.id, len(places)))
        return CoflowList(coflows=[CoflowSummary(**self._summary(each, places)) for each in coflows])

    @route("GET", "/v1/coflows/{id}", summary="A coflow with its flows", tag="coflows", response=Coflow,
           problems=[UnknownCoflow])
    def get_coflow(self, id: CoflowId) -> Coflow:  # noqa: A002
        coflow = self._service.book.get(bytes.fromhex(id))
        if coflow is None:
            raise UnknownCoflow(id)
        schedule, refused = self._service.book.schedule, coflow.distrusted is not None
        return Coflow(**self._summary(coflow, self._places()),
                      members=[self._flow(flow, schedule, refused) for flow in coflow.flows.values()])

    @route("DELETE", "/v1/coflows/{id}", summary="Take a coflow's schedule away", tag="coflows", status=204,
           problems=[UnknownCoflow])
    def delete_coflow(self, id: CoflowId) -> None:  # noqa: A002
        """Its flows go on over the default paths, in the best-effort queue. It is not scheduled again before it has
        been silent for the time after which coflows are forgotten."""
        self._service.remove(bytes.fromhex(id))

    @route("GET", "/v1/meters", summary="The meters of scheduled flows", tag="coflows", response=MeterList)
    def list_meters(self) -> MeterList:
        paths = sorted((path for path in self._service.forwarding.explicit_paths if path.meter is not None),
                       key=lambda path: (path.first_switch, path.meter.meter_id))
        return MeterList(without_meter=self._service.forwarding.metered_paths.unmetered, meters=[
            Meter(dpid=path.first_switch, switch_name=self._state.name_of(path.first_switch),
                  meter=path.meter.meter_id, rate_bps=1000 * path.meter.rate_kbps,
                  burst_bits=1000 * path.meter.burst_kbits, **_ends(path.five_tuple))
            for path in paths])

    def _places(self) -> dict[bytes, int]:
        return {coflow_id: place for place, coflow_id in enumerate(self._service.book.order)}

    def _summary(self, coflow: ReportedCoflow, places: dict[bytes, int]) -> dict[str, Any]:
        now, schedule = time.monotonic(), self._service.book.schedule
        own = [schedule[flow] for flow in coflow.flows if flow in schedule]
        states = {_state(assignment) for assignment in own}
        state = "refused" if coflow.distrusted else next(
            (each for each in ("starved", "scheduled", "best-effort") if each in states), "best-effort")
        return {"id": coflow.id.hex(), "state": state, "problem": coflow.distrusted,
                "position": places.get(coflow.id), "flows": len(coflow.flows), "ended_flows": coflow.ended,
                "remaining_bytes": sum(flow.remaining_bytes for flow in coflow.flows.values()),
                "rate_bps": sum(assignment.rate_bps or 0.0 for assignment in own),
                "age_seconds": max(0.0, now - coflow.arrived_at), "silent_seconds": max(0.0, now - coflow.heard_at)}

    def _flow(self, flow: ReportedFlow, schedule: Any, refused: bool) -> CoflowFlow:
        five_tuple = flow.five_tuple
        assignment = schedule.get(five_tuple)
        placed = self._service.forwarding.metered_paths.get(five_tuple)
        problem = self._service.failures.get(five_tuple) or self._service.book.refusals.get(five_tuple)
        path = assignment.path if assignment else None
        if path is None and assignment and assignment.priority is not None and placed:
            path = placed.path      # the one that ECMP gives it, in an entry of its own for its queue
        nodes = list(path.nodes) if path else []
        state: FlowState = ("failed" if five_tuple in self._service.failures else "placed" if placed and nodes else
                 "default" if refused or (assignment and not nodes) else "waiting")
        return CoflowFlow(
            **_ends(five_tuple), protocol="tcp" if five_tuple.protocol == 6 else "udp",
            remaining_bytes=flow.remaining_bytes, measured_bytes=flow.measured_bytes,
            queue=_queue(assignment) if assignment else "best-effort",
            rate_bps=assignment.rate_bps if assignment else None,
            meter=placed.meter.meter_id if placed and placed.meter else None,
            path=nodes, path_names=[self._state.name_of(node) for node in nodes], state=state, problem=problem)


def _ends(five_tuple: FiveTuple) -> dict[str, Any]:
    return {"source": five_tuple.source, "source_port": five_tuple.source_port,
            "destination": five_tuple.destination, "destination_port": five_tuple.destination_port}


def _queue(assignment: Assignment) -> str:
    if assignment.priority is not None:
        return _PRIORITY_NAMES[class_of_priority(assignment.priority)]
    return _state(assignment)


def _state(assignment: Assignment) -> str:
    return "scheduled" if assignment.priority is not None else assignment.traffic_set.value.replace("_", "-")
