"""The forwarding application with fake switches in simulated time: what it promises its callers, and its repairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import eventlet
import pytest
from ryu.ofproto import ofproto_v1_3

from speedwell.controller.errors import NoSuchPath, SwitchGone, SwitchRefused, SwitchTimedOut
from speedwell.controller.switches.entries import Bucket, FlowEntry, Group, LoadLabel, Output, ToGroup, match
from speedwell.controller.switches.layout import FIRST_GROUP, LAST_GROUP, Table
from speedwell.controller.switches.transactions import Confirmations
from speedwell.controller.tables.entries import label_cookie, label_entry
from speedwell.controller.tables.events import AffectedPath
from speedwell.controller.tables.sync import AUDIT_INTERVAL_SECONDS
from speedwell.controller.topology import packet_in_limits
from speedwell.controller.topology.events import (
    EventHostChanged,
    EventLinkChanged,
    EventSwitchChanged,
    EventSwitchForgotten,
)
from speedwell.controller.topology.state import SwitchInfo
from tests.unit.controller.forwarding_world import Connection, World
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated


@pytest.fixture(name="run")
def _run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[World, SimulatedHub], None]], None]:
    return lambda scenario: run_simulated(lambda hub: scenario(World(hub, monkeypatch), hub))


def test_install_move_and_remove_are_in_the_switch_when_they_return(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        first, second = world.paths()[:2]
        world.install(first)
        assert world.taken() == {(world.flow.destination, first.nodes[1:-1])}
        world.install(second)
        assert world.taken() == {(world.flow.destination, second.nodes[1:-1])}
        world.withdraw()
        assert len(world.taken()) == len(world.paths())
        assert len(world.app.records) == 0
        world.withdraw()

    run(scenario)


def test_a_refused_path_has_no_entry(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        connection = world.connections[path.nodes[1]]
        connection.refuses = lambda message: message[1] == ofproto_v1_3.OFPT_FLOW_MOD
        with pytest.raises(SwitchRefused):
            world.install(path)
        assert world.app.records.get(world.flow) is None
        connection.refuses = lambda message: False
        world.install(path)
        second = world.paths()[1]
        connection.refuses = lambda message: True
        with pytest.raises(SwitchRefused):
            world.install(second)
        kept = world.app.records.get(world.flow)
        assert kept is not None and kept.path == path

    run(scenario)


def test_a_path_whose_switch_does_not_answer_is_taken_back(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        world.connections[path.nodes[1]].is_hung = True
        begin = hub.now
        with pytest.raises(SwitchTimedOut):
            world.install(path)
        assert hub.now - begin == pytest.approx(world.state.settings.confirm_timeout_seconds)
        assert world.app.records.get(world.flow) is None
        del world.state.datapaths[path.nodes[1]]
        with pytest.raises(SwitchGone):
            world.install(path)
        world.withdraw()
        assert world.app.records.get(world.flow) is None

    run(scenario)


def test_a_dead_link_is_off_all_paths_within_a_tenth_of_a_second(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        world.install(path)
        world.events.clear()
        world.fail(*path.nodes[2:4])
        eventlet.sleep(0.02)
        # The flow goes the default ways, none of which has the dead link, before anything is planned anew ...
        assert {where for where, _ in world.taken()} == {world.flow.destination}
        eventlet.sleep(0.08)
        # ... and then the flowserver is told.
        (event,) = world.events
        assert event.links_lost == {path.nodes[2:4], path.nodes[3:1:-1]} and not event.links_gained
        assert [(affected.five_tuple, affected.path) for affected in event.affected] == [(world.flow, path)]
        world.install(world.paths()[0])
        assert world.taken() == {(world.flow.destination, world.paths()[0].nodes[1:-1])}

    run(scenario)


def test_a_path_over_a_dead_link_is_refused_at_once(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        world.fail(*path.nodes[2:4])
        eventlet.sleep(1)
        begin = hub.now
        with pytest.raises(NoSuchPath):
            world.install(path)
        assert hub.now == begin

    run(scenario)


def test_a_path_that_is_new_waits_for_its_labels(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        # All shortest paths die: longer ones, by other edge switches, take their place.
        for path in world.paths():
            if world.state.network.has_link(path.links[1]):
                world.fail(*path.links[1])
                break
        for path in world.paths():
            world.fail(*path.links[2])
            break
        world.install(world.paths()[0])
        assert world.taken() == {(world.flow.destination, world.paths()[0].nodes[1:-1])}

    run(scenario)


def test_a_diverted_flow_waits_for_a_way_and_takes_the_first(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        world.install(path)
        edge = path.nodes[1]
        name_of = world.network.name_of
        uplinks = [(edge, neighbour) for neighbour in world.state.network.neighbours(edge)
                   if not world.state.network.is_host(neighbour)]
        for link in uplinks:
            world.fail(*link)
        eventlet.sleep(1)
        assert {where for where, _ in world.taken()} == {"nowhere"}
        ends = [name_of[dpid] for dpid in next(link for link in uplinks if link not in path.links)]
        world.network.dead.discard(frozenset(ends))
        for link in world.state.add_link(*world.network.ends(*ends)):
            world.app.link_changed(EventLinkChanged(link, live=True))
        eventlet.sleep(1)
        assert {where for where, _ in world.taken()} == {world.flow.destination}
        (entry,) = world.explicit_entries(edge)
        assert isinstance(entry.actions[-1], ToGroup)

    run(scenario)


def test_a_flow_returns_to_its_path_when_the_link_comes_back(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        world.install(path)
        world.fail(*path.links[1])
        eventlet.sleep(1)
        assert path.nodes[1:-1] not in {switches for _, switches in world.taken()}
        names = [world.network.name_of[dpid] for dpid in path.links[1]]
        world.network.dead.discard(frozenset(names))
        for link in world.state.add_link(*world.network.ends(*names)):
            world.app.link_changed(EventLinkChanged(link, live=True))
        eventlet.sleep(1)
        assert world.taken() == {(world.flow.destination, path.nodes[1:-1])}

    run(scenario)


def test_whoever_claimed_a_detour_hears_of_it_when_its_label_ends_with_the_shortest_path_back(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        cut = [("edge-p0r0", "aggregation-p0-1"), ("edge-p1r1", "aggregation-p1-0"), ("aggregation-p0-0", "core0"),
               ("aggregation-p1-1", "core1")]
        for names in cut:
            world.fail(*(world.network.dpid_of[name] for name in names))
        eventlet.sleep(1)
        detour, *_ = world.paths()
        assert len(detour.links) == 8
        world.install(detour)
        world.events.clear()
        for names in cut:
            world.network.dead.discard(frozenset(names))
            for link in world.state.add_link(*world.network.ends(*names)):
                world.app.link_changed(EventLinkChanged(link, live=True))
        eventlet.sleep(1)
        assert {where for where, _ in world.taken()} == {world.flow.destination}
        affected = [each for event in world.events for each in event.affected]
        assert affected == [AffectedPath(world.flow, detour)]

    run(scenario)


def test_a_restarted_switch_gets_everything_back(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        world.install(path)
        for dpid in (path.nodes[1], path.nodes[2]):
            switch = world.network.switches[dpid]
            before = dict(switch.flows), dict(switch.groups)
            switch.flows.clear()
            switch.groups.clear()
            world.app.switch_changed(EventSwitchChanged(dpid, connected=False))
            world.connections[dpid] = world.state.datapaths[dpid] = Connection(world, dpid)
            world.app.switch_changed(EventSwitchChanged(dpid, connected=True))
            eventlet.sleep(1)
            assert (switch.flows, switch.groups) == before

    run(scenario)


def test_what_somebody_else_changes_in_a_switch_is_put_right(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        switch = world.network.switches[world.paths()[0].nodes[1]]
        before = dict(switch.flows), dict(switch.groups)
        stray = next(iter(switch.flows.values()))
        switch.flows = {key: entry for key, entry in switch.flows.items() if entry.table != Table.ROUTES}
        switch.groups.clear()
        assert stray.key in switch.flows
        eventlet.sleep(2 * AUDIT_INTERVAL_SECONDS)
        assert (switch.flows, switch.groups) == before

    run(scenario)


def test_a_group_that_others_use_stays_theirs_and_the_controllers_get_other_numbers(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        dpid = world.paths()[0].nodes[1]
        switch = world.network.switches[dpid]
        planned = dict(switch.groups)
        wanted = min(planned)       # the first choice of a controller that starts anew
        some = (Bucket((Output(77),), 77),)
        theirs = {number: Group(number, some) for number in (wanted, LAST_GROUP)}
        entries = [FlowEntry(Table.ROUTES, 7, match(in_port=90 + place), (ToGroup(number),), cookie=0x1234)
                   for place, number in enumerate(theirs)]
        switch.flows, switch.groups, switch._by_table = {entry.key: entry for entry in entries}, dict(theirs), None
        switch.groups[FIRST_GROUP] = Group(FIRST_GROUP, some)
        world.app.loops.stop()
        world.app = world.new_forwarding()
        world.app.send_event_to_observers = lambda event, state=None: None
        world.app.start()
        for each in world.connections:
            world.app.switch_changed(EventSwitchChanged(each, connected=True))
        eventlet.sleep(2 * AUDIT_INTERVAL_SECONDS)
        assert {number: switch.groups[number] for number in theirs} == theirs
        assert all(entry in switch.flows.values() for entry in entries)
        assert FIRST_GROUP not in switch.groups, "nobody uses this one"
        assert len(switch.groups) == len(planned) + 2
        assert {end for end, _ in world.taken()} == {world.flow.destination}

    run(scenario)


def test_a_switch_that_refuses_is_asked_again_ever_more_rarely_and_does_not_hold_up_the_others(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        sick = world.connections[path.nodes[3]]
        tries: list[float] = []

        def refuse(message: bytes) -> bool:
            tries.append(hub.now)
            return message[1] == ofproto_v1_3.OFPT_FLOW_MOD

        sick.refuses = refuse
        sick.switch.flows.clear()
        world.app.switch_changed(EventSwitchChanged(path.nodes[3], connected=True))
        eventlet.sleep(100)
        assert 5 < len({round(at) for at in tries}) < 15
        host = world.state.hosts[world.flow.destination]
        world.state.remove_host(host.ip)
        world.app.host_changed(EventHostChanged(host.ip, None, host))
        eventlet.sleep(1)
        # The sick switch apart, nobody sends packets to the host that left.
        assert {where for where, _ in world.taken()} <= {"nowhere", "controller"}
        sick.refuses = lambda message: False
        world.state.set_host(host)
        world.app.host_changed(EventHostChanged(host.ip, host, None))
        eventlet.sleep(70)
        assert {where for where, _ in world.taken()} == {world.flow.destination}

    run(scenario)


def test_labels_that_an_earlier_controller_left_go_when_the_last_flow_that_uses_them_is_over(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        world.install(path)
        (entry,) = world.explicit_entries(path.nodes[1])
        world.app.stop()
        world.app.loops.stop()
        # The earlier controller had a label that the later one has no use for.
        label, cookie = 4096, label_cookie(4096, 0)
        nodes = path.nodes[1:-1]
        for near, far in pairwise(nodes[1:]):
            left = label_entry(label, cookie, world.state.port_toward(near, far))
            world.network.switches[near].flows[left.key] = left
        last = label_entry(label, cookie, None)
        world.network.switches[nodes[-1]].flows[last.key] = last
        entry = replace(entry, actions=(LoadLabel(label), *entry.actions[1:]))
        world.network.switches[nodes[0]].flows[entry.key] = entry
        for switch in world.network.switches.values():
            switch._by_table = None
        world.state = world.network.state()
        world.state.confirmations = Confirmations()
        world.state.datapaths.update(world.connections)
        world.app = world.new_forwarding()
        world.app.send_event_to_observers = lambda event, state=None: None
        world.app.start()
        for dpid in world.connections:
            world.app.switch_changed(EventSwitchChanged(dpid, connected=True))
        eventlet.sleep(2.5 * AUDIT_INTERVAL_SECONDS)
        assert world.app.planner.labels.not_adopted() != []
        assert world.taken() == {(world.flow.destination, path.nodes[1:-1])}
        del world.network.switches[path.nodes[1]].flows[entry.key]
        world.network.switches[path.nodes[1]]._by_table = None
        eventlet.sleep(2.5 * AUDIT_INTERVAL_SECONDS)
        assert world.app.planner.labels.not_adopted() == []
        for dpid, switch in world.network.switches.items():
            assert switch.flows == world.app.planner.tables(dpid).flows

    run(scenario)


def test_a_switch_without_space_keeps_what_it_has_is_tried_ever_more_rarely_and_filled_when_space_is_back(
        run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        path = world.paths()[0]
        full, edge = world.network.switches[path.nodes[2]], path.nodes[1]
        connection = world.connections[path.nodes[2]]
        wanted = dict(full.flows)
        tries: list[float] = []

        def note(message: bytes) -> bool:
            if message[1] == ofproto_v1_3.OFPT_FLOW_MOD and len(full.flows) >= full.max_flows:
                tries.append(hub.now)
            return False

        connection.refuses = note
        lost = [key for key in wanted if key[0] == Table.LABELS
                and world.app.planner.labels.destination(dict(key[2])["mpls_label"]) not in (edge, path.nodes[-2])]
        for key in lost:
            del full.flows[key]
        full.max_flows = len(full.flows)
        world.app.switch_changed(EventSwitchChanged(path.nodes[2], connected=True))
        begin = hub.now
        eventlet.sleep(1)
        held_up = 0
        while hub.now < begin + 200:
            world.install(path)     # steering over the switch goes on
            assert world.taken() == {(world.flow.destination, path.nodes[1:-1])}
            world.withdraw()
            held_up += 1
            eventlet.sleep(5)
        assert held_up > 30
        assert 3 < len({round(at) for at in tries}) < 20
        (trouble,) = world.app.loops.troubles()
        assert trouble.name == f"flow tables of {world.state.name_of(path.nodes[2])}"
        assert "full" in trouble.problem and trouble.age_seconds > 100
        assert not world.app.is_in_force
        full.max_flows = 1 << 20
        eventlet.sleep(130)
        assert full.flows == wanted
        assert world.app.loops.troubles() == [] and world.app.is_in_force

    run(scenario)


def test_nothing_is_changed_before_the_fabric_has_settled(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        # A second controller's life begins, and one switch comes late.
        before = {dpid: (dict(switch.flows), dict(switch.groups)) for dpid, switch in world.network.switches.items()}
        late = world.network.dpid_of["core0"]
        world.app.stop()
        world.state = world.network.state()
        world.state.confirmations = Confirmations()
        world.state.switch_disconnected(late)
        world.app = world.new_forwarding()
        world.app.send_event_to_observers = lambda event, state=None: None
        world.app.start()
        for dpid in world.connections:
            if dpid != late:
                world.state.datapaths[dpid] = world.connections[dpid]
                world.app.switch_changed(EventSwitchChanged(dpid, connected=True))
        eventlet.sleep(7)
        for dpid, switch in world.network.switches.items():
            assert (switch.flows, switch.groups) == before[dpid]
        assert {where for where, _ in world.taken()} == {world.flow.destination}
        # It never comes: in the end the others go on without it.
        eventlet.sleep(5)
        crossed = {dpid for _, switches in world.taken() for dpid in switches}
        assert late not in crossed and len(world.taken()) == len(world.paths()) == 4

    run(scenario)


def test_what_hosts_ask_is_handed_up_before_the_fabric_has_settled(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        dpid = world.network.dpid_of["edge-p0r0"]
        world.app.stop()
        world.network.switches[dpid].flows.clear()
        world.state = world.network.state()
        world.state.confirmations = Confirmations()
        world.app = world.new_forwarding()
        world.app.send_event_to_observers = lambda event, state=None: None
        world.app.start()
        world.state.datapaths[dpid] = world.connections[dpid]
        world.app.switch_changed(EventSwitchChanged(dpid, connected=True))
        eventlet.sleep(0.1)
        assert world.app.is_busy
        handed_up = packet_in_limits.entries_for_all_ports(world.state, dpid, Table.ROUTES)
        assert {entry.key for entry in handed_up} <= world.network.switches[dpid].flows.keys()

    run(scenario)


def test_ten_thousand_switches_that_came_and_were_forgotten_leave_nothing_behind(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        kept = [*vars(world.app.planner).values(), *vars(world.app._tables).values(),
                *vars(world.app._tables.installed).values(), *vars(world.app.flow_installer.meters).values()]
        containers = [each for each in kept if isinstance(each, (dict, set))]
        for number in range(1 << 32, (1 << 32) + 10_000):
            dpid = f"{number:016x}"
            world.app.switch_changed(EventSwitchChanged(dpid, connected=True))
            world.app.planner.tables(dpid)
            world.app._tables.installed.was_sent(dpid)
            world.app.flow_installer.meters.of(dpid)
            world.app.switch_changed(EventSwitchChanged(dpid, connected=False))
            world.app.switch_forgotten(EventSwitchForgotten(dpid))
            if number % 100 == 0:
                eventlet.sleep(1)
        eventlet.sleep(5)
        assert max(map(len, containers)) < 1000
        assert not any(str(key).startswith("00000001") for container in containers for key in container)

    run(scenario)


def test_a_switch_is_known_by_its_latest_connection(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        dpid = world.paths()[0].nodes[1]
        world.connections[dpid].is_hung = True
        world.app.switch_changed(EventSwitchChanged(dpid, connected=True))
        eventlet.sleep(0.001)
        world.connections[dpid] = world.state.datapaths[dpid] = Connection(world, dpid)
        world.state.switch_connected(SwitchInfo(dpid, dpid, "192.0.2.1", True), world.connections[dpid])
        world.network.switches[dpid].flows.clear()
        world.app.switch_changed(EventSwitchChanged(dpid, connected=True))
        eventlet.sleep(1)
        assert len(world.network.switches[dpid].flows) > 20

    run(scenario)
