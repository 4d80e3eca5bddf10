"""Reads that wait and get their parts under way: the right bytes, whatever happens to replicas and controller."""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speedwell.fs.client import Client
from speedwell.fs.errors import FileClosed, NoReplicaAvailable
from tests.integration.fs.steered import acquainted, established
from tests.local_cluster import LocalCluster
from tests.scripted_controller import ScriptedController
from tests.waiting import wait_until

DATA = random.Random(11).randbytes((40 << 20) + 4321)
BLOCK = 1 << 20


class Following(ScriptedController):
    """Names parts when the test says so, and answers questions for news as the controller does."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._changed = threading.Condition()
        self.first: tuple[str, ...] = ()
        self.parts: list[dict[str, Any]] = []
        self.revision = 0
        self.answer = self._place
        self.news = self._news

    def open(self, name: str) -> None:
        with self._changed:
            self._add(name)
            self.revision += 1
            self._changed.notify_all()

    def _place(self, body: dict[str, Any]) -> tuple[int, Any]:
        assert body["follows"] is True
        self.parts, self.revision = [], 0
        for name in self.first:
            self._add(name)
        return 201, self._state()

    def _news(self, path: str) -> tuple[int, Any]:
        after = int(path.partition("after=")[2].partition("&")[0])
        with self._changed:
            self._changed.wait_for(lambda: self.revision > after, 1.0)
            return (200, self._state()) if "/v1/reads/r7" not in self.deleted else (404, {"detail": "unknown read"})

    def _state(self) -> dict[str, Any]:
        return {"id": "r7", "revision": self.revision, "parts": self.parts, "replica_policy": "mayflower-plus"}

    def _add(self, name: str) -> None:
        daemon, number = self._cluster.dataserver(name), len(self.parts)
        self.parts.append({
            "number": number, "replica": {"host": daemon.host, "port": daemon.port}, "offset_bytes": 0,
            "client_port": self.posts[-1]["client_ports"][number], "size_bytes": 1, "path": [], "path_names": ["a"],
            "estimated_bps": 8e9, "ended": False})


@pytest.fixture
def controller(cluster: LocalCluster) -> Iterator[Following]:
    controller = Following(cluster)
    yield controller
    controller.stop()


@pytest.fixture
def client(cluster: LocalCluster, controller: Following) -> Client:
    return acquainted(cluster.client(controller=controller.url, local_host="127.0.0.1", controller_timeout_seconds=5))


def is_over(controller: Following) -> None:
    wait_until(lambda: "/v1/reads/r7" in controller.deleted, 15, "the read was not ended")


def later(action: Any) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def rest_of(reader: Any, offset: int) -> bytes:
    return b"".join(reader.read(place, BLOCK) for place in range(offset, len(DATA), BLOCK))


def test_a_read_waits_until_it_is_told_to_begin(controller: Following, client: Client) -> None:
    with client.open_read("/f") as reader:
        got: list[bytes] = []
        thread = later(lambda: got.append(reader.read(0, BLOCK)))
        wait_until(lambda: controller.asked, 15, "it does not ask for news")
        assert not got and reader.last_sources == ()
        controller.open("d1")
        thread.join(60)
        assert got == [DATA[:BLOCK]]
        assert rest_of(reader, BLOCK) == DATA[BLOCK:]
        assert [source.replica_id for source in reader.last_sources] == ["d1"]
    is_over(controller)
    assert (client.metrics.steered_reads, client.metrics.waited_reads, client.metrics.later_parts) == (1, 1, 1)
    assert (client.metrics.controller_fallbacks, client.metrics.bytes_read) == (0, len(DATA))


def test_a_running_read_takes_a_part_that_it_is_given_later(
        cluster: LocalCluster, controller: Following, client: Client) -> None:
    controller.first = ("d0",)
    with client.open_read("/f") as reader:
        pieces = [reader.read(0, BLOCK)]
        controller.open("d2")
        ports = controller.posts[0]["client_ports"]
        wait_until(lambda: established(ports[1]) == {cluster.dataserver("d2").port}, 15, "the part is not opened")
        assert established(ports[0]) == {cluster.dataserver("d0").port}
        pieces.append(rest_of(reader, BLOCK))
        assert [source.replica_id for source in reader.last_sources] == ["d0", "d2"]
    assert b"".join(pieces) == DATA
    is_over(controller)
    assert len(controller.posts) == 1 and len(ports) == 3 and controller.posts[0]["most_parts"] == 2
    assert client.metrics.split_reads == 1


@pytest.mark.parametrize("size", [4096, 100_000, 3 << 20])
def test_reads_of_any_size_give_the_content(controller: Following, client: Client, size: int) -> None:
    controller.first = ("d0", "d1")
    limit = min(len(DATA), 2500 * size)
    with client.open_read("/f") as reader:
        got = b"".join(reader.read(offset, size) for offset in range(0, limit, size))
    assert got == DATA[:len(got)] and len(got) >= limit


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_a_copy_has_the_content(controller: Following, client: Client, tmp_path: Path, kind: str) -> None:
    controller.first = ("d0", "d1")
    if kind == "file":
        with (tmp_path / "copy").open("wb") as copy:
            assert client.fetch("/f", copy.fileno()) == len(DATA)
        assert (tmp_path / "copy").read_bytes() == DATA
        return
    outlet, inlet = os.pipe()
    received = bytearray()

    def drain() -> None:
        while piece := os.read(outlet, BLOCK):
            received.extend(piece)

    thread = later(drain)
    client.fetch("/f", inlet)
    os.close(inlet)
    thread.join()
    os.close(outlet)
    assert received == DATA


def test_a_replica_that_dies_leaves_its_rest_to_the_others(
        cluster: LocalCluster, controller: Following, client: Client) -> None:
    controller.first = ("d0", "d1")
    with client.open_read("/f") as reader:
        pieces = [reader.read(0, BLOCK)]
        cluster.dataserver("d0").kill()
        pieces.append(rest_of(reader, BLOCK))
    assert b"".join(pieces) == DATA
    assert len(controller.posts) == 1 and client.metrics.replica_failures == 1
    is_over(controller)
    assert controller.deleted.index("/v1/reads/r7/parts/0") < controller.deleted.index("/v1/reads/r7")


def test_a_read_whose_last_replica_died_is_placed_anew(
        cluster: LocalCluster, controller: Following, client: Client) -> None:
    controller.first = ("d0",)
    with client.open_read("/f") as reader:
        pieces = [reader.read(0, BLOCK)]
        controller.first = ("d2",)
        cluster.dataserver("d0").kill()
        pieces.append(rest_of(reader, BLOCK))
        assert [source.replica_id for source in reader.last_sources] == ["d0", "d2"]
    assert b"".join(pieces) == DATA
    second = controller.posts[1]
    assert second["size_bytes"] < len(DATA) and len(second["replicas"]) == 2
    assert client.metrics.bytes_read == len(DATA)


def test_without_any_replica_left_it_says_what_was_tried(
        cluster: LocalCluster, controller: Following, client: Client) -> None:
    controller.first = ("d0", "d1")
    for daemon in cluster.dataservers:
        daemon.kill()
    with client.open_read("/f") as reader, pytest.raises(NoReplicaAvailable, match="tried"):
        reader.read(0, BLOCK)


def test_a_damaged_block_comes_from_another_replica(
        cluster: LocalCluster, controller: Following, client: Client) -> None:
    data = random.Random(3).randbytes(6 << 20)
    client.create("/damaged")
    client.append("/damaged", data)
    chunk = cluster.stored("d0", client.lookup("/damaged").file_id) / "1"
    with chunk.open("r+b") as file:
        for place in range(70_000, 6 << 20, 1 << 20):
            file.seek(place)
            file.write(bytes([data[place] ^ 1]))
    controller.first = ("d0", "d1")
    with client.open_read("/damaged") as reader:
        assert reader.read(0, len(data)) == data
    assert client.metrics.damaged_blocks >= 1
    client.remove("/damaged")


def test_a_connection_that_has_stalled_leaves_its_rest_to_one_that_has_nothing_left_to_do(
        cluster: LocalCluster, controller: Following, client: Client) -> None:
    controller.first = ("d0", "d1")
    with client.open_read("/f") as reader:
        pieces = [reader.read(0, BLOCK)]
        cluster.dataserver("d1").pause()
        try:
            pieces.append(rest_of(reader, BLOCK))
        finally:
            cluster.dataserver("d1").resume()
    assert b"".join(pieces) == DATA
    assert client.metrics.moved_parts == 1 and client.metrics.replica_failures == 0, "none is given up"


def test_what_runs_runs_on_without_the_controller(
        cluster: LocalCluster, controller: Following, client: Client) -> None:
    controller.first = ("d0", "d1")
    with client.open_read("/f") as reader:
        pieces = [reader.read(0, BLOCK)]
        controller.news = lambda path: (500, {"detail": "gone"})
        controller.stop()
        pieces.append(rest_of(reader, BLOCK))
        assert {source.replica_id for source in reader.last_sources} == {"d0", "d1"}
    assert b"".join(pieces) == DATA
    assert client.metrics.controller_fallbacks == client.metrics.nearest_reads == 0


def test_a_read_that_waits_when_the_controller_forgets_it_is_placed_anew(
        controller: Following, client: Client) -> None:
    with client.open_read("/f") as reader:
        got: list[bytes] = []
        thread = later(lambda: got.append(reader.read(0, BLOCK)))
        wait_until(lambda: controller.asked, 15, "it does not ask for news")
        controller.first = ("d1",)
        controller.deleted.append("/v1/reads/r7")
        thread.join(60)
        assert got == [DATA[:BLOCK]] and rest_of(reader, BLOCK) == DATA[BLOCK:]
    assert len(controller.posts) == 2


def test_a_read_that_waits_when_the_controller_dies_takes_the_nearest_replica(
        controller: Following, client: Client) -> None:
    with client.open_read("/f") as reader:
        got: list[bytes] = []
        thread = later(lambda: got.append(reader.read(0, BLOCK)))
        wait_until(lambda: controller.asked, 15, "it does not ask for news")
        controller.answer = lambda body: (503, {"title": "gone", "detail": ""})
        controller.news = lambda path: (500, {"detail": "gone"})
        thread.join(60)
        assert got == [DATA[:BLOCK]] and rest_of(reader, BLOCK) == DATA[BLOCK:]
        assert reader.last_sources[0].chosen_by == "nearest"
    assert (client.metrics.controller_fallbacks, client.metrics.nearest_reads) == (1, 1)


@pytest.mark.parametrize("answer", [
    (200, {}), (200, b"]"), (200, {"revision": 1, "parts": [{"number": 0}]}), (200, {"revision": "x", "parts": []})])
def test_news_that_make_no_sense_are_no_news(controller: Following, client: Client, answer: Any) -> None:
    controller.first = ("d0",)
    controller.news = lambda path: answer
    with client.open_read("/f") as reader:
        assert reader.read(0, len(DATA)) == DATA
    is_over(controller)


@pytest.mark.parametrize("first", [(), ("d0", "d1")])
def test_a_reader_closed_early_ends_its_read_and_its_connections(
        cluster: LocalCluster, controller: Following, client: Client, first: tuple[str, ...]) -> None:
    controller.first = first
    reader = client.open_read("/f")
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for offset in range(0, len(DATA), BLOCK):
                reader.read(offset, BLOCK)
                if offset:
                    return
        except FileClosed as error:
            failures.append(error)

    thread = later(read)
    wait_until(lambda: controller.asked, 15, "it does not ask for news")
    if first:
        thread.join(60)
    reader.close()
    thread.join(60)
    assert not thread.is_alive() and len(failures) == int(not first)
    is_over(controller)
    ports = controller.posts[0]["client_ports"]
    wait_until(lambda: not any(established(port) for port in ports), 15, "connections are left open")
