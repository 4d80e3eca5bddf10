"""Shares of a host's link by class."""

import pytest

from speedwell.cluster import host_agents
from speedwell.controller.policy.network.traffic_classes import PRIORITY_QUEUES, SLICES
from speedwell.host_agent.class_shares import IN_ORDER, shares_of
from speedwell.host_agent.errors import InvalidSetting


@pytest.mark.parametrize("slices", ["mincof", "priorities"])
def test_classes_have_of_hosts_links_what_they_have_between_switches(slices: str) -> None:
    made = shares_of(host_agents.shares(slices))
    queues = sorted(SLICES[slices], key=lambda queue: queue.number)
    for queue in queues:
        for other in queues:
            own, others = made[queue.number], made[other.number]
            assert own.share / others.share == pytest.approx(queue.share / other.share)
            assert (own.precedence < others.precedence) == (queue.precedence < other.precedence)


@pytest.mark.parametrize("percents", ["", "30,50,20", "100", "1,1,1,1,1,1,1,93"])
def test_what_is_certain_for_all_is_no_more_than_the_link_and_what_has_no_percents_goes_before(percents: str) -> None:
    made = shares_of(percents)
    given = len(percents.split(",")) if percents else 0
    assert len(made) == len(PRIORITY_QUEUES) and sum(each.share for each in made) <= 1 + 1e-9
    assert made[given:] == IN_ORDER[given:]
    assert all(own.precedence > other.precedence for own in made[:given] for other in made[given:])


@pytest.mark.parametrize("percents", ["30,50", "30,50,20,0", "30,50,twenty", "-30,110,20", "30,,70", "20.5,79.5",
                                      ",".join(["10"] * 8 + ["20"])])
def test_what_is_no_division_of_the_link_is_refused_with_an_example(percents: str) -> None:
    with pytest.raises(InvalidSetting, match="as 30,50,20, not"):
        shares_of(percents)
