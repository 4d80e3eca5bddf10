"""Clients on a dataserver's own host: local sockets, and files handed over instead of bytes."""

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs.checksums import BLOCK_BYTES
from speedwell.fs.client import Changes, Client
from speedwell.fs.client.read.receiver import HANDED_OVER_BYTES
from speedwell.fs.wire import local_sockets as local
from speedwell.fs.wire.connections import ConnectionPool
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

CHUNK_BYTES = 1 << 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=2, replication=2,
                      chunk_size=CHUNK_BYTES) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Client:
    """On the host of d0."""
    return cluster.client(metadata_cache_seconds=0, local_host=cluster.dataserver("d0").host)


def put(client: Client, path: str, data: bytes) -> None:
    with client.open_append(path, client.create(path)) as appender:
        appender.write(data)


def open_files() -> set[str]:
    """What this process has open of dataservers' files."""
    names = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            names.add(str(descriptor.readlink()))
        except FileNotFoundError:
            continue
    return {name for name in names if "/d0/" in name}


@pytest.mark.parametrize("size", [1, HANDED_OVER_BYTES - 1, HANDED_OVER_BYTES, 3 * CHUNK_BYTES + 17])
def test_the_bytes_are_those_that_were_written(cluster: LocalCluster, client: Client, size: int) -> None:
    data = random.Random(size).randbytes(size)
    put(client, f"/f{size}", data)
    with client.open_read(f"/f{size}") as reader:
        assert b"".join(reader.read(offset, 100_000) for offset in range(0, size, 100_000)) == data
        assert reader.read(size // 2, size) == data[size // 2:]
    with client.open_read(f"/f{size}") as reader:
        assert reader.read(0, size + 1) == data


def test_a_long_read_takes_the_files_and_goes_on_when_the_dataserver_is_killed(
        cluster: LocalCluster, client: Client) -> None:
    data = os.urandom(5 * CHUNK_BYTES)
    put(client, "/killed", data)
    with client.open_read("/killed") as reader:
        assert reader.read(0, BLOCK_BYTES) == data[:BLOCK_BYTES]
        assert len(open_files()) == 5
        cluster.dataserver("d0").kill()
        assert reader.read(BLOCK_BYTES, len(data)) == data[BLOCK_BYTES:]
        assert reader.last_read is not None and reader.last_read.replica_id == "d0"
    assert open_files() == set()
    cluster.revive()


def test_a_reader_that_is_closed_early_keeps_nothing_open(cluster: LocalCluster, client: Client) -> None:
    put(client, "/early", os.urandom(3 * CHUNK_BYTES))
    with client.open_read("/early") as reader:
        reader.read(0, BLOCK_BYTES)
        assert open_files()
    assert open_files() == set()


def test_versions_with_holes_and_more_files_than_are_handed_over(cluster: LocalCluster, client: Client) -> None:
    data = bytearray(os.urandom(CHUNK_BYTES))
    put(client, "/version", bytes(data))
    data += bytes((local.MAX_DESCRIPTORS + 5) * CHUNK_BYTES)
    data[700_000:700_003] = b"new"
    data[-1:] = b"!"
    client.change("/version", Changes([(700_000, 700_003), (len(data) - 1, len(data))],
                                      lambda channel: channel.send_bytes([b"new", b"!"])))
    with client.open_read("/version") as reader:
        assert reader.read(0, len(data)) == data
        assert reader.read(CHUNK_BYTES // 2, 2 * CHUNK_BYTES) == data[CHUNK_BYTES // 2:][:2 * CHUNK_BYTES]


def test_a_damaged_block_of_a_file_that_was_handed_over_comes_from_another_replica(
        cluster: LocalCluster, client: Client) -> None:
    data = os.urandom(2 * CHUNK_BYTES)
    put(client, "/damaged", data)
    chunk = cluster.stored("d0", client.lookup("/damaged").file_id) / "2"
    good = chunk.read_bytes()
    chunk.write_bytes(good[:500_000] + b"?" + good[500_001:])
    with client.open_read("/damaged") as reader:
        assert reader.read(0, len(data)) == data
    assert client.metrics.damaged_blocks == 1
    wait_until(lambda: chunk.read_bytes() == good, 10, "the chunk is not repaired")


def test_a_server_without_a_local_socket_is_reached_over_the_network(cluster: LocalCluster) -> None:
    daemon = cluster.dataserver("d1")
    pool = ConnectionPool()
    here = pool.take_on_this_host(daemon.host, daemon.port)
    pool.give_back(daemon.host, daemon.port, here)
    assert here.is_local and pool.take_on_this_host(daemon.host, daemon.port) is here
    assert not pool.take(daemon.host, daemon.port).is_local
    with socket.create_server(("127.0.0.1", 0)) as without:
        host, port = without.getsockname()
        assert local.connect(host, port, 1.0) is None
        assert not pool.take_on_this_host(host, port).is_local
    pool.close()
