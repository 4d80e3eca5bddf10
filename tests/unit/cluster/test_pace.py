"""A host's flow keeps to a rate that it is told, and to a new one at once."""

from __future__ import annotations

import math
import threading
import time

import pytest

from speedwell.evaluation.coflow_replay import pace as pace_module
from speedwell.evaluation.coflow_replay.pace import LATENESS_SECONDS, Pace
from tests.waiting import wait_until


def test_no_more_goes_than_the_rate_lets() -> None:
    pace, begin = Pace(), time.monotonic()
    pace.set(8e6)
    for _ in range(30):
        pace.wait(10_000)
    assert time.monotonic() - begin > 0.3 - 0.01 - LATENESS_SECONDS


def test_a_flow_that_may_not_send_begins_when_its_rate_rises() -> None:
    pace, gone = Pace(), threading.Event()
    pace.set(0)

    def send() -> None:
        pace.wait(10_000)
        gone.set()

    threading.Thread(target=send, daemon=True).start()
    assert not gone.wait(0.05)
    pace.set(8e6)
    assert gone.wait(15)


def test_a_new_rate_holds_for_what_is_waited_for() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    pace.set(8e3)
    pace.wait(10_000)           # ten seconds at this rate
    pace.set(8e6)
    assert 0 < pace._seconds_until(10_000) <= 0.01
    now[0] += 0.01
    assert pace._seconds_until(10_000) == 0


def test_a_flow_that_nobody_gives_a_rate_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "FIRST_RATE_SECONDS", 0.05)
    pace, gone = Pace(), threading.Event()
    threading.Thread(target=lambda: (pace.wait(1 << 30), pace.wait(1 << 30), gone.set()), daemon=True).start()
    wait_until(gone.is_set, 15, "it waits")


def test_a_flow_that_is_set_free_goes_on_at_once_and_can_be_held_again() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    pace.set(0)
    assert pace._seconds_until(1 << 20) is None
    pace.set(math.inf)
    assert [pace._seconds_until(1 << 20) for _ in range(3)] == [0, 0, 0]
    pace.set(8e6)
    pace.wait(1 << 20)
    assert pace._seconds_until(1) == pytest.approx((1 << 20) / 1e6, abs=0.03)
