"""Reads from several replicas at once: the right bytes, from all of them side by side, whatever happens to one."""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs.client import Client
from speedwell.fs.client.read.plan import PART_MIN_BYTES
from speedwell.fs.errors import FileClosed, NoReplicaAvailable
from tests.integration.fs.steered import acquainted, established, place_on
from tests.local_cluster import LocalCluster
from tests.scripted_controller import ScriptedController
from tests.waiting import wait_until

DATA = random.Random(7).randbytes((48 << 20) + 12345)
BLOCK = 1 << 20


@pytest.fixture
def controller() -> Iterator[ScriptedController]:
    controller = ScriptedController()
    yield controller
    controller.stop()


@pytest.fixture
def client(cluster: LocalCluster, controller: ScriptedController) -> Client:
    controller.answer = place_on(cluster, "d0", "d1", weights=(2, 1))
    return acquainted(cluster.client(controller=controller.url, local_host="127.0.0.1", controller_timeout_seconds=5))


def all_ended(controller: ScriptedController) -> None:
    wait_until(lambda: len(controller.ended_reads) == len(controller.posts), 15, "a read was not ended")


def remote_ports(controller: ScriptedController) -> set[int]:
    return {port for local in controller.posts[0]["client_ports"] for port in established(local)}


def test_a_stream_comes_from_both_replicas_at_once_and_in_order(
        cluster: LocalCluster, controller: ScriptedController, client: Client) -> None:
    with client.open_read("/f") as reader:
        pieces = [reader.read(0, BLOCK)]
        assert remote_ports(controller) == {cluster.dataserver(name).port for name in ("d0", "d1")}
        pieces += [reader.read(offset, BLOCK) for offset in range(BLOCK, len(DATA), BLOCK)]
        assert sorted(source.replica_id for source in reader.last_sources) == ["d0", "d1"]
    assert b"".join(pieces) == DATA
    (post,) = controller.posts
    assert len(set(post["client_ports"])) == 3 and post["most_parts"] == 2
    all_ended(controller)
    assert len(controller.deleted) == 2, "one part ended before the other, then the read"
    assert (client.metrics.split_reads, client.metrics.replica_failures) == (1, 0)
    assert client.metrics.bytes_read == len(DATA)


@pytest.mark.parametrize("size", [1000, 4096, 100_000, 3 << 20])
def test_reads_of_any_size_give_the_content(client: Client, size: int) -> None:
    limit = min(len(DATA), 1500 * size)
    with client.open_read("/f") as reader:
        got = b"".join(reader.read(offset, size) for offset in range(0, limit, size))
    assert got == DATA[:len(got)] and len(got) >= limit
    assert client.metrics.split_reads == 1


def test_three_parts_are_read_if_the_client_allows_them(
        cluster: LocalCluster, controller: ScriptedController, tmp_path: Path) -> None:
    controller.answer = place_on(cluster, "d2", "d0", "d1", weights=(5, 3, 1))
    client = cluster.client(controller=controller.url, local_host="127.0.0.1", controller_timeout_seconds=5,
                            most_parts=3)
    with client.open_read("/f") as reader:
        assert reader.read(0, len(DATA)) == DATA
        assert len(reader.last_sources) == 3
    with (tmp_path / "copy").open("wb") as copy:
        client.fetch("/f", copy.fileno())
    assert (tmp_path / "copy").read_bytes() == DATA
    assert client.metrics.split_reads == 2


@pytest.mark.parametrize("victim", ["d0", "d1"])
def test_the_part_that_is_left_brings_what_one_whose_replica_died_did_not(
        cluster: LocalCluster, controller: ScriptedController, client: Client, victim: str) -> None:
    with client.open_read("/f") as reader:
        pieces = [reader.read(0, BLOCK)]
        cluster.dataserver(victim).kill()
        for offset in range(BLOCK, len(DATA) - BLOCK, BLOCK):
            pieces.append(reader.read(offset, BLOCK))
        assert sorted(source.replica_id for source in reader.last_sources) == ["d0", "d1"]
        pieces.append(reader.read(len(pieces) * BLOCK, len(DATA)))
    assert b"".join(pieces) == DATA
    assert len(controller.posts) == 1 and client.metrics.replica_failures == 1
    all_ended(controller)


def test_when_all_parts_have_broken_the_rest_is_placed_anew(
        cluster: LocalCluster, controller: ScriptedController, client: Client) -> None:
    with client.open_read("/f") as reader:
        pieces = [reader.read(0, BLOCK)]
        controller.answer = place_on(cluster, "d2")
        cluster.dataserver("d0").kill()
        cluster.dataserver("d1").kill()
        for offset in range(BLOCK, len(DATA), BLOCK):
            pieces.append(reader.read(offset, BLOCK))
        assert reader.last_sources[-1].replica_id == "d2"
    assert b"".join(pieces) == DATA
    assert len(controller.posts) == 2 and controller.posts[1]["size_bytes"] < len(DATA)
    all_ended(controller)


def test_a_file_is_written_at_all_its_parts_at_once(
        cluster: LocalCluster, controller: ScriptedController, client: Client, tmp_path: Path) -> None:
    reports: list[int] = []
    copy = tmp_path / "copy"
    descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"head")
    assert client.fetch("/f", descriptor, reports.append) == len(DATA)
    os.write(descriptor, b"tail")
    os.close(descriptor)
    assert copy.read_bytes() == b"head" + DATA + b"tail"
    assert sum(reports) == len(DATA)
    assert client.metrics.split_reads == 1
    all_ended(controller)


def test_a_bulk_part_whose_replica_dies_goes_on_from_another(
        cluster: LocalCluster, controller: ScriptedController, client: Client, tmp_path: Path) -> None:
    killed = threading.Event()

    def kill_once(count: int) -> None:
        if not killed.is_set():
            killed.set()
            controller.answer = place_on(cluster, "d2")
            cluster.dataserver("d1").kill()

    with (tmp_path / "copy").open("wb") as copy:
        client.fetch("/f", copy.fileno(), kill_once)
    assert (tmp_path / "copy").read_bytes() == DATA
    all_ended(controller)


def test_a_pipe_gets_the_bytes_in_order(client: Client) -> None:
    outlet, inlet = os.pipe()
    received = bytearray()

    def drain() -> None:
        while piece := os.read(outlet, 1 << 20):
            received.extend(piece)

    thread = threading.Thread(target=drain)
    thread.start()
    client.fetch("/f", inlet)
    os.close(inlet)
    thread.join()
    os.close(outlet)
    assert received == DATA
    assert client.metrics.split_reads == 1


def test_a_file_open_for_appending_gets_the_bytes_in_order(client: Client, tmp_path: Path) -> None:
    (tmp_path / "copy").write_bytes(b"head")
    with (tmp_path / "copy").open("ab") as copy:
        client.fetch("/f", copy.fileno())
    assert (tmp_path / "copy").read_bytes() == b"head" + DATA


def test_a_program_that_gives_up_ends_all_parts(
        controller: ScriptedController, client: Client, tmp_path: Path) -> None:
    def give_up(count: int) -> None:
        raise InterruptedError("enough")

    with (tmp_path / "copy").open("wb") as copy, pytest.raises(InterruptedError, match="enough"):
        client.fetch("/f", copy.fileno(), give_up)
    all_ended(controller)


def test_a_reader_closed_early_ends_all_parts(controller: ScriptedController, client: Client) -> None:
    reader = client.open_read("/f")
    reader.read(0, BLOCK)
    reader.close()
    with pytest.raises(FileClosed):
        reader.read(BLOCK, BLOCK)
    all_ended(controller)


def test_a_read_that_no_replica_can_finish_says_what_was_tried(
        cluster: LocalCluster, client: Client, tmp_path: Path) -> None:
    for daemon in cluster.dataservers:
        daemon.kill()
    with (tmp_path / "copy").open("wb") as copy, pytest.raises(NoReplicaAvailable, match="tried"):
        client.fetch("/f", copy.fileno())
    with client.open_read("/f") as reader, pytest.raises(NoReplicaAvailable, match="tried"):
        reader.read(0, BLOCK)


def test_only_long_reads_are_asked_in_parts(
        cluster: LocalCluster, controller: ScriptedController, client: Client) -> None:
    client.create("/short")
    client.append("/short", DATA[:2 * PART_MIN_BYTES - 1])
    with client.open_read("/short") as reader:
        assert reader.read(0, len(DATA)) == DATA[:2 * PART_MIN_BYTES - 1]
    assert [len(post["client_ports"]) for post in controller.posts] == [1]


def test_one_part_is_read_where_the_client_wants_no_more(
        cluster: LocalCluster, controller: ScriptedController) -> None:
    controller.answer = place_on(cluster, "d0", "d1")
    client = cluster.client(controller=controller.url, local_host="127.0.0.1", controller_timeout_seconds=5,
                            most_parts=1)
    with client.open_read("/f") as reader:
        assert reader.read(0, len(DATA)) == DATA
        assert [source.replica_id for source in reader.last_sources] == ["d0"]
    assert [len(post["client_ports"]) for post in controller.posts] == [1]


def test_without_a_controller_there_is_one_part(cluster: LocalCluster) -> None:
    client = cluster.client(local_host="127.0.0.1")
    with client.open_read("/f") as reader:
        assert reader.read(0, len(DATA)) == DATA
        assert len(reader.last_sources) == 1
    assert client.metrics.split_reads == 0
