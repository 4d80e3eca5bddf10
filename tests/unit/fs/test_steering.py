"""A controller that is missing, slow or wrong costs a bounded time and never a read."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from speedwell.fs.client.metrics import Metrics
from speedwell.fs.client.read import steering as steering_module
from speedwell.fs.client.read.steering import PAUSE_AFTER_FAILURE_SECONDS, Steering
from speedwell.fs.errors import InvalidArgument
from speedwell.fs.proto.speedwell_pb2 import Replica
from tests.scripted_controller import Answer, ScriptedController, placed_on
from tests.waiting import wait_until

REPLICAS = [Replica(dataserver_id="d0", host="10.0.0.1", port=7000),
            Replica(dataserver_id="d1", host="10.0.0.2", port=7000)]

@pytest.fixture
def controller() -> Iterator[ScriptedController]:
    controller = ScriptedController()
    yield controller
    controller.stop()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def steering(controller: ScriptedController, metrics: Metrics) -> Iterator[Steering]:
    steering = Steering(controller.url, metrics, replica_policy="sinbad-r", timeout_seconds=5)
    yield steering
    steering.close()


@pytest.fixture
def impatient(controller: ScriptedController, metrics: Metrics) -> Iterator[Steering]:
    steering = Steering(controller.url, metrics)
    yield steering
    steering.close()


def place(steering: Steering, size: int = 1000, ports: tuple[int, ...] = (40000,)) -> Any:
    return steering.place("10.0.0.9", ports, REPLICAS, 500, size, "file", len(ports))


def test_the_controllers_choice_is_taken(steering: Steering, controller: ScriptedController,
                                         metrics: Metrics) -> None:
    placement = place(steering)
    assert placement.url == "/v1/reads/r7"
    (part,) = placement.parts
    assert (part.replica_id, part.offset_bytes, part.size_bytes, part.client_port) == ("d1", 500, 1000, 40000)
    assert part.path == ("10.0.0.2", "edge-p0r0", "10.0.0.9") and part.chosen_by == "controller"
    assert controller.posts == [{
        "path": "/v1/reads", "client": "10.0.0.9", "client_ports": [40000], "size_bytes": 1000,
        "file_id": "file", "replica_policy": "sinbad-r", "most_parts": 1, "follows": False,
        "replicas": [{"host": "10.0.0.1", "port": 7000}, {"host": "10.0.0.2", "port": 7000}]}]
    assert metrics.controller_fallbacks == 0


def test_parts_come_in_file_offsets_and_in_order(steering: Steering, controller: ScriptedController) -> None:
    forward = placed_on("10.0.0.2", "10.0.0.1")

    def backward(body: dict[str, Any]) -> tuple[int, Any]:
        status, answer = forward(body)
        answer["parts"].reverse()
        return status, answer

    controller.answer = backward
    placement = place(steering, ports=(40000, 40001))
    assert [(part.replica_id, part.offset_bytes, part.size_bytes, part.client_port, part.part_number)
            for part in placement.parts] == [("d1", 500, 500, 40000, 1), ("d0", 1000, 500, 40001, 0)]


def test_the_end_of_a_read_is_told(steering: Steering, controller: ScriptedController) -> None:
    placement = place(steering)
    placement.ended(placement.parts[0])
    placement.ended(placement.parts[0])
    wait_until(lambda: controller.deleted == ["/v1/reads/r7"], 15, "the read was not deleted")


def test_the_end_of_each_part_is_told_and_the_last_one_ends_the_read(
        steering: Steering, controller: ScriptedController) -> None:
    controller.answer = placed_on("10.0.0.2", "10.0.0.1")
    placement = place(steering, ports=(40000, 40001))
    for part, told in zip(reversed(placement.parts), ["/v1/reads/r7/parts/1", "/v1/reads/r7"], strict=True):
        placement.ended(part)
        placement.ended(part)
        wait_until(lambda told=told: controller.deleted[-1:] == [told], 15, "the end of a part was not told")
    assert len(controller.deleted) == 2


@pytest.mark.parametrize("follows", [False, True])
def test_a_client_that_closes_ends_the_reads_whose_parts_have_not_been_told_of(
        controller: ScriptedController, metrics: Metrics, follows: bool) -> None:
    if follows:
        controller.answer = lambda body: (201, {"id": "r7", "revision": 0, "parts": []})
    else:
        controller.answer = placed_on("10.0.0.1", "10.0.0.2")
    steering = Steering(controller.url, metrics, timeout_seconds=5)
    placement = steering.place("10.0.0.9", (40000, 40001), REPLICAS, 0, 1000, "file", 2, follows)
    assert placement is not None
    for part in placement.parts[1:]:
        placement.ended(part)
    steering.close()
    assert controller.ended_reads == ["/v1/reads/r7"]
    for part in placement.parts:
        placement.ended(part)
    assert controller.ended_reads == ["/v1/reads/r7"]


def test_a_read_that_is_placed_while_its_client_closes_is_ended(
        controller: ScriptedController, metrics: Metrics) -> None:
    steering = Steering(controller.url, metrics, timeout_seconds=5)

    def closes_meanwhile(body: dict[str, Any]) -> tuple[int, Any]:
        closing.start()
        wait_until(lambda: steering._closed, 15, "it is not closed")
        return placed_on("10.0.0.1")(body)

    closing = threading.Thread(target=steering.close)
    controller.answer = closes_meanwhile
    place(steering)
    closing.join(15)
    assert controller.ended_reads == ["/v1/reads/r7"]


@pytest.mark.parametrize("answer", [
    lambda body: (404, {"title": "Unknown host", "detail": "10.0.0.9"}),
    lambda body: (503, None),
    lambda body: (201, None),
    lambda body: (201, b"this is not JSON"),
    lambda body: (201, [1, 2]),
    lambda body: (201, {"id": "r7"}),
    lambda body: (201, {"id": "r7", "parts": []}),
    lambda body: (201, {"id": "r7", "parts": [None]}),
    placed_on("10.9.9.9"),
    placed_on("10.0.0.1", size_bytes=999),
    placed_on("10.0.0.1", size_bytes="many"),
    placed_on("10.0.0.1", offset_bytes=1),
    placed_on("10.0.0.1", client_port=1),
    placed_on("10.0.0.1", "10.0.0.2", size_bytes=-500),
    placed_on("10.0.0.1", "10.0.0.2", client_port=40000),
])
def test_an_answer_that_does_not_fit_is_a_counted_fallback(
        steering: Steering, controller: ScriptedController, metrics: Metrics, answer: Answer) -> None:
    controller.answer = answer
    assert place(steering, ports=(40000, 40001)) is None
    assert metrics.controller_fallbacks == 1
    controller.answer = placed_on("10.0.0.1")
    assert place(steering) is not None, "an answer, even a wrong one, shows that the controller lives"


def test_a_slow_controller_is_not_waited_for_and_its_late_placement_is_ended(
        impatient: Steering, controller: ScriptedController, metrics: Metrics) -> None:
    release = threading.Event()

    def slow(body: dict[str, Any]) -> tuple[int, Any]:
        release.wait(15)
        return placed_on("10.0.0.1")(body)

    controller.answer = slow
    began = time.monotonic()
    assert place(impatient) is None
    assert 0.15 < time.monotonic() - began < 10, "less than the controller takes"
    assert metrics.controller_fallbacks == 1
    release.set()
    wait_until(lambda: controller.deleted == ["/v1/reads/r7"], 15, "the late placement was not ended")


def test_a_missing_controller_is_not_asked_for_every_read(metrics: Metrics) -> None:
    steering = Steering("http://127.0.0.1:1", metrics)
    began = time.monotonic()
    assert [place(steering) for _ in range(50)] == [None] * 50
    pauses = (time.monotonic() - began) / PAUSE_AFTER_FAILURE_SECONDS
    assert metrics.controller_requests <= 1 + pauses and metrics.controller_fallbacks == 50
    steering.close()


def test_a_controller_that_comes_back_is_asked_again(
        controller: ScriptedController, impatient: Steering) -> None:
    controller.answer = lambda body: (time.sleep(0.3), placed_on("10.0.0.1")(body))[1]
    assert place(impatient) is None
    controller.answer = placed_on("10.0.0.1")
    assert place(impatient) is None
    wait_until(lambda: place(impatient), PAUSE_AFTER_FAILURE_SECONDS + 2, "the controller is not asked again")


def test_another_controller_is_asked_as_soon_as_it_leads_and_no_read_waits_for_it(
        controller: ScriptedController, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering_module, "SEARCH_SECONDS", 600.0)   # so long nobody is asked who is not found
    health = {"status": "standby", "converged": False}
    controller.news = lambda path: (200, health)
    steering = Steering(f"http://127.0.0.1:1,{controller.url}", metrics)
    controller.answer = lambda body: (time.sleep(0.5), placed_on("10.0.0.1")(body))[1]
    assert place(steering) is None
    controller.answer = placed_on("10.0.0.1")
    for status in ("standby", "converging"):
        health["status"] = status
        asked = len(controller.asked)
        wait_until(lambda asked=asked: len(controller.asked) > asked + 1, 30, "nobody looks for the leader")
        assert place(steering) is None
    assert len(controller.posts) == 1
    health.update(status="ok", converged=True)
    wait_until(lambda: place(steering), 30, "the leader is not asked")
    steering.close()


def test_a_slow_leader_is_not_asked_for_every_read_though_it_says_that_it_leads(
        controller: ScriptedController, metrics: Metrics) -> None:
    controller.news = lambda path: (200, {"status": "ok", "converged": True})
    steering = Steering(f"{controller.url},http://127.0.0.1:1", metrics)
    controller.answer = lambda body: (time.sleep(0.3), placed_on("10.0.0.1")(body))[1]
    began = time.monotonic()
    while time.monotonic() < began + PAUSE_AFTER_FAILURE_SECONDS * 2:
        place(steering)
        time.sleep(0.02)
    assert len(controller.posts) <= 3
    steering.close()


def test_a_connection_that_the_controller_closed_is_opened_again(
        steering: Steering, controller: ScriptedController) -> None:
    assert place(steering) is not None
    for connection in steering._idle:
        assert connection.sock is not None
        connection.sock.shutdown(socket.SHUT_RDWR)
    assert place(steering) is not None


@pytest.mark.parametrize("url", ["", "10.0.0.1:8080", "https://c", "http://", "http://c:x", "http://c:99999",
                                 "http://c/path"])
def test_a_url_that_cannot_be_a_controller_is_refused(url: str, metrics: Metrics) -> None:
    with pytest.raises(InvalidArgument, match="controller"):
        Steering(url, metrics)
