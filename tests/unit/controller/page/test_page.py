"""What the page's stream tells of a known fabric, to whom, and for how long."""

import gzip
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest

from speedwell.controller.loops import Loops
from speedwell.controller.page import app, viewers
from speedwell.controller.page.app import FRAME_SECONDS, HISTORY_EVERY, HISTORY_SECONDS, WebPage
from speedwell.controller.page.viewers import TooManyViewers, Viewers
from speedwell.controller.rest.http import Request, response
from speedwell.controller.services import Services
from tests.unit.controller.in_process import AGGREGATIONS, CAPACITY_BPS, EDGES, Controller, NothingMore, read_of


@pytest.fixture(name="controller")
def _controller() -> Controller:
    return Controller()


@pytest.fixture(name="page")
def _page(controller: Controller) -> WebPage:
    return WebPage(Services(controller.state, controller.measurements, controller.application, Loops()))


def stream(controller: Controller) -> tuple[Any, Iterator[tuple[str, Any]]]:
    """The answer, and what it goes on to tell: each event's name and content."""
    answer = controller.application(Request(b"GET /v1/events HTTP/1.1", b"", NothingMore()))
    return answer, (_event(piece) for piece in answer[2] if not piece.startswith(b"retry"))


def _event(piece: bytes) -> tuple[str, Any]:
    name, data = piece.decode().rstrip("\n").split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_who_comes_is_told_the_fabric_and_all_that_runs_at_once(controller: Controller, page: WebPage) -> None:
    controller.measurements.read_port((EDGES[0], 3), 0, 0, 1.0, 1.0)
    controller.measurements.read_port((EDGES[0], 3), 0, int(CAPACITY_BPS / 16), 2.0, 2.0)
    read = controller.ask("POST", "/v1/reads", read_of(replicas=[{"host": "10.0.0.1", "port": 7000},
                                                                 {"host": "10.0.1.2", "port": 7000}])).json
    answer, events = stream(controller)
    head = response(answer, is_head=False, is_last=True)
    assert b"text/event-stream" in head and b"Content-Length" not in head
    (first, fabric), (second, frame) = next(events), next(events)
    assert (first, second) == ("fabric", "frame")
    tiers = {node: tier for node, _, tier in fabric["nodes"]}
    assert {tiers[node] for node in EDGES} == {1} and {tiers[node] for node in AGGREGATIONS} == {2}
    assert sorted(tiers.values()) == [0, 0, 0, 0, 1, 1, 2, 2] and len(fabric["links"]) == 8
    ends = [(fabric["nodes"][a][0], fabric["nodes"][b][0]) for a, b, _, _ in fabric["links"]]
    loads = dict(zip([way for end in ends for way in (end, end[::-1])], frame["loads"], strict=True))
    assert loads[EDGES[0], AGGREGATIONS[0]] == 500, "thousandths"
    assert loads[EDGES[1], AGGREGATIONS[0]] == -2, "it was not measured"
    assert [each["id"] for each in frame["reads"]["reads"]] == [read["id"]]
    assert frame["health"]["hosts"] == 4 and "coflows" not in frame
    [part] = frame["reads"]["reads"][0]["parts"]
    costs = {each["host"]: each["cost_seconds"] for each in part["considered"]}
    assert costs.keys() == {"10.0.0.1", "10.0.1.2"}
    assert min(costs.values()) == costs[part["replica"]["host"]] == part["cost_seconds"]


def test_a_link_that_goes_keeps_its_number_and_is_told_as_down(controller: Controller, page: WebPage) -> None:
    _, events = stream(controller)
    (_, before), _ = next(events), next(events)
    controller.state.remove_link((EDGES[0], 3))
    page._go_on()
    (name, after), (_, frame) = next(events), next(events)
    assert name == "fabric" and [link[:2] for link in after["links"]] == [link[:2] for link in before["links"]]
    assert frame["loads"].count(-1) == 2 and after["epoch"] == before["epoch"]
    page._go_on()
    assert next(events)[0] == "frame", "the fabric has not changed"


def test_what_all_are_told_is_composed_once(controller: Controller, page: WebPage,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    composed = []
    monkeypatch.setattr(page._rest, "told", lambda url: composed.append(url))
    all_events = [stream(controller)[1] for _ in range(10)]
    composed.clear()
    page._go_on()
    assert len(composed) == len(set(composed)) > 0
    for events in all_events:
        assert [next(events)[0] for _ in range(3)] == ["fabric", "frame", "frame"]


def test_who_come_at_the_same_time_share_what_is_composed(controller: Controller, page: WebPage,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    composed = []

    def told(url: str) -> None:
        composed.append(url)
        eventlet.sleep(0)

    monkeypatch.setattr(page._rest, "told", told)
    coming = [eventlet.spawn(stream, controller) for _ in range(5)]
    for each in coming:
        _, events = each.wait()
        assert [next(events)[0] for _ in range(2)] == ["fabric", "frame"]
    assert len(composed) == len(set(composed)) > 0


def test_a_change_of_the_fabric_is_told_although_what_else_runs_cannot_be(
        controller: Controller, page: WebPage, monkeypatch: pytest.MonkeyPatch) -> None:
    _, events = stream(controller)
    assert [next(events)[0] for _ in range(2)] == ["fabric", "frame"]
    controller.state.remove_link((EDGES[0], 3))
    monkeypatch.setattr(page._rest, "told", lambda url: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        page._go_on()
    assert next(events)[0] == "fabric"


def test_nothing_is_composed_for_nobody_but_what_is_kept(controller: Controller, page: WebPage) -> None:
    for _ in range(2 * HISTORY_EVERY):
        page._go_on()
    answer = controller.ask("GET", "/v1/events/history")
    assert answer.headers["Content-Encoding"] == "gzip"
    frames = json.loads(gzip.decompress(answer.body))
    assert len(frames) == 2 and frames[0]["at"] <= frames[1]["at"] and len(frames[0]["loads"]) == 16


def test_the_history_is_of_ten_minutes_and_keeps_no_more(controller: Controller, page: WebPage,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0, time=lambda: clock.now, monotonic=lambda: clock.now)
    monkeypatch.setattr(app, "time", clock)
    sizes = []
    for _ in range(3):
        for _ in range(HISTORY_SECONDS):
            clock.now += FRAME_SECONDS
            page._go_on()
        frames = json.loads(gzip.decompress(controller.ask("GET", "/v1/events/history").body))
        told = [frame["at"] for frame in frames]
        assert told == [clock.now - age for age in range(HISTORY_SECONDS - HISTORY_EVERY, -1, -HISTORY_EVERY)]
        sizes.append(sum(map(len, page._history)))
    assert max(sizes) < 1.1 * min(sizes), "what it holds does not grow with time"


def test_a_browser_gets_the_page_where_others_get_the_list(controller: Controller, page: WebPage) -> None:
    listed = controller.ask("GET", "/")
    assert listed.content_type == "application/json" and "/v1/events" in listed.text
    status, headers, body = controller.application(
        Request(b"GET / HTTP/1.1\r\nAccept: text/html,application/xml;q=0.9", b"", NothingMore()))
    assert status == 200 and b"<canvas" in body and dict(headers)["Vary"] == "Accept"
    policy = dict(headers)["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_every_file_that_the_page_names_is_served(controller: Controller, page: WebPage) -> None:
    for name, body in page._files.items():
        text = body.decode()
        assert "https://" not in text and "http://" not in text, f"{name} needs the internet"
    for url, kind in (("/page/main.js", "text/javascript"), ("/page/page.css", "text/css")):
        answer = controller.ask("GET", url)
        assert answer.content_type == kind and "Content-Security-Policy" in answer.headers
    assert controller.ask("GET", "/page/none.js").json["type"] == "urn:speedwell:problem:unknown-file"
    assert controller.ask("GET", "/page/..%2fapp.js").status_int in (400, 404)


def test_a_viewer_that_does_not_keep_up_is_let_go_and_the_others_stay() -> None:
    everybody = Viewers()
    slow, quick = everybody.add([b"first"]), everybody.add([b"first"])
    taken = iter(quick)
    for number in range(viewers.MOST_WAITING + 1):
        everybody.send(b"%d" % number)
        next(taken)
    assert len(everybody) == 1
    assert list(slow) == [], "what waited for it is not sent any more"
    quick.close()
    assert len(everybody) == 0


def test_there_are_so_many_viewers_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "MOST_VIEWERS", 2)
    everybody = Viewers()
    first = everybody.add([])
    everybody.add([])
    with pytest.raises(TooManyViewers, match="2 browsers"):
        everybody.add([])
    first.close()
    everybody.add([])
