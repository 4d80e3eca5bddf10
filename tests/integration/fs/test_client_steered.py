"""Streams from where the controller says, over real connections from the ports it was told."""

import random
from collections.abc import Iterator

import pytest

from speedwell.fs.client import Client
from tests.integration.fs.steered import established, place_on
from tests.local_cluster import LocalCluster
from tests.scripted_controller import ScriptedController
from tests.waiting import wait_until

DATA = random.Random(1).randbytes(24 << 20)
BLOCK = 1 << 20


@pytest.fixture
def controller() -> Iterator[ScriptedController]:
    controller = ScriptedController()
    yield controller
    controller.stop()


@pytest.fixture
def client(cluster: LocalCluster, controller: ScriptedController) -> Client:
    return cluster.client(controller=controller.url, local_host="127.0.0.1", controller_timeout_seconds=5,
                          path_policy="ecmp")


@pytest.mark.parametrize("name", ["d0", "d1", "d2"])
def test_a_stream_comes_from_the_chosen_replica_to_the_announced_port(
        cluster: LocalCluster, controller: ScriptedController, client: Client, name: str) -> None:
    controller.answer = place_on(cluster, name)
    with client.open_read("/f") as reader:
        assert reader.read(0, BLOCK) == DATA[:BLOCK]
        assert reader.last_read is not None
        assert (reader.last_read.replica_id, reader.last_read.chosen_by) == (name, "controller")
        (post,) = controller.posts
        assert established(post["client_ports"][0]) == {cluster.dataserver(name).port}
        assert (post["client"], post["size_bytes"], post["path_policy"]) == ("127.0.0.1", len(DATA), "ecmp")
        assert b"".join(reader.read(offset, BLOCK) for offset in range(BLOCK, len(DATA), BLOCK)) == DATA[BLOCK:]
    assert len(controller.posts) == 1, "one decision per file"
    wait_until(lambda: controller.deleted == [f"/v1/reads/r{post['client_ports'][0]}"], 15, "the read was not ended")
    assert client.metrics.steered_reads == 1 and client.metrics.controller_fallbacks == 0


def test_the_rest_is_placed_again_when_the_chosen_replica_dies(
        cluster: LocalCluster, controller: ScriptedController, client: Client) -> None:
    controller.answer = place_on(cluster, "d1")
    with client.open_read("/f") as reader:
        parts = [reader.read(0, BLOCK)]
        controller.answer = place_on(cluster, "d2")
        cluster.dataserver("d1").kill()
        parts += [reader.read(offset, BLOCK) for offset in range(BLOCK, len(DATA), BLOCK)]
        assert b"".join(parts) == DATA
        assert reader.last_read is not None and reader.last_read.replica_id == "d2"
    again = controller.posts[-1]
    assert cluster.dataserver("d1").host not in {replica["host"] for replica in again["replicas"]}
    assert again["size_bytes"] < len(DATA)
    wait_until(lambda: len(controller.ended_reads) == len(controller.posts), 15, "a read was not ended")


def test_a_reader_closed_early_ends_its_read(cluster: LocalCluster, controller: ScriptedController,
                                             client: Client) -> None:
    controller.answer = place_on(cluster, "d0")
    with client.open_read("/f") as reader:
        reader.read(0, BLOCK)
        assert controller.deleted == []
    wait_until(lambda: len(controller.deleted) == 1, 15, "the read was not ended")


def test_a_placement_on_a_replica_that_is_gone_costs_no_read(
        cluster: LocalCluster, controller: ScriptedController, client: Client) -> None:
    cluster.dataserver("d0").kill()
    controller.answer = place_on(cluster, "d0", "d1")
    with client.open_read("/f") as reader:
        assert reader.read(0, len(DATA)) == DATA
