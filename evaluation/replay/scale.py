"""How the paper's testbed is scaled down to what one machine emulates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from speedwell.cluster.errors import InvalidSetting
from speedwell.evaluation.papers.reads import AGGREGATION_RATIO, HOST_BPS, Task
from speedwell.sim.workload import Read, Workload, generate
from speedwell.topo.fabric import Fabric, three_tier

PAPER_READ_BYTES = 256 << 20


@dataclass(frozen=True)
class Scale:
    """The emulated testbed beside the paper's: slower links and, in proportion, smaller files.

    So a read takes as long as in the paper and the load is the same part of the capacity. With a `speedup` files are
    smaller still and come so much more often; times measured are multiplied by it again. Below 1 they are larger and
    come less often. The defaults are the paper's 64 hosts.

    `queue_packets` is the length of a switch port's queue. A full one delays everything behind it by its length over
    the slow link's rate, and TCP needs many round trips to come to fair shares: with 20 jumbo frames (180 ms at 8
    Mbit/s) a read is over before. Fewer than 8 leave TCP too little to notice a loss by.
    """

    host_bps: float = 8e6
    speedup: float = 1.0
    pods: int = 4
    racks_per_pod: int = 4
    hosts_per_rack: int = 4
    queue_packets: int = 8

    def __post_init__(self) -> None:
        """Raises InvalidSetting, naming the field."""
        for name in ("host_bps", "speedup"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidSetting(f"{name}: must be a positive number, not {value!r}")
        if self.read_bytes < 64 << 10:
            raise InvalidSetting(f"host_bps: files of {self.read_bytes} bytes are too small to say anything; "
                                 "take faster links or less speedup")

    @property
    def read_bytes(self) -> int:
        """Size of a file; the paper's is 256 MiB behind a link of 1 Gbit/s."""
        return round(PAPER_READ_BYTES * self.host_bps / HOST_BPS / self.speedup)

    @property
    def poll_interval_seconds(self) -> float:
        """Between two polls of the controller; a second of the paper's time."""
        return 1.0 / self.speedup

    def fabric(self, oversubscription: float) -> Fabric:
        """The paper's fabric with this core-to-rack ratio: two aggregation switches in a pod, two core switches."""
        return three_tier(pods=self.pods, racks_per_pod=self.racks_per_pod, hosts_per_rack=self.hosts_per_rack,
                          aggregations_per_pod=2, cores=2, host_bps=self.host_bps,
                          oversubscription={"edge": oversubscription / AGGREGATION_RATIO,
                                            "aggregation": AGGREGATION_RATIO})

    def workload(self, task: Task) -> Workload:
        """The task's workload in emulated time."""
        return Workload(reads_per_server_second=task.rate * self.speedup, locality=task.locality,
                        read_bits=8.0 * self.read_bytes)

    def trace(self, task: Task) -> list[Read]:
        """The reads of a task: those that the simulator gives it, in emulated time. Raises InvalidWorkload."""
        fabric = self.fabric(task.oversubscription)
        return list(islice(generate(self.workload(task), fabric, Random(f"reads {task.seed}")), task.reads))


@dataclass(frozen=True)
class StoredFile:
    """A file of a trace: its path, the hosts that hold it, the primary first, and its size."""

    path: str
    replicas: tuple[str, ...]
    size_bytes: int


def file_of(read: Read) -> StoredFile:
    """The file that a read wants. Files on the same hosts are one: nothing that is measured tells them apart."""
    size_bytes = round(read.size_bits / 8)
    return StoredFile(f"/trace/{size_bytes}/{'-'.join(read.replicas)}", read.replicas, size_bytes)


def files_of(reads: Sequence[Read]) -> list[StoredFile]:
    """The different files that a trace reads, in the order of their first read."""
    return list(dict.fromkeys(file_of(read) for read in reads))
