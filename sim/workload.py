"""Mayflower's traffic matrix (Rizvi et al., "Mayflower", section 6.1.1).

Where the text leaves a choice, it is made so:

* The second replica is in the primary's pod but not in its rack, the third in another pod: one fault domain
  each. Hosts within these are drawn uniformly. On a fabric without such a place another rack stands for it, then any
  other host; the same holds for clients.
* Poisson arrivals have the rate lambda times the number of servers; each takes a file by its popularity, then a
  client by the place of the file's primary.
* A client never holds a replica of what it reads: the paper leaves such reads out, as they use no network.
* Popularity ranks are given to files at random; files are of one block. With 2,000 files the most popular one gets a
  sixth of the reads, and methods that do not look at load are about as far behind as in the paper.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from speedwell.sim.errors import InvalidWorkload
from speedwell.topo.fabric import Fabric, Host


@dataclass(frozen=True)
class Workload:
    """What is read: `reads_per_server_second` is the paper's lambda, `locality` its (R, P, O)."""

    reads_per_server_second: float = 0.07
    locality: tuple[float, float, float] = (0.5, 0.3, 0.2)
    files: int = 2000
    zipf_exponent: float = 1.1
    read_bits: float = 256 * 2**20 * 8.0
    replicas: int = 3

    def __post_init__(self) -> None:
        """Raises InvalidWorkload, naming the field."""
        for name in ("reads_per_server_second", "read_bits"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidWorkload(f"{name}: must be a positive number, not {value!r}")
        if not (math.isfinite(self.zipf_exponent) and self.zipf_exponent >= 0):
            raise InvalidWorkload(f"zipf_exponent: must be a number from 0 up, not {self.zipf_exponent!r}")
        if len(self.locality) != 3 or min(self.locality) < 0 or abs(sum(self.locality) - 1) > 0.011:
            raise InvalidWorkload(f"locality: must be three probabilities that add up to 1, not {self.locality!r}")
        if self.files < 1 or not 1 <= self.replicas <= 3:
            raise InvalidWorkload("files: must be at least 1, and replicas 1, 2 or 3")


def mayflower_read_bits(fabric: Fabric) -> float:
    """The paper's 256 MB on its 1 Gbit/s links, so much smaller as the slowest link of a host here is slower."""
    return Workload.read_bits * min(fabric.ports(host.name)[0].capacity_bps for host in fabric.hosts) / 1e9


@dataclass(frozen=True, slots=True)
class Read:
    """One read: when it is asked for, by whom, and who could serve it, the primary first."""

    arrival: float
    client: str
    replicas: tuple[str, ...]
    size_bits: float


def generate(workload: Workload, fabric: Fabric, generator: Random) -> Iterator[Read]:
    """Reads without end, in order of arrival. Raises InvalidWorkload if the fabric has not the places it needs."""
    _refuse_more_than_clients_can_take(workload, fabric)
    places = _Places(fabric)
    files = [places.replicas(workload.replicas, generator) for _ in range(workload.files)]
    popularity = list(accumulate((rank + 1) ** -workload.zipf_exponent for rank in range(workload.files)))
    locality = list(accumulate(workload.locality))
    rate = workload.reads_per_server_second * len(fabric.hosts)
    return _reads(workload, places, files, popularity, locality, rate, generator)


def _reads(workload: Workload, places: "_Places", files: list[list[Host]], popularity: list[float],
           locality: list[float], rate: float, generator: Random) -> Iterator[Read]:
    now = 0.0
    ranks = range(len(files))
    while True:
        now += generator.expovariate(rate)
        holders = files[generator.choices(ranks, cum_weights=popularity)[0]]
        place = generator.choices(("rack", "pod", "elsewhere"), cum_weights=locality)[0]
        client = places.client(place, holders, generator)
        yield Read(now, client.name, tuple(host.name for host in holders), workload.read_bits)


def _refuse_more_than_clients_can_take(workload: Workload, fabric: Fabric) -> None:
    """Whatever a policy does, all that is read comes in over the clients' own links."""
    asked_bps = workload.reads_per_server_second * len(fabric.hosts) * workload.read_bits
    carried_bps = sum(fabric.ports(host.name)[0].capacity_bps for host in fabric.hosts)
    if asked_bps >= carried_bps:
        raise InvalidWorkload(
            f"reads_per_server_second: the reads ask for {asked_bps / 1e9:.3g} Gbit/s, and the links of all "
            f"{len(fabric.hosts)} hosts together carry {carried_bps / 1e9:.3g}; ask for fewer or smaller reads")


class _Places:
    def __init__(self, fabric: Fabric) -> None:
        self._hosts = list(fabric.hosts)
        self._rack: dict[str, list[Host]] = {}
        self._pod: dict[str, list[Host]] = {}
        for host in fabric.hosts:
            self._rack.setdefault(host.rack, []).append(host)
            self._pod.setdefault(host.pod, []).append(host)

    def replicas(self, number: int, generator: Random) -> list[Host]:
        holders = [generator.choice(self._hosts)]
        primary = holders[0]
        in_pod = [host for host in self._pod[primary.pod] if host.rack != primary.rack]
        elsewhere = [host for host in self._hosts if host.pod != primary.pod]
        for wanted in (in_pod, elsewhere)[: number - 1]:
            holders.append(self._one(wanted, holders, generator))
        return holders

    def client(self, place: str, holders: list[Host], generator: Random) -> Host:
        primary = holders[0]
        if place == "rack":
            wanted = self._rack[primary.rack]
        elif place == "pod":
            wanted = [host for host in self._pod[primary.pod] if host.rack != primary.rack]
        else:
            wanted = [host for host in self._hosts if host.pod != primary.pod]
        return self._one(wanted, holders, generator)

    def _one(self, wanted: list[Host], holders: list[Host], generator: Random) -> Host:
        """One of `wanted` that is no holder; where the fabric has none, one of another rack, else any."""
        choices = [host for host in wanted if host not in holders] \
            or [host for host in self._hosts if host.rack != holders[0].rack and host not in holders] \
            or [host for host in self._hosts if host not in holders]
        if not choices:
            raise InvalidWorkload("replicas: the fabric has too few hosts: it needs one for each replica of a file, "
                                  "and a client")
        return generator.choice(choices)
