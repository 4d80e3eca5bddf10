"""Rates of coflows in order: strictly one before the next, and all that anybody can use."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.controller.policy.coflows import checked_kernels as kernels
from speedwell.controller.policy.coflows.coflow_kernels import Reals

PORTS = 6
FLOW = st.tuples(st.integers(0, 2), st.integers(3, PORTS - 1), st.integers(0, 9))
COFLOWS = st.lists(st.lists(FLOW, min_size=1, max_size=5), min_size=1, max_size=5)
Flows = list[tuple[int, int, int]]


def filled(coflows: list[Flows]) -> Reals:
    """The rates of all flows, (from port, to port, what is left), on ports of 1."""
    flows = [flow for own in coflows for flow in own]
    count = np.array([len(own) for own in coflows])
    links, left = np.array([flow[:2] for flow in flows]), np.array([flow[2] for flow in flows], float)
    rates, load = np.zeros(len(flows)), np.zeros(PORTS)
    kernels.fill(np.arange(len(coflows)), np.cumsum(count) - count, count, np.arange(len(flows)), links, left,
                 np.ones(PORTS), np.ones(PORTS), load, rates)
    assert not load.any()
    return rates


def test_flows_rise_in_proportion_and_go_on_where_others_have_filled_a_link() -> None:
    """8 into port 3, 2 into port 4, each from the same two: at MADD's rates port 3 is full, then port 4 fills."""
    first, second = [(0, 3, 4), (1, 3, 4), (0, 4, 1), (1, 4, 1)], [(2, 4, 9), (2, 5, 3)]

    assert filled([first, second]).tolist() == pytest.approx([0.5, 0.5, 0.5, 0.5, 0, 1])
    assert filled([[(0, 3, 3), (0, 4, 1)]]).tolist() == pytest.approx([0.75, 0.25])


@given(COFLOWS)
def test_links_are_not_overfull_and_nothing_that_a_flow_could_use_is_free(coflows: list[Flows]) -> None:
    flows, rates = [flow for own in coflows for flow in own], filled(coflows)
    used = np.zeros(PORTS)
    for (source, destination, _), rate in zip(flows, rates, strict=True):
        used[[source, destination]] += rate

    assert (rates >= 0).all()
    assert (used <= 1 + 1e-9).all()
    for source, destination, left in flows:
        assert left == 0 or max(used[source], used[destination]) == pytest.approx(1)


@given(COFLOWS)
def test_later_coflows_take_nothing_from_earlier_ones(coflows: list[Flows]) -> None:
    assert filled(coflows)[: len(coflows[0])].tolist() == pytest.approx(filled(coflows[:1]).tolist())
