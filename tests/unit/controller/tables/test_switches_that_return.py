"""Switches that lose the controller for a while go on as before: the whole controller in simulated time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import eventlet
import pytest

from speedwell.controller.switches.entries import ToGroup
from speedwell.controller.switches.layout import Priority
from speedwell.controller.tables.convergence import RETURN_PATIENCE_SECONDS
from speedwell.controller.topology.events import EventSwitchChanged
from speedwell.controller.topology.state import PortKind
from speedwell.topo.fabric import spine_leaf
from tests.unit.controller.forwarding_world import World
from tests.unit.controller.house import House
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated


@pytest.mark.parametrize("away_seconds", [2 + tenth / 10 for tenth in range(6)])
def test_a_leaf_that_was_without_a_controller_keeps_every_way_for_packets(
        away_seconds: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def scenario(hub: SimulatedHub) -> None:
        house = House(hub, monkeypatch, tmp_path, spine_leaf(leaves=3, spines=2, hosts_per_leaf=2), 1)
        eventlet.sleep(5)
        for place in house.places:
            house.announce(place)
        eventlet.sleep(5)
        house.report([("r0h0", "r1h0")])
        eventlet.sleep(3)
        leaf = house.network.fabric.edge_switch_of("r0h0").dpid_hex
        switch = house.switches[leaf]

        def entries() -> list[Any]:
            return [(entry.cookie, entry.actions, entry.meter_id) for entry in switch.flows.values()
                    if entry.priority == Priority.EXPLICIT_PATH]

        def ends_of_default_traffic() -> list[set[str]]:
            return [ends(house, "r0h0", "r1h1"), ends(house, "r2h1", "r0h1")]

        before = entries()
        assert len(before) == 1
        house.disconnect(leaf)
        for step in range(300 + round(100 * away_seconds)):
            if step == round(100 * away_seconds):
                house.connect(leaf)
            assert entries() == before
            assert ends_of_default_traffic() == [{house.network.hosts[host].ip} for host in ("r1h1", "r0h1")]
            eventlet.sleep(0.01)
        assert house.life.state.network.shortest_paths(house.network.hosts["r0h0"].ip, house.network.hosts["r1h0"].ip)
        assert house.life.coflows.failures == {}
        house.end()

    run_simulated(scenario)


def ends(house: House, source: str, destination: str) -> set[str]:
    """Where default traffic between two hosts arrives."""
    return {arrival.where for arrival in house.network.send(source, house.network.tcp(source, destination))}


def test_a_leaf_without_a_controller_is_the_last_hop_to_its_hosts_until_no_port_leads_to_it(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def scenario(hub: SimulatedHub) -> None:
        house = House(hub, monkeypatch, tmp_path, spine_leaf(leaves=3, spines=2, hosts_per_leaf=1), 1)
        eventlet.sleep(5)
        for place in house.places:
            house.announce(place)
        eventlet.sleep(5)
        leaf, there = house.network.fabric.edge_switch_of("r0h0"), {house.network.hosts["r0h0"].ip}
        house.disconnect(leaf.dpid_hex)
        eventlet.sleep(60)      # longer than it takes to see that a port leads to no switch
        state = house.life.state
        assert ends(house, "r1h0", "r0h0") == ends(house, "r2h0", "r0h0") == there
        assert house.network.hosts["r0h0"].ip not in state.network and leaf.dpid_hex in state.edge_switches()
        house.set_link(leaf.name, "spine0", False)
        eventlet.sleep(1)
        assert ends(house, "r1h0", "r0h0") == there
        house.set_link(leaf.name, "spine1", False)
        eventlet.sleep(1)
        assert leaf.dpid_hex not in state.edge_switches()
        assert not [destination for _, destination in state.switch_ports() if destination == leaf.dpid_hex]
        assert ends(house, "r1h0", "r0h0") == {"nowhere"} != ends(house, "r1h0", "r2h0")
        for spine in ("spine0", "spine1"):
            house.set_link(leaf.name, spine, True)
        house.connect(leaf.dpid_hex)
        eventlet.sleep(5)
        assert ends(house, "r1h0", "r0h0") == there and not state.last_hops_to(leaf.dpid_hex)
        house.end()

    run_simulated(scenario)


def test_a_switch_whose_ports_stay_undetermined_is_put_right_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, monkeypatch)
        dpid = world.paths()[0].nodes[1]
        switch, before = world.network.switches[dpid], dict(world.network.switches[dpid].flows)
        world.state.set_port(dpid, replace(world.state.ports[dpid, 1], port_no=99, kind=PortKind.UNDETERMINED))
        lost = next(key for key, entry in before.items()
                    if any(isinstance(action, ToGroup) for action in entry.actions))
        del switch.flows[lost]
        for connected in (False, True):
            world.app.switch_changed(EventSwitchChanged(dpid, connected))
        eventlet.sleep(RETURN_PATIENCE_SECONDS - 0.1)
        assert lost not in switch.flows
        eventlet.sleep(0.5)
        assert switch.flows == before

    run_simulated(scenario)


def test_a_controller_that_starts_anew_waits_for_a_spine_that_comes_after_the_others(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def scenario(hub: SimulatedHub) -> None:
        house = House(hub, monkeypatch, tmp_path, spine_leaf(leaves=3, spines=2, hosts_per_leaf=2), 1)
        eventlet.sleep(5)
        for place in house.places:
            house.announce(place)
        eventlet.sleep(5)
        spine = next(switch.dpid_hex for switch in house.network.fabric.switches if switch.name == "spine1")

        def held() -> list[Any]:
            return [(dict(switch.flows), dict(switch.groups)) for switch in house.switches.values()]

        before = held()
        monkeypatch.setattr(house, "connect_all", lambda: [
            house.connect(dpid) for dpid in house.switches if dpid != spine])
        house.restart_controller()
        eventlet.sleep(6)
        assert held() == before
        house.connect(spine)
        eventlet.sleep(10)
        assert held() == before and not house.life.forwarding.is_busy
        house.end()

    run_simulated(scenario)
