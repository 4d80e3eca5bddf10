"""The metadata client against a real nameserver: what its cache may show, and when it asks."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs.client.names.metadata import MetadataClient
from speedwell.fs.client.names.nameservers import ATTEMPT_SECONDS
from speedwell.fs.errors import (
    AlreadyExists,
    DirectoryNotEmpty,
    FileClosed,
    IsADirectory,
    NameserverUnavailable,
    NoSuchFile,
    NotADirectory,
    StaleFile,
)
from speedwell.fs.identity.known import identity_for
from speedwell.fs.proto.speedwell_pb2 import DIRECTORY, REGULAR, StatisticsRequest
from speedwell.fs.wire.calls import CallFailed, Calls
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

CACHE_SECONDS = 30.0
"""Longer than any test: what is seen without `fresh` comes from the cache."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), dataservers=2) as cluster:
        yield cluster


class Pair:
    """Two clients of one directory: `ours` with a long cache, `theirs` with none, which counts calls."""

    def __init__(self, address: str, directory: str) -> None:
        self.ours = MetadataClient(address, CACHE_SECONDS)
        self.theirs = MetadataClient(address, 0)
        self.directory = directory
        self.calls: list[str] = []
        send = self.ours.requests.ask

        def counted(method: str, request: object) -> object:
            self.calls.append(method)
            return send(method, request)

        self.ours.requests.ask = counted  # type: ignore[method-assign]

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"


@pytest.fixture
def pair(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Pair]:
    directory = "/" + request.node.name[:200].replace("/", "_")
    pair = Pair(cluster.nameserver.address, directory)
    pair.theirs.mkdir(directory)
    yield pair
    pair.ours.close()
    pair.theirs.close()


def test_the_life_of_a_file(pair: Pair) -> None:
    client = pair.ours
    made, created = client.create(pair.path("f"), 0o640, 7, 8)
    assert (created, made.type, made.mode, made.uid, made.gid) == (True, REGULAR, 0o640, 7, 8)
    again, created = client.create(pair.path("f"))
    again.token = made.token
    assert (again, created) == (made, False)
    with pytest.raises(AlreadyExists):
        client.create(pair.path("f"), exclusive=True)
    committed = client.commit(made.inode, made.file_id, 1234, mtime_ns=5)
    assert (committed.size, committed.mtime_ns) == (1234, 5)
    changed = client.set_attributes(pair.path("f"), mode=0o600, atime_ns=-1)
    assert (changed.mode, changed.uid, changed.atime_ns, changed.size) == (0o600, 7, -1, 1234)
    client.rename(pair.path("f"), pair.path("g"))
    with pytest.raises(NoSuchFile):
        client.lookup(pair.path("f"))
    assert client.lookup(pair.path("g"), fresh=True).inode == client.lookup_inode(made.inode).inode == made.inode
    truncated = client.truncate(pair.path("g"))
    assert truncated.size == 0
    with pytest.raises(StaleFile):
        client.commit(made.inode, made.file_id, 9999)
    client.remove(pair.path("g"))
    for use in (lambda: client.lookup(pair.path("g")), lambda: client.lookup_inode(made.inode),
                lambda: client.commit(made.inode, truncated.file_id, 1), lambda: client.remove(pair.path("g"))):
        with pytest.raises(NoSuchFile):
            use()


def test_the_life_of_a_directory(pair: Pair) -> None:
    client = pair.ours
    assert client.mkdir(pair.path("d"), 0o711).type == DIRECTORY
    client.create(pair.path("d/f"))
    for error, use in ((DirectoryNotEmpty, lambda: client.rmdir(pair.path("d"))),
                       (IsADirectory, lambda: client.remove(pair.path("d"))),
                       (NotADirectory, lambda: client.list(pair.path("d/f"))),
                       (NotADirectory, lambda: client.rmdir(pair.path("d/f"))),
                       (AlreadyExists, lambda: client.mkdir(pair.path("d")))):
        with pytest.raises(error):
            use()
    client.remove(pair.path("d/f"))
    client.rmdir(pair.path("d"))
    with pytest.raises(NoSuchFile):
        client.lookup(pair.path("d"))


def test_names_of_any_bytes_arrive_unchanged(pair: Pair) -> None:
    names = [b"\xff\xfe", "ä ö".encode(), b"\n", b"a\\b", b"n" * 255]
    for name in names:
        pair.ours.create(pair.directory.encode() + b"/" + name)
    assert [entry.name for entry in pair.theirs.list(pair.directory)] == sorted(names)


def test_a_cached_answer_is_given_until_it_is_asked_fresh(pair: Pair) -> None:
    path = pair.path("f")
    pair.theirs.create(path, 0o600)
    assert pair.ours.lookup(path).mode == 0o600
    pair.theirs.set_attributes(path, mode=0o644)
    pair.calls.clear()
    assert pair.ours.lookup(path).mode == 0o600
    assert pair.calls == []
    assert pair.ours.lookup(path, fresh=True).mode == 0o644
    assert pair.ours.lookup(path).mode == 0o644


def test_a_cached_answer_expires(cluster: LocalCluster, pair: Pair) -> None:
    with MetadataClient(cluster.nameserver.address, 0.2) as client:
        pair.theirs.create(pair.path("f"), 0o600)
        client.lookup(pair.path("f"))
        pair.theirs.set_attributes(pair.path("f"), mode=0o644)
        wait_until(lambda: client.lookup(pair.path("f")).mode == 0o644, 15, "the old mode is served for ever")


def test_that_a_file_does_not_exist_is_never_cached(pair: Pair) -> None:
    with pytest.raises(NoSuchFile):
        pair.ours.lookup(pair.path("f"))
    pair.theirs.create(pair.path("f"))
    assert pair.ours.lookup(pair.path("f")).type == REGULAR


def test_own_changes_are_seen_without_asking(pair: Pair) -> None:
    client, path = pair.ours, pair.path("f")
    made, _ = client.create(path)
    client.set_attributes(path, mode=0o600)
    client.commit(made.inode, made.file_id, 77)
    pair.calls.clear()
    seen = client.lookup(path)
    assert (seen.mode, seen.size) == (0o600, 77)
    assert pair.calls == []
    others = pair.theirs.lookup(path)
    others.token = seen.token
    assert seen == others


def test_a_directory_is_renewed_by_own_changes_in_it(pair: Pair) -> None:
    client = pair.ours
    for change in (lambda: client.create(pair.path("f")), lambda: client.mkdir(pair.path("d")),
                   lambda: client.rename(pair.path("f"), pair.path("g")), lambda: client.remove(pair.path("g")),
                   lambda: client.rmdir(pair.path("d"))):
        client.lookup(pair.directory)
        change()
        assert client.lookup(pair.directory) == pair.theirs.lookup(pair.directory)


def test_after_renaming_a_directory_nothing_below_it_is_remembered(pair: Pair) -> None:
    client = pair.ours
    client.mkdir(pair.path("old"))
    client.create(pair.path("old/f"), 0o600)
    client.mkdir(pair.path("new"))
    client.lookup(pair.path("old/f"))
    client.rename(pair.path("old"), pair.path("new"))
    with pytest.raises(NoSuchFile):
        client.lookup(pair.path("old/f"))
    assert client.lookup(pair.path("new/f")).mode == 0o600


def test_a_failed_change_leaves_no_doubtful_answer_in_the_cache(pair: Pair) -> None:
    path = pair.path("f")
    pair.theirs.create(path)
    pair.ours.lookup(path)
    pair.theirs.remove(path)
    pair.theirs.mkdir(path)
    with pytest.raises(IsADirectory):
        pair.ours.remove(path)
    assert pair.ours.lookup(path).type == DIRECTORY


def test_listing_a_directory_answers_the_look_ups_after_it(pair: Pair) -> None:
    for number in range(1100):
        pair.theirs.mkdir(pair.path(f"{number}"))
    entries = pair.ours.list(pair.directory)
    assert len(entries) == 1100
    assert pair.calls == ["List", "List"]
    for entry in entries:
        assert pair.ours.lookup(pair.path(entry.name.decode())) == entry.attributes
    pair.ours.lookup(pair.directory)
    assert pair.calls == ["List", "List"]


def test_without_a_cache_every_look_up_asks(pair: Pair) -> None:
    pair.theirs.create(pair.path("f"), 0o600)
    for mode in (0o600, 0o640, 0o644):
        pair.ours.set_attributes(pair.path("f"), mode=mode)
        assert pair.theirs.lookup(pair.path("f")).mode == mode


def test_threads_that_change_and_look_never_see_their_own_past(pair: Pair) -> None:
    """Each thread owns a file; all share one client and one directory."""
    failures: list[str] = []

    def work(worker: int) -> None:
        path = pair.path(f"w{worker}")
        made, _ = pair.ours.create(path)
        for size in range(1, 40):
            pair.ours.commit(made.inode, made.file_id, size)
            if pair.ours.lookup(path).size < size:
                failures.append(f"{path}: size {size} was forgotten")
            if size % 10 == 0:
                pair.ours.list(pair.directory)
                pair.ours.remove(path)
                try:
                    pair.ours.lookup(path)
                    failures.append(f"{path}: still there after its removal")
                except NoSuchFile:
                    pass
                made, _ = pair.ours.create(path)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


class TestUnavailable:
    def test_reads_wait_for_a_limited_time_and_name_the_address(self) -> None:
        with MetadataClient("127.0.0.1:1", call_timeout_seconds=0.5) as client:
            began = time.monotonic()
            with pytest.raises(NameserverUnavailable, match=r"127\.0\.0\.1:1 did not answer within 0\.5 s"):
                client.lookup("/")
            assert 0.4 < time.monotonic() - began < 30

    def test_a_rename_waits_for_one_of_several_nameservers_that_is_slow(self, tmp_path: Path) -> None:
        with LocalCluster(tmp_path, dataservers=0) as cluster:
            address = cluster.nameserver.address
            with MetadataClient(f"{address},{address}", 0) as client:
                inode = client.mkdir("/d").inode
                cluster.nameserver.pause()
                again = threading.Timer(ATTEMPT_SECONDS + 0.5, cluster.nameserver.resume)
                again.start()
                client.rename("/d", "/e")
                again.join()
                assert client.lookup("/e").inode == inode

    def test_the_first_call_after_a_nameserver_is_back_is_answered(self, tmp_path: Path) -> None:
        """Dataservers' heartbeats and clients of several nameservers ask so, and have little time for it."""
        with LocalCluster(tmp_path, dataservers=0) as cluster:
            address = cluster.nameserver.address
            calls = Calls(address, 20, identity_for(address, None))
            for _ in range(2):
                assert calls.call("Statistics", StatisticsRequest(), 20).namespace
                cluster.nameserver.kill()
                for _ in range(5):
                    with pytest.raises(CallFailed):
                        calls.call("Statistics", StatisticsRequest(), 20)
                cluster.nameserver.start()
            assert calls.call("Statistics", StatisticsRequest(), 20).namespace
            calls.close()

    def test_a_nameserver_that_hangs_is_given_up_too(self, tmp_path: Path) -> None:
        with (LocalCluster(tmp_path, dataservers=0) as cluster,
              MetadataClient(cluster.nameserver.address, 0, call_timeout_seconds=0.5) as client):
            client.mkdir("/d")
            cluster.nameserver.pause()
            with pytest.raises(NameserverUnavailable, match=cluster.nameserver.address):
                client.lookup("/d")
            with pytest.raises(NameserverUnavailable, match=cluster.nameserver.address):
                client.mkdir("/e")
            cluster.nameserver.resume()
            with MetadataClient(cluster.nameserver.address) as patient:
                assert patient.lookup("/d").type == DIRECTORY

    def test_a_closed_client_refuses(self, pair: Pair) -> None:
        pair.ours.lookup("/")
        pair.ours.close()
        pair.ours.close()
        with pytest.raises(FileClosed):
            pair.ours.lookup("/", fresh=True)
