"""Deciding where the bytes of a range come from: by the controller, or from the nearest replica."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from speedwell.fs.client.context import ClientContext
from speedwell.fs.client.read.steering import FollowedPlacement, Placement, SteeredRead
from speedwell.fs.coflows import MIN_BYTES, Account, Coflows, new_id
from speedwell.fs.proto.speedwell_pb2 import Attributes, Replica
from speedwell.fs.wire.channel import Channel

log = logging.getLogger(__name__)

PART_MIN_BYTES = 1 << 20
"""A read is not split so often that its parts would be shorter on average: each costs a connection and an entry."""


@dataclass
class Source:
    """A replica that serves a range; for a placed one the socket with the port that the controller knows."""

    read: SteeredRead
    bound: socket.socket | None = None
    placement: Placement | FollowedPlacement | None = None
    account: Account | None = None

    def connect(self, context: ClientContext, replica: Replica) -> Channel:
        """A connection to the replica that it reads from; one that the controller chose knows its port. Raises
        ConnectionLost."""
        if self.read.chosen_by == "controller":
            channel = context.metadata.nameservers.connect_data(self.read.replica_host, self.read.replica_port,
                                                                bound=self.bound)
            return context.identified.require(channel, replica)
        return context.connection_to(replica)

    def moved(self, count: int, at_least: int = 1) -> None:
        """So many bytes came from it, and at least so many are to come: it may be asked for more than was planned."""
        if self.account is not None:
            self.account.moved(count, at_least)

    def ended(self) -> None:
        """Nothing more is taken from it. Safe to call again."""
        if self.account is not None:
            self.account.ended()
        if self.bound is not None:
            self.bound.close()
        if self.placement is not None:
            self.placement.ended(self.read)


@dataclass
class Followed:
    """A range whose parts the controller names as it goes on, each on a port of one of the bound `sockets`."""

    placement: FollowedPlacement
    sockets: dict[int, socket.socket]
    coflow: _Coflow | None = None

    def source(self, part: SteeredRead) -> Source | None:
        """A part that is to be opened; None if its port has been used."""
        bound = self.sockets.pop(part.client_port, None)
        if bound is None:
            return None
        source = Source(part, bound, self.placement)
        if self.coflow is not None:
            self.coflow.tell([source])
        return source

    def ended(self) -> None:
        """Nothing more is to come. Safe to call again."""
        self.placement.over()
        for port in list(self.sockets):
            bound = self.sockets.pop(port, None)
            if bound is not None:
                bound.close()


def plan_range(context: ClientContext, attributes: Attributes, candidates: Sequence[Replica], offset: int,
               size: int, *, steer: bool) -> Source:
    """Who serves a range: the replica that the controller chooses, or the nearest of the candidates.

    The controller is asked once, if `steer`, and not for less than the client's `steer_min_bytes`.
    """
    placed = _placed(context, attributes, candidates, offset, size, 1, follows=False) if steer else None
    if isinstance(placed, list):
        return placed[0]
    return _nearest(context, candidates, offset, size, steer)


def plan_stream(context: ClientContext, attributes: Attributes, candidates: Sequence[Replica], offset: int,
                size: int) -> list[Source] | Followed:
    """Like `plan_range`, for bytes that may come from several replicas at once: their parts in order, or what is to
    follow."""
    placed = _placed(context, attributes, candidates, offset, size, context.most_parts, follows=True)
    return placed or [_nearest(context, candidates, offset, size, True)]


def _nearest(context: ClientContext, candidates: Sequence[Replica], offset: int, size: int, steer: bool) -> Source:
    context.metrics.add(**{"nearest_reads" if steer and context.steering is not None else "small_reads": 1})
    nearest = candidates[0]
    return Source(SteeredRead(
        replica_id=nearest.dataserver_id, replica_host=nearest.host, replica_port=nearest.port, client_port=0,
        chosen_by="nearest", offset_bytes=offset, size_bytes=size))


def _placed(context: ClientContext, attributes: Attributes, candidates: Sequence[Replica], offset: int, size: int,
            most_parts: int, follows: bool) -> list[Source] | Followed | None:
    steering = context.steering
    if steering is None or size < context.steer_min_bytes:
        return None
    most_parts = max(1, min(most_parts, len(candidates), size // PART_MIN_BYTES))
    # Parts that come later have ports of their own: one for each replica, as none is used twice.
    sockets = _bound(context, candidates[0], len(candidates) if follows and most_parts > 1 else most_parts)
    if sockets is None:
        return None
    own_address, by_port = sockets
    placement = steering.place(own_address, list(by_port), candidates, offset, size, attributes.file_id,
                               most_parts, follows)
    if isinstance(placement, FollowedPlacement):
        context.metrics.add(steered_reads=1, waited_reads=int(not placement.parts),
                            split_reads=int(len(placement.parts) > 1))
        return Followed(placement, by_port, _coflow(context, own_address, size))
    parts = placement.parts if placement is not None else ()
    sources = [Source(part, by_port.pop(part.client_port), placement) for part in parts]
    for unused in by_port.values():
        unused.close()
    if not sources:
        return None
    context.metrics.add(steered_reads=1, split_reads=int(len(sources) > 1))
    coflow = _coflow(context, own_address, size)
    if coflow is not None:
        coflow.tell(sources)
    return sources


class _Coflow:
    """A read that reports itself: its flows come from the replicas to ports of this host."""

    def __init__(self, coflows: Coflows, own_address: str) -> None:
        self._coflows = coflows
        self._own_address = own_address
        self._id = new_id()

    def tell(self, sources: Sequence[Source]) -> None:
        """All at once, so that they are scheduled together."""
        flows = [((source.read.replica_host, source.read.replica_port),
                  (self._own_address, source.read.client_port), source.read.size_bytes) for source in sources]
        for source, account in zip(sources, self._coflows.flows(self._id, flows), strict=True):
            source.account = account


def _coflow(context: ClientContext, own_address: str, size: int) -> _Coflow | None:
    return None if context.coflows is None or size < MIN_BYTES else _Coflow(context.coflows, own_address)


def _bound(context: ClientContext, toward: Replica, number: int) -> tuple[str, dict[int, socket.socket]] | None:
    """This host's address, and sockets by their local ports; None if there are none to be had."""
    by_port: dict[int, socket.socket] = {}
    try:
        own_address = context.address_toward(toward)
        for _ in range(number):
            bound = _bind(own_address, toward.host)
            by_port[int(bound.getsockname()[1])] = bound
    except OSError as error:
        log.warning("no local port for a steered read: %s", error)
        for bound in by_port.values():
            bound.close()
        return None
    return own_address, by_port


def _bind(own_address: str, toward: str) -> socket.socket:
    """A socket with a local port of its own, known before it connects."""
    connection = socket.socket(socket.AF_INET6 if ":" in toward else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.bind((own_address, 0))
    except OSError:
        connection.close()
        raise
    return connection
