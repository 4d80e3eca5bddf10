"""The baselines that know little: HDFS's rack awareness and the power of two choices."""

from random import Random

import pytest

from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.reads.selection import Selector
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import three_tier

CLIENT = "p0r0h0"
SAME_RACK, SAME_POD, OTHER_POD = Replica("p0r0h1"), Replica("p0r1h0"), Replica("p1r0h0")


@pytest.fixture
def network() -> Network:
    return network_of(three_tier(pods=2, racks_per_pod=2, hosts_per_rack=4, host_bps=10e6))


def chosen(selector: Selector, *replicas: Replica, reads: int = 60) -> set[str]:
    return {selector.select(SelectionRequest(CLIENT, replicas, 8e6), 0.0).replica.host for _ in range(reads)}


def test_hdfs_reads_from_the_clients_rack_whatever_the_load(network: Network) -> None:
    selector = Selector(network, "hdfs", "ecmp", Random(1))
    selector.link_measured((SAME_RACK.host, "edge-p0r0"), 10e6, 1.0)

    assert chosen(selector, OTHER_POD, SAME_RACK, SAME_POD) == {SAME_RACK.host}


def test_hdfs_knows_no_pods(network: Network) -> None:
    selector = Selector(network, "hdfs", "ecmp", Random(1))

    assert chosen(selector, SAME_POD, OTHER_POD) == {SAME_POD.host, OTHER_POD.host}


def test_power_of_two_choices_never_takes_the_busiest_of_three(network: Network) -> None:
    selector = Selector(network, "power-of-two-choices", "ecmp", Random(1))
    for number, replica in enumerate((SAME_RACK, SAME_RACK, SAME_POD)):
        path = network.shortest_paths(replica.host, CLIENT)[0]
        selector.flow_added(str(number), path, 8e6, 0.0)

    assert chosen(selector, SAME_RACK, SAME_POD, OTHER_POD) == {SAME_POD.host, OTHER_POD.host}


def test_power_of_two_choices_takes_an_only_replica(network: Network) -> None:
    assert chosen(Selector(network, "power-of-two-choices", "ecmp", Random(1)), SAME_POD) == {SAME_POD.host}
