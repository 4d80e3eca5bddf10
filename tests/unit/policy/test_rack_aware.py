"""Rack-aware placement: the filesystem's own rule and HDFS's, at random within them."""

from random import Random

import pytest

from speedwell.controller.policy.errors import ImpossiblePlacement
from speedwell.controller.policy.placements.rack_aware import HdfsPlacement, RackAware
from speedwell.controller.policy.placements.request import Candidate, PlacementRequest
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import three_tier

FABRIC = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=3)
CANDIDATES = tuple(Candidate(host.name, host.rack, host.pod) for host in FABRIC.hosts)


def test_the_first_is_the_writers_own_the_second_in_its_rack_the_third_in_any_other() -> None:
    policy = RackAware(network_of(FABRIC), Random(1))
    thirds = set()
    for number in range(100):
        first, second, third = (FABRIC.host(one.host) for one in policy.place(
            number, PlacementRequest("p0r1h0", 8e6, CANDIDATES), 0.0).destinations)
        assert first.name == "p0r1h0" and second.rack == "p0r1" != third.rack
        thirds.add(third.name)
    assert len(thirds) == 9


def test_constraints_hold_and_impossible_ones_are_refused() -> None:
    policy = RackAware(network_of(FABRIC), Random(1))
    placed = policy.place(1, PlacementRequest("p0r1h0", 8e6, CANDIDATES, least_racks=3, least_pods=2), 0.0)
    hosts = [FABRIC.host(one.host) for one in placed.destinations]
    assert len({host.rack for host in hosts}) == 3 and len({host.pod for host in hosts}) == 2
    with pytest.raises(ImpossiblePlacement, match="pods"):
        policy.place(2, PlacementRequest("p0r1h0", 8e6, CANDIDATES[:6], least_pods=2), 0.0)
    assert policy.reserved(0.0) == 0


def test_by_hdfs_the_second_is_in_another_rack_and_the_third_beside_it() -> None:
    policy = HdfsPlacement(network_of(FABRIC), Random(1))
    for number in range(50):
        first, second, third, fourth = (FABRIC.host(one.host) for one in policy.place(
            number, PlacementRequest("p0r1h0", 8e6, CANDIDATES, replicas=4), 0.0).destinations)
        assert first.name == "p0r1h0" and second.rack == third.rack != "p0r1"
        assert fourth not in (first, second, third)
