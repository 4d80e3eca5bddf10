"""Switches that lose the controller for a while go on as before: the whole controller in simulated time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import eventlet
import pytest

from controller.switches.entries import ToGroup
from controller.switches.layout import Priority
from controller.tables.convergence import RETURN_PATIENCE_SECONDS
from controller.topology.events import EventSwitchChanged
from controller.topology.state import PortKind
from tests.unit.controller.forwarding_world import World
from tests.unit.controller.house import House
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated
from topo.fabric import spine_leaf


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

        def ends_of_default_traffic() -> set[str]:
            return {arrival.where for arrival in house.network.send("r0h0", house.network.tcp("r0h0", "r1h1"))}

        before = entries()
        assert len(before) == 1
        house.disconnect(leaf)
        eventlet.sleep(away_seconds)
        house.connect(leaf)
        for _ in range(300):
            assert entries() == before
            assert ends_of_default_traffic() == {house.network.hosts["r1h1"].ip}
            eventlet.sleep(0.01)
        assert house.life.state.network.shortest_paths(house.network.hosts["r0h0"].ip, house.network.hosts["r1h0"].ip)
        assert house.life.coflows.failures == {}
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
