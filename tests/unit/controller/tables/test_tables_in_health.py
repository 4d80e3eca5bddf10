"""What `/v1/health` says of the switches' tables: the whole controller in simulated time."""

from __future__ import annotations

import json
from pathlib import Path

import eventlet
import pytest

from speedwell.topo.fabric import spine_leaf
from tests.unit.controller.house import House
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated


def test_once_health_is_ok_no_entry_is_still_to_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def scenario(hub: SimulatedHub) -> None:
        house = House(hub, monkeypatch, tmp_path, spine_leaf(leaves=3, spines=2, hosts_per_leaf=2), 1)

        deadline = hub.now + 60

        def statuses() -> set[str]:
            """What it says until it says ok."""
            said = set()
            while (status := json.loads(house.life.rest.told("/v1/health"))["status"]) != "ok":
                said.add(status)
                assert hub.now < deadline, said
                eventlet.sleep(0.005)
            return said

        def keys() -> dict[str, set[object]]:
            return {dpid: set(switch.flows) for dpid, switch in house.switches.items()}

        assert "converging" in statuses()
        for place in house.places:
            house.announce(place)
        while len(house.life.state.hosts) < len(house.places):
            eventlet.sleep(0.005)
        assert statuses() == {"converging"}
        then = keys()
        assert all(then.values())
        eventlet.sleep(10)
        assert keys() == then
        house.end()

    run_simulated(scenario)
