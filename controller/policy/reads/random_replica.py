"""The policy that knows nothing: any replica that can be reached, with equal chances."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest


class RandomReplica:
    def __init__(self, generator: Random) -> None:
        self._generator = generator

    def choose(self, request: SelectionRequest, reachable: Sequence[Replica], now: float) -> Replica:
        return self._generator.choice(reachable)
