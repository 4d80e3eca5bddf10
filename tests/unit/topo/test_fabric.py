"""The families of fabrics: shape, rates, addresses, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.topo.fabric import Fabric, InvalidFabric, Link, UnknownNode, fat_tree, spine_leaf, three_tier
from speedwell.topo.fabric.addresses import MACHINE_ADDRESS

ratios = st.floats(min_value=0.25, max_value=16)
rates_bps = st.integers(min_value=1_000_000, max_value=10**11)
three_tiers = st.builds(
    three_tier, pods=st.integers(1, 4), racks_per_pod=st.integers(1, 4), hosts_per_rack=st.integers(1, 4),
    aggregations_per_pod=st.integers(1, 3), cores=st.integers(1, 4), host_bps=rates_bps,
    oversubscription=st.fixed_dictionaries({"edge": ratios, "aggregation": ratios}))
fat_trees = st.builds(fat_tree, k=st.sampled_from([2, 4, 6]), host_bps=rates_bps)
spine_leaves = st.builds(spine_leaf, leaves=st.integers(1, 8), spines=st.integers(1, 5),
                         hosts_per_leaf=st.integers(1, 5), host_bps=rates_bps, oversubscription=ratios)
fabrics = st.one_of(three_tiers, fat_trees, spine_leaves)


def graph_of(fabric: Fabric) -> networkx.Graph:
    graph = networkx.Graph()
    for link in fabric.links:
        graph.add_edge(link.a, link.b, capacity_bps=link.capacity_bps)
    return graph


def equal_cost_paths(fabric: Fabric, a: str, b: str) -> int:
    return len(list(networkx.all_shortest_paths(graph_of(fabric), a, b)))


def rates_by_direction(fabric: Fabric, name: str) -> tuple[int, int]:
    """(bits/s of the links toward the hosts, bits/s of the links toward the core)."""
    below = {"edge": "host", "aggregation": "edge", "core": "aggregation"}[fabric.switch(name).tier]
    tiers = {switch.name: switch.tier for switch in fabric.switches}
    down = sum(port.capacity_bps for port in fabric.ports(name) if tiers.get(port.peer, "host") == below)
    return down, sum(port.capacity_bps for port in fabric.ports(name)) - down


@given(fabrics)
def test_every_fabric_connects_all_its_nodes(fabric: Fabric) -> None:
    graph = graph_of(fabric)
    assert len(graph) == len(fabric.hosts) + len(fabric.switches)
    assert networkx.is_connected(graph)


@given(fabrics)
def test_names_and_addresses_are_unique(fabric: Fabric) -> None:
    nodes = [*fabric.hosts, *fabric.switches]
    for values in ([node.name for node in nodes], [host.ip for host in fabric.hosts],
                   [host.mac for host in fabric.hosts], [switch.dpid for switch in fabric.switches],
                   [MACHINE_ADDRESS, *(node.management_ip for node in nodes)]):
        assert len(set(values)) == len(values)


@given(fabrics)
def test_json_gives_the_same_fabric_back(fabric: Fabric) -> None:
    assert Fabric.from_json(fabric.to_json()) == fabric


@given(fabrics)
def test_ports_are_numbered_from_one_and_lead_to_each_other(fabric: Fabric) -> None:
    for switch in fabric.switches:
        assert [port.number for port in fabric.ports(switch.name)] == list(
            range(1, len(fabric.ports(switch.name)) + 1))
    for link in fabric.links:
        assert fabric.port_toward(link.a, link.b).capacity_bps == link.capacity_bps
        assert fabric.port_toward(link.b, link.a).capacity_bps == link.capacity_bps
    for host in fabric.hosts:
        assert [port.number for port in fabric.ports(host.name)] == [0]
        assert fabric.edge_switch_of(host).rack == host.rack


@given(st.integers(1, 4), st.integers(2, 3), st.integers(1, 3), st.integers(1, 4))
def test_three_tier_has_a_path_per_choice_of_aggregations_and_core(pods: int, racks: int, aggregations: int,
                                                                   cores: int) -> None:
    fabric = three_tier(pods=pods, racks_per_pod=racks, hosts_per_rack=2, aggregations_per_pod=aggregations,
                        cores=cores)
    assert equal_cost_paths(fabric, "p0r0h0", "p0r0h1") == 1
    assert equal_cost_paths(fabric, "p0r0h0", "p0r1h0") == aggregations
    if pods > 1:
        assert equal_cost_paths(fabric, "p0r0h0", "p1r0h0") == aggregations * cores * aggregations


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_fat_tree_has_the_shape_of_its_paper(k: int) -> None:
    fabric = fat_tree(k)
    assert len(fabric.hosts) == k**3 // 4
    assert len(fabric.switches) == 5 * k**2 // 4
    assert all(len(fabric.ports(switch.name)) == k for switch in fabric.switches)
    assert equal_cost_paths(fabric, "p0r0h0", "p1r0h0") == (k // 2) ** 2
    if k > 2:
        assert equal_cost_paths(fabric, "p0r0h0", "p0r1h0") == k // 2


@given(st.integers(2, 6), st.integers(1, 5))
def test_spine_leaf_has_a_path_per_spine(leaves: int, spines: int) -> None:
    fabric = spine_leaf(leaves=leaves, spines=spines)
    assert equal_cost_paths(fabric, "r0h0", "r1h0") == spines


@given(three_tiers, ratios, ratios)
def test_each_tier_is_oversubscribed_as_asked(shape: Fabric, edge: float, aggregation: float) -> None:
    pods = len({host.pod for host in shape.hosts})
    racks = len({host.rack for host in shape.hosts}) // pods
    fabric = three_tier(pods=pods, racks_per_pod=racks, host_bps=1e9,
                        oversubscription={"edge": edge, "aggregation": aggregation})
    for switch in fabric.switches:
        down, up = rates_by_direction(fabric, switch.name)
        if switch.tier != "core":
            assert down / up == pytest.approx(edge if switch.tier == "edge" else aggregation, rel=1e-4)


def test_default_fabric_is_eight_to_one_between_core_and_rack() -> None:
    fabric = three_tier()
    hosts_bps = sum(fabric.ports(host.name)[0].capacity_bps for host in fabric.hosts)
    core_bps = sum(rates_by_direction(fabric, name)[0] for name in ("core0", "core1"))
    assert hosts_bps / core_bps == 8


def test_default_fat_tree_has_one_rate_everywhere() -> None:
    assert {link.capacity_bps for link in fat_tree(4, host_bps=5e6).links} == {5_000_000}


def test_names_and_addresses_tell_the_place() -> None:
    fabric = three_tier(pods=3, racks_per_pod=3)
    host = fabric.host("p2r1h3")
    assert (host.ip, host.mac, host.rack, host.pod) == ("10.2.1.4", "02:00:0a:02:01:04", "p2r1", "p2")
    assert fabric.edge_switch_of("p2r1h3").name == "edge-p2r1"
    assert fabric.switch("aggregation-p0-1").pod == "p0"
    leafy = spine_leaf()
    assert (leafy.host("r3h0").ip, leafy.edge_switch_of("r3h0").name) == ("10.0.3.1", "leaf3")


def test_the_same_parameters_give_the_same_fabric() -> None:
    assert three_tier(pods=3) == three_tier(pods=3)


@pytest.mark.timeout(10)
def test_four_thousand_hosts_are_built_in_a_moment() -> None:
    fabric = three_tier(pods=16, racks_per_pod=16, hosts_per_rack=16, aggregations_per_pod=8, cores=16)
    assert len(fabric.hosts) == 4096
    assert IPv4Address(fabric.hosts[-1].ip) == IPv4Address("10.15.15.16")
    assert Fabric.from_json(fabric.to_json()) == fabric


@pytest.mark.parametrize(("build", "word"), [
    (lambda: three_tier(pods=0), "pods"),
    (lambda: three_tier(pods=256), "pods"),
    (lambda: three_tier(racks_per_pod=-1), "racks_per_pod"),
    (lambda: three_tier(hosts_per_rack=255), "hosts_per_rack"),
    (lambda: three_tier(aggregations_per_pod=0), "aggregations_per_pod"),
    (lambda: three_tier(cores=0), "cores"),
    (lambda: three_tier(pods=2.5), "pods"),  # type: ignore[arg-type]
    (lambda: three_tier(pods=True), "pods"),
    (lambda: three_tier(pods=255, racks_per_pod=256, hosts_per_rack=254), "hosts"),
    (lambda: three_tier(aggregations_per_pod=10_000, cores=10_000), "switch links"),
    (lambda: three_tier(host_bps=0), "host_bps"),
    (lambda: three_tier(host_bps=-80e6), "host_bps"),
    (lambda: three_tier(host_bps=float("nan")), "host_bps"),
    (lambda: three_tier(host_bps=float("inf")), "host_bps"),
    (lambda: three_tier(oversubscription={"edge": 0, "aggregation": 1}), "oversubscription.edge"),
    (lambda: three_tier(oversubscription={"edge": 1, "aggregation": -1}), "oversubscription.aggregation"),
    (lambda: three_tier(oversubscription={"edge": 1}), "aggregation"),
    (lambda: three_tier(oversubscription={"edge": 1, "aggregation": 1, "core": 1}), "core"),
    (lambda: three_tier(host_bps=1, oversubscription={"edge": 100, "aggregation": 1}), "oversubscription"),
    (lambda: fat_tree(3), "k"),
    (lambda: fat_tree(0), "k"),
    (lambda: fat_tree(200), "hosts"),
    (lambda: spine_leaf(leaves=0), "leaves"),
    (lambda: spine_leaf(spines=0), "spines"),
    (lambda: spine_leaf(hosts_per_leaf=0), "hosts_per_leaf"),
    (lambda: spine_leaf(oversubscription=0), "oversubscription"),
])
def test_absurd_parameters_are_refused_by_name(build: Callable[[], Fabric], word: str) -> None:
    with pytest.raises(InvalidFabric, match=word):
        build()


def _without_link(fabric: Fabric, a: str, b: str) -> Fabric:
    return replace(fabric, links=tuple(link for link in fabric.links if {link.a, link.b} != {a, b}))


BROKEN: list[tuple[Callable[[Fabric], object], str]] = [
    (lambda f: replace(f, hosts=()), "at least one host"),
    (lambda f: replace(f, hosts=(*f.hosts, f.hosts[0])), "name p0r0h0 is used 2 times"),
    (lambda f: replace(f, hosts=(replace(f.hosts[0], ip=f.hosts[1].ip), *f.hosts[1:])), "address"),
    (lambda f: replace(f, hosts=(replace(f.hosts[0], mac=f.hosts[1].mac), *f.hosts[1:])), "MAC address"),
    (lambda f: replace(f, hosts=(replace(f.hosts[0], mac="02:00"), *f.hosts[1:])), "MAC address"),
    (lambda f: replace(f, hosts=(replace(f.hosts[0], ip="192.168.0.1"), *f.hosts[1:])), "192.168.0.1"),
    (lambda f: replace(f, hosts=(replace(f.hosts[0], ip="10.255.0.9"), *f.hosts[1:])), "10.255.0.9"),
    (lambda f: replace(f, hosts=(replace(f.hosts[0], ip="10.0"), *f.hosts[1:])), "not an IPv4 address"),
    (lambda f: replace(f, hosts=(replace(f.hosts[0], name="p0 r0"), *f.hosts[1:])), "name 'p0 r0'"),
    (lambda f: replace(f, hosts=(replace(f.hosts[0], management_ip=MACHINE_ADDRESS), *f.hosts[1:])),
     "management address"),
    (lambda f: replace(f, switches=(replace(f.switches[0], dpid=f.switches[1].dpid), *f.switches[1:])),
     "datapath id"),
    (lambda f: replace(f, switches=(replace(f.switches[0], dpid=0), *f.switches[1:])), "datapath id"),
    (lambda f: replace(f, links=(*f.links, Link("core0", "nowhere", 1))), "nowhere"),
    (lambda f: replace(f, links=(*f.links, Link("core0", "core0", 1))), "core0 - core0"),
    (lambda f: replace(f, links=(*f.links, replace(f.links[0]))), "parallel links are not supported"),
    (lambda f: replace(f, links=(*f.links, Link("core0", "core1", 0))), "positive"),
    (lambda f: replace(f, links=(*f.links, Link("p0r0h0", "edge-p1r0", 1))), "exactly one link"),
    (lambda f: replace(f, links=(*f.links[1:], Link("p0r0h0", "core0", 1))), "exactly one link"),
    (lambda f: _without_link(f, "p0r0h0", "edge-p0r0"), "exactly one link"),
    (lambda f: _without_link(_without_link(f, "edge-p0r0", "aggregation-p0-0"), "edge-p0r0",
                             "aggregation-p0-1"), "not connected"),
]


@pytest.mark.parametrize(("damage", "message"), BROKEN)
def test_inconsistent_fabrics_are_refused(damage: Callable[[Fabric], object], message: str) -> None:
    with pytest.raises(InvalidFabric, match=message):
        damage(three_tier())


@pytest.mark.parametrize(("damage", "where"), [
    (lambda document: document.pop("links"), "links"),
    (lambda document: document["hosts"][1].pop("ip"), "hosts.1.ip"),
    (lambda document: document["links"][0].update(capacity_bps="fast"), "links.0.capacity_bps"),
    (lambda document: document["switches"][0].update(tier="middle"), "switches.0.tier"),
    (lambda document: document.update(colour="red"), "colour"),
    (lambda document: document["links"].pop(), "not connected"),
])
def test_bad_json_is_refused_naming_the_field(damage: Callable[[dict], object], where: str) -> None:
    document = json.loads(spine_leaf(leaves=2, spines=1, hosts_per_leaf=1).to_json())
    damage(document)
    with pytest.raises(InvalidFabric, match=where):
        Fabric.from_json(json.dumps(document))


@settings(max_examples=50)
@given(st.text(max_size=40))
def test_text_that_is_no_fabric_is_refused(text: str) -> None:
    with pytest.raises(InvalidFabric):
        Fabric.from_json(text)


def test_unknown_names_are_told_apart_from_other_lookups() -> None:
    fabric = three_tier()
    for look_up in (fabric.host, fabric.switch, fabric.ports, fabric.edge_switch_of):
        with pytest.raises(UnknownNode, match="nowhere"):
            look_up("nowhere")
    with pytest.raises(UnknownNode, match="core0"):
        fabric.host("core0")
    with pytest.raises(UnknownNode, match="neighbour of core0"):
        fabric.port_toward("core0", "p0r0h0")


def test_an_incomplete_fat_tree_has_fewer_pods_and_the_whole_core() -> None:
    fabric = fat_tree(4, pods=3)
    assert {host.pod for host in fabric.hosts} == {"p0", "p1", "p2"}
    assert sum(switch.tier == "core" for switch in fabric.switches) == 4
    for pods in (0, 5):
        with pytest.raises(InvalidFabric, match="pods"):
            fat_tree(4, pods=pods)
