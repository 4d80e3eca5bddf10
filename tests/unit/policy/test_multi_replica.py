"""Reading from several replicas at once: Mayflower, section 4.3."""

from random import Random

import pytest

from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.reads.multi_replica import Subflow
from speedwell.controller.policy.reads.selection import Selector
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import three_tier
from tests.unit.policy.networks import network_with

BITS = 90e6


def two_servers(client_bps: float) -> Network:
    """Servers a and b with 10 Mbit/s each, and a client c."""
    network = network_with("s", "a b c", "a-s b-s c-s", 10e6)
    network.set_capacity(("s", "c"), client_bps)
    return network


def parts_of(network: Network, most_parts: int = 2, *busy: str) -> list[Subflow]:
    selector = Selector(network, "mayflower", "mayflower", Random(1))
    for number, host in enumerate(busy):
        selector.flow_added(f"busy {number}", network.shortest_paths(host, "c")[0], BITS, 0.0)
    return selector.select_parts(SelectionRequest("c", (Replica("a"), Replica("b")), BITS), 0.0, most_parts)


def test_two_replicas_are_read_at_once_if_that_gives_more_bandwidth() -> None:
    parts = parts_of(two_servers(client_bps=30e6))

    assert {part.selection.replica.host for part in parts} == {"a", "b"}
    assert [part.size_bits for part in parts] == pytest.approx([BITS / 2, BITS / 2])


def test_one_replica_is_read_if_the_clients_link_is_the_bottleneck() -> None:
    (part,) = parts_of(two_servers(client_bps=10e6))

    assert part.size_bits == BITS
    assert part.selection.estimated_bps == pytest.approx(10e6)


def test_sizes_are_in_proportion_to_bandwidth_so_that_the_parts_end_together() -> None:
    network = two_servers(client_bps=100e6)
    network.set_capacity(("b", "s"), 5e6)

    parts = parts_of(network)

    assert [part.selection.replica.host for part in parts] == ["a", "b"]
    assert [part.size_bits for part in parts] == pytest.approx([60e6, 30e6])
    assert sum(part.size_bits for part in parts) == pytest.approx(BITS)


def test_the_second_subflow_lowers_the_share_of_the_first() -> None:
    parts = parts_of(two_servers(client_bps=15e6))

    assert [part.selection.estimated_bps for part in parts] == pytest.approx([7.5e6, 7.5e6])


def test_more_parts_than_allowed_or_than_replicas_are_never_made() -> None:
    assert len(parts_of(two_servers(client_bps=100e6), 1)) == 1
    assert len(parts_of(two_servers(client_bps=100e6), 5)) == 2


@pytest.mark.parametrize("most_parts", [2, 3])
def test_a_decision_leaves_no_trace_in_the_model(most_parts: int) -> None:
    network = network_of(three_tier(pods=2, racks_per_pod=2, hosts_per_rack=4, host_bps=10e6))
    chance = Random(3)
    selector = Selector(network, "mayflower", "mayflower", chance)
    hosts = sorted(network.hosts)
    for number in range(60):
        client, *holders = chance.sample(hosts, 4)
        request = SelectionRequest(client, tuple(map(Replica, holders)), BITS)
        if number % 10 == 9:
            for link in sorted(network.links):
                selector.link_measured(link, chance.random() * 10e6, number)
        before = state(selector, network)
        parts = selector.select_parts(request, number, most_parts)
        assert state(selector, network) == before
        for index, part in enumerate(parts):
            selector.flow_added(f"{number}.{index}", part.selection.path, part.size_bits, number)


def state(selector: Selector, network: Network) -> object:
    flows = [(flow.flow_id, flow.bandwidth_bps, flow.remaining_bits, flow.settled_at, flow.frozen, flow.frozen_until)
             for flow in selector.flows()]
    return flows, [selector.background_bps(link) for link in sorted(network.links)]


def test_a_read_is_not_divided_for_the_few_bits_that_an_idle_link_carries() -> None:
    network = network_with("leaf0 leaf1 spine", "near far other c",
                           "near-leaf0 other-leaf0 c-leaf0 far-leaf1 leaf0-spine leaf1-spine", 40e6)
    selector = Selector(network, "mayflower", "mayflower", Random(1))
    for link, rate_bps in {("near", "leaf0"): 39e6, ("leaf0", "other"): 39e6, ("leaf1", "spine"): 304.0}.items():
        selector.link_measured(link, rate_bps, 0.0)

    (part,) = selector.select_parts(SelectionRequest("c", (Replica("near"), Replica("far")), BITS), 0.5, 2)

    assert part.selection.replica.host == "far"
