"""MetaFlow's B-tree: the paper's worked examples, and that leaves are a partition which the tables follow."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.policy.errors import InvalidCounts, MetadataError, NoIdleServer, UnknownServer
from speedwell.controller.policy.metadata.blocks import (
    IPV4,
    TABLE_LIMIT,
    Node,
    Tables,
    moves,
    owner,
    prefixes_between,
    size,
    walk,
)
from speedwell.controller.policy.metadata.btree import Count, Places, Tree, divided, grown, paper_tables, tree_of
from speedwell.controller.policy.network.prefixes import Prefix
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import fat_tree, spine_leaf, three_tier


def prefix(text: str) -> Prefix:
    network = ip_network(text)
    return int(network.network_address), network.prefixlen


def number(text: str) -> int:
    return int(IPv4Address(text))


def counting(**keys: int) -> Count:
    """Of keys that are so many in each /4, by its first byte."""
    return lambda block: sum(count for first, count in keys.items()
                             if block[0] <= int(first[1:]) << 24 < block[0] + size(block))


def figure_11() -> Tree:
    """SwitchA with ServerA and ServerB busy and ServerC idle, SwitchB with the other half."""
    parents: dict[str | Node, Node] = {("SwitchA",): ("SwitchC",), ("SwitchB",): ("SwitchC",)}
    parents |= {f"Server{name}": ("SwitchA",) for name in "ABC"} | {"ServerD": ("SwitchB",)}
    return Tree(Places(("SwitchC",), parents), {
        "ServerA": (prefix("0.0.0.0/2"), prefix("64.0.0.0/3")), "ServerB": (prefix("96.0.0.0/3"),),
        "ServerD": (prefix("128.0.0.0/1"),)})


def test_figure_10_a_partition_at_96_makes_three_blocks() -> None:
    assert list(prefixes_between(0, number("96.0.0.0"))) == [prefix("0.0.0.0/2"), prefix("64.0.0.0/3")]
    assert list(prefixes_between(number("96.0.0.0"), number("128.0.0.0"))) == [prefix("96.0.0.0/3")]
    tables = paper_tables(figure_11())
    assert tables["SwitchC"] == {prefix("0.0.0.0/1"): ("SwitchA",), prefix("128.0.0.0/1"): ("SwitchB",)}


def test_figure_11_a_split_at_80_changes_one_entry_and_adds_one() -> None:
    before = figure_11()
    after, activated = before.split("ServerA", counting(_0=30, _64=20, _80=50))
    assert activated == "ServerC"
    assert after.owned["ServerA"] == (prefix("0.0.0.0/2"), prefix("64.0.0.0/4"))
    assert after.owned["ServerC"] == (prefix("80.0.0.0/4"),)
    old, new = paper_tables(before), paper_tables(after)
    assert {block: new["SwitchA"][block] for block in new["SwitchA"].keys() - old["SwitchA"].keys()} == {
        prefix("64.0.0.0/4"): ("ServerA",), prefix("80.0.0.0/4"): ("ServerC",)}
    assert old["SwitchA"].keys() - new["SwitchA"].keys() == {prefix("64.0.0.0/3")}
    assert {switch for switch in old if old[switch] != new[switch]} == {"SwitchA"}


def test_a_traversal_stops_between_40_and_60_percent() -> None:
    low, middle, high = prefix("192.168.100.0/25"), prefix("192.168.100.128/26"), prefix("192.168.100.192/26")
    counts = {low: 50, middle: 30, high: 20}
    assert divided((low, middle, high), counts.__getitem__) == ((low,), (prefix("192.168.100.128/25"),))


def test_the_papers_three_blocks_overlap() -> None:
    """Its example of section VI-B holds .0/25, .128/25 and .192/26; the last is inside the second."""
    assert ip_network("192.168.100.192/26").subnet_of(ip_network("192.168.100.128/25"))


def test_a_single_address_goes_undivided() -> None:
    hot, rest = (7, 32), [*prefixes_between(0, 7), *prefixes_between(8, 1 << 32)]
    left, right = divided((IPV4,), lambda block: 10 * (block[0] <= 7 < block[0] + size(block)) + (block[0] == 0))
    assert {hot} <= {*left} or {hot} <= {*right}
    assert sum(map(size, (*left, *right))) == 1 << 32 == sum(map(size, (*rest, hot)))
    with pytest.raises(InvalidCounts, match="one address"):
        divided((hot,), lambda _: 10)


@pytest.mark.parametrize("count", [lambda _: 0, lambda _: -1, lambda block: 10 if block[1] == 2 else 100])
def test_counts_that_cannot_be_change_nothing(count: Count) -> None:
    with pytest.raises(InvalidCounts):
        figure_11().split("ServerA", count)


def test_idle_joins_change_no_table() -> None:
    tree = figure_11()
    joined = tree.with_server("ServerE", ("SwitchB",))
    assert paper_tables(joined) == paper_tables(tree)
    assert not joined.is_busy("ServerE")
    assert joined.is_busy(("SwitchB",))
    assert paper_tables(joined.without_server("ServerE")) == paper_tables(joined)


def test_an_idle_sibling_takes_a_failed_servers_place_in_the_parent_alone() -> None:
    tree = figure_11()
    after = tree.without_server("ServerB")
    assert after.owned["ServerC"] == tree.owned["ServerB"]
    assert {switch for switch, table in paper_tables(after).items() if table != paper_tables(tree)[switch]} == {
        "SwitchA"}


def test_a_rack_without_idle_servers_splits_to_the_nearest_rack_that_has_one() -> None:
    tree = figure_11().with_server("ServerE", ("SwitchB",))
    tree, first = tree.split("ServerA", size)
    tree, second = tree.split("ServerB", size)
    assert (first, second) == ("ServerC", "ServerE")
    with pytest.raises(NoIdleServer, match="add servers"):
        tree.split("ServerA", size)


def test_without_idle_servers_a_neighbour_takes_the_blocks() -> None:
    tree, _ = figure_11().split("ServerA", size)
    after = tree.without_server("ServerA")
    assert "ServerA" not in after.places.parents
    assert {move.target for move in moves(tree.blocks, after.blocks)} <= {"ServerB", "ServerC"}
    with pytest.raises(NoIdleServer):
        Tree(Places(("s",), {"a": ("s",)}), {"a": (IPV4,)}).without_server("a")


@pytest.mark.parametrize("change", [
    lambda tree: tree.with_server("ServerA", ("SwitchA",)), lambda tree: tree.with_server("ServerE", ("SwitchX",)),
    lambda tree: tree.without_server("ServerX"), lambda tree: tree.split("ServerC", size)])
def test_unknown_and_doubled_names_are_refused(change: object) -> None:
    with pytest.raises(UnknownServer):
        change(figure_11())     # type: ignore[operator]


def assert_tables_follow(tree: Tree, tables: Tables) -> None:
    blocks = tree.blocks
    assert [block.first for block in blocks] == [0, *(block.end for block in blocks[:-1])]
    assert blocks[-1].end == 1 << 32
    for block in blocks:
        for address in (block.first, block.end - 1):
            for switch in tables:
                assert walk(tables, switch, address)[-1] == block.server == owner(blocks, address)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_after_any_changes_leaves_are_a_partition_and_every_switch_leads_to_them(data: st.DataObject) -> None:
    fabric = data.draw(st.sampled_from([fat_tree(4), fat_tree(4, pods=2), three_tier(), spine_leaf()]))
    tree = tree_of(network_of(fabric), [host.name for host in fabric.hosts][::2])
    for _ in range(data.draw(st.integers(1, 20))):
        kind = data.draw(st.sampled_from(["split", "split", "leave", "merge", "join"]))
        busy = sorted(tree.owned)
        try:
            if kind == "split":
                hot = data.draw(st.integers(0, (1 << 32) - 1))
                tree, _ = tree.split(data.draw(st.sampled_from(busy)), lambda block, hot=hot: size(block) + (
                    10**9 if block[0] <= hot < block[0] + size(block) else 0))
            elif kind == "merge":
                tree = tree.merged(data.draw(st.sampled_from(busy)))
            elif kind == "join":
                host = data.draw(st.sampled_from(fabric.hosts)).name
                tree = tree.with_server(host, (fabric.edge_switch_of(host).name,))
            else:
                tree = tree.without_server(data.draw(st.sampled_from(sorted(tree.places.above))))
        except MetadataError:
            continue
    assert_tables_follow(tree, paper_tables(tree))


def test_2_000_servers_fit_a_table_of_2048_entries_by_little() -> None:
    parents: dict[str | Node, Node] = {}
    for rack in range(250):
        pod = (f"pod{rack // 16}",)
        parents |= {(f"edge{rack}",): pod, pod: ("core",)}
        parents |= {f"h{rack}-{host}": (f"edge{rack}",) for host in range(16)}
    tree = grown(Tree(Places(("core",), parents), {"h0-0": (IPV4,)}), 2000)
    tables = paper_tables(tree)
    assert 1700 < len(tables["core"]) == max(map(len, tables.values())) <= TABLE_LIMIT
