"""`/v1/coflows` and `/v1/meters`: what is scheduled, and what holds it to its rates."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Protocol

from speedwell.controller.coflows import models
from speedwell.controller.coflows.book import CoflowBook, ReportedCoflow, ReportedFlow
from speedwell.controller.errors import UnknownCoflow
from speedwell.controller.loops import in_turns
from speedwell.controller.policy.coflows.coflow import Assignment
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.traffic_classes import PRIORITY_QUEUES, class_of_priority
from speedwell.controller.rest.pages import LIMIT, Limit, Offset, OverLink, is_over, page_of
from speedwell.controller.rest.routes import route
from speedwell.controller.tables.flow_records import Claimant
from speedwell.controller.topology.state import NetworkState

CLAIMANT = Claimant("coflows", precedence=200)
_PRIORITY_NAMES = {queue.number: queue.name for queue in PRIORITY_QUEUES}


class CoflowService(Protocol):
    """What these routes need of the coflow application."""

    book: CoflowBook
    failures: dict[FiveTuple, str]
    forwarding: Any

    def remove(self, coflow_id: bytes) -> None: ...

    def is_confirmed(self, flow: FiveTuple) -> bool: ...


class CoflowsApi:
    def __init__(self, service: CoflowService, state: NetworkState) -> None:
        self._service = service
        self._state = state

    @route("GET", "/v1/coflows", summary="The live coflows, in the order in which they are served", tag="coflows",
           response=models.CoflowList, query=("offset", "limit"))
    def list_coflows(self, offset: Offset = 0, limit: Limit = LIMIT) -> models.CoflowList:
        """The order changes with every schedule: a coflow may stand in two pages, or in none, while it does."""
        places = self._places()
        coflows, page = page_of(sorted(self._service.book, key=lambda each: places.get(each.id, len(places))),
                                offset, limit)
        return models.CoflowList(coflows=[models.CoflowSummary(**self._summary(each, places))
                                          for each in in_turns(coflows)], **page)

    @route("GET", "/v1/coflows/{id}", summary="A coflow with its flows", tag="coflows", response=models.CoflowDetails,
           problems=[UnknownCoflow], query=("offset", "limit"))
    def get_coflow(self, id: models.CoflowId, offset: Offset = 0,  # noqa: A002
                   limit: Limit = LIMIT) -> models.CoflowDetails:
        """`offset` and `limit` are of its flows, in the order in which they were announced."""
        coflow = self._service.book.get(bytes.fromhex(id))
        if coflow is None:
            raise UnknownCoflow(id)
        summary = self._summary(coflow, self._places())
        flows, page = page_of(list(coflow.flows.values()), offset, limit)
        members = [self._flow(flow, self._service.book.schedule, coflow.distrusted is not None)
                   for flow in in_turns(flows)]
        return models.CoflowDetails(**summary, members=members, next_offset=page["next_offset"])

    @route("GET", "/v1/coflow-flows", summary="The flows of all coflows", tag="coflows",
           response=models.CoflowFlowList, query=("offset", "limit", "link"))
    def list_coflow_flows(self, offset: Offset = 0, limit: Limit = LIMIT,
                          link: OverLink = None) -> models.CoflowFlowList:
        """In the order in which their coflows were first heard of. A coflow that ends between two pages moves those
        after it forward."""
        book = self._service.book
        every = ((coflow, number, flow) for coflow in book for number, flow in enumerate(list(coflow.flows.values())))
        chosen = [each for each in in_turns(every)
                  if link is None or is_over(link, self._nodes(each[2].five_tuple))]
        flows, page = page_of(chosen, offset, limit)
        places, states, rows = self._places(), dict[bytes, models.CoflowState](), []
        for coflow, number, flow in in_turns(flows):
            if coflow.id not in states:
                states[coflow.id] = _coflow_state(coflow, self._assignments(coflow))
            rows.append(models.CoflowFlow(
                **dict(self._flow(flow, book.schedule, coflow.distrusted is not None)), coflow=coflow.id.hex(),
                number=number, coflow_state=states[coflow.id], position=places.get(coflow.id)))
        return models.CoflowFlowList(flows=rows, **page)

    @route("DELETE", "/v1/coflows/{id}", summary="Take a coflow's schedule away", tag="coflows", status=204,
           problems=[UnknownCoflow])
    def delete_coflow(self, id: models.CoflowId) -> None:  # noqa: A002
        """Its flows go on over the default paths, in the best-effort queue. It is not scheduled again before it has
        been silent for the time after which coflows are forgotten."""
        self._service.remove(bytes.fromhex(id))

    @route("GET", "/v1/meters", summary="The meters of scheduled flows", tag="coflows", response=models.MeterList)
    def list_meters(self) -> models.MeterList:
        metered = [(record.placement.dpid, record.meter, record.five_tuple)
                   for record in in_turns(self._service.forwarding.records)
                   if record.placement is not None and record.meter is not None]
        metered.sort(key=lambda each: (each[0], each[1].meter_id))
        return models.MeterList(without_meter=self._service.forwarding.flow_installer.unmetered, meters=[
            models.FlowMeter(dpid=dpid, switch_name=self._state.name_of(dpid), meter=meter.meter_id,
                             rate_bps=1000 * meter.rate_kbps, burst_bits=1000 * meter.burst_kbits,
                             **self._state.named_ends(five_tuple))
            for dpid, meter, five_tuple in in_turns(metered)])

    def _places(self) -> dict[bytes, int]:
        return {coflow_id: place for place, coflow_id in enumerate(self._service.book.order)}

    def _summary(self, coflow: ReportedCoflow, places: dict[bytes, int]) -> dict[str, Any]:
        own, now = self._assignments(coflow), time.monotonic()
        return {"id": coflow.id.hex(), "state": _coflow_state(coflow, own), "problem": coflow.distrusted,
                "position": places.get(coflow.id), "flows": len(coflow.flows), "ended_flows": coflow.ended,
                "remaining_bytes": sum(flow.remaining_bytes for flow in coflow.flows.values()),
                "rate_bps": sum(each.rate_bps or 0.0 for each in own),
                "age_seconds": max(0.0, now - coflow.arrived_at), "silent_seconds": max(0.0, now - coflow.heard_at)}

    def _assignments(self, coflow: ReportedCoflow) -> list[Assignment]:
        schedule = self._service.book.schedule
        return [schedule[flow] for flow in in_turns(list(coflow.flows)) if flow in schedule]

    def _nodes(self, five_tuple: FiveTuple) -> list[str]:
        """The path that a flow has by its schedule, from its sender on; empty if it takes the default."""
        assignment = self._service.book.schedule.get(five_tuple)
        path = assignment.path if assignment else None
        if path is None and assignment and assignment.priority is not None:
            record = self._service.forwarding.records.get(five_tuple)
            if record and CLAIMANT in record.claims:
                path = record.path      # the one that ECMP gives it, in an entry of its own for its queue
        return list(path.nodes) if path else []

    def _flow(self, flow: ReportedFlow, schedule: Any, refused: bool) -> models.CoflowMember:
        five_tuple = flow.five_tuple
        assignment = schedule.get(five_tuple)
        record = self._service.forwarding.records.get(five_tuple)
        placed = record if record and CLAIMANT in record.claims else None
        problem = self._service.failures.get(five_tuple) or self._service.book.refusals.get(five_tuple)
        nodes = self._nodes(five_tuple)
        state: models.FlowState = (
            "failed" if five_tuple in self._service.failures else
            "placed" if placed and nodes and self._service.is_confirmed(five_tuple) else
            "default" if refused or (assignment and not nodes) else "waiting")
        return models.CoflowMember(
            **self._state.named_ends(five_tuple), protocol="tcp" if five_tuple.protocol == 6 else "udp",
            remaining_bytes=flow.remaining_bytes, measured_bytes=flow.measured_bytes,
            queue=_queue(assignment) if assignment else "best-effort",
            rate_bps=assignment.rate_bps if assignment else None,
            meter=placed.meter.meter_id if placed and placed.meter else None,
            path=nodes, path_names=[self._state.name_of(node) for node in nodes], state=state, problem=problem)


def _queue(assignment: Assignment) -> str:
    if assignment.priority is not None:
        return _PRIORITY_NAMES[class_of_priority(assignment.priority)]
    return _state(assignment)


def _state(assignment: Assignment) -> str:
    return "scheduled" if assignment.priority is not None else assignment.service_class.value.replace("_", "-")


def _coflow_state(coflow: ReportedCoflow, assignments: Iterable[Assignment]) -> models.CoflowState:
    if coflow.distrusted:
        return "refused"
    states = set(map(_state, assignments))
    each: models.CoflowState
    for each in ("starved", "scheduled"):
        if each in states:
            return each
    return "best-effort"
