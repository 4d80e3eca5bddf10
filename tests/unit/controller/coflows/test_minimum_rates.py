"""Flows that wait keep a little of their host's link, and all of them together no more than the starved may have."""

from __future__ import annotations

import pytest

from speedwell.controller.coflows.minimum_rates import with_minimum_rates
from speedwell.controller.policy.coflows.coflow import Assignment, ServiceClass
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Network

LINK_BPS, LEAST_BPS = 20e6, 64e3


@pytest.fixture(name="network")
def _network() -> Network:
    network = Network()
    network.add_switch("s")
    for host in "abc":
        network.add_host(host)
        network.add_link(host, "s", LINK_BPS)
        network.add_link("s", host, LINK_BPS)
    return network


def assignments(count: int, rate_bps: float | None, target: str = "b", source: str = "a",
                service_class: ServiceClass = ServiceClass.BEST_EFFORT) -> dict[FiveTuple, Assignment]:
    flows = [FiveTuple(source, target, 6, 5000 + number, 6000) for number in range(count)]
    return {flow: Assignment(flow, "coflow", None, rate_bps, service_class, None) for flow in flows}


@pytest.mark.parametrize("rate_bps", [None, LEAST_BPS, 5e6])
def test_other_rates_stay(network: Network, rate_bps: float | None) -> None:
    given = assignments(100, rate_bps)
    assert with_minimum_rates(given, network, LEAST_BPS) == given


def test_a_flow_that_waits_keeps_what_tcp_needs_and_is_of_the_starved(network: Network) -> None:
    (found,) = with_minimum_rates(assignments(1, 0.0), network, LEAST_BPS).values()
    assert (found.rate_bps, found.service_class) == (LEAST_BPS, ServiceClass.STARVED)


def test_a_scheduled_flow_with_a_rate_for_almost_nothing_stays_scheduled(network: Network) -> None:
    before = assignments(1, 10.0, service_class=ServiceClass.SCHEDULED)
    (found,) = with_minimum_rates(before, network, LEAST_BPS).values()
    assert (found.rate_bps, found.service_class) == (LEAST_BPS, ServiceClass.SCHEDULED)


@pytest.mark.parametrize("target", ["b", "c"])
def test_however_many_wait_they_take_no_more_of_a_link_than_the_starved_may(network: Network, target: str) -> None:
    waiting = assignments(400, 0.0) | assignments(100, 0.0, target, source="c" if target == "b" else "a")
    rates = {flow: found.rate_bps or 0.0 for flow, found in with_minimum_rates(waiting, network, LEAST_BPS).items()}
    for end in ("source", "destination"):
        for host in "abc":
            assert sum(rate for flow, rate in rates.items() if getattr(flow, end) == host) <= 0.2 * LINK_BPS * 1.001
    assert all(rate > 0 for rate in rates.values())


def test_a_flow_never_gets_less_than_its_own_rate(network: Network) -> None:
    given = assignments(1000, 60e3)
    assert all(found.rate_bps == 60e3 for found in with_minimum_rates(given, network, LEAST_BPS).values())


def test_a_flow_without_a_path_keeps_what_tcp_needs(network: Network) -> None:
    network.remove_node("s")
    given = with_minimum_rates(assignments(3, 0.0), network, LEAST_BPS)
    assert [found.rate_bps for found in given.values()] == [LEAST_BPS] * 3
