"""A real switch whose flow tables take no more entries: the controller says so, and fills them when there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedwell.controller.switches.layout import Table
from speedwell.topo.fabric import spine_leaf
from tests.integration.controller.northbound import Northbound, northbound
from tests.waiting import wait_until

pytestmark = pytest.mark.root

FULL = "flow tables of spine0"


def troubles(running: Northbound) -> list[str]:
    return [trouble["name"] for trouble in running.ask("GET", "/v1/health").json()["troubles"]]


def full_switches(running: Northbound) -> str:
    metrics = running.ask("GET", "/metrics").text
    return next(line.split()[1] for line in metrics.splitlines() if line.startswith("speedwell_full_switches "))


def test_a_switch_without_room_is_named_and_filled_once_there_is_room(tmp_path: Path) -> None:
    fabric = spine_leaf(leaves=2, spines=2, hosts_per_leaf=1, host_bps=40e6)
    with northbound(fabric, tmp_path, "poll_interval_seconds = 0.3\n") as running:
        running.meet_all_hosts()
        emulation = running.emulation
        running.stop_controller()
        emulation.ovs_ofctl("spine0", "del-flows", f"table={Table.LABELS:d}")
        emulation.ovs_vsctl("spine0", "--", "--id=@few", "create", "Flow_Table", "flow_limit=1",
                            "overflow_policy=refuse", "--", "set", "Bridge", "br0",
                            f"flow_tables:{Table.LABELS:d}=@few")
        running.start_controller()
        wait_until(lambda: FULL in troubles(running), 20, "health does not name the full switch")
        assert running.ask("GET", "/v1/health").json()["status"] == "degraded"
        assert full_switches(running) == "1.0"
        emulation.ovs_vsctl("spine0", "clear", "Bridge", "br0", "flow_tables")
        wait_until(lambda: troubles(running) == [], 60, "the switch is not filled although there is room")
        assert full_switches(running) == "0.0"
        running.meet_all_hosts()
