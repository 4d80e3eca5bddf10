"""Rates under queues: by hand, and against progressive filling as the textbook has it."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.sim.class_shares import class_rates, ranked_rates
from tests.unit.sim.filling import max_min_rates

INFINITE = float("inf")
SHARES = (0.5, 0.2, 0.3)
LINKS = 6

routes = st.lists(st.lists(st.integers(0, LINKS - 1), min_size=1, max_size=4, unique=True), min_size=1, max_size=25)
capacities = st.lists(st.floats(1, 100), min_size=LINKS, max_size=LINKS)
caps = st.lists(st.one_of(st.just(INFINITE), st.floats(0.1, 50)), min_size=25, max_size=25)
classes = st.lists(st.integers(0, 2), min_size=25, max_size=25)


def table(of: Sequence[Sequence[int]]) -> np.ndarray:
    links = np.full((len(of), 5), -1, np.int64)
    for row, route in enumerate(of):
        links[row, : len(route)] = route
    return links


def shares(routes: Sequence[Sequence[int]], caps: Sequence[float], classes: Sequence[int],
           capacities: Sequence[float], sliced: bool) -> np.ndarray:
    rates = np.zeros(len(routes))
    class_rates(table(routes), np.array(caps[: len(routes)]), np.array(classes[: len(routes)]), np.array(capacities),
                np.full(len(capacities), sliced), np.array(SHARES), rates)
    return rates


def ranked(routes: Sequence[Sequence[int]], caps: Sequence[float], ranks: Sequence[int],
           capacities: Sequence[float], by_rank: Sequence[bool], floor: float = 0.0) -> np.ndarray:
    rates = np.zeros(len(routes))
    ranked_rates(table(routes), np.array(caps[: len(routes)]), np.array(ranks[: len(routes)]), np.array(capacities),
                 np.array(by_rank), floor, rates)
    return rates


def textbook(routes: Sequence[Sequence[int]], caps: Sequence[float], capacities: Sequence[float]) -> np.ndarray:
    """A meter is a link of the flow's own."""
    metered = [flow for flow in range(len(routes)) if caps[flow] < INFINITE]
    own = {flow: len(capacities) + number for number, flow in enumerate(metered)}
    return max_min_rates([*capacities, *(caps[flow] for flow in metered)],
                         [[*route, own[flow]] if flow in own else list(route) for flow, route in enumerate(routes)])


def used(routes: Sequence[Sequence[int]], rates: np.ndarray) -> np.ndarray:
    on = np.zeros(LINKS)
    for route, rate in zip(routes, rates, strict=True):
        on[route] += rate
    return on


def require_sound(routes: Sequence[Sequence[int]], caps: Sequence[float], capacities: Sequence[float],
                  rates: np.ndarray) -> None:
    """No link carries more than it can, and every flow has all that its meter or a full link lets it have."""
    on = used(routes, rates)
    assert (on <= np.array(capacities) * (1 + 1e-6)).all()
    for flow, route in enumerate(routes):
        assert rates[flow] >= caps[flow] * (1 - 1e-6) or any(on[link] >= capacities[link] * (1 - 1e-6)
                                                            for link in route)


def test_classes_have_their_parts_and_flows_of_a_class_share_it() -> None:
    assert shares([[0]] * 4, [INFINITE] * 4, [0, 1, 2, 2], [10.0], True).tolist() == pytest.approx([5, 2, 1.5, 1.5])


@given(st.lists(st.tuples(st.integers(0, 2), st.one_of(st.just(INFINITE), st.floats(0.1, 5))), min_size=1,
                max_size=9))
def test_what_a_class_leaves_of_a_link_goes_to_the_others_by_their_weights(flows: list[tuple[int, float]]) -> None:
    """The oracle gives the class that wants least for its weight what it wants, and goes on with the others."""
    wants = {number: [cap for own, cap in flows if own == number] for number, _ in flows}
    expected: dict[int, np.ndarray] = {}
    left, weight = 10.0, sum(SHARES[number] for number in wants)
    for number in sorted(wants, key=lambda number: sum(wants[number]) / SHARES[number]):
        part = min(left * SHARES[number] / weight, sum(wants[number]))
        expected[number] = textbook([[0]] * len(wants[number]), wants[number], [part])
        left, weight = left - part, weight - SHARES[number]
    rates = shares([[0]] * len(flows), [cap for _, cap in flows], [number for number, _ in flows], [10.0], True)

    for number in wants:
        own = [rate for rate, (other, _) in zip(rates, flows, strict=True) if other == number]
        assert own == pytest.approx(expected[number].tolist())


@settings(deadline=None)
@given(routes, caps, classes, capacities)
def test_links_without_queues_are_shared_as_the_textbook_has_it(
        routes: list[list[int]], caps: list[float], classes: list[int], capacities: list[float]) -> None:
    expected = pytest.approx(textbook(routes, caps, capacities).tolist(), rel=1e-6)

    assert shares(routes, caps, classes, capacities, False).tolist() == expected
    assert ranked(routes, caps, classes, capacities, [False] * LINKS).tolist() == expected


@settings(deadline=None)
@given(routes, caps, classes, capacities)
def test_the_slowest_flow_of_a_class_is_no_slower_than_with_its_parts_of_the_links_alone(
        routes: list[list[int]], caps: list[float], classes: list[int], capacities: list[float]) -> None:
    rates = shares(routes, caps, classes, capacities, True)
    require_sound(routes, caps, capacities, rates)

    for number in set(classes[: len(routes)]):
        own = [flow for flow in range(len(routes)) if classes[flow] == number]
        alone = textbook([routes[flow] for flow in own], [caps[flow] for flow in own],
                         [capacity * SHARES[number] for capacity in capacities])
        assert rates[own].min() >= alone.min() * (1 - 1e-6)


@settings(deadline=None)
@given(routes, caps, classes, capacities)
def test_each_rank_has_what_the_textbook_gives_it_of_what_those_before_it_leave(
        routes: list[list[int]], caps: list[float], ranks: list[int], capacities: list[float]) -> None:
    rates = ranked(routes, caps, ranks, capacities, [True] * LINKS)

    left = np.array(capacities)
    for rank in sorted(set(ranks[: len(routes)])):
        own = [flow for flow in range(len(routes)) if ranks[flow] == rank]
        expected = textbook([routes[flow] for flow in own], [caps[flow] for flow in own], left.tolist())
        assert rates[own].tolist() == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-6)
        left = np.maximum(left - used([routes[flow] for flow in own], expected), 0.0)


@settings(deadline=None)
@given(routes, caps, classes, capacities, st.lists(st.booleans(), min_size=LINKS, max_size=LINKS),
       st.sampled_from([0.0, 0.02]))
def test_ranks_on_some_links_overfill_none_and_waste_nothing(
        routes: list[list[int]], caps: list[float], ranks: list[int], capacities: list[float],
        by_rank: list[bool], floor: float) -> None:
    require_sound(routes, caps, capacities, ranked(routes, caps, ranks, capacities, by_rank, floor))


@settings(deadline=None)
@given(routes, classes, capacities)
def test_each_rank_has_its_floor_of_every_link_for_certain(
        routes: list[list[int]], ranks: list[int], capacities: list[float]) -> None:
    rates = ranked(routes, [INFINITE] * 25, ranks, capacities, [True] * LINKS, 0.02)

    for number in set(ranks[: len(routes)]):
        own = [flow for flow in range(len(routes)) if ranks[flow] == number]
        alone = textbook([routes[flow] for flow in own], [INFINITE] * len(own),
                         [capacity * 0.02 for capacity in capacities])
        assert rates[own].min() >= alone.min() * (1 - 1e-6)


def test_a_floor_is_kept_for_flows_that_are_there_and_left_where_they_cannot_use_it() -> None:
    alone = ranked([[0]], [INFINITE], [0], [10.0], [True], 0.02)
    both = ranked([[0], [0], [0]], [INFINITE] * 3, [0, 1, 2], [10.0], [True], 0.02)
    slow = ranked([[0], [0]], [INFINITE, 0.05], [0, 1], [10.0], [True], 0.02)

    assert alone.tolist() == pytest.approx([10])
    assert both.tolist() == pytest.approx([9.6, 0.2, 0.2])
    assert slow.tolist() == pytest.approx([9.95, 0.05])


def test_a_hosts_own_link_knows_no_rank() -> None:
    """Flows 0 and 1 leave by link 0, which is fair, and 1 meets 2 of a better rank on link 1."""
    both = ranked([[0], [0, 1], [1]], [INFINITE] * 3, [0, 1, 0], [10.0, 10.0], [False, True])
    alike = ranked([[0], [0, 1]], [INFINITE] * 2, [0, 1], [10.0, 10.0], [False, True])

    assert both.tolist() == pytest.approx([10, 0, 10])
    assert alike.tolist() == pytest.approx([5, 5])
