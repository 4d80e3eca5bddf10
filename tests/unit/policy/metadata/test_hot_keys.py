"""Hot keys are answered where they are asked for, and no server is much busier than the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.controller.policy.errors import InvalidCounts
from speedwell.controller.policy.metadata.blocks import owner, walk
from speedwell.controller.policy.metadata.hot_keys import NONE, loads_of, planned, spread
from speedwell.controller.policy.metadata.layout import Layout, lay_out, leave
from speedwell.controller.policy.metadata.tables import tables
from speedwell.fs.metadata_store.addresses import address_of


def layout_of(servers: int) -> Layout:
    return lay_out({f"h{number}": ((f"edge{number // 16}",), (f"aggregation{number // 256}",), ("core",))
                    for number in range(servers)})


def zipf(keys: int, exponent: float = 1.2) -> dict[int, float]:
    rates: dict[int, float] = {}
    for rank in range(1, keys + 1):
        address = int(address_of(f"key {rank}".encode()))
        rates[address] = rates.get(address, 0.0) + rank ** -exponent
    return rates


def test_with_zipf_1_2_the_busiest_of_2000_servers_has_at_most_1_3_times_the_mean() -> None:
    layout, rates = layout_of(2000), zipf(100_000)
    without = spread(layout, rates, limit=0)
    assert without.busiest_over_mean > 100
    found = spread(layout, rates)
    assert found.busiest_over_mean <= 1.3
    assert max(map(len, found.entries.values())) + max(map(len, tables(layout).values())) <= 2048


def test_every_edge_switch_sends_a_hot_key_to_its_own_rack_and_others_as_before() -> None:
    layout, rates = layout_of(32), zipf(1000)
    found, made = spread(layout, rates), tables(layout)
    both = {switch: {**table, **found.entries.get(switch, {})} for switch, table in made.items()}
    assert set(found.entries) == {"edge0", "edge1"}
    for edge, table in found.entries.items():
        assert set(table) == {(address, 32) for address in found.addresses}
        for address in found.addresses:
            assert layout.above[walk(both, edge, address)[-1]][0] == (edge,)
    cold = next(address for address in rates if address not in found.addresses)
    assert walk(both, "edge0", cold)[-1] == owner(layout.blocks, cold)


def test_even_rates_need_no_entries() -> None:
    found = spread(layout_of(32), {}, rest=100.0)
    assert found.addresses == ()
    assert found.busiest_over_mean <= 1.03


def test_rates_below_zero_are_refused() -> None:
    with pytest.raises(InvalidCounts, match="below 0"):
        spread(layout_of(2), {layout_of(2).blocks[0].first: -1.0})


@given(servers=st.integers(2, 40), rates=st.lists(st.floats(0, 1e4), min_size=1, max_size=30),
       rest=st.floats(0, 1e5), limit=st.integers(0, 30))
def test_each_rack_shares_a_hot_key_among_its_own_servers_and_all_reads_are_somebodys(servers, rates, rest, limit):
    layout = layout_of(servers)
    by_address = {int(address_of(b"%d" % at)): rate for at, rate in enumerate(rates)}
    found = spread(layout, by_address, rest, limit)
    loads = loads_of(layout, by_address, rest, found.entries)
    assert sum(loads.values()) == pytest.approx(rest + sum(by_address.values()))
    assert len(found.addresses) <= limit
    for edge, table in found.entries.items():
        rack = {server for server, nodes in layout.above.items() if nodes[0] == (edge,)}
        for stops in table.values():
            assert set(stops) <= rack and len(stops) == len(set(stops)) and len(stops).bit_count() == 1
    if mean := sum(loads.values()) / len(loads):
        assert found.busiest_over_mean == pytest.approx(max(loads.values()) / mean)


def test_keys_stay_spread_as_they_are_until_it_does_no_more_or_is_not_needed() -> None:
    layout, rates = layout_of(32), {address: 1e4 * rate for address, rate in zipf(1000).items()}
    first = planned(layout, rates, 0.0, NONE)
    assert first.addresses and first.busiest_over_mean <= 1.3
    doubled = planned(layout, {address: 2 * rate for address, rate in rates.items()}, 0.0, first)
    assert doubled.entries == first.entries
    hottest = first.addresses[0]
    other = planned(layout, rates | {hottest: 0.0, hottest + 1: rates[hottest] * 2}, 0.0, first)
    assert hottest + 1 in other.addresses and hottest not in other.addresses
    assert planned(layout, rates, 1e9, first) == NONE
    assert planned(layout, {address: rate / 1e4 for address, rate in rates.items()}, 0.0, first) == NONE
    rest = leave(layout, first.entries["edge0"][hottest, 32][0])
    assert planned(rest, rates, 0.0, first).entries != first.entries
