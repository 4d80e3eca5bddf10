"""Labels: one per path, a tree per label, and a meaning that outlives the links it was made for."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.policy.errors import LabelsExhausted, UnknownPath
from speedwell.controller.policy.network import labels as labels_module
from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.network.labels import (
    FIRST_LABEL,
    LAST_LABEL,
    MAX_BITS,
    InheritedBlock,
    LabelChanges,
    Labels,
    LabelSpace,
    labels_in,
)
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import fat_tree, spine_leaf, three_tier
from tests.unit.policy.networks import join, network_with, part

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


def edges_of(network: Network) -> list[str]:
    return sorted({switch for host in network.hosts for switch in network.neighbours(host)})


def switch_links(network: Network) -> set[tuple[str, str]]:
    return {link for link in network.links if network.switches.issuperset(link)}


def edge_paths(network: Network) -> PathsByPair:
    edges = edges_of(network)
    return {(a, b): network.shortest_paths(a, b) for a in edges for b in edges if a != b}


def follow(labels: Labels, network: Network) -> list[LabelChanges]:
    return list(labels.update(switch_links(network), edges_of(network)))


def walked(labels: Labels, label: int, path: Path) -> tuple[str, ...]:
    """Where a packet goes whose label is pushed at the beginning of a path, by what each switch holds."""
    (block,) = [block for block in labels.blocks if label in block.labels]
    nodes = list(path.nodes[:2])
    for _ in range(20):
        assert labels.is_seen_by(nodes[-1], label)
        following = dict(labels_in(block, nodes[-1]))[label]
        if following is None:
            return tuple(nodes)
        nodes.append(following)
    raise AssertionError("the label loops")


def require_every_path_has_its_label(labels: Labels, network: Network) -> None:
    for (source, destination), paths in edge_paths(network).items():
        assert all(walked(labels, labels.label_for(path), path) == path.nodes for path in paths)
        assert len({labels.label_for(path) for path in paths}) == len(paths)
        block = labels.block_of(source, destination)
        choices = block.trees.choices(source).bit_count() if block else 0
        assert choices == len(paths)
    for block in labels.blocks:
        assert block.base >= FIRST_LABEL and block.base + (1 << block.bits) - 1 <= LAST_LABEL


@settings(max_examples=80, deadline=None)
@given(networks)
def test_each_equal_cost_path_has_a_label_that_leads_along_it(network: Network) -> None:
    labels = Labels()
    follow(labels, network)
    require_every_path_has_its_label(labels, network)


@settings(max_examples=80, deadline=None)
@given(networks, st.data())
def test_labels_keep_their_meaning_while_links_go_and_come_back(network: Network, data: st.DataObject) -> None:
    labels = Labels()
    follow(labels, network)
    original = {path: labels.label_for(path) for paths in edge_paths(network).values() for path in paths}
    gone: list[tuple[str, str]] = []
    for _ in range(data.draw(st.integers(1, 6))):
        links = sorted(link for link in switch_links(network) if link[0] < link[1])
        if gone and (not links or data.draw(st.booleans())):
            join(network, *gone.pop(data.draw(st.integers(0, len(gone) - 1))))
        elif links:
            gone.append(data.draw(st.sampled_from(links)))
            part(network, *gone[-1])
        follow(labels, network)
        require_every_path_has_its_label(labels, network)
        now = {path: labels.label_for(path) for paths in edge_paths(network).values() for path in paths}
        assert all(now[path] == label for path, label in original.items() if path in now)
    for link in gone:
        join(network, *link)
    follow(labels, network)
    assert {path: labels.label_for(path) for path in original} == original
    assert len(labels.blocks) == len(edges_of(network))


@settings(max_examples=60, deadline=None)
@given(networks, st.data())
def test_links_that_are_found_one_by_one_get_labels_too(network: Network, data: st.DataObject) -> None:
    links = sorted(link for link in switch_links(network) if link[0] < link[1])
    late = data.draw(st.lists(st.sampled_from(links), unique=True, max_size=4)) if links else []
    for link in late:
        part(network, *link)
    labels = Labels()
    follow(labels, network)
    for link in late:
        join(network, *link)
        follow(labels, network)
        require_every_path_has_its_label(labels, network)


def test_a_link_that_fails_and_returns_costs_no_label_work() -> None:
    network = network_of(fat_tree(4))
    labels = Labels()
    follow(labels, network)
    for link in sorted(link for link in switch_links(network) if link[0] < link[1])[:8]:
        part(network, *link)
        assert not any(changed.made or changed.ended for changed in follow(labels, network))
        join(network, *link)
        assert not any(changed.made or changed.ended for changed in follow(labels, network))


def test_a_link_concerns_those_whose_paths_it_is_on_alone() -> None:
    network = network_of(spine_leaf(leaves=4, spines=2, hosts_per_leaf=1))
    labels = Labels()
    follow(labels, network)
    part(network, "leaf0", "spine1")
    changed = {change.destination: change.sources for change in follow(labels, network)}
    others = {"leaf1", "leaf2", "leaf3"}
    assert changed == {"leaf0": others, **{other: {"leaf0"} for other in others}}


def test_ten_thousand_failures_use_no_more_labels_than_the_first_ones() -> None:
    random = Random(7)
    network = network_of(spine_leaf(leaves=4, spines=2, hosts_per_leaf=1))
    labels = Labels()
    follow(labels, network)
    links = sorted(link for link in switch_links(network) if link[0] < link[1])
    down: set[tuple[str, str]] = set()
    most_blocks, most_labels = 0, 0
    for _ in range(10_000):
        link = random.choice(links)
        (join if link in down else part)(network, *link)
        down ^= {link}
        follow(labels, network)
        most_blocks, most_labels = max(most_blocks, len(labels.blocks)), max(most_labels, labels.space.allocated)
    assert most_blocks <= 2 * 4
    assert most_labels <= 64
    for link in down:
        join(network, *link)
    follow(labels, network)
    require_every_path_has_its_label(labels, network)


@given(networks)
@settings(max_examples=40, deadline=None)
def test_equal_graphs_get_equal_labels(network: Network) -> None:
    both = Labels(), Labels()
    for labels in both:
        follow(labels, network)
    for paths in edge_paths(network).values():
        assert [both[0].label_for(path) for path in paths] == [both[1].label_for(path) for path in paths]


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
    labels = Labels()
    follow(labels, network)
    assert labels.space.allocated == expected


def test_a_path_that_is_no_shortest_one_has_no_label() -> None:
    labels = Labels()
    network = network_of(spine_leaf(leaves=3, spines=1, hosts_per_leaf=1))
    follow(labels, network)
    for nodes in [("leaf0", "leaf1"), ("leaf0", "spine0", "leaf2", "spine0", "leaf1"), ("leaf0", "spine0")]:
        with pytest.raises(UnknownPath):
            labels.label_for(Path(nodes))


def test_running_out_of_labels_leaves_the_others_working(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels_module, "LAST_LABEL", FIRST_LABEL + 3)
    network = network_of(spine_leaf(leaves=3, spines=2, hosts_per_leaf=1))
    labels = Labels()
    follow(labels, network)
    assert labels.without_labels == {"leaf2"}
    for path in network.shortest_paths("leaf0", "leaf1"):
        assert walked(labels, labels.label_for(path), path) == path.nodes
    with pytest.raises(UnknownPath):
        labels.label_for(network.shortest_paths("leaf0", "leaf2")[0])
    network.remove_node("leaf1")
    follow(labels, network)
    assert labels.without_labels == set()


def found_in(labels: Labels) -> list[InheritedBlock]:
    return [InheritedBlock(block.destination, block.base, block.bits,
                           {node: {label - block.base: neighbour for label, neighbour in labels_in(block, node)
                                   if neighbour is not None} for node in block.arrivals if node != block.destination})
            for block in labels.blocks]


def test_labels_of_an_earlier_controller_are_taken_over_where_the_trees_are_the_same_and_avoided_elsewhere() -> None:
    network = network_of(spine_leaf(leaves=3, spines=2, hosts_per_leaf=1))
    first, second = Labels(), Labels()
    for edges in (["leaf2"], ["leaf1", "leaf2"], edges_of(network)):
        list(first.update(switch_links(network), edges))
    found = found_in(first)
    spoilt = InheritedBlock(found[0].destination, found[0].base, found[0].bits, {"spine0": {0: "leaf9"}})
    strange = InheritedBlock("leaf0", 3, 0, {})
    assert second.adopt([spoilt, *found[1:], strange]) == [strange]
    follow(second, network)
    bases = {block.destination: block.base for block in second.blocks}
    assert all(bases[block.destination] == block.base for block in found[1:])
    assert second.not_adopted() == [spoilt] and bases[spoilt.destination] != spoilt.base
    second.forget(spoilt)
    assert second.not_adopted() == []
    require_every_path_has_its_label(second, network)


def test_labels_given_back_serve_blocks_of_any_size_and_rest_as_long_as_others_are_free() -> None:
    space = LabelSpace()
    bits, size = MAX_BITS, 1 << MAX_BITS
    blocks = [space.allocate(bits) for _ in range((LAST_LABEL + 1) // size - -(-FIRST_LABEL // size))]
    with pytest.raises(LabelsExhausted):
        space.allocate(bits)
    for base in blocks[3:6]:
        space.release(base, bits)
    small = [space.allocate(0) for _ in range(blocks[0] - FIRST_LABEL + 2 * size)]
    assert {*range(blocks[3], blocks[5])} < {*small}
    space.release(small[-1], 0)
    assert space.allocate(bits) == blocks[5]
    assert space.allocate(0) == small[-1]


def test_ten_thousand_detours_of_different_sizes_do_not_use_the_labels_up() -> None:
    space, generator = LabelSpace(), Random(1)
    held: list[tuple[int, int]] = []
    for _ in range(10_000):
        bits = generator.randrange(9)
        held.append((space.allocate(bits), bits))
        if len(held) > 500:
            space.release(*held.pop(generator.randrange(len(held))))
    assert space.allocated == sum(1 << bits for _, bits in held)
