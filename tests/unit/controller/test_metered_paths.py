"""Flows with a rate: meters and entries at the first switch, together and in order, and none left behind."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ryu.ofproto import ofproto_parser, ofproto_v1_3

from controller.events import EventSwitchChanged
from controller.explicit_paths import ExplicitPath
from controller.metered_paths import Wanted
from controller.meters import BURST_SECONDS, MeterIds, MetersExhausted, meter_for
from controller.openflow import COOKIE_COFLOWS, Meter, Priority, cookie, decode_flow, flow_add
from controller.policy.five_tuple import FiveTuple
from controller.policy.network import Path
from tests.unit.controller.forwarding_world import World
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated

LIFETIME_SECONDS = 15
Scenario = Callable[[World, SimulatedHub], None]


@pytest.fixture(name="run")
def _run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    return lambda scenario: run_simulated(lambda hub: scenario(World(hub, monkeypatch), hub))


def wanted(world: World, path: Path, rate_bps: float | None, port: int = 5000, traffic_class: int = 1) -> Wanted:
    flow = FiveTuple(path.nodes[0], path.nodes[-1], 6, port, 6000)
    return Wanted(ExplicitPath(flow, path, cookie(COOKIE_COFLOWS, port), 10, traffic_class,
                               lifetime_seconds=LIFETIME_SECONDS), rate_bps)


def first_switch(world: World) -> Any:
    return world.network.switches[world.paths()[0].nodes[1]]


def coflow_entries(world: World) -> list[Any]:
    return [entry for switch in world.network.switches.values() for entry in switch.flows.values()
            if entry.priority == Priority.COFLOW]


def test_a_flow_gets_its_meter_queue_and_path_in_one_entry(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        assert world.app.metered_paths.apply([wanted(world, path, 5e6)]) == {}
        switch = first_switch(world)
        assert switch.meters == {1: meter_for(1, 5e6)}
        (entry,) = coflow_entries(world)
        assert (entry.meter_id, entry.hard_timeout_seconds) == (1, LIFETIME_SECONDS)
        assert entry.actions[0].traffic_class == 1
        assert world.taken() == {(world.flow.destination, path.nodes[1:-1])}

    run(scenario)


def test_a_new_rate_changes_the_meter_in_place_and_a_new_path_the_entry(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first, second = world.paths()[:2]
        world.app.metered_paths.apply([wanted(world, first, 5e6)])
        world.app.metered_paths.apply([wanted(world, second, 7e6)])
        assert first_switch(world).meters == {1: meter_for(1, 7e6)}
        assert len(coflow_entries(world)) == 1
        assert world.taken() == {(world.flow.destination, second.nodes[1:-1])}
        world.app.metered_paths.apply([wanted(world, second, None, traffic_class=2)])
        assert first_switch(world).meters == {} and coflow_entries(world)[0].meter_id is None

    run(scenario)


def test_packets_have_an_entry_at_every_moment_of_a_change(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first, second = world.paths()[:2]
        world.app.metered_paths.apply([wanted(world, first, 5e6)])
        switch, seen = first_switch(world), set()
        take = switch.take

        def watched(buffer: bytes) -> None:
            take(buffer)
            seen.update(world.taken())

        switch.take = watched
        for path, rate in ((second, 7e6), (first, None), (second, 3e6)):
            world.app.metered_paths.apply([wanted(world, path, rate)])
        assert seen == {(world.flow.destination, path.nodes[1:-1]) for path in (first, second)}

    run(scenario)


def test_no_meter_is_left_and_numbers_are_used_again_after_a_thousand_flows(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, metered = world.paths()[0], world.app.metered_paths
        highest = 0
        for number in range(100):
            flows = [wanted(world, path, 1e6 * (1 + number % 3), port) for port in range(10)]
            assert metered.apply(flows) == {}
            highest = max(highest, *first_switch(world).meters)
            metered.apply([], [each.path.five_tuple for each in flows])
            assert first_switch(world).meters == {} and coflow_entries(world) == []
        assert highest == 10

    run(scenario)


def test_a_full_meter_table_leaves_flows_without_a_meter_and_counts_them(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first_switch(world).max_meters = 2
        path, metered = world.paths()[0], world.app.metered_paths
        assert metered.apply([wanted(world, path, 1e6, port) for port in range(4)]) == {}
        entries = {entry.cookie: entry.meter_id for entry in coflow_entries(world)}
        assert sorted(entries.values(), key=str) == [1, 2, None, None] and metered.unmetered == 2
        metered.apply([], [wanted(world, path, None, port).path.five_tuple for port in range(4)])
        assert first_switch(world).meters == {}

    run(scenario)


def test_a_limit_that_is_set_is_kept(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, metered = world.paths()[0], world.app.metered_paths
        metered.meters_of(path.nodes[1]).limit = 1
        metered.apply([wanted(world, path, 1e6, port) for port in range(3)])
        assert len(first_switch(world).meters) == 1 and len(coflow_entries(world)) == 3 and metered.unmetered == 2

    run(scenario)


def test_one_refused_entry_does_not_harm_the_others_of_its_batch(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, metered = world.paths()[0], world.app.metered_paths
        bad = wanted(world, path, 1e6, 7)

        def refuses(message: bytes) -> bool:
            if message[1] != ofproto_v1_3.OFPT_FLOW_MOD:
                return False
            asked = ofproto_parser.msg(first_switch(world).datapath, *ofproto_parser.header(message), message)
            return asked.command == ofproto_v1_3.OFPFC_ADD and asked.match.get("tcp_src") == 7

        world.connections[path.nodes[1]].refuses = refuses
        failures = metered.apply([wanted(world, path, 1e6, port) for port in (5, 6)] + [bad])
        assert set(failures) == {bad.path.five_tuple}
        assert len(coflow_entries(world)) == 2 and len(first_switch(world).meters) == 2
        assert metered.get(bad.path.five_tuple) is None

    run(scenario)


def test_a_switch_that_comes_back_empty_gets_meters_before_entries(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        world.app.metered_paths.apply([wanted(world, path, rate, port) for port, rate in ((5, 1e6), (6, 2e6))])
        before = first_switch(world).meters
        restart(world, path.nodes[1])
        assert first_switch(world).meters == before and len(coflow_entries(world)) == 2

    run(scenario)


def restart(world: World, dpid: str) -> None:
    """The switch loses all it had and connects again."""
    switch = world.network.switches[dpid]
    switch.flows, switch.groups, switch.meters = {}, {}, {}
    switch._by_table = None
    world.app.switch_changed(EventSwitchChanged(dpid, connected=True))
    eventlet.sleep(5)


def test_a_flow_that_is_placed_while_its_switch_is_away_is_there_when_it_is_back(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        connection = world.state.datapaths.pop(path.nodes[1])
        failures = world.app.metered_paths.apply([wanted(world, path, 1e6)])
        assert len(failures) == 1
        world.state.datapaths[path.nodes[1]] = connection
        restart(world, path.nodes[1])
        assert len(first_switch(world).meters) == 1 and len(coflow_entries(world)) == 1

    run(scenario)


def test_meters_of_an_earlier_controller_go_once_no_entry_uses_them(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, switch, metered = world.paths()[0], first_switch(world), world.app.metered_paths
        entry = left_by_an_earlier_controller(world, wanted(world, path, 1e6, 77))
        switch.meters[2] = Meter(2, 5, 5)
        world.app.switch_changed(EventSwitchChanged(path.nodes[1], connected=True))
        eventlet.sleep(1)
        assert set(switch.meters) == {1} and entry in coflow_entries(world)
        metered.apply([wanted(world, path, 3e6, 78)])
        assert set(switch.meters) == {1, 2}
        del switch.flows[entry.key]             # its lifetime is over
        eventlet.sleep(70)
        assert set(switch.meters) == {2}

    run(scenario)


def left_by_an_earlier_controller(world: World, left: Wanted) -> Any:
    """Place a flow as if not this controller had done it, and read its switch. Gives the entry."""
    metered = world.app.metered_paths
    assert metered.apply([left]) == {}
    (entry,) = coflow_entries(world)
    world.app.explicit_paths.discard(metered.get(left.path.five_tuple))
    metered._meters.clear()
    world.app.switch_changed(EventSwitchChanged(left.path.first_switch, connected=True))
    eventlet.sleep(1)
    return entry


@pytest.mark.parametrize("rate_bps", [3e6, 1e6, None])
def test_a_flow_of_an_earlier_controller_is_taken_over_with_its_meter(run: Any, rate_bps: float | None) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, switch, metered = world.paths()[0], first_switch(world), world.app.metered_paths
        left_by_an_earlier_controller(world, wanted(world, path, 1e6))
        metered.apply([wanted(world, path, 2e6, 78)])
        assert set(switch.meters) == {1, 2}
        assert metered.apply([wanted(world, path, rate_bps), wanted(world, path, 2e6, 78)]) == {}
        assert switch.meters == {2: meter_for(2, 2e6)} | ({1: meter_for(1, rate_bps)} if rate_bps else {})
        assert len(coflow_entries(world)) == 2
        metered.apply([], [wanted(world, path, None, port).path.five_tuple for port in (5000, 78)])
        assert switch.meters == {} and coflow_entries(world) == []

    run(scenario)


def test_a_meter_of_an_earlier_controller_goes_with_its_entry(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, switch = world.paths()[0], first_switch(world)
        entry = left_by_an_earlier_controller(world, wanted(world, path, 1e6))
        del switch.flows[entry.key]
        world.app.entry_removed(removal(world, path, entry))
        eventlet.sleep(0.1)
        assert switch.meters == {}

    run(scenario)


def test_meters_that_somebody_else_adds_or_deletes_cost_no_flow_its_meter(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, switch, metered = world.paths()[0], first_switch(world), world.app.metered_paths
        switch.meters[1] = Meter(1, 5, 5)
        assert metered.apply([wanted(world, path, 1e6)]) == {}
        assert switch.meters == {1: meter_for(1, 1e6)}
        del switch.meters[1]
        assert metered.apply([wanted(world, path, 2e6), wanted(world, path, 3e6, 78)]) == {}
        assert sorted(meter.rate_kbps for meter in switch.meters.values()) == [2000, 3000]
        assert {entry.meter_id for entry in coflow_entries(world)} == set(switch.meters)
        assert metered.unmetered == 0

    run(scenario)


def test_a_flow_is_not_placed_before_what_its_switch_holds_is_known(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, switch, metered = world.paths()[0], first_switch(world), world.app.metered_paths
        metered.apply([wanted(world, path, 1e6)])
        switch.flows, switch.groups, switch.meters, switch._by_table = {}, {}, {}, None
        refusals = []
        take = switch.take

        def watched(buffer: bytes) -> None:
            try:
                take(buffer)
            except Exception as error:
                refusals.append(error)
                raise

        switch.take = watched
        world.app.switch_changed(EventSwitchChanged(path.nodes[1], connected=True))
        assert metered.apply([wanted(world, path, 2e6)]) == {}
        assert switch.meters == {1: meter_for(1, 2e6)} and refusals == []

    run(scenario)


def removal(world: World, path: Path, entry: Any) -> Any:
    """What the switch tells when an entry's lifetime is over."""
    fields = dict(entry.match)
    return SimpleNamespace(msg=SimpleNamespace(cookie=entry.cookie, table_id=entry.table, priority=entry.priority,
                                               match=fields, datapath=world.connections[path.nodes[1]]))


def test_an_entry_whose_lifetime_is_over_takes_its_meter_along(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, switch = world.paths()[0], first_switch(world)
        world.app.metered_paths.apply([wanted(world, path, 1e6)])
        (entry,) = coflow_entries(world)
        del switch.flows[entry.key]
        world.app.entry_removed(removal(world, path, entry))
        eventlet.sleep(0.1)
        assert switch.meters == {} and world.app.metered_paths.get(wanted(world, path, None).path.five_tuple) is None

    run(scenario)


def test_a_coflows_entry_stands_above_the_one_of_a_read(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first, second = world.paths()[:2]
        world.install(first)
        world.app.metered_paths.apply([wanted(world, second, 1e6)])
        assert world.taken() == {(world.flow.destination, second.nodes[1:-1])}
        world.app.metered_paths.apply([], [world.flow])
        assert world.taken() == {(world.flow.destination, first.nodes[1:-1])}
        assert world.flow in world.app.explicit_paths

    run(scenario)


def test_an_entry_with_a_meter_reads_back_as_it_was_sent(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.app.metered_paths.apply([wanted(world, world.paths()[0], 1e6)])
        (entry,) = coflow_entries(world)
        assert decode_flow(flow_add(first_switch(world).datapath, entry)) == entry

    run(scenario)


def test_rates_are_rounded_to_what_a_meter_can_tell_apart() -> None:
    assert meter_for(3, 1.0).rate_kbps == 1
    assert meter_for(3, 5_000_400) == Meter(3, 5000, round(5000 * BURST_SECONDS))


def test_a_burst_holds_what_an_offload_hands_over_or_what_is_set() -> None:
    assert meter_for(3, 1000).burst_kbits * 1000 >= 8 * 65536
    assert meter_for(3, 1000, 9000).burst_kbits == 72


@given(st.lists(st.one_of(st.just("take"), st.integers(0, 20), st.sets(st.integers(1, 12))), max_size=60))
def test_numbers_are_never_given_twice_and_always_given_while_some_are_free(steps: list[Any]) -> None:
    ids = MeterIds(limit=10)
    for step in steps:
        if step == "take":
            free = {*range(1, 11)} - ids.taken - ids.foreign
            try:
                assert ids.take() in free
            except MetersExhausted:
                assert not free
        elif isinstance(step, int):
            ids.give_back(step)
        else:
            before = set(ids.taken)
            idle = ids.found(step, {number for number in step if number % 2})
            assert before.isdisjoint(idle), "ours are not deleted"
            assert ids.taken == before | set(idle), "nobody gets one before it is deleted"
            for number in idle[::2]:
                ids.give_back(number)
            if ids.foreign:
                ids.take_over(min(ids.foreign))
            assert ids.foreign.isdisjoint(ids.taken)
