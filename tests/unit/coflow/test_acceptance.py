"""Reports may be lost, doubled and overtaken; replays are not news."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coflow import Flow, FlowReport, InvalidReport, Report
from coflow.acceptance import WINDOW, Acceptance

NOW = 1_700_000_000.0
FLOW = Flow("10.0.0.1", "10.0.1.1", 7100, 40000)


def report(sequence: int, remaining: int = 100, at: float = NOW, sender: int = 1,
           coflow: bytes = b"c" * 16) -> Report:
    return Report(coflow, sender, sequence, round(at * 1e6), (FlowReport(FLOW, remaining),))


@given(st.lists(st.integers(1, 40), max_size=100))
def test_whatever_order_the_latest_report_counts_and_none_counts_twice(order: list[int]) -> None:
    acceptance = Acceptance()
    known, seen = 0, set()
    for sequence in order:
        try:
            news = acceptance.take(report(sequence, remaining=1000 - sequence), NOW)
        except InvalidReport as refused:
            assert refused.reason == "replayed" and sequence in seen
            continue
        assert sequence not in seen
        seen.add(sequence)
        assert bool(news) == (sequence > known)
        known = max(known, sequence)
    assert known == max(order, default=0)


def test_parts_of_one_report_may_overtake_each_other() -> None:
    acceptance, other = Acceptance(), FLOW._replace(source_port=7200)
    second = replace(report(2), flows=(FlowReport(other, 7),))
    assert acceptance.take(second, NOW) == list(second.flows)
    assert acceptance.take(report(1), NOW) == list(report(1).flows)


def test_a_report_far_behind_is_refused() -> None:
    acceptance = Acceptance()
    acceptance.take(report(WINDOW + 1), NOW)
    with pytest.raises(InvalidReport):
        acceptance.take(report(1), NOW)
    assert acceptance.take(report(2), NOW) == []


@pytest.mark.parametrize("at", [NOW - 31, NOW + 31])
def test_a_report_from_another_time_is_stale(at: float) -> None:
    with pytest.raises(InvalidReport) as refused:
        Acceptance(30.0).take(report(1, at=at), NOW)
    assert refused.value.reason == "stale"


def test_a_replay_is_refused_as_long_as_its_clock_would_pass() -> None:
    acceptance, old = Acceptance(30.0), report(1)
    acceptance.take(old, NOW)
    for later in (1, 29, 30, 31, 60, 90):
        acceptance.forget(NOW + later)
        with pytest.raises(InvalidReport):
            acceptance.take(old, NOW + later)
    assert len(acceptance) == 0


def test_senders_do_not_disturb_each_other() -> None:
    acceptance = Acceptance()
    assert acceptance.take(report(5), NOW)
    assert acceptance.take(report(5, sender=2), NOW)
    assert acceptance.take(report(5, coflow=b"d" * 16), NOW)


def test_no_more_senders_are_remembered_than_there_is_room_for() -> None:
    acceptance = Acceptance(30.0, max_senders=3)
    for sender in (1, 2, 3):
        acceptance.take(report(1, sender=sender), NOW)
    with pytest.raises(InvalidReport) as refused:
        acceptance.take(report(1, sender=4), NOW)
    assert refused.value.reason == "crowded"
    assert acceptance.take(report(1, sender=4, at=NOW + 100), NOW + 100)
