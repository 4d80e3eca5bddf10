from collections.abc import Sequence

from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest
from speedwell.controller.policy.registry import Kind, Policy


class FirstNamed:
    def choose(self, request: SelectionRequest, reachable: Sequence[Replica], now: float) -> Replica:
        return reachable[0]


FIRST_NAMED = Policy(Kind.REPLICA, "first-named", "the replica that the request names first", "own",
                     make=lambda network, flows, generator: FirstNamed())
