"""Labels: one per path, an in-tree per label, and a meaning that outlives the links it was made for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.policy import labels
from controller.policy.errors import LabelsExhausted, UnknownPath
from controller.policy.labels import FIRST_LABEL, LAST_LABEL, LabelTable
from controller.policy.network import Network, Path
from sim.fabric_network import network_of
from tests.unit.policy.networks import join, network_with, part
from topo.fabric import fat_tree, spine_leaf, three_tier

PathsByPair = dict[tuple[str, str], tuple[Path, ...]]

fabric_networks = st.one_of(
    st.builds(
        three_tier,
        pods=st.integers(1, 3),
        racks_per_pod=st.integers(1, 3),
        hosts_per_rack=st.just(1),
        aggregations_per_pod=st.integers(1, 3),
        cores=st.integers(1, 3),
    ),
    st.builds(fat_tree, k=st.sampled_from([2, 4])),
    st.builds(spine_leaf, leaves=st.integers(1, 6), spines=st.integers(1, 4), hosts_per_leaf=st.just(1)),
).map(network_of)


@st.composite
def random_networks(draw: st.DrawFn) -> Network:
    """Connected: a random tree of switches with more links thrown in; some switches have a host."""
    count = draw(st.integers(2, 9))
    network = network_with(" ".join(f"s{number}" for number in range(count)), "", "")
    for number in range(1, count):
        join(network, f"s{number}", f"s{draw(st.integers(0, number - 1))}")
    numbers = st.integers(0, count - 1)
    for a, b in draw(st.lists(st.tuples(numbers, numbers), max_size=15)):
        if a != b:
            join(network, f"s{a}", f"s{b}")
    for number in draw(st.sets(numbers, min_size=2)):
        network.add_host(f"h{number}")
        join(network, f"h{number}", f"s{number}")
    return network


networks = st.one_of(fabric_networks, random_networks())


def edge_paths(network: Network) -> PathsByPair:
    edges = sorted({switch for host in network.hosts for switch in network.neighbours(host)})
    return {(a, b): network.shortest_paths(a, b) for a in edges for b in edges if a != b}


def switch_links(network: Network) -> list[tuple[str, str]]:
    return sorted(link for link in network.links if link[0] < link[1] and network.switches.issuperset(link))


def followed(table: LabelTable, label: int, start: str) -> tuple[str, ...]:
    """Where a packet with this label goes from `start`, hop by hop."""
    next_hops = table.next_hops(label)
    nodes = [start]
    while nodes[-1] in next_hops:
        nodes.append(next_hops[nodes[-1]])
        assert len(nodes) <= len(next_hops) + 1, "the label loops"
    return tuple(nodes)


def require_every_path_has_its_label(table: LabelTable, paths_by_pair: PathsByPair) -> None:
    for paths in paths_by_pair.values():
        for path in paths:
            assert followed(table, table.label_for(path), path.nodes[0]) == path.nodes
        assert len({table.label_for(path) for path in paths}) == len(paths)


def require_in_trees(table: LabelTable) -> None:
    for label in table.labels:
        assert FIRST_LABEL <= label <= LAST_LABEL
        assert len({followed(table, label, switch)[-1] for switch in table.next_hops(label)}) == 1


@given(networks)
def test_each_equal_cost_path_has_a_label_that_leads_along_it(network: Network) -> None:
    table = LabelTable()
    paths_by_pair = edge_paths(network)
    assert table.assign(paths_by_pair) == frozenset(table.labels)
    require_every_path_has_its_label(table, paths_by_pair)
    require_in_trees(table)


@settings(max_examples=60)
@given(networks, st.data())
def test_labels_keep_their_meaning_while_links_go_and_come_back(network: Network, data: st.DataObject) -> None:
    table = LabelTable()
    original = edge_paths(network)
    table.assign(original)
    labels_before = {path: table.label_for(path) for paths in original.values() for path in paths}
    meaning: dict[int, dict[str, str]] = {}
    gone: list[tuple[str, str]] = []
    for _ in range(data.draw(st.integers(1, 5))):
        links = switch_links(network)
        if gone and (not links or data.draw(st.booleans())):
            join(network, *gone.pop(data.draw(st.integers(0, len(gone) - 1))))
        elif links:
            gone.append(data.draw(st.sampled_from(links)))
            part(network, *gone[-1])
        current = edge_paths(network)
        unchanged = {label: table.next_hops(label) for label in table.labels}
        grown = table.assign(current)
        require_every_path_has_its_label(table, current)
        require_in_trees(table)
        assert all(table.next_hops(label) == hops for label, hops in unchanged.items() if label not in grown)
        for label, hops in meaning.items():
            assert hops.items() <= table.next_hops(label).items()
        meaning = {label: table.next_hops(label) for label in table.labels}
    for link in gone:
        join(network, *link)
    assert edge_paths(network) == original
    assert table.assign(original) == frozenset()
    assert {path: table.label_for(path) for path in labels_before} == labels_before


def test_a_path_keeps_its_label_when_another_label_comes_to_lead_along_it() -> None:
    """From b to d the second label leads by another path's doing, and later the first one does too."""
    table = LabelTable()
    own = Path(("b", "d"))
    table.assign({("a", "d"): (Path(("a", "c", "d")), Path(("a", "b", "d"))), ("b", "d"): (own,)})
    before = table.label_for(own)
    table.assign({("e", "d"): (Path(("e", "b", "d")),)})

    assert table.label_for(own) == before


@given(networks)
def test_equal_graphs_get_equal_labels(network: Network) -> None:
    tables = LabelTable(), LabelTable()
    paths_by_pair = edge_paths(network)
    tables[0].assign(paths_by_pair)
    tables[1].assign(dict(reversed(paths_by_pair.items())))
    for paths in paths_by_pair.values():
        assert [tables[0].label_for(path) for path in paths] == [tables[1].label_for(path) for path in paths]


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (network_of(three_tier(pods=4, racks_per_pod=4, aggregations_per_pod=2, cores=2)), 16 * 8),
        (network_of(fat_tree(4)), 8 * 4),
        (network_of(spine_leaf(leaves=4, spines=4)), 4 * 4),
    ],
    ids=["three-tier", "fat-tree", "spine-leaf"],
)
def test_the_usual_fabrics_need_no_more_labels_than_a_pair_has_paths(network: Network, expected: int) -> None:
    table = LabelTable()
    table.assign(edge_paths(network))
    assert len(table.labels) == expected


def test_a_path_that_was_never_assigned_has_no_label() -> None:
    table = LabelTable()
    table.assign({("a", "c"): [Path(("a", "b", "c"))]})
    assert table.label_for(Path(("b", "c"))) == FIRST_LABEL
    for nodes in [("a", "d", "c"), ("c", "b", "a"), ("c",)]:
        with pytest.raises(UnknownPath):
            table.label_for(Path(nodes))
    with pytest.raises(UnknownPath):
        table.next_hops(FIRST_LABEL + 1)


def test_running_out_of_labels_is_an_error_that_leaves_the_others_working(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "LAST_LABEL", FIRST_LABEL)
    table = LabelTable()
    path = Path(("a", "b", "c"))
    with pytest.raises(LabelsExhausted):
        table.assign({("a", "c"): [path, Path(("a", "d", "c"))]})
    assert table.label_for(path) == FIRST_LABEL
