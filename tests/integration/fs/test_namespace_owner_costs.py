"""What many creates cost where several nameservers own the namespace, and what more owners carry."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedwell.fs import paths, slots
from speedwell.fs.client.names.metadata import MetadataClient
from tests.etcd import EtcdCluster, free_ports, requires_etcd
from tests.integration.fs.test_namespace_owners import DATASERVER, _can_create, owners, requests_answered
from tests.local_cluster import Daemon
from tests.several_nameservers import NAMESERVER, Installation
from tests.waiting import wait_until

pytestmark = [requires_etcd, pytest.mark.full]

RATE = 40.0
"""Requests a second that each owner takes of one client (`--request-rate`), well below what this machine carries."""


@contextmanager
def running(tmp_path: Path, etcd: EtcdCluster, number: int,
            *options: str) -> Iterator[tuple[Installation, list[int]]]:
    """So many owners with a dataserver, and the ports at which they tell of their requests."""
    ports = free_ports(number)
    started = Installation(tmp_path, etcd, 0)
    started.nameservers = [Daemon(f"n{n}", [
        NAMESERVER, "--directory", str(tmp_path / f"n{n}"), "--etcd", ",".join(etcd.endpoints), "--etcd-prefix",
        str(tmp_path), "--shared", "--metrics", f"127.0.0.1:{port}", *options], tmp_path / f"n{n}.log")
        for n, port in enumerate(ports)]
    dataserver = Daemon("d0", [DATASERVER, "--id", "d0", "--directory", str(tmp_path / "d0")], tmp_path / "d0.log")
    try:
        for nameserver in started.nameservers:
            nameserver.start()
        wait_until(lambda: len(owners(started)) == number, 60, "not all own a part")
        dataserver.launch("--nameserver", started.address)
        yield started, ports
    finally:
        dataserver.stop()
        started.stop()


def directories(client: MetadataClient, number: int, each: int) -> list[list[int]]:
    """So many directories of each of `number` equal parts of the blocks."""
    found: list[list[int]] = [[] for _ in range(number)]
    names = iter(range(100_000))
    while any(len(part) < each for part in found):
        inode = client.mkdir(f"/spread{next(names)}").inode
        part = found[slots.block_of(inode) * number // slots.BLOCKS]
        if len(part) < each:
            part.append(inode)
    return found


@pytest.mark.timeout(900)
def test_ten_thousand_creates_on_four_owners_are_ten_thousand_requests(tmp_path: Path, etcd: EtcdCluster) -> None:
    with running(tmp_path, etcd, 4) as (started, ports), MetadataClient(started.address, 0) as client:
        spread = [inode for part in directories(client, 4, 3) for inode in part]
        for inode in spread:
            wait_until(lambda inode=inode: _can_create(client, inode), 15, "no dataserver is known")
        before = requests_answered(ports)
        for number in range(10_000):
            client.create(paths.below(spread[number % len(spread)], b"f%05d" % number), replication=1)
        assert requests_answered(ports) - before == Counter({"Create": 10_000})


def carried(tmp_path: Path, etcd: EtcdCluster, number: int, seconds: float = 10.0, threads: int = 6) -> float:
    """Creates and look-ups a second that one client is answered by so many owners."""
    tmp_path.mkdir()
    with running(tmp_path, etcd, number, "--request-rate", f"{RATE:g}") as (started, _), \
            MetadataClient(started.address, 0) as client:
        parts = directories(client, number, 2)
        wait_until(lambda: all(_can_create(client, inode) for part in parts for inode in part), 60,
                   "no dataserver is known")
        done, begin = [0] * (threads * number), time.monotonic() + 3.0      # what it may make at once is used up

        def work(thread: int) -> None:
            own, turn = parts[thread % number], 0
            with MetadataClient(started.address, 0, call_timeout_seconds=30) as client:
                while (now := time.monotonic()) < begin + seconds:
                    directory, name = own[turn % 2], b"%d-%d" % (thread, turn // 4)
                    if turn % 4 < 2:
                        client.create(paths.below(directory, name), replication=1)
                    else:
                        client.lookup(paths.below(directory, name))
                    turn += 1
                    done[thread] += now > begin

        workers = [threading.Thread(target=work, args=(thread,)) for thread in range(len(done))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return sum(done) / seconds


@pytest.mark.timeout(900)
def test_eight_owners_carry_nearly_eight_times_what_one_does(tmp_path: Path, etcd: EtcdCluster) -> None:
    rates = {number: carried(tmp_path / str(number), etcd, number) for number in (1, 2, 4, 8)}
    linear = {number: rate / (number * rates[1]) for number, rate in rates.items()}
    print("requests a second:", rates, "of linear:", linear)
    assert min(linear.values()) >= 0.9
