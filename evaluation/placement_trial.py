"""What placing by the network's load gives and costs: who keeps off a busy rack, and who waits for a controller that
stands still. `scripts/bench-placement` prints it, integration tests hold it to its bounds."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from speedwell.cluster.controller_client import session
from speedwell.cluster.fabric import SECURE_CONTROLLER_URL as CONTROLLER
from speedwell.cluster.fabric import FabricCluster, run_on_host
from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.topo.fabric import Fabric, Host, three_tier

FILE_BYTES = 32 << 20
RACK_HOSTS = 4
FLOOD_SECONDS, FLOOD_SHARE = 300.0, 1.2
BUSY_SHARE = 0.9
CREATE_PAUSE_SECONDS = 0.02


@dataclass
class Times:
    """Seconds that requests took."""

    seconds: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - begin)

    @property
    def longest_ms(self) -> float:
        return 1e3 * max(self.seconds)

    @property
    def p99_ms(self) -> float:
        return 1e3 * sorted(self.seconds)[int(0.99 * (len(self.seconds) - 1))]


def creates_at_once(nameserver: str, writers: Sequence[str], directory: str, within_seconds: float) -> Counter[str]:
    """Create a large file for each writer, named by its address, spread over a time; how many replicas each host
    got."""
    with MetadataClient(nameserver) as client, ThreadPoolExecutor(len(writers)) as threads:
        client.mkdir(directory)
        begin = time.monotonic()

        def create(number: int) -> list[str]:
            time.sleep(max(begin + within_seconds * number / len(writers) - time.monotonic(), 0.0))
            attributes, _ = client.create(f"{directory}/{number}", 0o644, client_host=writers[number],
                                          expected_bytes=FILE_BYTES)
            return [replica.host for replica in attributes.replicas]

        return Counter(host for replicas in threads.map(create, range(len(writers))) for host in replicas)


def creates_and_stats(nameserver: str, writer: str, directory: str, seconds: float) -> tuple[Times, Times]:
    """Create large files and look up names at the same time: how long the creates took, and the look-ups."""
    creates, stats, ended = Times(), Times(), threading.Event()
    with MetadataClient(nameserver) as creating, MetadataClient(nameserver, cache_seconds=0) as looking:
        creating.mkdir(directory)

        def look() -> None:
            while not ended.is_set():
                with stats.one():
                    looking.lookup(directory, fresh=True)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            end, number = time.monotonic() + seconds, 0
            while time.monotonic() < end:
                with creates.one():
                    creating.create(f"{directory}/{number}", 0o644, client_host=writer, expected_bytes=FILE_BYTES)
                number += 1
                time.sleep(CREATE_PAUSE_SECONDS)
        finally:
            ended.set()
            thread.join()
    return creates, stats


def fabric_of(host_bps: float) -> Fabric:
    """Two pods of two racks, in which nothing but the hosts' links is narrow. Its first rack is the busy one."""
    return three_tier(pods=2, racks_per_pod=2, hosts_per_rack=RACK_HOSTS, aggregations_per_pod=1, cores=1,
                      host_bps=host_bps, oversubscription={"edge": 1.0, "aggregation": 1.0})


@contextlib.contextmanager
def busy_rack(cluster: FabricCluster, host_bps: float) -> Iterator[Sequence[Host]]:
    """The first rack, into whose hosts all others together send somewhat more than their links carry: some of it is
    dropped where bursts meet."""
    hosts = cluster.settings.fabric.hosts
    busy, others = hosts[:RACK_HOSTS], hosts[RACK_HOSTS:]
    rate_bps = FLOOD_SHARE * host_bps * len(busy) / len(others)
    with contextlib.ExitStack() as cleanup:
        for number, source in enumerate(others):
            flood = run_on_host(cluster.emulation.host_pid(source.name), [
                sys.executable, "-m", "speedwell.evaluation.flood", busy[number % len(busy)].ip, str(rate_bps),
                str(FLOOD_SECONDS)], stdin=subprocess.DEVNULL)
            cleanup.callback(flood.wait)
            cleanup.callback(flood.kill)
        yield busy


def is_seen_busy(cluster: FabricCluster, busy: Sequence[Host], host_bps: float) -> bool:
    """Whether the controller expects BUSY_SHARE of the links into these hosts to be taken."""
    return min(seen_busy(cluster, busy, host_bps)) >= BUSY_SHARE


def seen_busy(cluster: FabricCluster, busy: Sequence[Host], host_bps: float) -> list[float]:
    """The part of the link into each host that the controller expects to be taken."""
    hosts = cluster.settings.fabric.hosts
    placement = asked(hosts, [hosts[-1].ip], size_bytes=0, replicas=1)[0]
    return [1 - float(placement["passed_over"][host.ip].split()[0]) / host_bps for host in busy]


def asked(hosts: Sequence[Host], writers: Sequence[str], size_bytes: int = FILE_BYTES,
          replicas: int = 3) -> list[dict[str, Any]]:
    """What the controller answers about a file for each writer, in one request."""
    answer = session(CONTROLLER).post(f"{CONTROLLER}/v1/placements", timeout=10, json={
        "files": [{"writer": writer, "size_bytes": size_bytes, "replicas": replicas} for writer in writers],
        "candidates": [{"host": host.ip} for host in hosts]})
    answer.raise_for_status()
    placements: list[dict[str, Any]] = answer.json()["placements"]
    return placements


def nothing_expected() -> None:
    """Have the controller forget what it expects."""
    asking = session(CONTROLLER)
    for placement in asking.get(f"{CONTROLLER}/v1/placements", timeout=10).json()["placements"]:
        asking.delete(f"{CONTROLLER}/v1/placements/{placement['id']}", timeout=10)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process stands still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def counted(nameserver: str) -> dict[str, int]:
    """`placed_by_controller` of the nameserver."""
    with MetadataClient(nameserver) as client:
        return dict(client.statistics().placed_by_controller)
