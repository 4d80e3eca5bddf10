"""A read that wants a replica and a path, and what was chosen for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from speedwell.controller.policy.errors import InvalidRequest
from speedwell.controller.policy.network.graph import Path


@dataclass(frozen=True, slots=True)
class Replica:
    """A host that holds the data, and the TCP port that it serves it from."""

    host: str
    port: int = 0


Considered = tuple[tuple[Replica, float | None], ...]
"""Replicas with what speaks against each, in seconds; None: it was out of the question."""


@dataclass(frozen=True, slots=True)
class SelectionRequest:
    """Mayflower's request R: who reads, from which replicas, how much.

    Replicas are in the file's order. `client_port` is where the client's connection ends: ECMP hashes it.
    Raises InvalidRequest if there is no replica, one is named twice, or the size is not a number >= 0.
    """

    client: str
    replicas: tuple[Replica, ...]
    size_bits: float
    client_port: int = 0

    def __post_init__(self) -> None:
        if not self.replicas:
            raise InvalidRequest("a read needs at least one replica to read from")
        if len({replica.host for replica in self.replicas}) != len(self.replicas):
            raise InvalidRequest("a read names each replica's host once")
        if not (math.isfinite(self.size_bits) and self.size_bits >= 0):
            raise InvalidRequest(f"a read's size is a number of bits from 0 up, not {self.size_bits!r}")


@dataclass(frozen=True, slots=True)
class Selection:
    """The replica to read from and the path from it to the client.

    `path` starts at the replica's host; it has one node and no links if that is the client itself, and then
    `estimated_bps` is infinite. `estimated_bps` is the new flow's estimated share b_j, `cost_seconds` the
    path's cost by Eq. 2, whichever policies chose. `considered` are the replicas that were weighed, each with the
    cost of its cheapest path, or with a bound that this cannot be below if it is above `cost_seconds` already; under
    mayflower-plus, with the seconds that all of the read would take with what that path has to spare.
    """

    replica: Replica
    path: Path
    estimated_bps: float
    cost_seconds: float
    considered: Considered = field(default=(), compare=False)
