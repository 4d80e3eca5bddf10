"""`/v1/reads` and `/v1/flows`: the flowserver's work in the words of the interface."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Annotated, Any, Protocol

from pydantic import Field

from speedwell.controller.errors import (
    ControllerError,
    NoSuchPath,
    SwitchGone,
    SwitchRefused,
    SwitchTimedOut,
    UnknownHost,
)
from speedwell.controller.loops import in_turns
from speedwell.controller.policy.reads.link_load import ReadFlow
from speedwell.controller.policy.reads.selection import MAYFLOWER, PLUS
from speedwell.controller.policy.reads.selection_request import Replica
from speedwell.controller.reads import models
from speedwell.controller.reads.book import (
    ConnectionInUse,
    Read,
    ReadBook,
    ReadPart,
    ReadRequest,
    TooManyWaiting,
    UnknownPart,
    UnknownRead,
)
from speedwell.controller.rest.pages import LIMIT, Limit, Offset, OverLink, is_over, page_of
from speedwell.controller.rest.problems import FieldError, invalid
from speedwell.controller.rest.roles import DATASERVER, MOUNT, READER
from speedwell.controller.rest.routes import route
from speedwell.controller.topology.state import NetworkState

PartNumber = Annotated[int, Field(ge=0, lt=models.MAX_CLIENT_PORTS,
                                  description="The `number` of a part.")]
ReadId = Annotated[str, Field(min_length=1, max_length=64, description="As POST /v1/reads gave it.")]

MOST_WAIT_SECONDS = 10.0
READ_CLIENTS = (MOUNT, DATASERVER)
After = Annotated[int | None, Field(ge=0, le=1 << 53, description="The revision that the client knows.")]
WaitSeconds = Annotated[float, Field(ge=0, le=MOST_WAIT_SECONDS, allow_inf_nan=False, description=(
    "How long the answer may take if there is no news. Counts with `after` only."))]


class ReadService(Protocol):
    """What these routes need of the flowserver."""

    reads: ReadBook

    def place(self, wanted: ReadRequest) -> Read: ...

    def end(self, read_id: str) -> None: ...

    def end_part(self, read_id: str, number: int) -> None: ...

    def follow(self, read_id: str, after: int, wait_seconds: float) -> Read: ...

    def model(self) -> Mapping[str, ReadFlow]: ...


class ReadsApi:
    def __init__(self, service: ReadService, state: NetworkState) -> None:
        self._service = service
        self._state = state

    @route("POST", "/v1/reads", summary="Choose replicas and paths for a read", tag="reads",
           request=models.ReadBody, response=models.PlacedRead, status=201,
           problems=[UnknownHost, NoSuchPath, ConnectionInUse, SwitchRefused, SwitchGone, SwitchTimedOut],
           roles=READ_CLIENTS)
    def create_read(self, body: models.ReadBody, peer: str) -> models.PlacedRead:
        """The switches have confirmed the paths when this answers. For each part, the client connects from its
        `client_port` to its replica; it deletes the read when it is done. Replicas that no switch has seen are left
        out. There are several parts only where that is estimated to be faster (Mayflower, section 4.3). Under
        mayflower-plus there may be none yet, if the client follows the read. A read over a connection that carries a
        read already takes its place, if the same address asked for both, or if nothing of the former has moved for
        `read_idle_timeout_seconds` and no coflow holds it back."""
        settings = self._state.settings
        if (body.replica_policy or settings.replica_policy) == PLUS and body.path_policy not in (None, MAYFLOWER):
            raise invalid([FieldError(field="path_policy", message=models.PLUS_CHOOSES_PATHS)])
        read = self._service.place(ReadRequest(
            body.client, body.client_ports, [Replica(replica.host, replica.port) for replica in body.replicas],
            body.size_bytes, body.file_id, body.replica_policy, body.path_policy, body.most_parts,
            body.follows, peer))
        try:
            return models.PlacedRead(
                id=read.id, revision=_revision(read), **_policies(read),
                parts=[models.PlacedPart(**self._part(part)) for part in read.parts if part.placed])
        except BaseException:
            # nobody learns the id by which to end it
            with contextlib.suppress(ControllerError):
                self._service.end(read.id)
            raise

    @route("DELETE", "/v1/reads/{id}", summary="End a read", tag="reads", status=204,
           problems=[UnknownRead, SwitchRefused, SwitchTimedOut], roles=READ_CLIENTS)
    def delete_read(self, id: ReadId) -> None:  # noqa: A002
        """Its entries are out of the switches when this answers."""
        self._service.end(id)

    @route("DELETE", "/v1/reads/{id}/parts/{number}", summary="End one part of a read", tag="reads", status=204,
           problems=[UnknownRead, UnknownPart, SwitchRefused, SwitchTimedOut], roles=READ_CLIENTS)
    def delete_part(self, id: ReadId, number: PartNumber) -> None:  # noqa: A002
        """For a part that ends before the others: its bandwidth counts as free at once. With the last one the read
        ends."""
        self._service.end_part(id, number)

    @route("GET", "/v1/reads", summary="The reads in flight", tag="reads", response=models.ReadList,
           query=("offset", "limit", "link"))
    def list_reads(self, offset: Offset = 0, limit: Limit = LIMIT, link: OverLink = None) -> models.ReadList:
        """In the order in which they came. A read that ends between two pages moves those after it forward."""
        flows, now = self._service.model(), time.monotonic()
        chosen = list(self._service.reads) if link is None else self._reads_over(link)
        reads, page = page_of(chosen, offset, limit)
        return models.ReadList(reads=[self._read_state(read, flows, now) for read in in_turns(reads)], **page)

    @route("GET", "/v1/reads/{id}", summary="A read in flight", tag="reads", response=models.ReadState,
           problems=[UnknownRead, TooManyWaiting], query=("after", "wait_seconds"), roles=(READER, *READ_CLIENTS))
    def get_read(self, id: ReadId, after: After = None, wait_seconds: WaitSeconds = 0.0) -> models.ReadState:  # noqa: A002
        """With `after`, the client asks for news: the answer comes as soon as the revision is higher, or after
        `wait_seconds`. Parts that it does not know yet are for it to open; their entries are confirmed."""
        if after is None:
            read = self._service.reads.get(id)
            if read is None:
                raise UnknownRead(id)
        else:
            read = self._service.follow(id, after, wait_seconds)
        return self._read_state(read, self._service.model(), time.monotonic())

    @route("GET", "/v1/flows", summary="The flows that the controller placed", tag="network",
           response=models.PlacedFlowList, query=("offset", "limit"))
    def list_flows(self, offset: Offset = 0, limit: Limit = LIMIT) -> models.PlacedFlowList:
        """Parts of reads that have an entry of their own, with the rates that the switches measured."""
        flows, now = self._service.model(), time.monotonic()
        parts, page = page_of(list(self._service.reads.flows()), offset, limit)
        return models.PlacedFlowList(flows=[self._flow(part, flows, now) for part in in_turns(parts)], **page)

    def _reads_over(self, link: str) -> list[Read]:
        return [read for read in self._service.reads if any(
            is_over(link, part.path.nodes) for part in read.running if part.is_flow)]

    def _part(self, part: ReadPart) -> dict[str, Any]:
        connection = part.five_tuple
        return {
            "number": part.number,
            "replica": models.PlacedReplica(host=connection.source, port=connection.source_port,
                                            host_name=self._state.name_of(connection.source)),
            "client_port": connection.destination_port,
            "offset_bytes": part.offset_bytes,
            "size_bytes": part.size_bytes,
            **self._path(part),
            "estimated_bps": part.estimated_bps if math.isfinite(part.estimated_bps) else None,
            "cost_seconds": part.cost_seconds if part.is_flow else None,
        }

    def _path(self, part: ReadPart) -> dict[str, Any]:
        nodes = part.path.nodes if part.is_flow else ()
        return {"path": list(nodes), "path_names": [self._state.name_of(node) for node in nodes]}

    def _read_state(self, read: Read, flows: Mapping[str, ReadFlow], now: float) -> models.ReadState:
        return models.ReadState(
            id=read.id, client=read.client, client_name=self._state.name_of(read.client),
            size_bytes=read.size_bytes, file_id=read.file_id, placement_id=read.placement_id,
            age_seconds=now - read.started_at, revision=_revision(read), **_policies(read),
            parts=[self._part_state(part, flows, now) for part in read.parts if part.placed])

    def _part_state(self, part: ReadPart, flows: Mapping[str, ReadFlow], now: float) -> models.ReadPartState:
        remaining_bytes = max(part.size_bytes - part.transferred_bytes, 0)
        return models.ReadPartState(**self._part(part), transferred_bytes=part.transferred_bytes,
                                    remaining_bytes=remaining_bytes, measured_bps=part.measured_bps,
                                    reroutes=part.reroutes, ended=part.ended, considered=self._considered(part),
                                    **_share(part, flows, now))

    def _considered(self, part: ReadPart) -> list[models.ConsideredReplica]:
        return [models.ConsideredReplica(host=replica.host, host_name=self._state.name_of(replica.host),
                                         cost_seconds=cost_seconds) for replica, cost_seconds in part.considered]

    def _flow(self, part: ReadPart, flows: Mapping[str, ReadFlow], now: float) -> models.PlacedFlow:
        connection = part.five_tuple
        return models.PlacedFlow(
            id=part.flow_id, read_id=part.read_id, **self._state.named_ends(connection), protocol="tcp",
            size_bytes=part.size_bytes, transferred_bytes=part.transferred_bytes, rate_bps=part.measured_bps,
            **self._path(part), **_share(part, flows, now))


def _revision(read: Read) -> int | None:
    return None if read.following is None else read.following.revision


def _policies(read: Read) -> dict[str, Any]:
    return {"replica_policy": read.replica_policy, "path_policy": read.path_policy}


def _share(part: ReadPart, flows: Mapping[str, ReadFlow], now: float) -> dict[str, Any]:
    flow = flows.get(part.flow_id) if part.is_flow else None
    if flow is None:
        return {"share_bps": None, "frozen": False}
    return {"share_bps": flow.bandwidth_bps, "frozen": flow.frozen and now <= flow.frozen_until}
