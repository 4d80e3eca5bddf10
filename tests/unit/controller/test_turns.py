"""Many things done in turns."""

import time
from types import SimpleNamespace

import eventlet
import pytest

from speedwell.controller import loops
from speedwell.controller.loops import TURN_SECONDS, Turns, in_turns


def test_others_have_their_turn_while_many_things_are_done() -> None:
    turns, done = [], []

    def another() -> None:
        while len(done) < 100:
            turns.append(len(done))
            eventlet.sleep(0)

    thread = eventlet.spawn(another)
    for number in in_turns(range(100)):
        time.sleep(TURN_SECONDS / 4)
        done.append(number)
    thread.wait()
    assert done == list(range(100))
    assert len(turns) >= 20 and turns == sorted(turns)


def test_few_things_are_done_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "time", SimpleNamespace(monotonic=lambda: 100.0))
    others = []
    eventlet.spawn(others.append, 1)
    assert list(in_turns([1, 2, 3])) == [1, 2, 3] and list(in_turns([])) == []
    assert not others


def test_a_long_loop_gives_others_their_turn_but_a_short_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(loops, "time", SimpleNamespace(monotonic=lambda: now))
    others: list[int] = []
    turns = Turns()
    eventlet.spawn(others.append, 1)
    now += 0.9 * TURN_SECONDS
    turns.others()
    assert not others
    now += 0.2 * TURN_SECONDS
    turns.others()
    assert others == [1]


def test_those_who_share_a_turn_have_it_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(loops.time, "monotonic", lambda: now)
    turns, done = Turns(), []

    def work(number: int) -> None:
        nonlocal now
        turns.others()
        now += 0.4 * TURN_SECONDS
        done.append(number)

    rounds: list[int] = []
    threads = [eventlet.spawn(work, number) for number in range(12)]
    while len(done) < len(threads):
        before = len(done)
        eventlet.sleep(0)
        rounds.append(len(done) - before)
    assert sorted(done) == list(range(12)) and max(rounds) <= 3, rounds
