"""HDFS's choice of a replica: one in the client's rack if there is one, else any (Mayflower, section 6.7)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest


class Hdfs:
    """Rack awareness as HDFS has it: it knows hosts and racks, and nothing between racks."""

    def __init__(self, network: Network, generator: Random) -> None:
        self._network = network
        self._generator = generator

    def choose(self, request: SelectionRequest, reachable: Sequence[Replica], now: float) -> Replica:
        racks = set(self._network.neighbours(request.client))
        local = [replica for replica in reachable if replica.host == request.client]
        in_rack = [replica for replica in reachable if not racks.isdisjoint(self._network.neighbours(replica.host))]
        return self._generator.choice(local or in_rack or reachable)
