"""Max-min shares: against bisection, and by the properties that define them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.controller.policy.network.maxmin import global_shares
from speedwell.controller.policy.reads import progressive_filling
from tests.unit.policy.plain_shares import max_min_shares
from tests.unit.sim.filling import max_min_rates

capacities = st.floats(1, 1e10)
demands = st.lists(st.one_of(st.floats(0, 1e10), st.just(math.inf)), max_size=12)


def shares_by_bisection(capacity_bps: float, demands_bps: list[float]) -> list[float]:
    low, high = 0.0, capacity_bps
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if sum(min(d, level) for d in demands_bps) < capacity_bps else (low, level)
    return [min(demand, high) for demand in demands_bps]


@given(capacities, demands)
def test_shares_agree_with_bisection(capacity_bps: float, demands_bps: list[float]) -> None:
    expected = shares_by_bisection(capacity_bps, demands_bps)
    assert max_min_shares(capacity_bps, demands_bps) == pytest.approx(expected, rel=1e-9, abs=capacity_bps * 1e-9)


@given(capacities, demands)
def test_shares_fit_are_wanted_equal_where_short_and_waste_nothing(
    capacity_bps: float, demands_bps: list[float]
) -> None:
    shares = max_min_shares(capacity_bps, demands_bps)
    assert sum(shares) <= capacity_bps * (1 + 1e-9)
    assert all(share <= demand for share, demand in zip(shares, demands_bps, strict=True))
    unsatisfied = [share for share, demand in zip(shares, demands_bps, strict=True) if share < demand]
    if unsatisfied:
        assert max(unsatisfied) == min(unsatisfied) == max(shares)
        assert sum(shares) == pytest.approx(capacity_bps)


def raised_shares(shares_bps: list[float], paths: list[tuple[int, ...]], spare_bps: dict[int, float]) -> list[float]:
    crossed = np.full((len(paths), len(spare_bps) + 1), -1, np.int64)
    for flow, links in enumerate(paths):
        crossed[flow, :len(links)] = links
    raised = progressive_filling.raised(np.array(shares_bps), np.array(list(spare_bps.values())), crossed)
    return [float(share) for share in raised]


@st.composite
def loaded_links(draw: st.DrawFn) -> tuple[list[float], list[tuple[int, ...]], dict[int, float]]:
    links = range(draw(st.integers(1, 5)))
    spare_bps = {link: draw(st.one_of(st.just(0.0), st.floats(1, 1e9))) for link in links}
    paths = draw(st.lists(st.lists(st.sampled_from(links), min_size=1, unique=True).map(tuple), max_size=8))
    shares_bps = draw(st.lists(st.floats(0, 1e9), min_size=len(paths), max_size=len(paths)))
    return shares_bps, paths, spare_bps


@given(loaded_links())
def test_spare_capacity_is_divided_by_max_min_and_nobody_loses(
    case: tuple[list[float], list[tuple[int, ...]], dict[int, float]],
) -> None:
    before, paths, spare_bps = case
    after = raised_shares(before, paths, dict(spare_bps))
    gains = [new - old for new, old in zip(after, before, strict=True)]
    assert min(gains, default=0) >= 0
    margin = 1e-6 * (1 + max([*before, *spare_bps.values()]))
    left_bps = {
        link: spare - sum(gain for gain, path in zip(gains, paths, strict=True) if link in path)
        for link, spare in spare_bps.items()
    }
    assert min(left_bps.values()) >= -margin
    for flow, path in enumerate(paths):
        # The definition of max-min: each flow has a full link on which nobody was raised above it.
        assert any(
            left_bps[link] <= margin
            and all(
                after[other] <= after[flow] + margin
                for other, other_path in enumerate(paths)
                if link in other_path and gains[other] > margin
            )
            for link in path
        )


def test_the_smallest_share_is_raised_first() -> None:
    assert raised_shares([1.0, 4.0, 9.0], [(0,), (0,), (0,)], {0: 5.0}) == pytest.approx([5.0, 5.0, 9.0])


def test_a_flow_held_elsewhere_leaves_the_spare_capacity_to_others() -> None:
    assert raised_shares([2.0, 2.0], [(0, 1), (0,)], {0: 6.0, 1: 1.0}) == pytest.approx([3.0, 7.0])


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[float], list[list[int]], dict[int, float]]:
    capacities_bps = draw(st.lists(st.floats(1e3, 1e9), min_size=1, max_size=8))
    links = st.integers(0, len(capacities_bps) - 1)
    routes = draw(st.lists(st.lists(links, min_size=1, max_size=4, unique=True), max_size=12))
    return capacities_bps, routes, draw(st.dictionaries(links, st.floats(1e3, 1e9), max_size=4))


@given(networks())
def test_shares_of_a_whole_network_agree_with_plain_filling(
    network: tuple[list[float], list[list[int]], dict[int, float]]
) -> None:
    """A background flow is one that crosses its link and another one of its own, as wide as its demand."""
    capacities_bps, routes, background_bps = network
    plain_capacities = capacities_bps + list(background_bps.values())
    plain_routes = routes + [[link, len(capacities_bps) + i] for i, link in enumerate(background_bps)]
    expected = max_min_rates(plain_capacities, plain_routes)[: len(routes)]

    shares = global_shares([tuple(route) for route in routes], capacities_bps, background_bps)

    assert shares == pytest.approx(list(expected), rel=1e-6)


def test_a_flow_without_links_has_all_it_wants() -> None:
    assert global_shares([(), (0,)], [5.0], {}) == [math.inf, 5.0]
