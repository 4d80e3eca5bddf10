"""Switches that lose the controller for a while go on as before: the whole controller in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import eventlet
import pytest

from controller.switches.layout import Priority
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
