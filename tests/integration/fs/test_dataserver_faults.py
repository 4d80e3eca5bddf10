"""Dataservers and clients that die or stop at any moment: nothing acknowledged is lost, nothing half done seen."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs.checksums import block_sum
from speedwell.fs.client import Client
from speedwell.fs.dataserver.disk.stored_file import HEAD_BYTES, head
from speedwell.fs.errors import AppendFailed, NoReplicaAvailable, ReadFailed, SpeedwellError
from speedwell.fs.proto.speedwell_pb2 import (
    OK,
    OUT_OF_DATE,
    AppendOperation,
    AppendRecord,
    Attributes,
    DataReply,
    DataRequest,
    Replica,
)
from speedwell.fs.wire.channel import Channel, connect
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

CHUNK_BYTES = 1 << 20
NAMES = ("d0", "d1", "d2")


@pytest.fixture(scope="module")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=3, chunk_size=CHUNK_BYTES) as cluster:
        yield cluster


@pytest.fixture
def cluster(one_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster with everything running; what a test killed is started again after it."""
    yield one_cluster
    one_cluster.revive()


@pytest.fixture
def client(cluster: LocalCluster) -> Client:
    return cluster.client()


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name}"


def make_file(client: Client, path: str, size: int) -> tuple[bytes, Attributes]:
    data = random.Random(size).randbytes(size)
    with client.open_append(path, client.create(path)) as appender:
        appender.write(data)
    return data, client.lookup(path, fresh=True)


def read_all(client: Client, path: str) -> bytes:
    with client.open_read(path) as reader:
        return reader.read(0, reader.size)


def begin_append(replica: Replica, attributes: Attributes, length: int, **fields: object) -> Channel:
    """The first half of an append by hand, so that it can be left in the middle."""
    channel = connect(replica.host, replica.port)
    if "offset" not in fields:
        fields["records"] = [AppendRecord(writer=99, sequence=1)]
    channel.send(DataRequest(append=AppendOperation(
        file_id=attributes.file_id, inode=attributes.inode, path=b"/by-hand", chunk_size=attributes.chunk_size,
        length=length, epoch=attributes.epoch, **fields), token=attributes.token))  # type: ignore[arg-type]
    return channel


def lengths(cluster: LocalCluster, file_id: str) -> list[int]:
    return [len(cluster.stored_bytes(name, file_id)) for name in NAMES]


def disk_bytes(cluster: LocalCluster, file_id: str) -> list[int]:
    return [len(cluster.chunk_bytes(name, file_id)) for name in NAMES]


class TestAppends:
    @pytest.mark.parametrize("position", [1, 2])
    def test_a_dead_secondary_leaves_the_set_and_the_append_succeeds(
            self, cluster: LocalCluster, client: Client, path: str, position: int) -> None:
        data, attributes = make_file(client, path, 100_000)
        dead = attributes.replicas[position].dataserver_id
        cluster.dataserver(dead).kill()
        assert client.append(path, b"more") == len(data)
        after = client.lookup(path, fresh=True)
        assert {replica.dataserver_id for replica in after.replicas} == set(NAMES) - {dead}
        for replica in after.replicas:
            assert cluster.stored_bytes(replica.dataserver_id, after.file_id) == data + b"more"
        assert client.metrics.replicas_dropped == 1

    def test_killing_a_secondary_in_the_middle_of_a_stream_of_appends_loses_nothing(
            self, cluster: LocalCluster, client: Client, path: str) -> None:
        _, attributes = make_file(client, path, 10)
        with client.open_append(path) as appender:
            for number in range(160):
                appender.write(bytes([number]) * 250_000)
                if number == 60:
                    cluster.dataserver(attributes.replicas[1].dataserver_id).kill()
        data = read_all(client, path)
        assert data[10:] == b"".join(bytes([number]) * 250_000 for number in range(160))
        for replica in client.lookup(path, fresh=True).replicas:
            assert cluster.stored_bytes(replica.dataserver_id, attributes.file_id) == data

    def test_killing_the_primary_in_the_middle_loses_nothing_that_was_acknowledged(
            self, cluster: LocalCluster, client: Client, path: str) -> None:
        _, attributes = make_file(client, path, 1)
        primary = cluster.dataserver(attributes.replicas[0].dataserver_id)
        acknowledged: list[tuple[int, bytes]] = []
        killer = threading.Timer(0.3, primary.kill)
        killer.start()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            record = random.Random(len(acknowledged)).randbytes(70_000)
            try:
                acknowledged.append((client.append(path, record), record))
            except SpeedwellError:
                continue  # the one whose answer was cut off
            if not killer.is_alive() and len(client.lookup(path, fresh=True).replicas) == 2:
                break
        killer.join()
        data = read_all(client, path)
        assert all(data[offset:offset + len(record)] == record for offset, record in acknowledged)
        assert client.lookup(path, fresh=True).replicas[0].dataserver_id != primary.name
        primary.start()
        cluster.wait_alive(set(NAMES))
        assert read_all(cluster.client(), path) == data

    def test_an_append_waits_until_a_successor_of_a_dead_primary_is_named(
            self, cluster: LocalCluster, client: Client, path: str) -> None:
        data, attributes = make_file(client, path, 1000)
        cluster.dataserver(attributes.replicas[0].dataserver_id).kill()
        assert client.append(path, b"more") == 1000
        assert read_all(client, path) == data + b"more"

    def test_a_client_that_dies_in_the_middle_leaves_no_trace(
            self, cluster: LocalCluster, client: Client, path: str) -> None:
        data, attributes = make_file(client, path, 100_000)
        channel = begin_append(attributes.replicas[0], attributes, 3_000_000, relay=attributes.replicas[1:])
        channel.send_bytes([b"x" * 2_000_000])
        wait_until(lambda: min(disk_bytes(cluster, attributes.file_id)) > 1_000_000, 15, "nothing was relayed")
        assert read_all(client, path) == data
        channel.close()
        wait_until(lambda: disk_bytes(cluster, attributes.file_id) == [100_000] * 3, 15, "bytes stay behind")
        assert lengths(cluster, attributes.file_id) == [100_000] * 3
        assert client.append(path, b"more") == 100_000

    def test_a_first_append_that_is_left_in_the_middle_leaves_no_file(self, cluster: LocalCluster,
                                                                      client: Client, path: str) -> None:
        attributes = client.create(path)
        channel = begin_append(attributes.replicas[0], attributes, 1000, relay=attributes.replicas[1:])
        channel.send_bytes([b"x" * 500])
        wait_until(lambda: all(cluster.stored(name, attributes.file_id).exists() for name in NAMES), 5,
                   "nothing was relayed")
        channel.close()
        wait_until(lambda: not any(cluster.stored(name, attributes.file_id).exists() for name in NAMES), 5,
                   "the directory stays behind")

    def test_prepared_bytes_are_not_visible_and_go_when_the_primary_dies(self, cluster: LocalCluster,
                                                                        client: Client, path: str) -> None:
        data, attributes = make_file(client, path, 1000)
        secondary = attributes.replicas[1]
        channel = begin_append(secondary, cluster.as_server(attributes), 500, offset=1000)
        channel.send_bytes([b"x" * 500])
        assert channel.expect(DataReply).status == OK
        assert len(cluster.stored_bytes(secondary.dataserver_id, attributes.file_id)) == 1000
        channel.close()
        wait_until(lambda: disk_bytes(cluster, attributes.file_id) == [1000] * 3, 15, "prepared bytes stay behind")
        assert client.append(path, b"more") == len(data)
        assert client.metrics.replicas_dropped == 0

    def test_a_replica_that_missed_an_append_is_caught_up(self, cluster: LocalCluster, client: Client,
                                                          path: str) -> None:
        data, attributes = make_file(client, path, 1000)
        behind = cluster.dataserver(attributes.replicas[2].dataserver_id)
        assert client.append(path, b"abc") == 1000
        behind.kill()
        stored = cluster.record(behind.name, attributes.file_id)
        stored.write_bytes(head(1000, block_sum(data)) + stored.read_bytes()[HEAD_BYTES:])
        behind.start()
        cluster.wait_alive(set(NAMES))
        assert client.append(path, b"more") == 1003
        assert len(client.lookup(path, fresh=True).replicas) == 3
        assert [cluster.stored_bytes(name, attributes.file_id) for name in NAMES] == [data + b"abcmore"] * 3

    def test_a_primary_that_lost_its_disk_does_not_begin_the_file_anew(self, cluster: LocalCluster,
                                                                      client: Client, path: str) -> None:
        _, attributes = make_file(client, path, 1000)
        channel = begin_append(attributes.replicas[0], attributes, 3, known_size=5000)
        channel.send_bytes([b"abc"])
        assert channel.expect(DataReply).status == OUT_OF_DATE
        channel.close()
        assert lengths(cluster, attributes.file_id) == [1000] * 3

    def test_with_every_replica_dead_the_error_names_the_primary_and_the_file(
            self, cluster: LocalCluster, client: Client, path: str) -> None:
        make_file(client, path, 1000)
        for name in NAMES:
            cluster.dataserver(name).kill()
        with pytest.raises((NoReplicaAvailable, AppendFailed), match=rf"{path}.*d[0-2]"):
            client.append(path, b"more")


class TestReads:
    def test_a_replica_that_dies_in_the_middle_is_replaced_at_the_offset(self, cluster: LocalCluster,
                                                                        client: Client, path: str) -> None:
        data, _ = make_file(client, path, 40 << 20)
        with client.open_read(path) as reader:
            parts = [reader.read(0, 1 << 20)]
            assert reader.last_read is not None
            first = reader.last_read.replica_id
            cluster.dataserver(first).kill()
            parts += [reader.read(offset << 20, 1 << 20) for offset in range(1, 40)]
            assert b"".join(parts) == data
            assert reader.last_read.replica_id != first
        assert client.metrics.replica_failures == 1

    def test_a_replica_that_stalls_is_replaced_too(self, cluster: LocalCluster, client: Client, path: str) -> None:
        data, _ = make_file(client, path, 40 << 20)
        client._context.connections._stall_timeout_seconds = 0.5
        with client.open_read(path) as reader:
            parts = [reader.read(0, 1 << 20)]
            assert reader.last_read is not None
            stalled = cluster.dataserver(reader.last_read.replica_id)
            stalled.pause()
            parts += [reader.read(offset << 20, 1 << 20) for offset in range(1, 40)]
            stalled.resume()
        assert b"".join(parts) == data

    def test_fetch_goes_on_with_another_replica(self, cluster: LocalCluster, client: Client, path: str,
                                                tmp_path: Path) -> None:
        data, _ = make_file(client, path, 40 << 20)
        killed: list[str] = []

        def kill_one(_: int) -> None:
            if not killed:
                with client.open_read(path) as reader:
                    reader.read(0, 10)
                    assert reader.last_read is not None
                    killed.append(reader.last_read.replica_id)
                cluster.dataserver(killed[0]).kill()

        with (tmp_path / "copy").open("wb") as copy:
            client.fetch(path, copy.fileno(), kill_one)
        assert (tmp_path / "copy").read_bytes() == data

    def test_a_replica_with_less_than_the_committed_length_is_not_believed(self, cluster: LocalCluster,
                                                                          client: Client, path: str) -> None:
        data, attributes = make_file(client, path, 1000)
        for replica in attributes.replicas[:2]:
            daemon = cluster.dataserver(replica.dataserver_id)
            daemon.kill()
            with cluster.record(daemon.name, attributes.file_id).open("r+b") as record:
                record.write(b"%020d" % 500)
            daemon.start()
        assert read_all(client, path) == data

    def test_with_every_replica_dead_the_error_says_what_was_tried(self, cluster: LocalCluster,
                                                                  client: Client, path: str) -> None:
        make_file(client, path, 1000)
        for name in NAMES:
            cluster.dataserver(name).kill()
        with client.open_read(path) as reader, pytest.raises(NoReplicaAvailable) as caught:
            reader.read(0, 10)
        assert all(f"{name} (127.0.1." in str(caught.value) for name in NAMES)

    def test_a_damaged_chunk_is_read_from_another_replica(self, cluster: LocalCluster, client: Client,
                                                          path: str) -> None:
        data, attributes = make_file(client, path, CHUNK_BYTES + 1000)
        for replica in attributes.replicas:
            (cluster.stored(replica.dataserver_id, attributes.file_id) / "2").unlink()
            if replica == attributes.replicas[1]:
                break
        assert read_all(client, path) == data

        def is_lost() -> bool:
            for replica in attributes.replicas:  # the first two may be repaired by now, or are just being
                (cluster.stored(replica.dataserver_id, attributes.file_id) / "2").unlink(missing_ok=True)
            try:
                read_all(client, path)
            except ReadFailed:
                return True
            return False

        wait_until(is_lost, 10, "a file whose last chunk nobody has is read")


def test_everything_killed_at_once_comes_back_without_a_hand(cluster: LocalCluster, client: Client,
                                                             path: str) -> None:
    data, attributes = make_file(client, path, 3 << 20)
    channel = begin_append(attributes.replicas[0], attributes, 2_000_000, relay=attributes.replicas[1:])
    channel.send_bytes([b"x" * 1_000_000])
    wait_until(lambda: min(disk_bytes(cluster, attributes.file_id)) > 3 << 20, 15, "nothing was relayed")
    cluster.restart()
    channel.close()
    assert read_all(client, path) == data
    assert client.append(path, b"more") == len(data)
    assert read_all(client, path) == data + b"more"
    assert lengths(cluster, attributes.file_id) == [len(data) + 4] * 3
