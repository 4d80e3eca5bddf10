"""`/v1/queues`: how the ports between switches are sliced, and what each queue carried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import Field

from speedwell.controller.policy.network.traffic_classes import QueueClass
from speedwell.controller.rest.fields import Dpid, Node, NodeName, OutputModel
from speedwell.controller.rest.routes import route
from speedwell.controller.topology.state import NetworkState, PortKey


@dataclass(frozen=True, slots=True)
class PortState:
    """How a port stands: sliced, or not, with the reason. `rate_bps` is the port's."""

    rate_bps: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class QueueCounters:
    """What a queue has sent since it was made. `errors` counts packets that it dropped."""

    sent_bytes: int
    sent_packets: int
    errors: int


class QueueService(Protocol):
    """What these routes need of the queue application."""

    classes: tuple[QueueClass, ...]
    ports: dict[PortKey, PortState]
    counters: dict[tuple[PortKey, int], QueueCounters]


class Queue(OutputModel):
    """One queue of a port. `number` is also the MPLS traffic class of its packets."""

    number: int = Field(ge=0, le=7)
    name: str
    guaranteed_bps: int = Field(ge=0, description="What it gets however much the other queues want, in bits/s.")
    limit_bps: int = Field(ge=0, description="What it may take when the others leave it, in bits/s.")
    sent_bytes: int | None = Field(description="null if the switch does not tell.")
    sent_packets: int | None
    dropped_packets: int | None


class PortWithQueues(OutputModel):
    """A port that leads to another switch."""

    dpid: Dpid
    switch_name: NodeName
    port: int
    neighbour: Node | None
    neighbour_name: NodeName | None
    rate_bps: int
    chosen_by: Literal["traffic-class", "set-queue"] = Field(
        description="What takes packets to their queues; an action works on kernel datapaths only.")
    problem: str | None = Field(description="Why the port has no queues; null if it has.")
    queues: list[Queue]


class QueueList(OutputModel):
    ports: list[PortWithQueues]


class QueuesApi:
    def __init__(self, service: QueueService, state: NetworkState) -> None:
        self._service = service
        self._state = state

    @route("GET", "/v1/queues", summary="The queues of ports between switches", tag="coflows", response=QueueList)
    def list_queues(self) -> QueueList:
        """Empty unless the controller runs with `queues`."""
        counters = self._service.counters
        return QueueList(ports=[self._port(key, state, counters)
                                for key, state in sorted(self._service.ports.items())])

    def _port(self, key: PortKey, port: PortState,
              counters: dict[tuple[PortKey, int], QueueCounters]) -> PortWithQueues:
        peer = self._state.links.get(key)
        neighbour = peer[0] if peer else None
        return PortWithQueues(
            dpid=key[0], switch_name=self._state.name_of(key[0]), port=key[1], neighbour=neighbour,
            neighbour_name=self._state.name_of(neighbour) if neighbour else None, rate_bps=port.rate_bps,
            chosen_by="set-queue" if self._state.set_queue_classes.get(key[0]) else "traffic-class",
            problem=port.problem,
            queues=[] if port.problem else [self._queue(each, port, counters.get((key, each.number)))
                                            for each in self._service.classes])

    @staticmethod
    def _queue(queue: QueueClass, port: PortState, counters: QueueCounters | None) -> Queue:
        return Queue(number=queue.number, name=queue.name, guaranteed_bps=round(queue.share * port.rate_bps),
                     limit_bps=port.rate_bps, sent_bytes=counters.sent_bytes if counters else None,
                     sent_packets=counters.sent_packets if counters else None,
                     dropped_packets=counters.errors if counters else None)
