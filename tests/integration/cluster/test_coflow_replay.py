"""Coflows played on an emulated fabric: every one ends, under a schedule and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.coflow_replay.replay import ReplaySettings, replay
from controller.policy.coflow import Coflow, CoflowFlow
from topo.fabric import spine_leaf

pytestmark = pytest.mark.root

LINK_BPS = 20e6
FABRIC = spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=LINK_BPS, oversubscription=1.0)
COFLOWS = [
    Coflow("large", tuple(CoflowFlow(f"large.{number}", f"r0h{number % 2}", f"r1h{number // 2}", 2_000_000)
                          for number in range(4)), 0.0),
    Coflow("small", (CoflowFlow("small.0", "r0h0", "r1h0", 1_000_000),), 0.5),
]


@pytest.mark.parametrize(("policy", "queues", "paced"), [
    ("mincof", "mincof", False), ("varys", "none", True), (None, "none", False)])
def test_every_coflow_ends_and_is_timed(tmp_path: Path, policy: str | None, queues: str, paced: bool) -> None:
    said: list[str] = []
    played = replay(COFLOWS, ReplaySettings(FABRIC, tmp_path, policy, queues, threshold_bytes=500_000, paced=paced,
                                            timeout_seconds=120), said.append)
    least = {"large": 4_000_000 * 8 / LINK_BPS, "small": 1_000_000 * 8 / LINK_BPS}
    assert played.seconds.keys() == least.keys()
    assert all(least[name] * 0.9 < seconds for name, seconds in played.seconds.items()), played
    assert played.switch_cpu.keys() == {switch.name for switch in FABRIC.switches}
    assert all(0 < share <= 1 for share in played.switch_cpu.values()) and 0 < played.machine_busy <= 1
    assert any("2 of 2 coflows" in line for line in said)
