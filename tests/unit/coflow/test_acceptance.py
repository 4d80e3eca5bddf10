"""Reports may be lost, doubled and overtaken; replays are not news."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.coflow import Flow, FlowReport, InvalidReport, Report
from speedwell.coflow.acceptance import WINDOW, Acceptance
from speedwell.controller.coflows.told_times import ToldTimes

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
            news = acceptance.accept(report(sequence, remaining=1000 - sequence), NOW)
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
    assert acceptance.accept(second, NOW) == list(second.flows)
    assert acceptance.accept(report(1), NOW) == list(report(1).flows)


def test_a_report_far_behind_is_refused() -> None:
    acceptance = Acceptance()
    acceptance.accept(report(WINDOW + 1), NOW)
    with pytest.raises(InvalidReport):
        acceptance.accept(report(1), NOW)
    assert acceptance.accept(report(2), NOW) == []


@pytest.mark.parametrize("at", [NOW - 31, NOW + 31])
def test_a_report_from_another_time_is_stale(at: float) -> None:
    with pytest.raises(InvalidReport) as refused:
        Acceptance(30.0).accept(report(1, at=at), NOW)
    assert refused.value.reason == "stale"


def test_a_replay_is_refused_as_long_as_its_clock_would_pass() -> None:
    acceptance, old = Acceptance(30.0), report(1)
    acceptance.accept(old, NOW)
    for later in (1, 29, 30, 31, 60, 90):
        acceptance.forget(NOW + later)
        with pytest.raises(InvalidReport):
            acceptance.accept(old, NOW + later)
    assert len(acceptance) == 0


def test_senders_do_not_disturb_each_other() -> None:
    acceptance = Acceptance()
    assert acceptance.accept(report(5), NOW)
    assert acceptance.accept(report(5, sender=2), NOW)
    assert acceptance.accept(report(5, coflow=b"d" * 16), NOW)


def test_a_sender_is_forgotten_as_soon_as_its_clock_protects_from_replays() -> None:
    acceptance = Acceptance(30.0)
    acceptance.accept(report(1), NOW)
    acceptance.accept(report(2, at=NOW + 10), NOW + 10)
    acceptance.accept(report(1, sender=2), NOW)
    acceptance.forget(NOW + 32)
    assert len(acceptance) == 1
    acceptance.forget(NOW + 42)
    assert len(acceptance) == 0


def test_four_hundred_new_senders_a_second_are_taken_for_a_minute() -> None:
    acceptance = Acceptance()
    for number in range(400 * 60):
        now = NOW + number / 400
        assert acceptance.accept(report(1, sender=number + 1, at=now), now)
    assert len(acceptance) <= 400 * 60


@pytest.mark.parametrize("flows", [1, 20])
def test_old_senders_make_room_for_new_ones_and_go_on_reporting(flows: int) -> None:
    """Ten thousand senders, and room for a thousand entries."""
    acceptance = Acceptance(30.0, max_entries=1000)
    told = tuple(FlowReport(FLOW._replace(source_port=port), 9) for port in range(1, flows + 1))
    for number in range(10_000):
        now = NOW + number / 400
        assert acceptance.accept(replace(report(1, sender=number + 1, at=now), flows=told), now)
        assert acceptance._entries <= 1000
    assert acceptance._entries == len(acceptance) + sum(len(each.latest) for each in acceptance._senders.values())
    later = NOW + 26
    assert acceptance.accept(report(2, sender=1, at=later), later), "one that was forgotten"


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(-31, 31), st.integers(0, 8)),
                max_size=150))
def test_nothing_is_taken_twice_however_little_is_remembered(told: list[tuple[int, int, int, int]]) -> None:
    """Reports come at random times with random clocks, and again and again."""
    acceptance, now, taken = Acceptance(30.0, max_entries=4), NOW, set()
    for sender, sequence, ahead, passed in told:
        now += passed
        taken_now = report(sequence, sender=sender, at=NOW + ahead)
        for each in (taken_now, *[report(sequence, sender=sender, at=at) for sender, sequence, at in sorted(taken)]):
            if passed % 2:
                acceptance.forget(now)
            key = each.sender, each.sequence, each.sent_at_microseconds / 1e6
            try:
                acceptance.accept(each, now)
            except InvalidReport:
                continue
            assert key not in taken
            taken.add(key)


def test_flows_that_one_sender_ever_told_of_are_not_remembered() -> None:
    acceptance = Acceptance()
    for number in range(10_000):
        one = FlowReport(FLOW._replace(source_port=1 + number), 9)
        assert acceptance.accept(replace(report(number + 1), flows=(one,)), NOW)
    assert acceptance._entries < 400


def test_a_clock_that_is_set_back_shuts_nobody_out() -> None:
    acceptance = Acceptance(30.0, max_entries=2)
    for sender in (1, 2, 3):
        acceptance.accept(report(1, sender=sender, at=NOW + 3600 + sender), NOW + 3600)
    assert acceptance.accept(report(1, sender=4, at=NOW), NOW)


def test_what_a_sender_whose_clock_is_ahead_told_is_not_taken_again_after_a_restart(tmp_path: Path) -> None:
    def started(now: float) -> Acceptance:
        told = ToldTimes(tmp_path / "told")
        return Acceptance(begun_unix=told.begun(now, 30.0), note_time=told.note)

    before, ahead = started(NOW), [report(number, at=NOW + at) for number, at in enumerate((20, 20.5, 29.9), 1)]
    for each in ahead:
        assert before.accept(each, NOW)
    after = started(NOW + 1)
    for moment in (1.0, 20.0, 50.0):
        for each in ahead:
            with pytest.raises(InvalidReport):
                after.accept(each, NOW + moment)
    assert after.accept(report(4, at=NOW + 32), NOW + 2), "its sender goes on"
    assert after.accept(report(1, sender=2, at=NOW + 51), NOW + 51)


@pytest.mark.parametrize("kept", [b"", b"\xff", b"nan", b"1e300"])
def test_with_good_clocks_or_a_damaged_record_nobody_waits_after_a_restart(tmp_path: Path, kept: bytes) -> None:
    place = tmp_path / "told"
    first = Acceptance(begun_unix=NOW, note_time=ToldTimes(place).note)
    assert first.accept(report(1, at=NOW + 0.05), NOW)
    assert not place.exists()
    place.write_bytes(kept)
    begun = ToldTimes(place).begun(NOW + 1, 30.0)
    assert begun == (NOW + 31 if kept == b"1e300" else NOW + 1)


def test_that_times_cannot_be_kept_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = ToldTimes(tmp_path / "missing" / "told")
    for seconds in range(10):
        told.note(NOW + seconds + 5, NOW + seconds)
    assert caplog.text.count("cannot be written") == 1


def test_nothing_that_another_one_may_have_seen_is_taken_by_the_next() -> None:
    before, after = Acceptance(), Acceptance(begun_unix=NOW + 5)
    heard = report(1, at=NOW + 4.9)
    assert before.accept(heard, NOW + 5)
    with pytest.raises(InvalidReport) as refused:
        after.accept(heard, NOW + 5)
    assert refused.value.reason == "crowded"
    assert after.accept(report(2, at=NOW + 5.1), NOW + 5.2), "its sender goes on"
    with pytest.raises(InvalidReport):
        after.accept(heard, NOW + 5.3)
