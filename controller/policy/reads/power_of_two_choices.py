"""Two replicas at random, and the less busy of them (Mitzenmacher, "The power of two choices", 2001)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from speedwell.controller.policy.reads.link_load import ReadFlow
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest


class PowerOfTwoChoices:
    """Busy is who serves more of the reads that were asked for here. Knows nothing of the network."""

    def __init__(self, flows: Callable[[], Iterable[ReadFlow]], generator: Random) -> None:
        """`flows` gives the reads in flight."""
        self._flows = flows
        self._generator = generator

    def choose(self, request: SelectionRequest, reachable: Sequence[Replica], now: float) -> Replica:
        drawn = self._generator.sample(reachable, min(2, len(reachable)))
        reads = dict.fromkeys([replica.host for replica in drawn], 0)
        for flow in self._flows():
            for sender in reads.keys() & flow.path.nodes[:-1]:      # the hops of a chain have one each
                reads[sender] += 1
        return min(drawn, key=lambda replica: reads[replica.host])
