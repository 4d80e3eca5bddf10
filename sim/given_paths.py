"""Reads on a simulated fabric over paths that somebody else has chosen: what the network alone makes of them."""

from collections.abc import Sequence
from itertools import pairwise

from speedwell.sim.fabric_network import network_of
from speedwell.sim.fluid import FluidNetwork, Link
from speedwell.sim.workload import Read
from speedwell.topo.fabric import Fabric

NEARLY_NOTHING_BITS = 8.0


def completion_seconds(fabric: Fabric, reads: Sequence[Read], paths: Sequence[Sequence[Sequence[str]]],
                       delay_seconds: float = 0.0) -> list[float]:
    """Completion times of reads, in order, that each come over their `paths` (names of nodes, one path a part).

    Reads are in order of arrival and begin `delay_seconds` later. The parts of a read end together: when one has
    nothing left, what is left is divided anew by the rates. A path of one node moves nothing over the fabric.
    """
    return _Replay(fabric, reads, paths).run(delay_seconds)


class _Replay:
    def __init__(self, fabric: Fabric, reads: Sequence[Read], paths: Sequence[Sequence[Sequence[str]]]) -> None:
        network = network_of(fabric)
        self._fluid = FluidNetwork({link: network.capacity_bps(link) for link in network.links})
        self._reads = reads
        self._routes: list[list[list[Link]]] = [
            [list(pairwise(path)) for path in of_read if len(path) > 1] for of_read in paths]
        self._parts: dict[int, tuple[int, list[Link]]] = {}     # running flows: whose they are, and their route
        self._ended_at: list[float] = []

    def run(self, delay_seconds: float) -> list[float]:
        for number, read in enumerate(self._reads):
            self._advance(read.arrival + delay_seconds)
            self._ended_at.append(self._fluid.now)
            for route in self._routes[number]:
                self._start(number, route, read.size_bits / len(self._routes[number]))
        while self._fluid.running:
            self._advance(self._fluid.next_completion())
        return [end - read.arrival for end, read in zip(self._ended_at, self._reads, strict=True)]

    def _start(self, number: int, route: list[Link], size_bits: float) -> None:
        self._parts[self._fluid.start(route, size_bits)] = number, route

    def _advance(self, until: float) -> None:
        while ended := self._fluid.advance(until):
            for number in {self._parts.pop(flow)[0] for flow in ended}:
                self._ended_at[number] = self._fluid.now
                if len(self._routes[number]) > 1:
                    self._divide_anew(number)

    def _divide_anew(self, number: int) -> None:
        running = [flow for flow, (owner, _) in self._parts.items() if owner == number]
        left_bits = sum(self._fluid.bits_left(running))
        if left_bits < NEARLY_NOTHING_BITS:
            return
        for flow in running:
            self._fluid.cancel(flow)
            del self._parts[flow]
        starting = [self._fluid.start(route, left_bits) for route in self._routes[number]]
        rates = [self._fluid.rate_bps(flow) for flow in starting]
        for flow in starting:
            self._fluid.cancel(flow)
        for route, rate in zip(self._routes[number], rates, strict=True):
            self._start(number, route, left_bits * rate / sum(rates))
