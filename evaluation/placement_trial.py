"""What placing by the network's load costs: who waits for a controller that stands still. `scripts/bench-placement`
prints it, integration tests hold it to its bounds."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from fs.client.metadata import MetadataClient

FILE_BYTES = 32 << 20
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
