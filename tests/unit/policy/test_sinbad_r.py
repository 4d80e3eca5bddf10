"""Sinbad-R: which links it looks at, which replicas it considers, and how its estimate moves."""

from random import Random

import pytest

from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.network.link_estimate import MOST_PLACEMENTS, SMOOTHING
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest
from speedwell.controller.policy.reads.sinbad_r import SinbadR, SinbadREstimate
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import spine_leaf, three_tier

SIZE_BITS = 10e6


@pytest.fixture
def network() -> Network:
    """2 pods of 2 racks of 2 hosts at 10 Mbit/s; a rack's uplinks have 10, a pod's 5 Mbit/s in all."""
    fabric = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, host_bps=10e6)
    return network_of(fabric)


@pytest.fixture
def sinbad_r(network: Network) -> SinbadR:
    return SinbadR(network, Random(1))


@pytest.fixture
def one_rack() -> Network:
    """3 hosts on one switch, 10 Mbit/s each."""
    return network_of(three_tier(pods=1, racks_per_pod=1, hosts_per_rack=3, host_bps=10e6))


def choose(sinbad_r: SinbadR, client: str, *hosts: str) -> str:
    replicas = tuple(map(Replica, hosts))
    return sinbad_r.choose(SelectionRequest(client, replicas, SIZE_BITS), replicas, 0.0).host


def measure(sinbad_r: SinbadR, network: Network, source: str, destination: str, rate_bps: float,
            now: float = 0.0) -> None:
    assert network.has_link((source, destination))
    sinbad_r.link_measured((source, destination), rate_bps, now)


def test_what_a_replica_sends_counts_and_what_it_receives_does_not(network: Network, sinbad_r: SinbadR) -> None:
    measure(sinbad_r, network, "p0r0h0", "edge-p0r0", 4e6)
    measure(sinbad_r, network, "edge-p0r1", "p0r1h0", 9e6)
    assert {choose(sinbad_r, "p0r0h1", "p0r0h0", "p0r1h0") for _ in range(20)} == {"p0r1h0"}


def test_a_busy_neighbour_counts_where_the_data_leaves_the_rack(network: Network, sinbad_r: SinbadR) -> None:
    measure(sinbad_r, network, "p0r1h1", "edge-p0r1", 4e6)
    measure(sinbad_r, network, "p0r0h0", "edge-p0r0", 3e6)
    # From the client's rack only the replica's own link is crossed: 7 Mbit/s left against 10 - 4.
    assert {choose(sinbad_r, "p0r0h1", "p0r0h0", "p0r1h0") for _ in range(20)} == {"p0r0h0"}
    measure(sinbad_r, network, "p0r0h1", "edge-p0r0", 9e6)
    assert {choose(sinbad_r, "p0r0h1", "p0r0h0", "p0r1h0") for _ in range(20)} == {"p0r0h0"}


def test_the_load_of_a_whole_pod_counts_where_the_data_leaves_the_pod() -> None:
    fabric = three_tier(pods=3, racks_per_pod=2, hosts_per_rack=2, host_bps=10e6)
    network = network_of(fabric)
    sinbad_r = SinbadR(network, Random(1))
    measure(sinbad_r, network, "p1r1h1", "edge-p1r1", 2e6)
    measure(sinbad_r, network, "p2r0h0", "edge-p2r0", 1e6)
    # p1r0h0's own link and rack are idle, but its pod's 5 Mbit/s towards the core have only 3 left.
    assert {choose(sinbad_r, "p0r0h0", "p1r0h0", "p2r0h0") for _ in range(20)} == {"p2r0h0"}


def test_a_replica_in_the_clients_pod_confines_the_choice_to_that_pod(network: Network, sinbad_r: SinbadR) -> None:
    measure(sinbad_r, network, "p0r1h0", "edge-p0r1", 9e6)
    assert {choose(sinbad_r, "p0r0h0", "p0r1h0", "p1r0h0", "p1r1h0") for _ in range(20)} == {"p0r1h0"}
    assert {choose(sinbad_r, "p0r0h0", "p1r0h0", "p1r1h0") for _ in range(60)} == {"p1r0h0", "p1r1h0"}


def test_a_two_tier_fabric_is_one_pod() -> None:
    network = network_of(spine_leaf(leaves=3, spines=2, hosts_per_leaf=2, host_bps=10e6))
    sinbad_r = SinbadR(network, Random(1))
    assert {choose(sinbad_r, "r0h0", "r1h0", "r2h0") for _ in range(60)} == {"r1h0", "r2h0"}
    measure(sinbad_r, network, "r1h0", "leaf1", 5e6)
    assert {choose(sinbad_r, "r0h0", "r1h0", "r2h0") for _ in range(20)} == {"r2h0"}


def test_a_replica_on_the_client_itself_needs_no_link(network: Network, sinbad_r: SinbadR) -> None:
    measure(sinbad_r, network, "p0r0h0", "edge-p0r0", 10e6)
    assert {choose(sinbad_r, "p0r0h0", "p0r0h0", "p0r0h1") for _ in range(20)} == {"p0r0h0"}


@pytest.mark.parametrize(("offset_bps", "chosen"), [(-1e5, "p0r0h1"), (1e5, "p0r0h0")])
def test_measurements_are_smoothed(one_rack: Network, offset_bps: float, chosen: str) -> None:
    sinbad_r = SinbadR(one_rack, Random(1))
    measure(sinbad_r, one_rack, "p0r0h0", "edge-p0r0", 0.0)
    measure(sinbad_r, one_rack, "p0r0h0", "edge-p0r0", 10e6)
    measure(sinbad_r, one_rack, "p0r0h1", "edge-p0r0", SMOOTHING * 10e6 + offset_bps)
    assert choose(sinbad_r, "p0r0h2", "p0r0h0", "p0r0h1") == chosen


def is_expected_to_send(one_rack: Network, sinbad_r: SinbadR, rate_bps: float) -> bool:
    """Whether p0r0h0 is taken to send this, by what p0r0h1 must send to be as good a choice."""
    chosen = []
    for beside_bps in (rate_bps - 1e5, rate_bps + 1e5):
        for _ in range(60):     # until the moving average is there
            measure(sinbad_r, one_rack, "p0r0h1", "edge-p0r0", beside_bps)
        chosen.append(choose(sinbad_r, "p0r0h2", "p0r0h0", "p0r0h1"))
    return chosen == ["p0r0h1", "p0r0h0"]


@pytest.mark.parametrize(("sizes_bits", "expected_bps"), [
    ([4e6], 1e6 + 4e6),             # done when measured again, a second from now
    ([3e6, 3e6], 1e6 + 3e6 + 3e6),
    ([4e6, 40e6], 10e6),            # all that is left
])
def test_new_transfers_count_by_what_they_can_send_until_the_next_measurement(
        one_rack: Network, sizes_bits: list[float], expected_bps: float) -> None:
    sinbad_r = SinbadR(one_rack, Random(1))
    for now in (98.0, 100.0):
        measure(sinbad_r, one_rack, "p0r0h0", "edge-p0r0", 1e6, now)
    (path,) = one_rack.shortest_paths("p0r0h0", "p0r0h2")
    for size_bits in sizes_bits:
        sinbad_r.flow_added(path, size_bits, 101.0)
    assert is_expected_to_send(one_rack, sinbad_r, expected_bps)
    measure(sinbad_r, one_rack, "p0r0h0", "edge-p0r0", 1e6, 102.0)
    assert is_expected_to_send(one_rack, sinbad_r, 1e6)


def test_a_transfer_on_a_link_never_measured_takes_it_all(one_rack: Network) -> None:
    sinbad_r = SinbadR(one_rack, Random(1))
    (path,) = one_rack.shortest_paths("p0r0h0", "p0r0h2")
    sinbad_r.flow_added(path, 1.0, 100.0)
    assert is_expected_to_send(one_rack, sinbad_r, 10e6)


def test_the_graph_may_change_between_choices(network: Network, sinbad_r: SinbadR) -> None:
    assert choose(sinbad_r, "p0r0h0", "p0r1h0", "p1r0h0") == "p0r1h0"
    network.remove_node("p0r1h0")
    network.add_host("p0r1h0")
    for end in [("p0r1h0", "edge-p1r1"), ("edge-p1r1", "p0r1h0")]:
        network.add_link(*end, 10e6)
    assert {choose(sinbad_r, "p0r0h0", "p0r1h0", "p1r0h0") for _ in range(60)} == {"p0r1h0", "p1r0h0"}


def test_nothing_is_kept_of_ten_thousand_hosts_that_came_and_went(one_rack: Network) -> None:
    sinbad_r = SinbadR(one_rack, Random(1))
    (switch,) = one_rack.neighbours(min(one_rack.hosts))
    for number in range(10_000):
        host = f"guest {number}"
        one_rack.add_host(host)
        one_rack.add_link(host, switch, 10e6)
        sinbad_r.link_measured((host, switch), 1e6, float(number))
        one_rack.remove_node(host)
    assert len(sinbad_r._estimates) <= 1


def test_ten_thousand_reads_from_a_full_link_are_not_all_remembered(network: Network) -> None:
    policy = SinbadREstimate(network, Random(1))
    path = network.shortest_paths("p0r0h0", "p1r0h0")[0]
    for number in range(10_000):
        policy.flow_added(path, 8e9, number / 1000)
    estimate = policy._estimates.of(path.links[0])
    assert 0 < estimate.placements(10.0) <= MOST_PLACEMENTS
    assert estimate.expected_bps(10.0) == pytest.approx(network.capacity_bps(path.links[0]), rel=0.01)
