"""The selector: every replica policy with every path policy, over one model of flows and links."""

import os
import subprocess
import sys
from itertools import product
from random import Random

import pytest

from speedwell.controller.policy.errors import InvalidRequest, NoPath, UnknownLink, UnknownNode, UnknownPolicy
from speedwell.controller.policy.network.ecmp import ecmp_path
from speedwell.controller.policy.network.five_tuple import TCP, FiveTuple
from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.reads.selection import Selector
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest
from speedwell.controller.policy.registry import POLICIES, Kind
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import three_tier
from tests.unit.policy.networks import part

SIZE_BITS = 80e6
CLIENT = "p0r0h0"
SAME_RACK, SAME_POD, OTHER_POD = REPLICAS = (
    Replica("p0r0h1", 7001),
    Replica("p0r1h0", 7002),
    Replica("p1r0h0", 7003),
)
ALL = [pair for pair in product(POLICIES.names(Kind.REPLICA), POLICIES.names(Kind.PATH))
       if pair != ("mayflower-plus", "ecmp")]


@pytest.fixture
def network() -> Network:
    return network_of(three_tier(pods=2, racks_per_pod=2, hosts_per_rack=4, host_bps=10e6))


def selector(network: Network, replica_policy: str = "mayflower", path_policy: str = "mayflower") -> Selector:
    return Selector(network, replica_policy, path_policy, Random(1))


def request(*replicas: Replica, client_port: int = 40000) -> SelectionRequest:
    return SelectionRequest(CLIENT, replicas, SIZE_BITS, client_port)


def congest(chooser: Selector, *nodes: str) -> None:
    """Traffic of others that fills the links between these nodes."""
    for link in Path(nodes).links:
        chooser.link_measured(link, 10e6, 1.0)


@pytest.mark.parametrize(("replica_policy", "path_policy"), ALL)
def test_each_pair_of_policies_answers_with_a_shortest_path_from_the_chosen_replica(
    network: Network, replica_policy: str, path_policy: str
) -> None:
    chooser = selector(network, replica_policy, path_policy)
    for number in range(20):
        selection = chooser.select(request(*REPLICAS, client_port=number), 0.0)
        assert selection.replica in REPLICAS
        assert selection.path in network.shortest_paths(selection.replica.host, CLIENT)
        share_bps = chooser.flow_added(str(number), selection.path, SIZE_BITS, 0.0)
        if replica_policy == "mayflower-srpt":      # for which links are not shared
            assert selection.cost_seconds * (1 + 1e-12) >= SIZE_BITS / selection.estimated_bps > 0
        else:
            assert selection.cost_seconds >= SIZE_BITS / selection.estimated_bps > 0
            assert share_bps == pytest.approx(selection.estimated_bps)


@pytest.mark.parametrize(("replica_policy", "path_policy"), ALL)
def test_replicas_without_a_path_are_passed_over(network: Network, replica_policy: str, path_policy: str) -> None:
    chooser = selector(network, replica_policy, path_policy)
    part(network, SAME_RACK.host, "edge-p0r0")
    unknown = Replica("nowhere")
    for _ in range(10):
        assert chooser.select(request(unknown, SAME_RACK, SAME_POD), 0.0).replica == SAME_POD
    with pytest.raises(NoPath):
        chooser.select(request(unknown, SAME_RACK), 0.0)
    with pytest.raises(UnknownNode, match=r"nobody"):
        chooser.select(SelectionRequest("nobody", REPLICAS, SIZE_BITS), 0.0)


@pytest.mark.parametrize(("replica_policy", "path_policy"), ALL)
def test_a_read_from_the_client_itself_needs_no_network(
    network: Network, replica_policy: str, path_policy: str
) -> None:
    selection = selector(network, replica_policy, path_policy).select(request(Replica(CLIENT)), 0.0)
    assert (selection.path.nodes, selection.path.links, selection.cost_seconds) == ((CLIENT,), (), 0.0)


def test_mayflower_leaves_a_congested_nearest_replica_alone(network: Network) -> None:
    chooser = selector(network)
    assert chooser.select(request(*REPLICAS), 0.0).replica == SAME_RACK
    congest(chooser, SAME_RACK.host, "edge-p0r0")
    selection = chooser.select(request(SAME_RACK, SAME_POD), 1.0)
    assert (selection.replica, selection.estimated_bps) == (SAME_POD, 10e6)
    assert chooser.select(request(SAME_RACK, SAME_POD), 1.0, replica_policy="nearest").replica == SAME_RACK


def test_mayflower_paths_avoid_a_congested_link_for_a_fixed_replica(network: Network) -> None:
    chooser = selector(network, "nearest", "mayflower")
    assert chooser.select(request(SAME_POD), 0.0).path.nodes[2] == "aggregation-p0-0"
    congest(chooser, "edge-p0r1", "aggregation-p0-0")
    assert chooser.select(request(SAME_POD), 1.0).path.nodes[2] == "aggregation-p0-1"


def test_mayflower_replicas_with_ecmp_paths_weigh_only_the_paths_that_ecmp_gives(network: Network) -> None:
    chooser = selector(network, "mayflower", "ecmp")
    for port in range(20):
        hashed = {
            replica: ecmp_path(
                network.shortest_paths(replica.host, CLIENT),
                FiveTuple(replica.host, CLIENT, TCP, replica.port, port),
            )
            for replica in (SAME_POD, OTHER_POD)
        }
        selection = chooser.select(request(SAME_POD, OTHER_POD, client_port=port), 0.0)
        assert selection.path == hashed[selection.replica]
        before = chooser.select(request(SAME_POD, client_port=port), 0.0)
        assert before.path == hashed[SAME_POD]


def test_ecmp_paths_hash_the_data_connection_and_ignore_load(network: Network) -> None:
    chooser = selector(network, "nearest", "ecmp")
    chosen = [chooser.select(request(OTHER_POD, client_port=port), 0.0).path for port in range(200)]
    assert set(chosen) == set(network.shortest_paths(OTHER_POD.host, CLIENT))
    congest(chooser, *chosen[0].nodes)
    assert [chooser.select(request(OTHER_POD, client_port=port), 1.0).path for port in range(200)] == chosen


def test_nearest_takes_the_fewest_links_and_chance_decides_between_equals(network: Network) -> None:
    chooser = selector(network, "nearest", "ecmp")
    assert {chooser.select(request(OTHER_POD, SAME_POD, SAME_RACK), 0.0).replica for _ in range(20)} == {SAME_RACK}
    equals = (SAME_POD, Replica("p0r1h1"))
    assert {chooser.select(request(OTHER_POD, *equals), 0.0).replica for _ in range(60)} == set(equals)


def test_random_takes_every_replica_in_turn(network: Network) -> None:
    chooser = selector(network, "random", "ecmp")
    chosen = [chooser.select(request(*REPLICAS), 0.0).replica for _ in range(300)]
    assert min(chosen.count(replica) for replica in REPLICAS) > 60


def test_sinbad_r_sees_the_links_and_flows_that_the_selector_is_told_of(network: Network) -> None:
    chooser = selector(network, "sinbad-r", "mayflower")
    others = (SAME_RACK, SAME_POD)
    chooser.link_measured((SAME_RACK.host, "edge-p0r0"), 9e6, 0.0)
    assert {chooser.select(request(*others), 0.0).replica for _ in range(20)} == {SAME_POD}
    (path,) = network.shortest_paths(SAME_POD.host, "p0r1h1")
    chooser.flow_added("fills its link", path, 1e9, 0.0)
    assert {chooser.select(request(*others), 0.0).replica for _ in range(20)} == {SAME_RACK}


def test_a_request_can_name_other_policies_than_the_default(network: Network) -> None:
    chooser = selector(network, "random", "ecmp")
    replicas = {chooser.select(request(*REPLICAS), 0.0, "nearest", "mayflower").replica for _ in range(20)}
    assert replicas == {SAME_RACK}


def test_a_dropped_flow_gives_its_path_back(network: Network) -> None:
    chooser = selector(network)
    idle = chooser.select(request(SAME_RACK), 0.0)
    chooser.flow_added("one", idle.path, SIZE_BITS, 0.0)
    assert [flow.flow_id for flow in chooser.flows()] == ["one"]
    assert chooser.select(request(SAME_RACK), 0.0).estimated_bps == idle.estimated_bps / 2
    assert chooser.flow_dropped("one", 0.0)
    assert chooser.select(request(SAME_RACK), 0.0) == idle


def test_policies_that_are_not_offered_are_refused_by_name(network: Network) -> None:
    offered = ("mayflower, mayflower-plus, mayflower-srpt, nearest, sinbad-r, sinbad-r-estimate, "
               "sinbad-r-measured, random")
    with pytest.raises(UnknownPolicy, match=f"'closest'.*{offered}"):
        selector(network, "closest")
    with pytest.raises(UnknownPolicy, match=r"'hedera'.*mayflower, ecmp"):
        selector(network).select(request(*REPLICAS), 0.0, path_policy="hedera")


@pytest.mark.parametrize(
    ("replicas", "size_bits"),
    [
        ((), SIZE_BITS),
        ((SAME_RACK, Replica(SAME_RACK.host, 1)), SIZE_BITS),
        (REPLICAS, -1),
        (REPLICAS, float("nan")),
        (REPLICAS, float("inf")),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(replicas: tuple[Replica, ...], size_bits: float) -> None:
    with pytest.raises(InvalidRequest):
        SelectionRequest(CLIENT, replicas, size_bits)


def test_a_division_whose_path_is_gone_is_refused_and_changes_nothing(network: Network) -> None:
    chooser = selector(network, "mayflower-plus")
    (first,) = chooser.select_parts(request(SAME_RACK), 0.0, 2)
    chooser.read_added("1", request(SAME_RACK), 2, 0.0)
    chooser.flow_added("1.0", first.selection.path, SIZE_BITS, 0.0, "1")
    assert chooser.select_parts(request(SAME_RACK), 0.0, 2) == []
    chooser.read_added("2", request(SAME_RACK), 2, 0.0)
    chooser.flow_dropped("1.0", 8.0)
    chooser.read_ended("1")
    (division,) = chooser.revise(8.0)

    with pytest.raises(ValueError):
        chooser.read_divided(division, [], 8.0)
    part(network, SAME_RACK.host, "edge-p0r0")
    with pytest.raises(UnknownLink):
        chooser.read_divided(division, ["2.0"], 8.0)

    assert not list(chooser.flows())


def test_a_measurement_of_a_link_that_is_gone_is_refused(network: Network) -> None:
    with pytest.raises(UnknownLink):
        selector(network).link_measured(("edge-p0r0", "core0"), 1.0, 0.0)


HISTORY = """
from random import Random
from speedwell.controller.policy.reads.selection import Selector
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest
from speedwell.controller.policy.registry import POLICIES, Kind
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import three_tier

network = network_of(three_tier(host_bps=10e6))
chance = Random(5)
selector = Selector(network, "mayflower", "mayflower", Random(6))
hosts = sorted(network.hosts)
PAIRS = [(a, b) for a in POLICIES.names(Kind.REPLICA) for b in POLICIES.names(Kind.PATH)
         if (a, b) != ("mayflower-plus", "ecmp")]
for number in range(150):
    now = number / 10
    client, *replicas = chance.sample(hosts, 4)
    request = SelectionRequest(client, tuple(map(Replica, replicas)), 8e6 * chance.randint(1, 9), number)
    selection = selector.select(request, now, *chance.choice(PAIRS))
    print(selection, selector.flow_added(str(number), selection.path, request.size_bits, now))
    if number % 3 == 2:
        selector.flow_dropped(str(chance.randrange(number)), now)
    if number % 10 == 9:
        for link in sorted(network.links):
            selector.link_measured(link, chance.choice((0.0, 1e6, 1e7)), now)
"""


def test_equal_histories_give_equal_choices_whatever_the_hash_seed() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", HISTORY],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0].count("Selection(") == 150
    assert runs[0] == runs[1]


def test_measured_sinbad_r_knows_nothing_of_what_was_just_placed(network: Network) -> None:
    chosen: dict[str, set[str]] = {}
    for policy in ("sinbad-r", "sinbad-r-measured"):
        chooser = selector(network, policy, "mayflower")
        first = chooser.select(request(*REPLICAS), 0.0)
        chooser.flow_added("one", first.path, SIZE_BITS, 0.0)
        chosen[policy] = {chooser.select(request(*REPLICAS), 0.0).replica.host for _ in range(40)}
        assert (first.replica.host in chosen[policy]) == (policy == "sinbad-r-measured")
    assert chosen["sinbad-r"] < chosen["sinbad-r-measured"]
