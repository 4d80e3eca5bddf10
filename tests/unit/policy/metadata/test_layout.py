"""Our layout: who owns which keys, that every switch leads there, and what a change moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.policy.errors import MetadataError, NoIdleServer, UnknownServer
from speedwell.controller.policy.metadata.blocks import (
    IPV4,
    SPACE,
    Block,
    Move,
    Node,
    look_up,
    moves,
    nodes_above,
    owner,
    size,
    walk,
)
from speedwell.controller.policy.metadata.layout import Layout, join, lay_out, leave
from speedwell.controller.policy.metadata.tables import switch_of, tables
from speedwell.evaluation.papers import metaflow
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import fat_tree, spine_leaf, three_tier


def place(pod: int, rack: int) -> tuple[Node, ...]:
    return (f"edge-p{pod}r{rack}",), (f"aggregation-p{pod}-0", f"aggregation-p{pod}-1"), ("core0",)


HOSTS = {f"p{pod}r{rack}h{host}": place(pod, rack) for pod in range(3) for rack in range(3) for host in range(4)}
EDGES = [place(pod, rack) for pod in range(3) for rack in range(3)]


def is_partition(layout: Layout) -> bool:
    ends = [SPACE[0], *(block.end for block in layout.blocks)]
    firsts = [*(block.first for block in layout.blocks), SPACE[0] + size(SPACE)]
    return ends == firsts


def check(layout: Layout, rng: Random, edges: Sequence[tuple[Node, ...]] = EDGES) -> None:
    assert is_partition(layout)
    assert layout.busiest_over_mean <= 1.03
    made = tables(layout, edges)
    addresses = [block.first for block in layout.blocks] + [block.end - 1 for block in layout.blocks]
    for address in rng.choices(addresses, k=10):
        for (edge,), *_ in edges:
            way = walk(made, edge, address)
            assert way[-1] == owner(layout.blocks, address)
            assert len(way) <= 4, "one aggregation switch at most"


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_after_any_changes_the_blocks_are_the_whole_space_and_every_edge_switch_leads_to_their_servers(
        data: st.DataObject) -> None:
    rng = Random(data.draw(st.integers(0, 1000)))
    layout = lay_out({server: HOSTS[server] for server in data.draw(
        st.sets(st.sampled_from(sorted(HOSTS)), min_size=1, max_size=30))})
    check(layout, rng)
    for _ in range(data.draw(st.integers(1, 15))):
        server = data.draw(st.sampled_from(sorted(HOSTS)))
        before = layout
        if server not in layout.above:
            layout = join(layout, server, HOSTS[server])
        elif len(layout.above) > 1:
            layout = leave(layout, server)
        by_hand = {(a, b) for address in {each.first for each in (*before.blocks, *layout.blocks)}
                   if (a := owner(before.blocks, address)) != (b := owner(layout.blocks, address))}
        assert by_hand == {(move.source, move.target) for move in moves(before.blocks, layout.blocks)}
    check(layout, rng)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10_000))
def test_many_servers_in_racks_of_uneven_size_keep_an_even_load_whatever_comes_and_goes(seed: int) -> None:
    rng = Random(seed)
    hosts = {f"p{pod}r{rack}h{host}": place(pod, rack) for pod in range(rng.randint(1, 5)) for rack in range(8)
             for host in range(rng.randint(1, 20))}
    on = rng.sample(sorted(hosts), len(hosts) * 3 // 4)
    layout = lay_out({server: hosts[server] for server in on})
    for _ in range(30):
        server = rng.choice(sorted(hosts))
        leaves = server in layout.above and len(layout.above) > 1
        layout = leave(layout, server) if leaves else layout if server in layout.above else join(
            layout, server, hosts[server])
        assert is_partition(layout)
        assert layout.busiest_over_mean <= 1.03
    check(layout, rng, sorted(set(hosts.values()))[:6])


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 13))
def test_2000_servers_have_half_the_papers_entries_after_500_changes(seed: int) -> None:
    found = metaflow.tables("Speedwell", metaflow.Point(2000, changes=500), seed)
    assert found["busiest_over_mean"] <= 1.03
    assert found["edge_worst"] <= 180
    assert found["aggregation_worst"] <= 198
    assert found["core_worst"] == 0
    assert found["moved"] <= 1.5, "of what a server has in the mean, in one change"


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 7))
def test_2000_servers_in_racks_of_4_to_28_have_little_more_entries_after_500_changes(seed: int) -> None:
    rng, hosts = Random(seed), {}
    for rack in count():
        if len(hosts) == 2048:
            break
        for _ in range(min(rng.randint(4, 28), 2048 - len(hosts))):
            hosts[f"s{len(hosts)}"] = place(rack // 16, rack % 16)
    layout = lay_out({server: hosts[server] for server in list(hosts)[:2000]}, IPV4)
    for _ in range(500):
        on, off = sorted(layout.above), sorted(hosts.keys() - layout.above.keys())
        if off and rng.random() < 0.5:
            server = rng.choice(off)
            layout = join(layout, server, hosts[server])
        else:
            layout = leave(layout, rng.choice(on))
    entries = Counter[str]()
    for name, table in tables(layout).items():
        entries[switch_of(name)] += len(table)
    edge, aggregation = (max(number for switch, number in entries.items() if switch.startswith(tier))
                         for tier in ("edge", "aggregation"))
    print(f"seed {seed}: {edge} entries at the worst edge switch, {aggregation} at the worst aggregation switch")
    assert layout.busiest_over_mean <= 1.03
    assert edge <= 240, "180 are aimed at"
    assert aggregation <= 198


def test_no_server_of_racks_of_uneven_size_is_too_busy_at_first() -> None:
    few = {"p0r0h0", "p0r0h1", "p0r0h2", "p0r0h3", "p0r1h0", "p0r1h1", "p0r1h2", "p1r0h0", "p1r0h1", "p1r1h0",
           "p1r1h1", "p1r2h0", "p1r2h1", "p2r0h0", "p2r0h1"}
    for servers in (few, *(set(Random(seed).sample(sorted(HOSTS), 5 + seed)) for seed in range(30))):
        assert lay_out({server: HOSTS[server] for server in servers}).busiest_over_mean <= 1.03


def test_what_leaves_moves_and_nothing_else_where_others_have_room() -> None:
    layout = lay_out(HOSTS)
    server = "p1r1h2"
    gone = leave(layout, server)
    assert {move.source for move in moves(layout.blocks, gone.blocks)} == {server}
    assert sum(size((move.first, move.length)) for move in moves(layout.blocks, gone.blocks)) == sum(
        size(block.prefix) for block in layout.blocks if block.server == server)


def test_moves_are_the_fewest_prefixes() -> None:
    before = [Block(0, 30, "a"), Block(4, 30, "b")]
    after = [Block(0, 31, "a"), Block(2, 31, "c"), Block(4, 30, "c")]
    assert moves(before, after) == (Move(2, 31, "a", "c"), Move(4, 30, "b", "c"))
    assert moves(before, before) == ()


def test_two_tiers_and_one_switch_have_tables_too() -> None:
    for fabric in (spine_leaf(leaves=3, spines=2, hosts_per_leaf=2), three_tier(), fat_tree(4)):
        network = network_of(fabric)
        layout = lay_out(nodes_above(network, network.hosts))
        made = tables(layout)
        assert not any(switch.startswith("core") for switch in made)
        for host in fabric.hosts:
            for block in layout.blocks:
                assert walk(made, fabric.edge_switch_of(host).name, block.first)[-1] == block.server
    alone = lay_out({"h1": (("s1",),), "h2": (("s1",),)})
    assert {walk(tables(alone), "s1", block.first)[-1] for block in alone.blocks} == {"h1", "h2"}


def test_switches_of_one_node_have_the_same_table_and_a_pod_of_one_rack_has_none() -> None:
    layout = lay_out({server: HOSTS[server] for server in ("p0r0h0", "p0r1h0", "p1r1h1")})
    made = tables(layout, EDGES)
    assert made["aggregation-p0-0"] == made["aggregation-p0-1"]
    racks = {"edge-p0r0", "edge-p0r1", "edge-p1r1"}
    assert {switch_of(table) for table in made if table not in {edge for (edge,), *_ in EDGES}} == {
        *place(0, 0)[1], *racks}
    assert look_up(made["edge-p2r2"], layout.blocks[0].first) == place(0, 0)[1]
    assert walk(made, "edge-p2r2", layout.blocks[-1].first)[1:] == ("edge-p1r1 delivers", "p1r1h1")


@pytest.mark.parametrize(("change", "error"), [
    (lambda layout: join(layout, "p0r0h0", place(0, 0)), UnknownServer),
    (lambda layout: leave(layout, "p2r2h0"), UnknownServer),
    (lambda layout: leave(leave(layout, "p0r0h0"), "p1r1h1"), NoIdleServer),
    (lambda layout: lay_out({f"h{number}": place(0, 0) for number in range(5000)}), NoIdleServer),
])
def test_what_cannot_be_is_refused(change: object, error: type[MetadataError]) -> None:
    layout = lay_out({server: HOSTS[server] for server in ("p0r0h0", "p1r1h1")})
    with pytest.raises(error):
        change(layout)      # type: ignore[operator]


def test_random_changes_move_what_they_must_and_leave_tables_small() -> None:
    rng = Random(3)
    hosts = {f"p{pod}r{rack}h{host}": place(pod, rack) for pod in range(2) for rack in range(4) for host in range(16)}
    layout = lay_out({server: hosts[server] for server in rng.sample(sorted(hosts), 100)})
    first = max(map(len, tables(layout).values()))
    moved = 0.0
    for number in range(40):
        before = layout
        if number % 2:
            server = rng.choice(sorted(layout.above))
            layout = leave(layout, server)
        else:
            server = rng.choice(sorted(hosts.keys() - layout.above.keys()))
            layout = join(layout, server, hosts[server])
        units = sum(size((move.first, move.length)) for move in moves(before.blocks, layout.blocks))
        moved += units * len(layout.above) / size(SPACE)
    assert layout.busiest_over_mean <= 1.03
    assert moved / 40 <= 1.6, "of a server's mean"
    assert first < 70
    assert max(map(len, tables(layout).values())) < 200
