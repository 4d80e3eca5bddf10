"""sinbad-plus: whole chains at exact shares, told apart by what they cost all writes; its expectations end."""

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.policy.errors import ImpossiblePlacement, InvalidMeasurement
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.network.maxmin import global_shares
from speedwell.controller.policy.placements.chain_kernels import fill
from speedwell.controller.policy.placements.chain_shares import MOST_TOLD, ChainShares
from speedwell.controller.policy.placements.request import Candidate, KnownFlow, PlacementRequest
from speedwell.controller.policy.placements.sinbad import MeasuredBy
from speedwell.controller.policy.placements.sinbad_plus import SinbadPlus
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import Fabric, three_tier

RATE_BPS = 10e6
SIZE_BITS = 8e6


@pytest.fixture
def fabric() -> Fabric:
    """2 pods of 2 racks of 4 hosts at 10 Mbit/s; a rack's links have 20, a pod's 10 Mbit/s in all."""
    return three_tier(pods=2, racks_per_pod=2, hosts_per_rack=4, host_bps=RATE_BPS)


@pytest.fixture
def network(fabric: Fabric) -> Network:
    return network_of(fabric)


def candidates_of(fabric: Fabric, disk_bps: float = math.inf) -> tuple[Candidate, ...]:
    return tuple(Candidate(host.name, host.rack, host.pod or "", disk_bps=disk_bps) for host in fabric.hosts)


def hosts_of(policy: SinbadPlus, name: object, request: PlacementRequest, now: float = 0.0) -> list[str]:
    return [destination.host for destination in policy.place(name, request, now).destinations]


def test_two_writes_share_a_link_equally_until_one_is_through(network: Network) -> None:
    shares = ChainShares(network)
    shares.carry_until(0.0)
    for name, size_bits in (("short", 5e6), ("long", 10e6)):
        shares.added(name, shares.places(["p0r0h0", "p0r0h1"], [math.inf]), size_bits)
    shares.carry_until(1.1)
    assert len(shares) == 1
    assert shares.spare_bps(shares.places(["p0r0h0", "p0r0h2"], [math.inf])) == pytest.approx(5e6)
    shares.carry_until(1.6)
    assert len(shares) == 0


def test_what_writes_carry_is_not_counted_as_other_traffic(network: Network) -> None:
    shares = ChainShares(network)
    link = ("edge-p0r0", "p0r0h1")
    shares.link_measured(link, 0.0, 0.0)
    shares.added("write", shares.places(["p0r0h0", "p0r0h1"], [math.inf]), 100e6)
    for second in range(1, 4):
        shares.link_measured(link, RATE_BPS, float(second))
    shares.ended("write")
    assert shares.spare_bps(shares.way_down("p0r0h1", math.inf)) == pytest.approx(RATE_BPS)


def test_the_cost_counts_what_is_taken_from_others(network: Network) -> None:
    shares = ChainShares(network)
    shares.carry_until(0.0)
    shares.added("running", shares.places(["p0r0h0", "p0r0h1"], [math.inf]), 20e6)
    alone = shares.places(["p0r1h0", "p0r1h1"], [math.inf])
    beside = shares.places(["p0r0h2", "p0r0h1"], [math.inf])
    assert shares.added_seconds([alone, beside], 10e6) == pytest.approx([1.0, 2.0 + 2.0])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_chains_have_exactly_their_max_min_shares(data: st.DataObject) -> None:
    number = data.draw(st.integers(1, 8))
    left_bps = np.array(data.draw(st.lists(st.floats(1.0, 100.0), min_size=number, max_size=number)))
    routes = data.draw(st.lists(st.lists(st.integers(0, number - 1), max_size=6), min_size=1, max_size=20))
    rows = np.full((len(routes), 7), -1)
    for row, route in zip(rows, routes, strict=True):
        row[:len(route)] = route
    rates_bps = np.zeros(len(routes))
    fill(rows, left_bps, rates_bps)
    exact_bps = global_shares([tuple(route) for route in routes], left_bps.tolist(), {})
    assert rates_bps.tolist() == pytest.approx(exact_bps)


def test_a_chain_avoids_busy_links_and_the_disks_that_writes_use(fabric: Fabric, network: Network) -> None:
    policy = SinbadPlus(network, Random(1))
    for switch in ("aggregation-p0-0", "aggregation-p0-1"):
        policy.link_measured((switch, "edge-p0r1"), RATE_BPS, 0.0)
    request = PlacementRequest("p0r0h0", SIZE_BITS, candidates_of(fabric, 2.5e6), replicas=2)
    taken = [hosts_of(policy, number, request) for number in range(3)]
    assert len({host for hosts in taken for host in hosts}) == 6, "a disk is used twice"
    assert not any(fabric.host(host).rack == "p0r1" for hosts in taken for host in hosts)


def test_the_first_replica_is_the_writers_own_where_its_disk_is_free(fabric: Fabric, network: Network) -> None:
    policy = SinbadPlus(network, Random(1))
    request = PlacementRequest("p1r0h2", SIZE_BITS, candidates_of(fabric, 2e6))
    assert hosts_of(policy, "file", request)[0] == "p1r0h2"


def test_of_several_hosts_that_could_send_the_one_with_a_free_way_up_does(fabric: Fabric, network: Network) -> None:
    policy = SinbadPlus(network, Random(1))
    policy.link_measured(("p0r0h0", "edge-p0r0"), RATE_BPS, 0.0)
    elsewhere = tuple(candidate for candidate in candidates_of(fabric) if candidate.host not in ("p0r0h0", "p0r0h1"))
    request = PlacementRequest("p0r0h0", SIZE_BITS, elsewhere, 1, 1, sources=("p0r0h0", "p0r0h1"))
    assert policy.place("copy", request, 0.0).source == "p0r0h1"


def test_a_file_that_will_be_read_goes_where_the_way_up_is_free(fabric: Fabric, network: Network) -> None:
    policy = SinbadPlus(network, Random(1))
    for host in fabric.hosts:
        if host.name != "p1r1h3":
            policy.link_measured((host.name, f"edge-{host.rack}"), 0.8 * RATE_BPS, 0.0)
    one = candidates_of(fabric)[8:]
    request = PlacementRequest("p0r0h0", SIZE_BITS, one, 1, 1, expected_reads=10)
    assert hosts_of(policy, "read", request) == ["p1r1h3"]
    unread = {tuple(hosts_of(SinbadPlus(network, Random(seed)), "unread", replace(request, expected_reads=0.0)))
              for seed in range(12)}
    assert len(unread) > 1


def test_the_heartbeats_of_hosts_stand_for_the_links_above_them(fabric: Fabric, network: Network) -> None:
    policy = SinbadPlus(network, Random(1), MeasuredBy.HOSTS)
    for host in fabric.hosts:
        if host.rack == "p0r1" and host.name != "p0r1h0":
            policy.link_measured((f"edge-{host.rack}", host.name), 0.66 * RATE_BPS, 0.0)
    policy.link_measured(("aggregation-p0-0", "edge-p0r1"), 0.0, 0.0)
    request = PlacementRequest("p0r0h0", SIZE_BITS, candidates_of(fabric)[:8], 2)
    assert fabric.host(hosts_of(policy, "file", request)[1]).rack == "p0r1", "the only other rack of this pod"
    outside = PlacementRequest("p0r0h0", SIZE_BITS, candidates_of(fabric), 2)
    assert fabric.host(hosts_of(policy, "other", outside)[1]).pod == "p1", "p0r1h0 is idle, but its rack is busy"


def test_measurements_from_the_past_or_of_no_link_change_nothing(network: Network) -> None:
    policy = SinbadPlus(network, Random(1))
    link = ("edge-p0r0", "p0r0h1")
    assert policy.link_measured(link, 1e6, 5.0)
    assert not policy.link_measured(link, 9e6, 4.0)
    assert not policy.link_measured(("p0r0h0", "p0r0h1"), 1e6, 5.0)
    for absurd in (-1.0, math.inf, math.nan):
        with pytest.raises(InvalidMeasurement):
            policy.link_measured(link, absurd, 6.0)


def test_impossible_constraints_are_refused_and_nothing_is_expected(fabric: Fabric, network: Network) -> None:
    policy = SinbadPlus(network, Random(1))
    with pytest.raises(ImpossiblePlacement, match="racks"):
        policy.place("file", PlacementRequest("p0r0h0", SIZE_BITS, candidates_of(fabric)[:4]), 0.0)
    assert policy.reserved(0.0) == 0


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_whatever_is_measured_and_placed_constraints_hold_and_expectations_end(data: st.DataObject) -> None:
    fabric = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, host_bps=RATE_BPS)
    network = network_of(fabric)
    policy = SinbadPlus(network, Random(data.draw(st.integers(0, 2**32))))
    links = sorted(network.links)
    now = 0.0
    for number in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.floats(0, 5))
        for link in data.draw(st.lists(st.sampled_from(links), max_size=4)):
            policy.link_measured(link, data.draw(st.floats(0, 2 * RATE_BPS)), now)
        replicas = data.draw(st.integers(1, 4))
        least_racks = data.draw(st.integers(1, replicas))
        request = PlacementRequest(
            data.draw(st.sampled_from(fabric.hosts)).name, data.draw(st.floats(0, 1e9)),
            candidates_of(fabric, data.draw(st.sampled_from([4e6, math.inf]))), replicas, least_racks,
            data.draw(st.integers(1, min(2, least_racks))), expected_reads=data.draw(st.sampled_from([0.0, 3.0])))
        placement = policy.place(number, request, now)
        hosts = [one.host for one in placement.destinations]
        assert len(set(hosts)) == replicas
        assert len({fabric.host(host).rack for host in hosts}) >= request.least_racks
        assert len({fabric.host(host).pod for host in hosts}) >= request.least_pods
        assert placement.rate_bps > 0
        assert set(placement.passed_over) == {host.name for host in fabric.hosts} - set(hosts)
    assert policy.reserved(now + 1e9) == 0


def test_a_fabric_that_changes_leaves_nothing_behind(fabric: Fabric, network: Network) -> None:
    policy = SinbadPlus(network, Random(1))
    request = PlacementRequest("p0r0h0", SIZE_BITS, candidates_of(fabric))
    hosts = hosts_of(policy, "first", request)
    network.remove_node(hosts[-1])
    placement = policy.place("second", request, 0.1)
    assert placement.passed_over[hosts[-1]] == "not attached to the network"
    assert policy.reserved(1e6) == 0


def test_reads_that_it_is_told_of_have_a_share_and_are_no_other_traffic(network: Network) -> None:
    shares = ChainShares(network)
    link = ("edge-p0r0", "p0r0h1")
    shares.link_measured(link, 0.0, 0.0)
    read = KnownFlow("read", "p0r0h0", "p0r0h1", 100e6, None)
    shares.flows_told([read], 0.0)
    down = shares.way_down("p0r0h1", math.inf)
    assert shares.spare_bps(down) == pytest.approx(RATE_BPS / 2), "it would give way"
    for second in (1.0, 2.0):
        shares.flows_told([read._replace(left_bits=100e6 - second * RATE_BPS)], second)
        shares.link_measured(link, RATE_BPS, second)
    assert shares.spare_bps(down) == pytest.approx(RATE_BPS / 2)
    shares.flows_told([], 2.0)
    assert shares.spare_bps(down) == pytest.approx(RATE_BPS) and len(shares) == 0


def test_what_a_flow_has_left_is_what_was_counted_and_not_what_was_expected(network: Network) -> None:
    shares = ChainShares(network)
    link = ("edge-p0r0", "p0r0h1")
    shares.link_measured(link, 0.0, 0.0)
    shares.added("write", shares.places(["p0r0h0", "p0r0h1"], [math.inf]), RATE_BPS)
    write = KnownFlow("write", "p0r0h0", "p0r0h1", RATE_BPS, 0.8 * RATE_BPS)
    shares.flows_told([write], 1.0)
    shares.link_measured(link, RATE_BPS, 1.0)
    assert shares.spare_bps(shares.way_down("p0r0h1", math.inf)) == pytest.approx(0.1 * RATE_BPS), "half of the rest"
    shares.carry_until(4.0)
    assert len(shares) == 1, "at a fifth of the link it takes 4 s more"
    shares.carry_until(5.1)
    assert len(shares) == 0
    shares.flows_told([write._replace(left_bits=None)], 5.1)
    assert len(shares) == 0, "nothing new is known"
    shares.flows_told([write._replace(left_bits=0.1 * RATE_BPS)], 5.2)
    assert len(shares) == 1


def test_of_many_flows_the_largest_have_a_share(network: Network) -> None:
    shares = ChainShares(network)
    flows = [KnownFlow(number, "p0r0h0", "p0r0h1", float(number + 1), None) for number in range(2 * MOST_TOLD)]
    shares.carry_until(0.0)
    shares.flows_told(flows, 0.0)
    assert len(shares) == MOST_TOLD
    shares.ended(2 * MOST_TOLD - 1)
    assert len(shares) == MOST_TOLD - 1, "it was the largest"
