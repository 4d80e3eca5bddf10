"""Deciding where the bytes of a range come from: by the controller, or from the nearest replica."""

import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from fs.client.context import ClientContext
from fs.client.steering import Placement, SteeredRead
from fs.proto.speedwell_pb2 import Attributes, Replica

log = logging.getLogger(__name__)

PART_MIN_BYTES = 1 << 20
"""A read is not split so often that its parts would be shorter on average: each costs a connection and an entry."""


@dataclass
class Source:
    """A replica that serves a range; for a placed one the socket with the port that the controller knows."""

    read: SteeredRead
    bound: socket.socket | None = None
    placement: Placement | None = None

    def ended(self) -> None:
        """Nothing more is taken from it. Safe to call again."""
        if self.bound is not None:
            self.bound.close()
        if self.placement is not None:
            self.placement.ended(self.read)


def plan_range(context: ClientContext, attributes: Attributes, candidates: Sequence[Replica], offset: int,
               size: int, *, steer: bool, most_parts: int = 1) -> list[Source]:
    """Who serves a range: the parts that the controller places, in order, or the nearest of the candidates.

    The controller is asked once, if `steer`, and not for less than the client's `steer_min_bytes`.
    """
    sources = _placed(context, attributes, candidates, offset, size, most_parts) if steer else []
    if sources:
        context.metrics.add(steered_reads=1, split_reads=int(len(sources) > 1))
        return sources
    context.metrics.add(**{"nearest_reads" if steer and context.steering is not None else "small_reads": 1})
    nearest = candidates[0]
    return [Source(SteeredRead(
        replica_id=nearest.dataserver_id, replica_host=nearest.host, replica_port=nearest.port, client_port=0,
        chosen_by="nearest", offset_bytes=offset, size_bytes=size))]


def _placed(context: ClientContext, attributes: Attributes, candidates: Sequence[Replica], offset: int, size: int,
            most_parts: int) -> list[Source]:
    steering = context.steering
    if steering is None or size < context.steer_min_bytes:
        return []
    nearest = candidates[0]
    sockets: list[socket.socket] = []
    try:
        own_address = context.address_toward(nearest)
        for _ in range(max(1, min(most_parts, len(candidates), size // PART_MIN_BYTES))):
            sockets.append(_bind(own_address, nearest.host))
    except OSError as error:
        log.warning("no local port for a steered read: %s", error)
        for bound in sockets:
            bound.close()
        return []
    by_port = {int(bound.getsockname()[1]): bound for bound in sockets}
    placement = steering.place(own_address, list(by_port), candidates, offset, size, attributes.file_id)
    parts = placement.parts if placement is not None else ()
    sources = [Source(part, by_port.pop(part.client_port), placement) for part in parts]
    for unused in by_port.values():
        unused.close()
    return sources


def _bind(own_address: str, toward: str) -> socket.socket:
    """A socket with a local port of its own, known before it connects."""
    connection = socket.socket(socket.AF_INET6 if ":" in toward else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.bind((own_address, 0))
    except OSError:
        connection.close()
        raise
    return connection
