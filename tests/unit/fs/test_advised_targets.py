"""Where recovery and balance make replicas: asked in the background of a controller that is right, slow or away."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from speedwell.fs.limits import LEAST_ADVISED_BYTES
from speedwell.fs.nameserver.replicas.advised_targets import FORGET_SECONDS, AdvisedTargets
from speedwell.fs.nameserver.replicas.placement import Candidate
from speedwell.fs.nameserver.replicas.placement_advice import MAX_BACKGROUND_FILES, MAX_FILES, PlacementAdvice
from speedwell.fs.proto import speedwell_pb2 as pb
from tests.scripted_controller import ScriptedController
from tests.unit.fs.test_nameserver_service import Bench
from tests.waiting import wait_until

CANDIDATES = [Candidate(number, f"10.0.0.{number}", "r", 1 << 40) for number in range(1, 6)]
SOURCE = "10.0.0.9"


@pytest.fixture(name="controller")
def _controller() -> Iterator[ScriptedController]:
    controller = ScriptedController()
    controller.answer = placed_last
    yield controller
    controller.stop()


@pytest.fixture(name="advice")
def _advice(controller: ScriptedController) -> Iterator[PlacementAdvice]:
    advice = PlacementAdvice(controller.url, wait_seconds=10.0)
    yield advice
    advice.close()


def placed_last(body: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"placements": [{"refused": None, "destinations": [{"host": body["candidates"][-1]["host"]}]}
                                for file in body["files"]]}


def targets(advice: PlacementAdvice | None) -> AdvisedTargets:
    return AdvisedTargets(advice, random.Random(1))


def choose(chooser: AdvisedTargets, file_id: str = "f", size_bytes: int = LEAST_ADVISED_BYTES,
           candidates: list[Candidate] = CANDIDATES) -> Candidate | None:
    return chooser.choose(file_id, SOURCE, candidates, size_bytes, 0.0, lambda now_seconds: None)


def chosen(chooser: AdvisedTargets, **changes: Any) -> Candidate:
    found: list[Candidate] = []
    wait_until(lambda: (one := choose(chooser, **changes)) is not None and (found.append(one) or True), 10,
               "there is no answer")
    return found[0]


def test_a_large_file_is_asked_about_and_left_until_the_answer_is_there(
        controller: ScriptedController, advice: PlacementAdvice) -> None:
    go_on = threading.Event()
    controller.answer = lambda body: (go_on.wait(10), placed_last(body))[1]
    chooser = targets(advice)
    assert choose(chooser) is None and choose(chooser) is None
    assert len(chooser) == 1
    assert chooser.answered() == []
    go_on.set()
    wait_until(lambda: len(chooser.answered()) == 1, 10, "nobody is told to come again")
    assert chosen(chooser) == CANDIDATES[-1]
    assert len(chooser) == 0
    post, = controller.posts
    file, = post["files"]
    assert (file["writer"], file["replicas"], file["size_bytes"]) == (SOURCE, 1, LEAST_ADVISED_BYTES)
    assert advice.counts == {"controller": 1}


def test_small_files_and_those_without_a_choice_never_ask(
        controller: ScriptedController, advice: PlacementAdvice) -> None:
    assert choose(targets(advice), size_bytes=LEAST_ADVISED_BYTES - 1) in CANDIDATES
    assert choose(targets(advice), candidates=CANDIDATES[:1]) == CANDIDATES[0]
    assert choose(targets(None)) in CANDIDATES
    assert controller.posts == []


def test_a_controller_that_is_away_costs_one_question(controller: ScriptedController) -> None:
    controller.stop()
    advice = PlacementAdvice(controller.url, wait_seconds=10.0)
    chooser = targets(advice)
    assert chosen(chooser) in CANDIDATES
    assert choose(chooser, "another") in CANDIDATES      # at once: nobody asks for a while
    assert advice.counts["failed"] == 1 and advice.counts["pause"] == 1
    advice.close()


def test_what_was_chosen_and_cannot_be_taken_any_more_is_not(advice: PlacementAdvice) -> None:
    chooser = targets(advice)
    assert choose(chooser) is None
    assert chosen(chooser, candidates=CANDIDATES[:2]) in CANDIDATES[:2]


def test_an_answer_that_nobody_comes_back_for_is_forgotten(advice: PlacementAdvice) -> None:
    chooser = targets(advice)
    assert choose(chooser) is None
    chooser.forget(FORGET_SECONDS + 1)
    assert len(chooser) == 0


def test_the_background_leaves_room_for_creates(advice: PlacementAdvice) -> None:
    advice._waiting.extend([object()] * MAX_BACKGROUND_FILES)  # type: ignore[list-item]
    assert choose(targets(advice)) in CANDIDATES
    assert advice.counts == {"busy": 1}
    assert MAX_BACKGROUND_FILES < MAX_FILES
    advice._waiting.clear()


@pytest.mark.parametrize("cause", ["recovery", "balance"])
def test_the_nameserver_orders_copies_where_the_controller_says(advice: PlacementAdvice, cause: str) -> None:
    bench = Bench(dataservers=6)
    bench.service._recovery._targets = targets(advice)
    made = bench.create(replication=2, replicas=["d0", "d2"])
    bench.commit(made, LEAST_ADVISED_BYTES)

    def copies() -> list[str]:
        bench.now_seconds += 1.0
        return [f"d{number}" for number in range(6) for _ in bench.beat(
            number, capacity_bytes=1 << 40, available_bytes=1 << (30 if number == 2 and cause == "balance" else 39)
        ).copies]

    assert copies() == []
    if cause == "recovery":
        bench.service.administration.set_draining(pb.SetDrainingRequest(dataserver_id="d2", draining=True))
    else:
        bench.service.administration.balance(pb.BalanceRequest())
    assert wait_until(copies, 10, "no copy was ordered") == ["d5"]
    assert advice.counts["controller"] >= 1
