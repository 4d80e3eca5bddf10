"""Flows' classes follow their priorities, and none rises while others are told apart."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from speedwell.controller.policy.coflows.steady_classes import FEW, LAST, steady_classes


def in_order(order: Sequence[object], before: dict[object, int]) -> dict[object, int]:
    """With priorities by place, as policies give them to coflows."""
    return steady_classes({each: min(place, LAST) for place, each in enumerate(order)}, before)


def test_without_a_past_classes_are_the_priorities() -> None:
    assert list(in_order(range(9), {}).values()) == [0, 1, 2, 3, 4, 5, 6, LAST, LAST]
    assert steady_classes({"a": 3, "b": 3, "c": LAST}, {}) == {"a": 3, "b": 3, "c": LAST}


def test_who_comes_next_keeps_its_class_when_the_first_has_ended() -> None:
    assert in_order("bcde", dict(zip("abcde", range(5), strict=True))) == {"b": 1, "c": 2, "d": 3, "e": 4}


def test_who_is_overtaken_falls_no_further_than_it_must() -> None:
    before: dict[object, int] = {"a": 0, "b": 1, "c": 4, "d": 5}
    assert in_order("nabcd", before) == {"n": 0, "a": 1, "b": 2, "c": 4, "d": 5}
    assert in_order("bacd", before) == {"b": 1, "a": 2, "c": 4, "d": 5}


def test_flows_of_one_priority_share_the_class_of_the_one_that_had_the_worst() -> None:
    assert steady_classes({"a": 0, "b": 0, "c": 1}, {"a": 2, "b": 3}) == {"a": 3, "b": 3, "c": 4}


def test_all_rise_once_too_few_have_a_class_of_their_own() -> None:
    before = dict(zip("cdefgh", (3, 4, 5, 6, LAST, LAST), strict=True))
    assert in_order("cdefgh", before) == before                 # type: ignore[arg-type]
    assert in_order("defgh", before) == {"d": 0, "e": 1, "f": 2, "g": 3, "h": 4}    # type: ignore[arg-type]
    assert in_order("h", before) == {"h": 0}                    # type: ignore[arg-type]


@given(st.lists(st.permutations(range(12)).flatmap(lambda order: st.integers(0, 12).map(lambda n: order[:n])),
                max_size=8))
def test_classes_follow_every_order_and_rise_only_for_want_of_classes(orders: list[list[int]]) -> None:
    before: dict[object, int] = {}
    for order in orders:
        now = in_order(order, before)
        assert [*now] == order
        assert all(one < other or one == other == LAST for one, other in pairwise(now.values()))
        assert sum(each < LAST for each in now.values()) >= min(FEW, len(order))
        fallen = {}
        worst = -1
        for flow in order:
            worst = fallen[flow] = min(max(before.get(flow, 0), worst + 1), LAST)
        if any(now[flow] < before[flow] for flow in order if flow in before):
            assert sum(each < LAST for each in fallen.values()) < FEW
        before = now
