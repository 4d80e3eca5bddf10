from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.sim import kernel
from speedwell.sim.state import State, new_state, with_room
from tests.unit.sim.filling import max_min_rates
from tests.unit.sim.reference import simgrid_trace

MBPS = 1e6


def network(capacities: list[float], routes: list[list[int]], flows: int) -> State:
    state = new_state(capacities, len(routes), max(map(len, routes)), flows)
    for number, links in enumerate(routes):
        state.routes["length"][number] = len(links)
        state.route_links[number, : len(links)] = links
    return state


def start(state: State, flow: int, route: int, size_bits: float) -> None:
    kernel.add_flows(state, np.array([flow]), np.array([route]), np.array([float(size_bits)]))


@pytest.mark.parametrize("name", ["simgrid_maxmin_64h_500f_burst.csv", "simgrid_maxmin_64h_2000f_lam0.13.csv"])
def test_every_flow_ends_when_simgrid_says(name: str) -> None:
    state, starts, routes, sizes, expected = simgrid_trace(name)

    ended = kernel.run_trace(state, starts, routes, sizes)

    assert ended == len(starts)
    np.testing.assert_allclose(state.flows["finished"] - starts, expected, rtol=1e-6)


def test_flows_of_one_link_share_it_equally_and_speed_up_when_one_ends() -> None:
    state = network([10 * MBPS], [[0]], 2)
    start(state, 0, 0, 10 * MBPS)
    start(state, 1, 0, 20 * MBPS)

    assert kernel.rate(state, 0) == pytest.approx(5 * MBPS)
    kernel.complete(state, np.inf)
    kernel.complete(state, np.inf)

    assert state.flows["finished"] == pytest.approx([2.0, 3.0])


def test_a_flow_that_is_taken_off_returns_what_it_had_left_and_frees_its_share() -> None:
    state = network([10 * MBPS], [[0]], 2)
    start(state, 0, 0, 10 * MBPS)
    start(state, 1, 0, 20 * MBPS)
    kernel.complete(state, 1.0)

    left_bits = kernel.remove_flow(state, 0)

    assert left_bits == pytest.approx(5 * MBPS)
    assert kernel.rate(state, 1) == pytest.approx(10 * MBPS)
    assert kernel.complete(state, np.inf) == 1
    assert state.flows["finished"][1] == pytest.approx(2.5)


def test_a_failed_link_stops_its_flows_until_it_is_back() -> None:
    state = network([10 * MBPS, 10 * MBPS], [[0], [0, 1]], 2)
    start(state, 0, 0, 100 * MBPS)
    start(state, 1, 1, 100 * MBPS)

    kernel.set_capacity(state, 1, 0.0)
    assert (kernel.rate(state, 0), kernel.rate(state, 1)) == (pytest.approx(10 * MBPS), 0.0)

    kernel.set_capacity(state, 1, 10 * MBPS)
    assert kernel.rate(state, 0) == kernel.rate(state, 1) == pytest.approx(5 * MBPS)


def test_links_count_the_bits_of_ended_running_and_cancelled_flows() -> None:
    state = network([10 * MBPS, 4 * MBPS], [[0], [0, 1]], 3)
    start(state, 0, 0, 6 * MBPS)
    start(state, 1, 1, 40 * MBPS)
    start(state, 2, 1, 40 * MBPS)
    kernel.complete(state, np.inf)
    kernel.complete(state, 2.0)
    kernel.remove_flow(state, 2)
    kernel.complete(state, 3.0)

    bits = np.zeros(2)
    kernel.count_links(state, bits)

    assert bits == pytest.approx([(6 + 4 * 3) * MBPS, 4 * 3 * MBPS])


def test_a_state_keeps_its_flows_when_it_gets_more_room() -> None:
    state = network([10 * MBPS], [[0]], 1)
    start(state, 0, 0, 10 * MBPS)

    state = with_room(state, 3, 2)
    state.routes["length"][2] = 1
    start(state, 1, 2, 10 * MBPS)
    kernel.complete(state, np.inf)

    assert state.flows["finished"][:2] == pytest.approx([2.0, 2.0])


class Case(NamedTuple):
    capacities: list[float]
    routes: list[list[int]]
    steps: list[tuple[int, int]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Few links and whole capacities, so that links tie and hold each other's flows."""
    links = draw(st.integers(1, 7))
    capacities = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0, 12.0]), min_size=links, max_size=links))
    route = st.lists(st.integers(0, links - 1), min_size=1, max_size=4, unique=True)
    routes = draw(st.lists(route, min_size=1, max_size=40))
    steps = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1000)), min_size=1, max_size=60))
    return Case(capacities, routes, steps)


@given(cases())
@settings(max_examples=300, deadline=None)
def test_rates_are_max_min_fair_and_the_next_completion_is_known_after_every_event(case: Case) -> None:
    state = network(case.capacities, case.routes, len(case.steps))
    capacities = list(case.capacities)
    running: dict[int, int] = {}
    for flow, (action, number) in enumerate(case.steps):
        if action < 6 or not running:
            running[flow] = number % len(case.routes)
            start(state, flow, running[flow], 10.0 + number)
        elif action == 6:
            link = number % len(capacities)
            capacities[link] = float(number % 4)
            kernel.set_capacity(state, link, capacities[link])
        elif action == 7:
            gone = sorted(running)[number % len(running)]
            del running[gone]
            kernel.remove_flow(state, gone)
        else:
            kernel.complete(state, state.clock[0] + 30.0)
            running = {flow: route for flow, route in running.items() if np.isnan(state.flows["finished"][flow])}
        rates = [kernel.rate(state, flow) for flow in running]
        expected = max_min_rates(capacities, [case.routes[route] for route in running.values()])
        np.testing.assert_allclose(rates, expected, rtol=1e-7, atol=1e-9)
        ends = [state.clock[0] + kernel.bits_left(state, flow) / rate
                for flow, rate in zip(running, rates, strict=True) if rate > 0]
        assert kernel.next_completion(state) == pytest.approx(min(ends, default=np.inf), rel=1e-9)
