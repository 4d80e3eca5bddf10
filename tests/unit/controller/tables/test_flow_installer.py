"""Flows with a rate: meters and entries at the first switch, together and in order, and none left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ryu.ofproto import ofproto_parser, ofproto_v1_3

from speedwell.controller.errors import SwitchGone, SwitchTimedOut
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.reads.scheduler import CLAIMANT
from speedwell.controller.switches.entries import LAST_PACKET_METER, FlowEntry, Meter, match
from speedwell.controller.switches.layout import Priority
from speedwell.controller.switches.openflow import decode_flow, flow_add
from speedwell.controller.tables.flow_installer import FLOWS_AT_ONCE
from speedwell.controller.tables.flow_records import Claim, Claimant, Withdrawal
from speedwell.controller.tables.meters import (
    ASSUMED_METERS,
    BURST_SECONDS,
    MeterIds,
    MetersExhausted,
    meter_for,
    own_range,
)
from speedwell.controller.topology.events import EventHostChanged, EventSwitchChanged
from tests.unit.controller.forwarding_world import ROUND_TRIP_SECONDS, World
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated

LIFETIME_SECONDS = 15
SCHEDULE = Claimant("a schedule", 1000)
FIRST = own_range(None, 1 << 16).start
"""The controller's lowest meter number."""
Scenario = Callable[[World, SimulatedHub], None]


@pytest.fixture(name="run")
def _run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    return lambda scenario: run_simulated(lambda hub: scenario(World(hub, monkeypatch), hub))


def wanted(world: World, path: Path, rate_bps: float | None, port: int = 5000, traffic_class: int = 1) -> Claim:
    flow = FiveTuple(path.nodes[0], path.nodes[-1], 6, port, 6000)
    return Claim(flow, SCHEDULE, port, path, traffic_class, rate_bps, lifetime_seconds=LIFETIME_SECONDS)


def give_up(*flows: FiveTuple) -> list[Withdrawal]:
    return [Withdrawal(flow, SCHEDULE) for flow in flows]


def first_switch(world: World) -> Any:
    return world.network.switches[world.paths()[0].nodes[1]]


def single_flows(world: World) -> list[Any]:
    return [entry for switch in world.network.switches.values() for entry in switch.flows.values()
            if entry.priority == Priority.EXPLICIT_PATH]


def test_a_flow_whose_host_moved_to_a_switch_that_is_away_leaves_nothing_at_the_former_one(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        assert world.app.apply([wanted(world, world.paths()[0], 1e6)]) == {}
        former, source = first_switch(world), world.state.hosts[world.flow.source]
        assert former.meters and single_flows(world)
        beside = world.state.hosts[world.network.hosts["p0r1h0"].ip]
        world.state.set_host(replace(source, dpid=beside.dpid, port_no=beside.port_no))
        world.app.host_changed(EventHostChanged(source.ip, world.state.hosts[source.ip], source))
        eventlet.sleep(1)
        del world.state.datapaths[beside.dpid]
        failures = world.app.apply([wanted(world, world.paths()[0], 2e6)])
        assert isinstance(failures[world.flow], SwitchGone)
        assert single_flows(world) == [] and former.meters == {}
        world.app.apply([], give_up(world.flow))
        assert all(not ids.allocated for ids in world.app.flow_installer.meters._ids.values())

    run(scenario)


def test_many_flows_are_put_into_place_some_at_a_time(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, at_once = world.paths()[0], []
        put = world.app.flow_installer._put

        def count_batch(dpid: str, batch: Any, *more: Any) -> None:
            at_once.append(len(batch))
            put(dpid, batch, *more)

        world.app.flow_installer._put = count_batch
        assert world.app.apply([wanted(world, path, None, port=port) for port in range(5000, 5100)]) == {}
        assert len(single_flows(world)) == sum(at_once) == 100
        assert max(at_once) <= FLOWS_AT_ONCE

    run(scenario)


def test_a_flow_gets_its_meter_queue_and_path_in_one_entry(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        assert world.app.apply([wanted(world, path, 5e6)]) == {}
        switch = first_switch(world)
        assert switch.meters == {FIRST: meter_for(FIRST, 5e6)}
        (entry,) = single_flows(world)
        assert (entry.meter_id, entry.hard_timeout_seconds) == (FIRST, LIFETIME_SECONDS)
        assert entry.actions[0].traffic_class == 1
        assert world.taken() == {(world.flow.destination, path.nodes[1:-1])}

    run(scenario)


def test_a_new_rate_changes_the_meter_in_place_and_a_new_path_the_entry(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first, second = world.paths()[:2]
        world.app.apply([wanted(world, first, 5e6)])
        world.app.apply([wanted(world, second, 7e6)])
        assert first_switch(world).meters == {FIRST: meter_for(FIRST, 7e6)}
        assert len(single_flows(world)) == 1
        assert world.taken() == {(world.flow.destination, second.nodes[1:-1])}
        world.app.apply([wanted(world, second, None, traffic_class=2)])
        assert first_switch(world).meters == {} and single_flows(world)[0].meter_id is None

    run(scenario)


def test_packets_have_an_entry_at_every_moment_of_a_change(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first, second = world.paths()[:2]
        world.app.apply([wanted(world, first, 5e6)])
        switch, seen = first_switch(world), set()
        take = switch.take

        def watched(buffer: bytes) -> None:
            take(buffer)
            seen.update(world.taken())

        switch.take = watched
        for path, rate in ((second, 7e6), (first, None), (second, 3e6)):
            world.app.apply([wanted(world, path, rate)])
        assert seen == {(world.flow.destination, path.nodes[1:-1]) for path in (first, second)}

    run(scenario)


def test_no_meter_is_left_and_numbers_are_used_again_after_a_thousand_flows(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        highest = 0
        for number in range(100):
            flows = [wanted(world, path, 1e6 * (1 + number % 3), port) for port in range(10)]
            assert world.app.apply(flows) == {}
            highest = max(highest, *first_switch(world).meters)
            world.app.apply([], give_up(*(each.five_tuple for each in flows)))
            assert first_switch(world).meters == {} and single_flows(world) == []
        assert highest == FIRST + 9

    run(scenario)


def test_a_full_meter_table_leaves_flows_without_a_meter_and_counts_them(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first_switch(world).max_meters = 2
        path = world.paths()[0]
        assert world.app.apply([wanted(world, path, 1e6, port) for port in range(4)]) == {}
        entries = {entry.cookie: entry.meter_id for entry in single_flows(world)}
        assert sorted(entries.values(), key=str) == [FIRST, FIRST + 1, None, None]
        assert world.app.flow_installer.unmetered == 2
        world.app.apply([], give_up(*(wanted(world, path, None, port).five_tuple for port in range(4))))
        assert first_switch(world).meters == {}

    run(scenario)


def test_a_limit_that_is_set_is_kept(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        world.app.flow_installer.meters.of(path.nodes[1]).numbers = range(FIRST, FIRST + 1)
        world.app.apply([wanted(world, path, 1e6, port) for port in range(3)])
        assert len(first_switch(world).meters) == 1 and len(single_flows(world)) == 3
        assert world.app.flow_installer.unmetered == 2

    run(scenario)


def test_one_refused_entry_does_not_harm_the_others_of_its_batch(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        bad = wanted(world, path, 1e6, 7)

        def refuses(message: bytes) -> bool:
            if message[1] != ofproto_v1_3.OFPT_FLOW_MOD:
                return False
            asked = ofproto_parser.msg(first_switch(world).datapath, *ofproto_parser.header(message), message)
            return asked.command == ofproto_v1_3.OFPFC_ADD and asked.match.get("tcp_src") == 7

        world.connections[path.nodes[1]].refuses = refuses
        failures = world.app.apply([wanted(world, path, 1e6, port) for port in (5, 6)] + [bad])
        assert set(failures) == {bad.five_tuple}
        assert len(single_flows(world)) == 2 and len(first_switch(world).meters) == 2
        assert world.app.records.get(bad.five_tuple) is None

    run(scenario)


def test_a_switch_that_comes_back_empty_gets_meters_before_entries(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        world.app.apply([wanted(world, path, rate, port) for port, rate in ((5, 1e6), (6, 2e6))])
        before = first_switch(world).meters
        restart(world, path.nodes[1])
        assert first_switch(world).meters == before and len(single_flows(world)) == 2

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
        failures = world.app.apply([wanted(world, path, 1e6)])
        assert len(failures) == 1
        world.state.datapaths[path.nodes[1]] = connection
        restart(world, path.nodes[1])
        assert len(first_switch(world).meters) == 1 and len(single_flows(world)) == 1

    run(scenario)


def test_meters_of_an_earlier_controller_go_once_no_entry_uses_them(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, switch = world.paths()[0], first_switch(world)
        entry = left_by_an_earlier_controller(world, wanted(world, path, 1e6, 77))
        switch.meters[FIRST + 1] = Meter(FIRST + 1, 5, 5)
        world.app.switch_changed(EventSwitchChanged(path.nodes[1], connected=True))
        eventlet.sleep(1)
        assert set(switch.meters) == {FIRST} and entry in single_flows(world)
        world.app.apply([wanted(world, path, 3e6, 78)])
        assert set(switch.meters) == {FIRST, FIRST + 1}
        del switch.flows[entry.key]             # its lifetime is over
        eventlet.sleep(70)
        assert set(switch.meters) == {FIRST + 1}

    run(scenario)


def left_by_an_earlier_controller(world: World, left: Claim) -> Any:
    """Place a flow as if not this controller had done it, and read its switch. Gives the entry."""
    assert world.app.apply([left]) == {}
    (entry,) = single_flows(world)
    world.app.records.drop(world.app.records.get(left.five_tuple))
    world.app.flow_installer.meters._ids.clear()
    world.app.switch_changed(EventSwitchChanged(world.paths()[0].nodes[1], connected=True))
    eventlet.sleep(1)
    return entry


@pytest.mark.parametrize("rate_bps", [3e6, 1e6, None])
def test_a_flow_of_an_earlier_controller_is_taken_over_with_its_meter(run: Any, rate_bps: float | None) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, switch = world.paths()[0], first_switch(world)
        left_by_an_earlier_controller(world, wanted(world, path, 1e6))
        world.app.apply([wanted(world, path, 2e6, 78)])
        assert set(switch.meters) == {FIRST, FIRST + 1}
        assert world.app.apply([wanted(world, path, rate_bps), wanted(world, path, 2e6, 78)]) == {}
        assert switch.meters == {FIRST + 1: meter_for(FIRST + 1, 2e6)} | (
            {FIRST: meter_for(FIRST, rate_bps)} if rate_bps else {})
        assert len(single_flows(world)) == 2
        world.app.apply([], give_up(*(wanted(world, path, None, port).five_tuple for port in (5000, 78))))
        assert switch.meters == {} and single_flows(world) == []

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
        path, switch = world.paths()[0], first_switch(world)
        others = switch.meters[FIRST] = Meter(FIRST, 5, 5)
        assert world.app.apply([wanted(world, path, 1e6), wanted(world, path, 9e6, 77)]) == {}
        assert switch.meters == {FIRST: others, FIRST + 1: meter_for(FIRST + 1, 9e6),
                                 FIRST + 2: meter_for(FIRST + 2, 1e6)}, "the one that was there is left alone"
        del switch.meters[FIRST + 2]
        assert world.app.apply([wanted(world, path, 2e6), wanted(world, path, 3e6, 78)]) == {}
        assert sorted(meter.rate_kbps for meter in switch.meters.values()) == [5, 2000, 3000, 9000]
        assert {entry.meter_id for entry in single_flows(world)} == set(switch.meters) - {FIRST}
        assert world.app.flow_installer.unmetered == 0

    run(scenario)


def test_meters_of_others_are_never_deleted_and_their_flows_live_on(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, switch = world.paths()[0], first_switch(world)
        switch.meters.update({number: Meter(number, 5, 5) for number in (1, 7, FIRST, FIRST + 1)})
        theirs = FlowEntry(0, 7, match(in_port=1), (), 1, cookie=0x1234, meter_id=FIRST)
        switch.flows[theirs.key], switch._by_table = theirs, None
        for _ in range(2):
            world.app.switch_changed(EventSwitchChanged(path.nodes[1], connected=True))
            eventlet.sleep(70)
            assert set(switch.meters) == {1, 7, FIRST}, "a leftover of the controller's own range alone goes"
            assert theirs.key in switch.flows
        assert world.app.apply([wanted(world, path, 1e6)]) == {}
        world.app.apply([], give_up(world.flow))
        assert set(switch.meters) == {1, 7, FIRST} and theirs.key in switch.flows

    run(scenario)


def test_a_flow_is_not_placed_before_what_its_switch_holds_is_known(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, switch = world.paths()[0], first_switch(world)
        world.app.apply([wanted(world, path, 1e6)])
        switch.flows, switch.groups, switch.meters, switch._by_table = {}, {}, {}, None
        switch.packet_meters, refusals = {}, []
        take = switch.take

        def watched(buffer: bytes) -> None:
            try:
                take(buffer)
            except Exception as error:
                refusals.append(error)
                raise

        switch.take = watched
        world.app.switch_changed(EventSwitchChanged(path.nodes[1], connected=True))
        assert world.app.apply([wanted(world, path, 2e6)]) == {}
        assert switch.meters == {FIRST: meter_for(FIRST, 2e6)} and refusals == []

    run(scenario)


def removal(world: World, path: Path, entry: Any, reason: int = ofproto_v1_3.OFPRR_HARD_TIMEOUT) -> Any:
    """What the switch tells when it has taken an entry out."""
    fields = dict(entry.match)
    return SimpleNamespace(msg=SimpleNamespace(
        cookie=entry.cookie, table_id=entry.table, priority=entry.priority, match=fields, reason=reason,
        datapath=world.connections[path.nodes[1]]))


def test_an_entry_whose_lifetime_is_over_takes_its_meter_along(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, switch = world.paths()[0], first_switch(world)
        world.app.apply([wanted(world, path, 1e6)])
        (entry,) = single_flows(world)
        del switch.flows[entry.key]
        world.app.entry_removed(removal(world, path, entry))
        eventlet.sleep(0.1)
        assert switch.meters == {} and world.app.records.get(wanted(world, path, None).five_tuple) is None

    run(scenario)


def test_a_flow_whose_entry_goes_while_its_change_is_refused_leaves_no_record(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, other = world.paths()[:2]
        world.app.apply([wanted(world, path, 1e6)])
        (entry,) = single_flows(world)
        world.connections[path.nodes[1]].refuses = lambda message: (
            message[1] in (ofproto_v1_3.OFPT_FLOW_MOD, ofproto_v1_3.OFPT_METER_MOD))
        change = eventlet.spawn(world.app.apply, [wanted(world, other, 2e6)])
        eventlet.sleep(ROUND_TRIP_SECONDS / 2)
        del first_switch(world).flows[entry.key]
        world.app.entry_removed(removal(world, path, entry))
        assert set(change.wait()) == {world.flow}
        assert len(world.app.records) == 0 and world.app.records.at(path.nodes[1]) == []
        assert world.app.records.with_cookie(entry.cookie, path.nodes[1]) is None

    run(scenario)


def test_a_flow_whose_entry_goes_while_its_plan_is_waited_for_gives_its_new_meter_back(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        world.install(path)
        (entry,) = single_flows(world)
        installer = world.app.flow_installer
        plan = installer._begin()

        def planned_slowly(*asked: Any) -> Any:
            found = plan(*asked)
            eventlet.sleep(1)
            return found

        installer._begin = lambda: planned_slowly
        change = eventlet.spawn(world.app.apply, [wanted(world, path, 1e6)])
        eventlet.sleep(0.5)
        del first_switch(world).flows[entry.key]
        world.app.entry_removed(removal(world, path, entry, ofproto_v1_3.OFPRR_IDLE_TIMEOUT))
        assert change.wait() == {} and single_flows(world) == [] and len(world.app.records) == 0
        assert installer.meters.of(path.nodes[1]).allocated == set()

    run(scenario)


def test_what_one_system_gives_up_stays_so_if_the_switch_does_not_confirm(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first, second = world.paths()[:2]
        world.install(first)
        assert world.app.apply([wanted(world, second, 1e6)]) == {}
        world.connections[first.nodes[1]].is_hung = True
        with pytest.raises(SwitchTimedOut):
            world.withdraw()
        record = world.app.records.get(world.flow)
        assert record is not None and list(record.claims) == [SCHEDULE]
        world.connections[first.nodes[1]].is_hung = False
        world.app.apply([], give_up(world.flow))
        assert len(world.app.records) == 0 and single_flows(world) == []

    run(scenario)


@pytest.mark.parametrize("why", ["refused", "path lost"])
def test_a_flow_whose_only_claim_is_taken_back_while_anothers_fails_leaves_nothing(run: Any, why: str) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path, lost = world.paths()[:2]
        assert world.app.apply([wanted(world, path, 1e6)]) == {}
        switch = first_switch(world)
        assert len(single_flows(world)) == 1 and len(switch.meters) == 1
        if why == "refused":
            world.connections[path.nodes[1]].refuses = lambda message: (
                message[1] == ofproto_v1_3.OFPT_FLOW_MOD and message[25] == ofproto_v1_3.OFPFC_ADD)
        else:
            lost = Path((path.nodes[0], path.nodes[1], "00000000000000ff", path.nodes[-2], path.nodes[-1]))
        claim = Claim(world.flow, Claimant("another", 10), 1, lost, rate_bps=2e6, lifetime_seconds=LIFETIME_SECONDS)
        assert set(world.app.apply([claim], give_up(world.flow))) == {world.flow}
        assert single_flows(world) == [] and switch.meters == {} and len(world.app.records) == 0
        assert world.app.flow_installer.meters.of(path.nodes[1]).allocated == set()

    run(scenario)


def test_two_systems_write_one_entry_and_the_others_path_returns(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first, second = world.paths()[:2]
        world.install(first)
        told: list[Any] = []
        world.app.send_event_to_observers = told.append
        world.app.apply([wanted(world, second, 1e6)])
        assert world.taken() == {(world.flow.destination, second.nodes[1:-1])} and len(single_flows(world)) == 1
        assert [event.flows for event in told] == [(world.flow,)], "whoever had another path is told"
        world.app.apply([], give_up(world.flow))
        assert world.taken() == {(world.flow.destination, first.nodes[1:-1])}
        assert first_switch(world).meters == {} and len(told) == 2
        (entry,) = single_flows(world)
        assert (entry.idle_timeout_seconds, entry.hard_timeout_seconds) == (30, 0)
        world.withdraw()
        assert single_flows(world) == [] and len(world.app.records) == 0

    run(scenario)


def test_a_renewal_sends_the_entry_as_it_is_and_puts_right_what_is_refused(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        switch, claim = first_switch(world), wanted(world, world.paths()[0], 1e6)
        world.app.apply([claim])
        (entry,) = single_flows(world)
        switch.byte_counts[entry.key] = 1000
        begin = hub.now
        assert world.app.apply([claim]) == {} and single_flows(world) == [entry]
        assert switch.byte_counts[entry.key] == 1000
        assert hub.now - begin == pytest.approx(ROUND_TRIP_SECONDS), "one message and one answer"
        del switch.flows[entry.key]
        assert world.app.apply([claim]) == {} and single_flows(world) == [entry]
        switch.meters.clear()
        assert world.app.apply([claim]) == {}
        (again,) = single_flows(world)
        assert again.meter_id in switch.meters
        world.connections[world.paths()[0].nodes[1]].is_hung = True
        assert [type(error) for error in world.app.apply([claim]).values()] == [SwitchTimedOut]
        assert world.app.records.get(claim.five_tuple) is not None

    run(scenario)


def test_counts_survive_when_another_system_comes_and_goes(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first, second = world.paths()[:2]
        world.install(first)
        switch, record = first_switch(world), world.app.records.get(world.flow)
        assert record is not None
        cookies = set()

        def counted(more: int) -> tuple[int, int]:
            (entry,) = single_flows(world)
            cookies.add(entry.cookie)
            switch.byte_counts[entry.key] = switch.byte_counts.get(entry.key, 0) + more
            world.poll_flows()
            return record.transferred_bytes(CLAIMANT), record.transferred_bytes(SCHEDULE)

        assert counted(1000) == (1000, 0)
        world.app.apply([wanted(world, second, 1e6)])
        assert counted(500) == (1500, 0) and counted(500) == (2000, 500)
        world.app.apply([wanted(world, first, None)])
        assert counted(500) == (2500, 1000)
        world.app.apply([], give_up(world.flow))
        assert counted(500) == (3000, 0) and len(cookies) == 1
        world.install(first, "another part on the same connection")
        assert counted(700) == (700, 0), "nothing of what was before is its own"

    run(scenario)


def test_an_entry_that_was_not_renewed_leaves_the_other_systems_path(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first, second = world.paths()[:2]
        world.install(first)
        world.app.apply([wanted(world, second, 1e6)])
        (entry,) = single_flows(world)
        switch, told = first_switch(world), []
        del switch.flows[entry.key]
        switch._by_table = None
        world.app.send_event_to_observers = told.append
        world.app.entry_removed(removal(world, first, entry))
        assert [[claim.claimant for claim in event.claims] for event in told] == [[SCHEDULE]]
        eventlet.sleep(0.1)
        assert world.taken() == {(world.flow.destination, first.nodes[1:-1])} and switch.meters == {}
        (entry,) = single_flows(world)
        del switch.flows[entry.key]
        world.app.entry_removed(removal(world, first, entry, ofproto_v1_3.OFPRR_IDLE_TIMEOUT))
        assert told[-1].is_idle and [claim.claimant for claim in told[-1].claims] == [CLAIMANT]
        assert len(world.app.records) == 0

    run(scenario)


def test_changes_of_one_flow_at_once_come_one_after_the_other(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first, second = world.paths()[:2]
        # A microsecond between: the simulated hub gives no order to what is due at the same time.
        threads = [eventlet.spawn_after(number / 1e6, *change) for number, change in enumerate([
            (world.install, first), (world.app.apply, [wanted(world, second, 1e6)]), (world.withdraw,),
            (world.install, second)])]
        for thread in threads:
            thread.wait()
        (entry,) = single_flows(world)
        record = world.app.records.get(world.flow)
        assert record is not None and record.placement is not None and record.placement.entry == entry
        assert set(record.claims) == {CLAIMANT, SCHEDULE} and world.app.flow_installer._locks.held == {}

    run(scenario)


def test_whoever_is_killed_while_he_waits_to_change_a_flow_holds_up_nobody(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first, second = world.paths()[:2]
        changes = [eventlet.spawn_after(number / 1e6, world.install, path)
                   for number, path in enumerate([first, second, first])]
        eventlet.sleep(3e-6)
        changes[1].kill()
        changes[0].wait()
        changes[2].wait()
        assert single_flows(world) and world.app.flow_installer._locks.held == {}

    run(scenario)


def test_an_entry_that_no_record_has_is_left_to_the_switch_which_takes_it_out_in_time(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.install(world.paths()[0])
        world.app.apply([wanted(world, world.paths()[0], None, 78)])
        for record in list(world.app.records):
            world.app.records.drop(record)
        for _ in range(10):
            world.poll_flows()
            eventlet.sleep(1)
        left = single_flows(world)
        assert len(left) == 2 and all(entry.idle_timeout_seconds or entry.hard_timeout_seconds for entry in left)

    run(scenario)


def test_an_entry_with_a_meter_reads_back_as_it_was_sent(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.app.apply([wanted(world, world.paths()[0], 1e6)])
        (entry,) = single_flows(world)
        datapath = first_switch(world).datapath
        message = flow_add(datapath, entry)
        message.serialize()
        header = ofproto_parser.header(message.buf)
        assert decode_flow(ofproto_parser.msg(datapath, *header, message.buf)) == entry

    run(scenario)


def test_rates_are_rounded_to_what_a_meter_can_tell_apart() -> None:
    assert meter_for(3, 1.0).rate_kbps == 1
    assert meter_for(3, 5_000_400) == Meter(3, 5000, round(5000 * BURST_SECONDS))


def test_a_burst_holds_what_an_offload_hands_over_or_what_is_set() -> None:
    assert meter_for(3, 1000).burst_kbits * 1000 >= 8 * 65536
    assert meter_for(3, 1000, 9000).burst_kbits == 72


@pytest.mark.parametrize(("can_have", "most", "numbers"), [
    (None, 1 << 16, range(LAST_PACKET_METER + 2, ASSUMED_METERS + 1)), (20, 100, range(16, 21)),
    (20, 2, range(16, 18)), (0, 5, range(1, 1))])
def test_the_upper_quarter_of_a_switchs_meters_is_for_flows(
        can_have: int | None, most: int, numbers: range) -> None:
    assert own_range(can_have, most) == numbers


@given(st.lists(st.one_of(st.just("take"), st.integers(0, 20), st.sets(st.integers(1, 12))), max_size=60))
def test_numbers_are_never_given_twice_and_always_given_while_some_are_free(steps: list[Any]) -> None:
    ids = MeterIds(range(3, 11))
    for step in steps:
        if step == "take":
            free = {*range(3, 11)} - ids.allocated - ids.foreign
            try:
                assert ids.allocate() in free
            except MetersExhausted:
                assert not free
        elif isinstance(step, int):
            ids.release(step)
        else:
            before = set(ids.allocated)
            idle = ids.found(step, {number for number in step if number % 2})
            assert before.isdisjoint(idle), "what is in use here is not deleted"
            assert set(idle) <= {*range(3, 11)}, "what is others' is not deleted"
            assert ids.allocated == before | set(idle), "nobody gets one before it is deleted"
            for number in idle[::2]:
                ids.release(number)
            if ids.foreign:
                ids.adopt(min(ids.foreign))
            assert ids.foreign.isdisjoint(ids.allocated)
