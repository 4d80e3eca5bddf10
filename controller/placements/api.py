"""`/v1/placements`: where new replicas go, in the words of the interface."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Annotated, Protocol

from pydantic import Field

from speedwell.controller.loops import in_turns
from speedwell.controller.placements import models
from speedwell.controller.placements.book import Expected, TooManyPlacements, UnknownPlacement
from speedwell.controller.policy.errors import ImpossiblePlacement
from speedwell.controller.policy.network.tiers import Tiers
from speedwell.controller.policy.placements.request import Candidate, PlacementRequest
from speedwell.controller.rest.pages import LIMIT, Limit, Offset, page_of
from speedwell.controller.rest.roles import NAMESERVER
from speedwell.controller.rest.routes import route
from speedwell.controller.topology.state import NetworkState

PlacementId = Annotated[str, Field(min_length=1, max_length=64, description="As POST /v1/placements gave it.")]


class PlacementService(Protocol):
    """What these routes need of the application."""

    def place(self, requests: Sequence[PlacementRequest]) -> list[Expected | ImpossiblePlacement]: ...

    def end(self, placement_id: str) -> None: ...

    def expected(self) -> Sequence[Expected]: ...


class PlacementsApi:
    def __init__(self, service: PlacementService, state: NetworkState) -> None:
        self._service = service
        self._state = state
        self._tiers = Tiers(state.network)

    @route("POST", "/v1/placements", summary="Choose where the replicas of new files go", tag="placements",
           request=models.PlacementsRequest, response=models.Placements, problems=[TooManyPlacements],
           roles=(NAMESERVER,))
    def place(self, body: models.PlacementsRequest) -> bytes:
        """The destinations are in the order in which the replicas pass the bytes on. The links of that chain are
        expected to be busy for `expected_seconds`, or until the placement is deleted; later placements keep off them.
        A file whose constraints no choice of candidates fulfils is `refused`, the others are placed."""
        shared = body.candidates and self._candidates(body.candidates)
        requests = [PlacementRequest(
            file.writer, 8.0 * file.size_bytes,
            self._candidates(file.candidates) if file.candidates is not None else shared or (),
            file.replicas, file.racks, file.least_pods,
            tuple(source for source in dict.fromkeys(file.sources) if source in self._state.hosts),
            file.expected_reads) for file in in_turns(body.files)]
        answers = [self._placement(outcome).model_dump_json().encode()
                   for outcome in in_turns(self._service.place(requests))]
        return b'{"placements":[' + b",".join(answers) + b"]}"

    @route("GET", "/v1/placements", summary="The placements whose transfers are expected to run", tag="placements",
           response=models.ExpectedTransfers, query=("offset", "limit"))
    def list_placements(self, offset: Offset = 0, limit: Limit = LIMIT) -> models.ExpectedTransfers:
        now = time.monotonic()
        found, page = page_of(self._service.expected(), offset, limit)
        return models.ExpectedTransfers(placements=[models.ExpectedTransfer(
            id=expected.id, writer=expected.request.writer,
            writer_name=self._state.name_of(expected.request.writer), size_bytes=expected.size_bytes,
            destinations=[destination.host for destination in expected.placement.destinations],
            destination_names=[self._state.name_of(destination.host)
                               for destination in expected.placement.destinations],
            rate_bps=_finite(expected.placement.rate_bps), age_seconds=now - expected.placed_at,
            expected_seconds=expected.placement.duration_seconds, flows=len(expected.flows))
            for expected in found], **page)

    @route("DELETE", "/v1/placements/{id}", summary="A placement's transfer is over", tag="placements", status=204,
           problems=[UnknownPlacement], roles=(NAMESERVER,))
    def delete_placement(self, id: PlacementId) -> None:  # noqa: A002
        """Its links are free for others at once. One whose time is over needs no deleting."""
        self._service.end(id)

    def _placement(self, outcome: Expected | ImpossiblePlacement) -> models.Placement:
        if isinstance(outcome, ImpossiblePlacement):
            return models.Placement(id=None, destinations=[], source=None, source_name=None, rate_bps=None,
                                    expected_seconds=0.0, passed_over={}, passed_over_names={},
                                    refused=models.Refusal(constraint=outcome.constraint, detail=str(outcome)))
        placement = outcome.placement
        return models.Placement(
            id=outcome.id, source=placement.source, source_name=self._state.name_of(placement.source),
            rate_bps=_finite(placement.rate_bps), expected_seconds=placement.duration_seconds,
            destinations=[models.Destination(host=destination.host, host_name=self._state.name_of(destination.host),
                                             residual_bps=_finite(destination.residual_bps))
                          for destination in placement.destinations],
            passed_over=placement.passed_over, refused=None,
            passed_over_names={host: self._state.name_of(host) for host in placement.passed_over})

    def _candidates(self, candidates: Sequence[models.Candidate]) -> tuple[Candidate, ...]:
        return tuple(Candidate(
            candidate.host, self._rack_of(candidate.host) if candidate.rack is None else candidate.rack,
            self._pod_of(candidate.host) if candidate.pod is None else candidate.pod,
            math.inf if candidate.free_bytes is None else candidate.free_bytes,
            math.inf if candidate.disk_bps is None else candidate.disk_bps) for candidate in candidates)

    def _rack_of(self, host: str) -> str:
        """A rack is what hangs at one edge switch."""
        location = self._state.hosts.get(host)
        return location.dpid if location else ""

    def _pod_of(self, host: str) -> str:
        return min(self._tiers.pod_of(host), default="")


def _finite(rate_bps: float) -> float | None:
    return rate_bps if math.isfinite(rate_bps) else None
