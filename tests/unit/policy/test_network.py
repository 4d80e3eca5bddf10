"""The graph: what it accepts, its shortest paths, and what changes when links do."""

from collections.abc import Callable

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.controller.policy.errors import InvalidNetwork, UnknownLink, UnknownNode
from speedwell.controller.policy.network.graph import MAX_GONE_LINKS, Network, Path
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import Fabric, fat_tree, spine_leaf, three_tier
from tests.unit.policy.networks import join, network_with, part


def shortest_by_networkx(network: Network, source: str, destination: str) -> set[tuple[str, ...]]:
    graph = networkx.DiGraph()
    graph.add_nodes_from(network.switches)
    ends = {source, destination}
    graph.add_edges_from(link for link in network.links if all(not network.is_host(n) or n in ends for n in link))
    if not (graph.has_node(source) and graph.has_node(destination) and networkx.has_path(graph, source, destination)):
        return set()
    return set(map(tuple, networkx.all_shortest_paths(graph, source, destination)))


@st.composite
def networks(draw: st.DrawFn) -> Network:
    switches = [f"s{number}" for number in range(draw(st.integers(1, 8)))]
    hosts = [f"h{number}" for number in range(draw(st.integers(2, 4)))]
    network = network_with(" ".join(switches), " ".join(hosts), "")
    for source, destination in draw(st.lists(st.tuples(st.sampled_from(switches), st.sampled_from(switches)))):
        if source != destination:
            network.add_link(source, destination, 1e6)
    for host in hosts:
        for switch in draw(st.lists(st.sampled_from(switches), max_size=2)):
            join(network, host, switch)
    return network


@given(networks(), st.data())
def test_shortest_paths_are_all_those_that_do_not_run_through_a_host(network: Network, data: st.DataObject) -> None:
    nodes = sorted(network.switches | network.hosts)
    source, destination = data.draw(st.permutations(nodes))[:2]
    paths = network.shortest_paths(source, destination)
    assert {path.nodes for path in paths} == shortest_by_networkx(network, source, destination)
    assert len(set(paths)) == len(paths)
    indices = [tuple(network.link_index(link) for link in path.links) for path in paths]
    assert network.shortest_path_links(source, destination) == indices
    assert network.shortest_path_rows(source, destination).tolist() == [list(links) for links in indices]
    assert [network.shortest_path(source, destination, number) for number in range(len(indices))] == list(
        network.shortest_paths(source, destination))
    assert network.distance(source, destination) == (len(paths[0].links) if paths else None)


def test_three_tier_paths_have_two_four_or_six_links() -> None:
    network = network_of(three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, aggregations_per_pod=2, cores=2))
    found = [network.shortest_paths("p0r0h0", other) for other in ("p0r0h1", "p0r1h0", "p1r0h0")]
    assert [(len(paths), len(paths[0].links)) for paths in found] == [(1, 2), (2, 4), (8, 6)]


def test_a_node_reaches_itself_without_a_link() -> None:
    network = network_with("s", "h", "h-s")
    assert network.shortest_paths("h", "h") == (Path(("h",)),)
    assert network.shortest_path_links("h", "h") == [()]
    assert network.shortest_path_rows("h", "h").shape == (1, 0)
    assert network.shortest_path("h", "h", 0) == Path(("h",))
    assert network.distance("h", "h") == 0


def test_a_lost_link_takes_its_paths_away_and_gives_them_back_when_it_returns() -> None:
    network = network_with("e1 e2 a1 a2", "x y", "x-e1 y-e2 e1-a1 e1-a2 a1-e2 a2-e2")
    before = network.shortest_paths("x", "y")
    index = network.link_index(("e1", "a1"))
    part(network, "e1", "a1")
    assert [path.nodes[2] for path in network.shortest_paths("x", "y")] == ["a2"]
    with pytest.raises(UnknownLink):
        network.capacity_bps(("e1", "a1"))
    join(network, "e1", "a1")
    assert network.shortest_paths("x", "y") == before
    assert network.link_index(("e1", "a1")) == index


def test_a_longer_way_is_taken_once_the_short_one_is_gone() -> None:
    network = network_with("a b c", "x y", "x-a y-b a-b a-c c-b")
    assert network.distance("x", "y") == 3
    part(network, "a", "b")
    assert network.distance("x", "y") == 4


def test_removing_a_switch_removes_its_links() -> None:
    network = network_with("a b", "x y", "x-a y-b a-b")
    network.remove_node("b")
    assert "b" not in network
    assert set(network.links) == {("x", "a"), ("a", "x")}
    with pytest.raises(UnknownNode):
        network.shortest_paths("x", "b")
    assert network.shortest_paths("x", "y") == ()


def test_the_version_changes_with_the_graph_and_only_then() -> None:
    network = network_with("a b", "x", "x-a a-b")
    version = network.version
    network.add_switch("a")
    network.add_host("x")
    join(network, "a", "b")
    network.shortest_paths("x", "b")
    assert network.version == version
    changes: list[Callable[[], None]] = [
        lambda: network.set_capacity(("a", "b"), 5e6),
        lambda: network.remove_link("a", "b"),
        lambda: network.add_link("a", "b", 5e6),
        lambda: network.add_host("y"),
        lambda: network.remove_node("y"),
    ]
    for change in changes:
        version = network.version
        change()
        assert network.version > version


@pytest.mark.parametrize("capacity_bps", [0, -1, float("nan"), float("inf")])
def test_a_capacity_must_be_a_positive_number(capacity_bps: float) -> None:
    network = network_with("a b", "", "a-b")
    with pytest.raises(InvalidNetwork):
        network.add_link("b", "a", capacity_bps)
    with pytest.raises(InvalidNetwork):
        network.set_capacity(("a", "b"), capacity_bps)
    assert network.capacity_bps(("a", "b")) == 10e6


def test_what_is_not_a_network_is_refused() -> None:
    network = network_with("a b", "x y", "a-b x-a")
    with pytest.raises(InvalidNetwork):
        network.add_host("a")
    with pytest.raises(InvalidNetwork):
        network.add_link("x", "y", 1e6)
    with pytest.raises(InvalidNetwork):
        network.add_link("a", "a", 1e6)
    with pytest.raises(UnknownNode):
        network.add_link("a", "nowhere", 1e6)
    with pytest.raises(UnknownNode):
        network.remove_node("nowhere")
    with pytest.raises(UnknownLink):
        network.remove_link("a", "y")


@pytest.mark.parametrize("fabric", [three_tier(), fat_tree(4), spine_leaf()], ids=lambda fabric: fabric.name)
def test_paths_do_not_depend_on_the_order_in_which_links_were_found(fabric: Fabric) -> None:
    network = network_of(fabric)
    mirrored = Network()
    for host in network.hosts:
        mirrored.add_host(host)
    for switch in network.switches:
        mirrored.add_switch(switch)
    for link in sorted(network.links, reverse=True):
        mirrored.add_link(*link, network.capacity_bps(link))
    hosts = sorted(network.hosts)
    for other in hosts[1:]:
        assert network.shortest_paths(hosts[0], other) == mirrored.shortest_paths(hosts[0], other)


def test_ten_thousand_hosts_that_come_and_go_need_no_more_indices_than_are_kept() -> None:
    network = network_with("e1 e2", "x", "x-e1 e1-e2")
    index = network.link_index(("e1", "e2"))
    for number in range(10_000):
        network.add_host(f"h{number}")
        join(network, f"h{number}", "e2")
        network.remove_node(f"h{number}")
    assert len(network.capacities_bps()) <= MAX_GONE_LINKS + 10
    assert len(network._index) <= MAX_GONE_LINKS + 10 and len(network._gone) <= MAX_GONE_LINKS + 2
    assert network.link_index(("e1", "e2")) == index
    live = [network.link_index(link) for link in network.links]
    assert len(set(live)) == len(live)


def test_a_host_that_comes_back_soon_has_its_old_index() -> None:
    network = network_with("e1", "x", "x-e1")
    index = network.link_index(("x", "e1"))
    network.remove_node("x")
    for number in range(MAX_GONE_LINKS // 2 - 1):
        network.add_host(f"h{number}")
        join(network, f"h{number}", "e1")
        network.remove_node(f"h{number}")
    network.add_host("x")
    join(network, "x", "e1")
    assert network.link_index(("x", "e1")) == index
