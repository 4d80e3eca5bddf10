"""The registry of tables: what a system may declare, and that what it declares is in the switches."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from speedwell.controller.errors import TableTaken
from speedwell.controller.switches.entries import ETH_IPV4, FlowEntry, match
from speedwell.controller.switches.layout import COOKIE_FLOWS, Priority, Table
from speedwell.controller.tables.registry import OwnedTable, Step, TableRegistry
from tests.unit.controller.forwarding_run import FABRICS, Run

DROPS = OwnedTable("drops", 30, 0x5720 << 48)


def nothing(dpid: str) -> Iterable[FlowEntry]:
    return ()


def test_a_systems_table_stands_between_senders_and_routes_and_lets_through_what_it_does_not_match() -> None:
    run = Run(FABRICS[0])
    target = run.network.hosts["p1r1h0"]

    def entries_of(dpid: str) -> Iterable[FlowEntry]:
        yield FlowEntry(30, Priority.HOST, match(eth_type=ETH_IPV4, ipv4_dst=target.ip), cookie=DROPS.cookie | 7)

    run.sync()
    run.planner.registry.declare(DROPS, entries_of)
    run.planner.fill_all()
    run.sync(between_steps=lambda: None)
    assert {at.where for at in run.network.send("p0r0h0", run.network.tcp("p0r0h0", "p1r1h0"))} == {"nowhere"}
    other = run.network.hosts["p0r1h0"].ip
    assert {at.where for at in run.network.send("p0r0h0", run.network.tcp("p0r0h0", "p0r1h0"))} == {other}


def test_packets_cross_systems_tables_in_the_order_of_their_numbers() -> None:
    registry = TableRegistry()
    assert registry.after(Table.SOURCES) == Table.ROUTES
    for number in (25, 22):
        registry.declare(OwnedTable(f"t{number}", number, (0x5720 + number) << 48), nothing)
    assert [registry.after(Table.SOURCES), registry.after(22), registry.after(25)] == [22, 25, Table.ROUTES]
    assert registry.step_of(FlowEntry(22, 1, ())) is Step.SENDING
    assert registry.step_of(FlowEntry(Table.LABELS, 1, ())) is Step.REACHED


@pytest.mark.parametrize("table", [
    OwnedTable("too low", 20, 0x5721 << 48), OwnedTable("too high", 40, 0x5721 << 48),
    OwnedTable("same number", 30, 0x5721 << 48), OwnedTable("same cookie", 31, 0x5720 << 48),
    OwnedTable("a cookie of reads", 31, COOKIE_FLOWS), OwnedTable("not a prefix", 31, 0x5721 << 48 | 1),
])
def test_a_table_that_is_not_free_is_refused(table: OwnedTable) -> None:
    registry = TableRegistry()
    registry.declare(DROPS, nothing)
    with pytest.raises(TableTaken):
        registry.declare(table, nothing)


def test_an_entry_outside_its_owners_table_is_refused() -> None:
    registry = TableRegistry()
    registry.declare(DROPS, lambda dpid: [FlowEntry(Table.ROUTES, 1, (), cookie=DROPS.cookie)])
    with pytest.raises(TableTaken):
        list(registry.owned_entries("0000000000000001"))
