"""Where large files go is asked of a controller that is right, late, wrong or away; creates wait a moment at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from speedwell.fs.controller import Controller
from speedwell.fs.errors import InvalidArgument
from speedwell.fs.nameserver.replicas.placement import Candidate
from speedwell.fs.nameserver.replicas.placement_advice import (
    MAX_FILES,
    PAUSE_AFTER_FAILURE_SECONDS,
    WAIT_SECONDS,
    PlacementAdvice,
    Question,
    _candidates,
    _file,
)
from tests.scripted_controller import ScriptedController
from tests.waiting import wait_until

CANDIDATES = [Candidate(number, f"10.0.{number // 2}.{number % 2 + 1}", f"rack{number // 2}", 1000 + number)
              for number in range(6)]
WRITER = "10.0.0.1"
PATIENCE_SECONDS = 10.0
"""Where it is not the waiting that matters: the machine may be busy with other things."""


@pytest.fixture
def controller() -> Iterator[ScriptedController]:
    controller = ScriptedController()
    controller.answer = placed_last
    yield controller
    controller.stop()


@pytest.fixture
def advice(controller: ScriptedController) -> Iterator[PlacementAdvice]:
    advice = PlacementAdvice(controller.url, wait_seconds=PATIENCE_SECONDS)
    yield advice
    advice.close()


def placed_last(body: dict[str, Any]) -> tuple[int, Any]:
    """The last of the candidates."""
    return 200, {"placements": [
        {"refused": None, "destinations": [{"host": candidate["host"]} for candidate in file.get(
            "candidates", body["candidates"])[-file["replicas"]:]]}
        for file in body["files"]]}


def ask(advice: PlacementAdvice, candidates: list[Candidate] = CANDIDATES, replication: int = 2,
        writer: str = WRITER) -> list[int] | None:
    chosen = advice.destinations(candidates, replication, writer, 10 ** 8)
    return None if chosen is None else [candidate.number for candidate in chosen]


def test_the_controller_hears_who_writes_how_much_and_who_has_space_where(
        controller: ScriptedController, advice: PlacementAdvice) -> None:
    assert ask(advice) == [4, 5]
    post, = controller.posts
    assert post["path"] == "/v1/placements"
    file, = post["files"]
    assert post["candidates"][0] == {"host": "10.0.0.1", "rack": "rack0", "free_bytes": 1000, "disk_bps": None}
    assert file == {"writer": WRITER, "size_bytes": 10 ** 8, "replicas": 2, "least_racks": 2}
    assert advice.counts == {"controller": 1}


def test_the_controller_hears_what_a_disk_could_write_besides(
        controller: ScriptedController, advice: PlacementAdvice) -> None:
    slow = [Candidate(1, "10.0.0.1", "a", disk_left_bytes=1000), Candidate(2, "10.0.0.2", "b")]
    ask(advice, slow)
    post, = controller.posts
    assert [candidate["disk_bps"] for candidate in post["candidates"]] == [8000.0, None]


def test_of_several_dataservers_on_a_host_the_emptiest_is_offered(advice: PlacementAdvice) -> None:
    candidates = [Candidate(1, "10.0.0.1", "a", 5), Candidate(2, "10.0.0.1", "a", 7),
                  Candidate(3, "10.0.0.2", "a", 1)]
    assert ask(advice, candidates) == [2, 3]


@pytest.mark.parametrize(("candidates", "replication", "writer"), [
    (CANDIDATES, 2, ""), (CANDIDATES, 2, "client.example"), (CANDIDATES[:1], 2, WRITER),
    ([Candidate(1, "server.example", "a"), Candidate(2, "10.0.0.1", "a")], 1, WRITER)])
def test_what_the_controller_cannot_know_it_is_not_asked(
        controller: ScriptedController, advice: PlacementAdvice, candidates: list[Candidate], replication: int,
        writer: str) -> None:
    assert ask(advice, candidates, replication, writer) is None
    assert controller.posts == []


def test_creates_at_the_same_time_share_requests(controller: ScriptedController, advice: PlacementAdvice) -> None:
    first_arrived, go_on = threading.Event(), threading.Event()

    def slow_once(body: dict[str, Any]) -> tuple[int, Any]:
        if not first_arrived.is_set():
            first_arrived.set()
            go_on.wait(5)
        return placed_last(body)

    controller.answer = slow_once
    answers: list[list[int] | None] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(advice))) for _ in range(21)]
    threads[0].start()
    assert first_arrived.wait(5)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(advice._waiting) == 20, 5, "not all wait")
    go_on.set()
    for thread in threads:
        thread.join()
    wait_until(lambda: sum(len(post["files"]) for post in controller.posts) == 21, 5, "not all were asked")
    assert [len(post["files"]) for post in controller.posts] == [1, 20]


def test_candidates_that_files_share_are_said_once(
        controller: ScriptedController, advice: PlacementAdvice) -> None:
    others = CANDIDATES[2:]
    questions = [Question(*question_of(candidates)) for candidates in (CANDIDATES, CANDIDATES, others)]
    advice._answer(questions)
    post, = controller.posts
    assert len(post["candidates"]) == len(CANDIDATES)
    assert [len(file.get("candidates", ())) for file in post["files"]] == [0, 0, len(others)]
    assert [question.chosen for question in questions] == [CANDIDATES[-2:]] * 3


def question_of(candidates: list[Candidate]) -> tuple[Any, ...]:
    by_host = {candidate.host: candidate for candidate in candidates}
    return _file(candidates, 2, WRITER, 10 ** 8), _candidates(candidates), by_host


def wrong(answer: Any, status: int = 200) -> Any:
    return lambda body: (status, answer)


@pytest.mark.parametrize("answer", [
    wrong({"detail": "no"}, 500), wrong(b"no JSON"), wrong({"placements": []}), wrong([]),
    wrong({"placements": [{"refused": None}]}), wrong({"placements": [{"destinations": [1]}]}),
    wrong({"placements": [7]})])
def test_nonsense_is_no_advice_and_nobody_asks_for_a_while(
        controller: ScriptedController, advice: PlacementAdvice, answer: Any) -> None:
    controller.answer = answer
    assert ask(advice) is None
    asked = len(controller.posts)
    assert ask(advice) is None
    assert len(controller.posts) == asked
    assert advice.counts["pause"] == 1


@pytest.mark.parametrize("hosts", [["10.0.0.1", "10.9.9.9"], ["10.0.0.1", "10.0.0.1"], ["10.0.0.1"],
                                   ["10.0.0.1", "10.0.0.2", "10.0.1.1"], []])
def test_hosts_that_were_not_offered_and_other_numbers_of_them_are_no_advice(
        controller: ScriptedController, advice: PlacementAdvice, hosts: list[str]) -> None:
    controller.answer = wrong({"placements": [
        {"refused": None, "destinations": [{"host": host} for host in hosts]}]})
    assert ask(advice) is None


def test_a_refusal_is_counted_and_the_next_file_asks_again(
        controller: ScriptedController, advice: PlacementAdvice) -> None:
    controller.answer = wrong({"placements": [{"refused": {"constraint": "racks"}, "destinations": []}]})
    assert ask(advice) is None
    controller.answer = placed_last
    assert ask(advice) == [4, 5]
    assert advice.counts == {"refused": 1, "controller": 1}


def test_of_a_controller_that_stands_still_one_create_waits_and_no_other(controller: ScriptedController) -> None:
    go_on = threading.Event()
    controller.answer = lambda body: (go_on.wait(PATIENCE_SECONDS), placed_last(body))[1]
    advice = PlacementAdvice(controller.url)
    begin = time.monotonic()
    for _ in range(10):
        assert ask(advice) is None
    pauses = 1 + (time.monotonic() - begin) / PAUSE_AFTER_FAILURE_SECONDS
    waited = max(advice.counts["late"], advice.counts["failed"])
    assert 1 <= waited <= pauses
    assert advice.counts["pause"] >= 10 - pauses
    go_on.set()
    advice.close()


def test_a_controller_that_is_away_holds_nobody_up_and_is_asked_when_it_is_back(
        controller: ScriptedController, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speedwell.fs.nameserver.replicas.placement_advice.PAUSE_AFTER_FAILURE_SECONDS", 0.1)
    advice = PlacementAdvice("http://127.0.0.1:1", wait_seconds=PATIENCE_SECONDS)
    assert ask(advice) is None
    assert advice.counts["failed"] == 1
    advice._controller = Controller(controller.url)
    wait_until(lambda: ask(advice) == [4, 5], 5, "it is not asked again")
    advice.close()


def test_no_more_wait_than_one_request_takes(controller: ScriptedController, advice: PlacementAdvice) -> None:
    advice._waiting.extend([object()] * MAX_FILES)  # type: ignore[list-item]
    assert ask(advice) is None
    assert advice.counts == {"busy": 1}
    advice._waiting.clear()


@pytest.mark.parametrize("url", ["", "10.0.0.1:8080", "https://10.0.0.1", "http://", "http://a:b", "http://a/v1"])
def test_what_is_no_address_of_a_controller_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="controller: "):
        PlacementAdvice(url)


def test_the_wait_is_what_a_create_may_take() -> None:
    assert WAIT_SECONDS <= 0.05


def test_who_waited_for_too_long_is_counted_once_and_not_asked_about_any_more(controller: ScriptedController) -> None:
    go_on = threading.Event()

    def slow(body: dict[str, Any]) -> tuple[int, Any]:
        go_on.wait(PATIENCE_SECONDS)
        return placed_last(body)

    controller.answer = slow
    advice = PlacementAdvice(controller.url, wait_seconds=PATIENCE_SECONDS)
    try:
        asked = advice.ask(CANDIDATES, 2, WRITER, 10 ** 8)
        wait_until(lambda: not advice._waiting, 5, "nobody asks")
        waiting = advice.ask(CANDIDATES, 2, WRITER, 10 ** 8)
        assert asked is not None and waiting is not None
        assert advice._give_up(asked) and advice._give_up(waiting)
        go_on.set()
        assert asked.answered.wait(PATIENCE_SECONDS)
    finally:
        go_on.set()
        advice.close()
    assert advice.counts == {"late": 2}
    assert [len(post["files"]) for post in controller.posts] == [1]
