"""MinCOF's workload (Chiu et al., section IV-B): coflows of host-to-host transfers.

Where the text leaves a choice, it is made so:

* Intervals between arrivals are gamma distributed with the mean and the deviation of Table II; their median is then
  3.14 s, in the table 3.06 s. Their mode is 0, in the table 1.58 s.
* Sizes of files: Fig. 5 is only drawn. What the schedulers see are files above 2.5 MB, and the largest have 50 MB
  (section IV-D): log-uniform between the two, on average 15.9 MB.
* Each transfer draws two hosts, uniform, so it may stay within a leaf. The number of transfers is normal
  between 3 and 12: mean 7.5, the ends two standard deviations away, drawn again beyond them.
* A transfer's flows share its file evenly (section III-C).
"""

from dataclasses import dataclass
from math import exp, inf, isfinite, log
from random import Random

from speedwell.controller.policy.coflows.coflow import Coflow, CoflowFlow
from speedwell.controller.policy.network.graph import Network
from speedwell.sim.errors import InvalidWorkload


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
