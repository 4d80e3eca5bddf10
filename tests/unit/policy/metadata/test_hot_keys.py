"""Hot keys are answered where they are asked for, and no server is much busier than the others."""

from __future__ import annotations

import pytest

from speedwell.controller.policy.errors import InvalidCounts
from speedwell.controller.policy.metadata.blocks import owner, walk
from speedwell.controller.policy.metadata.hot_keys import spread
from speedwell.controller.policy.metadata.layout import Layout, lay_out
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
