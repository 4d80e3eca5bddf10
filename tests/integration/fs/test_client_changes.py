"""Changes of a file anywhere: what readers see, what replicas hold, who wins, and what faults leave."""

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from speedwell.fs.client import Changes, Client
from speedwell.fs.errors import NoSuchFile
from speedwell.fs.wire.channel import Channel
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

CHUNK_BYTES = 1 << 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=3, chunk_size=CHUNK_BYTES) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Client:
    return cluster.client(metadata_cache_seconds=0)


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name}"


def put(client: Client, path: str, data: bytes) -> None:
    client.create(path)
    with client.open_append(path) as appender:
        appender.write(data)


def write_at(*pieces: tuple[int, bytes], **more: object) -> Changes:
    data = [piece for _, piece in pieces]
    send: Callable[[Channel], None] = lambda channel: channel.send_bytes(data)  # noqa: E731
    return Changes([(offset, offset + len(piece)) for offset, piece in pieces], send, **more)  # type: ignore[arg-type]


def content(client: Client, path: str) -> bytes:
    with client.open_read(path) as reader:
        return reader.read(0, 1 << 30)


def test_a_change_is_seen_by_who_opens_and_not_by_who_has_opened(client: Client, path: str) -> None:
    old = random.Random(1).randbytes(3 * CHUNK_BYTES + 5)
    put(client, path, old)
    with client.open_read(path) as before:
        attributes = client.change(path, write_at((10, b"X" * 5), (2_000_000, b"Y" * 70_000)))
        new = bytearray(old)
        new[10:15], new[2_000_000:2_070_000] = b"X" * 5, b"Y" * 70_000
        assert content(client, path) == new
        assert before.read(0, len(old)) == old
    assert attributes.size == len(new)
    newest = client.lookup(path, fresh=True)
    newest.token = attributes.token
    assert newest == attributes


def test_every_replica_holds_the_new_version(cluster: LocalCluster, client: Client, path: str) -> None:
    put(client, path, b"a" * 200_000)
    attributes = client.change(path, write_at((100_000, b"b" * 10)))
    expected = b"a" * 100_000 + b"b" * 10 + b"a" * 99_990
    for replica in attributes.replicas:
        one = cluster.client(metadata_cache_seconds=0, local_host=replica.host)
        with one.open_read(path) as reader:
            assert reader.read(0, 1 << 20) == expected
            assert reader.last_read is not None and reader.last_read.replica_id == replica.dataserver_id


def test_a_file_can_be_cut_extended_and_have_holes(client: Client, path: str) -> None:
    put(client, path, b"0123456789" * 10_000)
    client.change(path, Changes(size=50_001))
    client.change(path, Changes(size=200_000))
    expected = (b"0123456789" * 10_000)[:50_001] + bytes(149_999)
    assert content(client, path) == expected
    client.change(path, Changes(zeros=[(10, 40_000)]))
    expected = expected[:10] + bytes(39_990) + expected[40_000:]
    assert content(client, path) == expected
    client.change(path, write_at((3, b"end"), size=6, keep=1))
    assert content(client, path) == b"0" + bytes(2) + b"end"


def test_an_empty_file_can_be_written_anywhere(client: Client, path: str) -> None:
    client.create(path)
    client.change(path, write_at((100, b"here")))
    assert content(client, path) == bytes(100) + b"here"


def test_appends_go_on_after_a_change(client: Client, path: str) -> None:
    put(client, path, b"a" * 70_000)
    client.change(path, write_at((0, b"b")))
    assert client.append(path, b"c" * 10) == 70_000
    client.change(path, write_at((70_003, b"d")))
    assert client.append(path, b"e") == 70_010
    assert content(client, path) == b"b" + b"a" * 69_999 + b"cccdcccccc" + b"e"


def test_changes_of_two_clients_that_began_with_the_same_version_are_both_kept(client: Client, path: str) -> None:
    put(client, path, bytes(300_000))
    attributes = client.lookup(path, fresh=True)
    client.change(path, write_at((5, b"first"), (200_000, b"first")), attributes)
    client.change(path, write_at((100_000, b"second"), (200_003, b"second")), attributes)
    expected = bytearray(300_000)
    expected[5:10] = expected[200_000:200_005] = b"first"
    expected[100_000:100_006] = expected[200_003:200_009] = b"second"
    assert content(client, path) == expected


def test_changes_and_appends_of_several_clients_at_once_lose_nothing(cluster: LocalCluster, client: Client,
                                                                     path: str) -> None:
    put(client, path, bytes(100_000))
    rounds, errors = 15, []

    def change(worker: int) -> None:
        one = cluster.client(metadata_cache_seconds=0)
        try:
            for number in range(rounds):
                one.change(path, write_at((worker * 10_000 + number * 100, b"%d" % (worker + 1) * 100)))
        except Exception as error:
            errors.append(error)

    def append() -> None:
        one = cluster.client(metadata_cache_seconds=0)
        try:
            for number in range(rounds):
                one.append(path, b"%04d" % number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=change, args=(worker,)) for worker in range(3)]
    threads.append(threading.Thread(target=append))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    data = content(client, path)
    for worker in range(3):
        assert data[worker * 10_000:worker * 10_000 + rounds * 100] == b"%d" % (worker + 1) * (rounds * 100)
    assert data[100_000:] == b"".join(b"%04d" % number for number in range(rounds))


def test_what_was_appended_before_another_client_made_a_version_is_published_with_it(
        cluster: LocalCluster, client: Client, path: str) -> None:
    put(client, path, b"a" * 1000)
    with client.open_append(path) as appender:
        for number in range(3):
            assert appender.append_with(lambda channel: channel.send_bytes([b"one"]), 3) == 1000 + 6 * number
            cluster.client().change(path, write_at((number, b"X")))     # before the length is published
            assert appender.flush().size == 1003 + 6 * number
            assert appender.append_record(b"two") == 1003 + 6 * number
    assert content(client, path) == b"XXX" + b"a" * 997 + b"onetwo" * 3


def test_an_appender_finds_the_newest_version_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speedwell.fs.client.append.append_request.CONFIRM_SECONDS", 0.0)
    with LocalCluster(tmp_path / "c", dataservers=1, replication=1) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        put(client, "/f", b"a" * 1000)
        with client.open_append("/f") as appender:
            appender.append_record(b"one")
            cluster.client().change("/f", write_at((0, b"X")))
            cluster.restart()  # the primary forgets that a new version was made
            appender.append_record(b"two")
        assert content(client, "/f") == b"X" + b"a" * 999 + b"onetwo"


def test_a_change_of_a_removed_file_says_so(client: Client, path: str) -> None:
    put(client, path, b"abc")
    attributes = client.lookup(path, fresh=True)
    client.remove(path)
    with pytest.raises(NoSuchFile):
        client.change(path, write_at((0, b"x")), attributes)


def test_old_versions_are_removed_after_the_grace_period(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", dataservers=2, replication=2, deletion_grace_seconds=0.5) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        put(client, "/f", os.urandom(200_000))
        ids = [client.lookup("/f").file_id]
        ids += [client.change("/f", write_at((number, b"x"))).file_id for number in range(20)]
        wait_until(lambda: not any(cluster.stored(name, file_id).exists() for name in ("d0", "d1")
                                   for file_id in ids[:-1]), 15, "old versions stay")
        assert content(client, "/f")[:20] == b"x" * 20


def test_a_dead_replica_leaves_the_set_and_a_dead_primary_is_succeeded(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", dataservers=3, nameserver_arguments=("--min-replicas", "1")) as cluster:
        client = cluster.client(metadata_cache_seconds=0)
        put(client, "/f", b"a" * 100_000)
        second = client.lookup("/f").replicas[1].dataserver_id
        cluster.dataserver(second).kill()
        attributes = client.change("/f", write_at((5, b"b")))
        assert second not in [replica.dataserver_id for replica in attributes.replicas]
        assert len(attributes.replicas) == 2
        first = attributes.replicas[0].dataserver_id
        cluster.dataserver(first).kill()
        attributes = client.change("/f", write_at((6, b"c")), attributes)
        assert [replica.dataserver_id for replica in attributes.replicas] not in ([], [first])
        assert content(client, "/f")[:8] == b"aaaaabca"
