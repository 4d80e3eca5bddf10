"""The static baseline: read from the closest replica (Mayflower, section 6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest


class Nearest:
    """The replica with the fewest links to the client; a random one of those, if several are as close."""

    def __init__(self, network: Network, generator: Random) -> None:
        self._network = network
        self._generator = generator

    def choose(self, request: SelectionRequest, reachable: Sequence[Replica], now: float) -> Replica:
        distances = [self._network.distance(replica.host, request.client) for replica in reachable]
        closest = min(distance for distance in distances if distance is not None)
        return self._generator.choice(
            [replica for replica, distance in zip(reachable, distances, strict=True) if distance == closest]
        )
