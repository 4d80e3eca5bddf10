"""What a nameserver tells the controller of itself and of dataservers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from speedwell.controller.storage.models import NameserverReport
from speedwell.fs.nameserver.replicas.reports import Reports
from speedwell.fs.nameserver.service.dispatch import Requests
from speedwell.fs.proto import speedwell_pb2 as pb
from tests.waiting import wait_until

MAX_BODY_BYTES = 256 << 10


def leading(patch: pytest.MonkeyPatch, reply: pb.StatisticsReply) -> Requests:
    """Whose service would say this."""
    patch.setattr(Requests, "answer", lambda *_: reply.SerializeToString())
    return Requests()


@pytest.fixture(name="heard")
def _heard() -> Iterator[tuple[str, list[Any]]]:
    """A URL, and the bodies that were put there."""
    bodies: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            length = int(self.headers["Content-Length"])
            assert length < MAX_BODY_BYTES and self.path == "/v1/storage/nameservers"
            bodies.append(json.loads(self.rfile.read(length)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()


def reported(heard: tuple[str, list[Any]], requests: Requests) -> dict[str, Any]:
    url, bodies = heard
    reports = Reports(url, requests, "10.0.0.1:7000")
    reports.start()
    wait_until(lambda: bodies, 20, "nothing is reported")
    reports.stop()
    assert not reports.is_alive()
    NameserverReport.model_validate_json(json.dumps(bodies[0]))
    said: dict[str, Any] = bodies[0]
    return said


def status(number: int, **changes: Any) -> pb.DataserverStatus:
    alive = changes.pop("alive", True)
    values = {"capacity_bytes": 4 << 40, "available_bytes": number << 32, "last_heartbeat_seconds_ago": 0.123456,
              "replicas": 12345678} | changes
    return pb.DataserverStatus(server=pb.Replica(dataserver_id=f"pod-{number}-host", host=f"10.200.1.{number % 250}",
                                                 alive=alive), **values)


def test_who_does_not_lead_says_only_that_it_is_there(heard: tuple[str, list[Any]]) -> None:
    assert reported(heard, Requests()) == {"address": "10.0.0.1:7000", "namespace": None}


def test_those_that_need_care_come_first_then_the_fullest(heard: tuple[str, list[Any]],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    requests = leading(monkeypatch, pb.StatisticsReply(files=3, dataservers=[
        status(9), status(2), status(3, draining=True), status(5, alive=False), status(6, capacity_bytes=0),
        status(4, directories=[pb.DirectoryUse(failure="it is gone"), pb.DirectoryUse()])]))
    said = reported(heard, requests)["namespace"]
    assert [each["id"].split("-")[1] for each in said["dataservers"]] == ["5", "4", "3", "6", "2", "9"]
    assert (said["dataservers_known"], said["dataservers_alive"], said["files"]) == (6, 5, 3)
    assert said["dataservers"][1]["failed_directories"] == 1


def test_of_thousands_as_many_are_told_as_a_request_holds(heard: tuple[str, list[Any]],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    requests = leading(monkeypatch, pb.StatisticsReply(warnings=["w" * 5000] * 40, dataservers=[
        status(number, alive=number != 2999) for number in range(3000)]))
    said = reported(heard, requests)["namespace"]
    assert 800 < len(said["dataservers"]) < 3000 and said["dataservers"][0]["id"] == "pod-2999-host"
    assert (said["dataservers_known"], said["dataservers_alive"]) == (3000, 2999)


def test_a_controller_that_is_away_holds_nobody_up() -> None:
    reports = Reports("http://127.0.0.1:1", Requests(), "10.0.0.1:7000")
    reports.start()
    reports.stop()
    assert not reports.is_alive()
