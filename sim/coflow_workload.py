"""MinCOF's workload (Chiu et al., section IV-B): coflows of host-to-host transfers, and what no policy can beat.

Where the text leaves a choice, it is made so:

* Intervals between arrivals are gamma distributed with the mean and the deviation of Table II; their median is then
  3.14 s, in the table 3.06 s.
* Sizes of files: Fig. 5 is only drawn. What the schedulers see are files above 2.5 MB, and the largest have 50 MB
  (section IV-D): log-uniform between the two, on average 15.9 MB.
* Each transfer draws two hosts, uniform, so it may stay within a leaf. The number of transfers is normal
  between 3 and 12: mean 7.5, the ends two standard deviations away, drawn again beyond them.
* A transfer's flows share its file evenly (section III-C).
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log
from random import Random

from controller.policy.coflow import BITS_PER_BYTE, Coflow, CoflowFlow
from controller.policy.network import Network
from sim.errors import InvalidWorkload


@dataclass(frozen=True)
class CoflowWorkload:
    """`transfers` and `flows` are the least and the most of a coflow, and of a transfer; sizes in bytes."""

    coflows: int = 64
    transfers: tuple[int, int] = (3, 12)
    flows: tuple[int, int] = (4, 16)
    file_bytes: tuple[float, float] = (2.5e6, 50e6)
    interval_mean_seconds: float = 6.91
    interval_deviation_seconds: float = 9.76

    def __post_init__(self) -> None:
        """Raises InvalidWorkload, naming the field."""
        if self.coflows < 1:
            raise InvalidWorkload(f"coflows: must be at least 1, not {self.coflows}")
        for name in ("transfers", "flows", "file_bytes"):
            least, most = getattr(self, name)
            if not 0 < least <= most < inf:
                raise InvalidWorkload(f"{name}: the least and the most, positive numbers, not {(least, most)!r}")
        for name in ("interval_mean_seconds", "interval_deviation_seconds"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise InvalidWorkload(f"{name}: must be a positive number of seconds, not {getattr(self, name)!r}")


def generate(workload: CoflowWorkload, network: Network, generator: Random) -> list[Coflow]:
    """All coflows, in order of arrival. Raises InvalidWorkload for a network of less than two hosts."""
    hosts = sorted(network.hosts)
    if len(hosts) < 2:
        raise InvalidWorkload("the fabric needs two hosts at least")
    mean, deviation = workload.interval_mean_seconds, workload.interval_deviation_seconds
    now, coflows = 0.0, []
    for number in range(workload.coflows):
        now += generator.gammavariate((mean / deviation) ** 2, deviation**2 / mean)
        flows = []
        for transfer in range(_normal_between(*workload.transfers, generator)):
            source, destination = generator.sample(hosts, 2)
            least, most = workload.file_bytes
            size = exp(generator.uniform(log(least), log(most)))
            parts = generator.randint(*workload.flows)
            flows += [CoflowFlow(f"{number}.{transfer}.{part}", source, destination, size / parts)
                      for part in range(parts)]
        coflows.append(Coflow(str(number), tuple(flows), now))
    return coflows


def _normal_between(least: int, most: int, generator: Random) -> int:
    if least == most:
        return least
    while True:
        number = round(generator.gauss((least + most) / 2, (most - least) / 4))
        if least <= number <= most:
            return number


def least_mean_seconds(coflows: Sequence[Coflow], network: Network) -> float:
    """A lower bound on the mean completion time under any order, any rates and any paths, known ahead or not.

    A coflow is not complete before the host link on which it has most to do has carried that. Each link takes the
    coflows that have it as theirs: however it serves them, the sum of their completion times is at least that of
    serving the one with least left first (Schrage, 1968). Each coflow counts on one link only, so the sums add up.
    Links between switches count as one cut for each switch and direction. What coflows have on other links, and that
    flows of one path cannot use another, is left out: the bound may be out of reach.
    """
    jobs: dict[object, list[tuple[float, float]]] = {}
    for coflow in coflows:
        seconds: dict[object, float] = {}
        for flow in coflow.flows:
            bits = flow.remaining_bytes * BITS_PER_BYTE
            for cut, capacity_bps in _cuts(flow, network):
                seconds[cut] = seconds.get(cut, 0.0) + bits / capacity_bps
        longest = max(seconds, key=lambda cut: seconds[cut])
        jobs.setdefault(longest, []).append((coflow.arrived_at, seconds[longest]))
    return sum(_least_sum(own) for own in jobs.values()) / len(coflows)


def _cuts(flow: CoflowFlow, network: Network) -> list[tuple[object, float]]:
    nodes = network.shortest_paths(flow.source, flow.destination)[0].nodes
    cuts: list[tuple[object, float]] = [((nodes[0], nodes[1]), network.capacity_bps((nodes[0], nodes[1]))),
                                        ((nodes[-2], nodes[-1]), network.capacity_bps((nodes[-2], nodes[-1])))]
    if len(nodes) > 3:
        for switch, name in ((nodes[1], "out of"), (nodes[-2], "into")):
            others = [other for other in network.neighbours(switch) if not network.is_host(other)]
            links = [(switch, other) if name == "out of" else (other, switch) for other in others]
            cuts.append(((name, switch), sum(network.capacity_bps(link) for link in links)))
    return cuts


def _least_sum(jobs: Sequence[tuple[float, float]]) -> float:
    """The least sum of completion times of (arrival, seconds) on one machine that may be interrupted."""
    coming = sorted(jobs, reverse=True)
    waiting: list[tuple[float, float]] = []
    now, total = 0.0, 0.0
    while coming or waiting:
        if not waiting:
            now = max(now, coming[-1][0])
        while coming and coming[-1][0] <= now:
            arrival, seconds = coming.pop()
            heapq.heappush(waiting, (seconds, arrival))
        left, arrival = heapq.heappop(waiting)
        until = coming[-1][0] if coming else inf
        if now + left <= until:
            now += left
            total += now - arrival
        else:
            heapq.heappush(waiting, (left - (until - now), arrival))
            now = until
    return total
