"""What may go when."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.host_agent.channel import Slice, Turns
from speedwell.host_agent.gate import IDLE_SECONDS, Gate

THERE = "10.0.1.1"
UPLINK_BPS = 8_000_000
"""A packet of 1,000 bytes takes a millisecond."""


def gate_with(*slices: Slice, lease: int = 100_000, packets: int = 3) -> Gate:
    gate = Gate(UPLINK_BPS)
    gate.direct(Turns(THERE, lease, slices), 0.0)
    for number in range(1, packets + 1):
        gate.arrive(number, 1000)
    return gate


def test_nothing_is_held_before_the_first_directive() -> None:
    gate = Gate(UPLINK_BPS)
    gate.arrive(7, 1000)
    assert gate.next_change(5.0) == 5.0 and gate.release(5.0) == 7
    assert gate.held_bytes == 0 and gate.release(5.0) is None


def test_a_slice_opens_and_closes() -> None:
    gate = gate_with(Slice(10_000, 10_000))
    assert gate.release(0.009) is None and gate.next_change(0.009) == 0.01
    assert gate.release(0.01) == 3
    gate.arrive(4, 1000)
    assert gate.release(0.0189) == 4
    gate.arrive(5, 1000)
    assert gate.release(0.02) is None and gate.held_bytes == 1000
    assert gate.next_change(0.02) == 0.1, "the lease is over then"
    assert gate.release(0.1) == 5


def test_a_slice_in_which_all_has_gone_is_idle_and_none_that_has_not_been_used_or_has_somebody_waiting() -> None:
    gate = gate_with(Slice(10_000, 10_000))
    assert gate.drained_at(0.009) == inf and gate.drained_at(0.01) == inf and not gate.is_done(0.009, False)
    assert gate.release(0.01) == 3
    assert gate.drained_at(0.012) == pytest.approx(0.013) and gate.drained_at(0.02) == inf
    assert [gate.is_done(at, False) for at in (0.0129, 0.0131)] == [False, True]
    assert [gate.is_done(at, True) for at in (0.0131, 0.0131 + IDLE_SECONDS)] == [False, True]
    gate.arrive(4, 1000)
    assert gate.drained_at(0.012) == inf and not gate.is_done(0.05, False)
    assert gate_with(Slice(10_000, 10_000), packets=0).drained_at(0.01) == inf
    assert gate_with(lease=0).drained_at(0.01) == inf and not gate_with(lease=0, packets=0).is_done(0.01, False)


def test_who_has_no_slice_left_and_nothing_waiting_sleeps() -> None:
    gate = gate_with(Slice(10_000, 10_000), packets=0)
    assert [gate.is_asleep(at) for at in (0.0, 0.019, 0.021, 1.0)] == [False, False, True, False]


def test_no_more_goes_than_the_uplink_carries_before_the_slice_ends() -> None:
    gate = gate_with(Slice(0, 10_500), packets=20)
    assert gate.release(0.0) == 6, "five milliseconds ahead"
    assert 0.003 < gate.next_change(0.0) < 0.006
    assert gate.release(0.0045) == 10
    assert gate.release(0.006) is None and gate.next_change(0.006) == 0.1


def test_a_packet_longer_than_any_slice_goes_alone_at_the_begin_of_one() -> None:
    gate = gate_with(Slice(0, 2_000), Slice(50_000, 2_000), packets=0)
    gate.arrive(1, 60_000)
    gate.arrive(2, 60_000)
    assert gate.release(0.001) == 1 and gate.release(0.0015) is None
    assert gate.next_change(0.0015) == 0.05


def test_slices_without_a_gap_are_one() -> None:
    gate = gate_with(Slice(0, 2_500), Slice(2_500, 2_500), packets=5)
    assert gate.release(0.0) == 5


def test_a_lease_of_zero_opens_at_once() -> None:
    gate = gate_with()
    assert gate.release(0.05) is None
    gate.direct(Turns(THERE, 0), 0.05)
    assert gate.release(0.05) == 3


def test_a_directive_replaces_the_one_before() -> None:
    gate = gate_with(Slice(0, 50_000))
    gate.direct(Turns(THERE, 100_000, (Slice(20_000, 10_000),)), 0.01)
    assert gate.release(0.01) is None and gate.next_change(0.01) == 0.03
    assert gate.release(0.03) == 3


def test_what_is_left_of_a_slice_when_it_is_told_anew_is_not_taken_for_a_slice_too_short_for_any_packet() -> None:
    gate = gate_with(Slice(0, 10_500), packets=12)
    assert [gate.release(at / 1000) for at in (0, 4.5, 9.9)] == [6, 10, None]
    gate.direct(Turns(THERE, 100_000, (Slice(0, 600), Slice(40_000, 10_000))), 0.0099)
    assert gate.release(0.0099) is None and gate.next_change(0.0099) == 0.0499


def test_a_rate_lets_packets_go_one_by_one() -> None:
    gate = gate_with(Slice(0, 50_000, 800_000), packets=4)
    assert gate.release(0.0) == 1
    assert gate.next_change(0.0) == 0.0075
    assert gate.release(0.0049) is None
    assert gate.release(0.0075) == 2
    assert gate.release(0.016) == 3 and gate.held_bytes == 1000


def test_forgotten_packets_are_not_let_go_twice() -> None:
    gate = gate_with(Slice(10_000, 10_000))
    gate.forget_waiting()
    assert gate.release(0.015) is None and gate.next_change(0.015) == inf


PIECES = st.tuples(st.integers(0, 20), st.integers(1, 20), st.sampled_from([0, 80_000, 8_000_000]))


@given(st.lists(PIECES, max_size=4),
       st.integers(0, 120), st.lists(st.integers(0, 150), min_size=1, max_size=20).map(sorted))
def test_whatever_the_turns_packets_go_in_order_in_slices_only_and_all_after_the_lease(
        pieces: list[tuple[int, int, int]], lease: int, moments: list[int]) -> None:
    slices, at = [], 0
    for gap, duration, rate_bps in pieces:
        slices.append(Slice((at + gap) * 1000, duration * 1000, rate_bps))
        at += gap + duration
    gate = Gate(UPLINK_BPS)
    gate.direct(Turns(THERE, lease * 1000, tuple(slices)), 0.0)
    gone = 0
    for number, moment in enumerate(moments, 1):
        gate.arrive(number, 1000)
        now = moment / 1000 + 0.0005
        last = gate.release(now)
        if last is not None:
            assert last > gone
            gone = last
            assert now >= gate.free_at or any(
                each.start_microseconds <= now * 1e6 < each.start_microseconds + each.duration_microseconds
                for each in slices)
        assert gate.held_bytes == 1000 * (number - gone)
        if gone < number:
            assert now < gate.next_change(now) <= gate.free_at
    assert gate.release(lease / 1000 + 1) == (None if gone == len(moments) else len(moments))
