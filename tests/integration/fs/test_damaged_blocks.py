"""Flipped bits on a dataserver's disk: no reader gets them, and they are repaired."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs.client import Changes, Client
from speedwell.fs.errors import ReadFailed
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

BLOCK_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=2, replication=2, chunk_size=1 << 20,
                      dataserver_arguments=("--scrub-rate", "0")) as cluster:
        yield cluster


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name}"


def put(client: Client, path: str, length: int) -> bytes:
    data = random.Random(path).randbytes(length)
    client.create(path)
    with client.open_append(path) as appender:
        appender.write(data)
    return data


def flip(chunk: Path, offset: int) -> bytes:
    """Damage a byte; returns the content of the chunk before."""
    content = chunk.read_bytes()
    with chunk.open("r+b") as file:
        file.seek(offset)
        file.write(bytes([content[offset] ^ 0x10]))
    return content


def near(cluster: LocalCluster, name: str) -> Client:
    """A client on the host of a dataserver, which reads from that one."""
    return cluster.client(metadata_cache_seconds=0, local_host=cluster.dataserver(name).host)


@pytest.mark.parametrize("offset", [0, 5 * BLOCK_BYTES + 7, (1 << 20) - 1])
def test_a_reader_gets_the_bytes_of_another_replica_and_the_damage_is_repaired(
        cluster: LocalCluster, path: str, offset: int) -> None:
    client = near(cluster, "d0")
    data = put(client, path, 1_500_000)
    chunk = cluster.stored("d0", client.lookup(path).file_id) / "1"
    good = flip(chunk, offset)
    with client.open_read(path) as reader:
        assert reader.read(0, len(data)) == data
        assert reader.read(max(0, offset - 10), 20) == data[max(0, offset - 10):][:20]
    assert client.metrics.damaged_blocks >= 1
    wait_until(lambda: chunk.read_bytes() == good, 10, "the chunk is not repaired")


def test_small_reads_and_fetch_find_damage_too(cluster: LocalCluster, path: str, tmp_path: Path) -> None:
    client = near(cluster, "d1")
    data = put(client, path, 300_000)
    chunk = cluster.stored("d1", client.lookup(path).file_id) / "1"
    good = flip(chunk, 299_999)
    with (tmp_path / "copy").open("w+b") as copy:
        assert client.fetch(path, copy.fileno()) == len(data)
        copy.seek(0)
        assert copy.read() == data
    wait_until(lambda: chunk.read_bytes() == good, 10, "the chunk is not repaired")
    damaged = client.metrics.damaged_blocks
    assert damaged >= 1
    with client.open_read(path) as reader:
        for offset in range(0, 300_000, 7_777):
            assert reader.read(offset, 100) == data[offset:offset + 100]
    assert client.metrics.damaged_blocks == damaged


def test_a_lost_chunk_and_damage_in_a_version_are_repaired(cluster: LocalCluster, path: str) -> None:
    client = near(cluster, "d0")
    data = bytearray(put(client, path, 1_500_000))
    attributes = client.change(path, Changes([(100_000, 100_003)], lambda channel: channel.send_bytes([b"new"])))
    data[100_000:100_003] = b"new"
    place = cluster.stored("d0", attributes.file_id)
    good = {name: (place / name).read_bytes() for name in ("1", "p1")}
    flip(place / "p1", 100_001 - BLOCK_BYTES)
    (place / "1").unlink()
    with client.open_read(path) as reader:
        assert reader.read(0, len(data)) == data

    def repaired() -> bool:
        with client.open_read(path) as reader:
            before = client.metrics.replica_failures
            return reader.read(0, len(data)) == data and client.metrics.replica_failures == before

    wait_until(lambda: (place / "p1").read_bytes() == good["p1"] and (place / "1").exists(), 10, "not repaired")
    wait_until(repaired, 15, "the near replica does not serve")


def test_where_every_replica_is_damaged_a_read_fails(cluster: LocalCluster, path: str) -> None:
    client = near(cluster, "d0")
    put(client, path, 300_000)
    file_id = client.lookup(path).file_id
    for name in ("d0", "d1"):
        flip(cluster.stored(name, file_id) / "1", 70_000)
    with client.open_read(path) as reader:
        assert len(reader.read(0, 1000)) == 1000
        with pytest.raises(ReadFailed, match="damaged"):
            reader.read(70_000, 10)


def test_the_scrubber_repairs_what_nobody_reads(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", dataservers=2, replication=2,
                      dataserver_arguments=("--scrub-rate", "50")) as cluster:
        client = cluster.client()
        for number in range(5):
            put(client, f"/f{number}", 200_000)
        chunk = cluster.stored("d1", client.lookup("/f3").file_id) / "1"
        good = flip(chunk, 123_456)
        cluster.dataserver("d1").kill()
        cluster.revive()  # a pass begins after the start
        wait_until(lambda: chunk.read_bytes() == good, 15, "the chunk is not repaired")
