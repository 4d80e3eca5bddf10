"""Coflows played on an emulated fabric: every one ends, under a schedule about as soon as without."""

from __future__ import annotations

from pathlib import Path

import pytest

from speedwell.controller.policy.coflows.coflow import Coflow, CoflowFlow
from speedwell.evaluation.coflow_replay.replay import Replayed, ReplaySettings, replay
from speedwell.topo.fabric import spine_leaf

pytestmark = pytest.mark.root

LINK_BPS = 20e6
FABRIC = spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=LINK_BPS, oversubscription=1.0)
COFLOWS = [
    Coflow("large", tuple(CoflowFlow(f"large.{number}", f"r0h{number % 2}", f"r1h{number // 2}", 2_000_000)
                          for number in range(4)), 0.0),
    Coflow("small", (CoflowFlow("small.0", "r0h0", "r1h0", 1_000_000),), 0.5),
]
LEAST_SECONDS = {"large": 4_000_000 * 8 / LINK_BPS, "small": 1_000_000 * 8 / LINK_BPS}
CLOCK_TICKS = 0.05
"""Processor time is counted in ticks of 10 ms, which may be noted a little late."""
MOST_LONGER = 5
"""By which factor the last coflow may end later than without a schedule. With rates that were made for a few bytes it
was ten times as late."""


def play(directory: Path, policy: str | None, queues: str = "none", paced: bool = False) -> Replayed:
    said: list[str] = []
    played = replay(COFLOWS, ReplaySettings(FABRIC, directory, policy, queues, threshold_bytes=500_000, paced=paced,
                                            timeout_seconds=120), said.append)
    assert any("2 of 2 coflows" in line for line in said)
    return played


@pytest.fixture(scope="module")
def unscheduled(tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    return play(tmp_path_factory.mktemp("unscheduled"), None)


def test_every_coflow_ends_and_is_timed(unscheduled: Replayed) -> None:
    assert unscheduled.seconds.keys() == LEAST_SECONDS.keys()
    assert all(LEAST_SECONDS[name] * 0.9 < seconds for name, seconds in unscheduled.seconds.items()), unscheduled
    assert unscheduled.switch_cpu.keys() == {switch.name for switch in FABRIC.switches}
    shares = [*unscheduled.switch_cpu.values(), unscheduled.machine_busy]
    assert all(0 <= share < 1 + CLOCK_TICKS for share in shares), unscheduled
    busy = [share for name, share in unscheduled.switch_cpu.items() if name.startswith("leaf")]   # a spine may idle
    assert all([*busy, unscheduled.machine_busy]), unscheduled


@pytest.mark.parametrize(("policy", "queues", "paced"), [("mincof", "mincof", False), ("varys", "none", True)])
def test_no_flow_is_left_behind_by_a_schedule(unscheduled: Replayed, tmp_path: Path, policy: str, queues: str,
                                              paced: bool) -> None:
    played = play(tmp_path, policy, queues, paced)
    assert all(LEAST_SECONDS[name] * 0.9 < seconds < MOST_LONGER * max(unscheduled.seconds.values())
               for name, seconds in played.seconds.items()), (played, unscheduled)


def test_a_scheduled_coflow_of_mincof_has_its_queue_on_its_hosts_link_too(tmp_path: Path) -> None:
    """Five connections share the link otherwise: that of the coflow takes five times as long as alone."""
    size, others = 4_000_000, [CoflowFlow(f"untold.{number}", "r0h0", "r1h1", 6_000_000) for number in range(4)]
    coflows = [Coflow("untold", tuple(others), 0.0),
               Coflow("told", (CoflowFlow("told.0", "r0h0", "r1h0", size),), 1.0)]
    played = replay(coflows, ReplaySettings(FABRIC, tmp_path, "mincof", "mincof", 500_000, {"untold"},
                                            hosts_enforce=True, timeout_seconds=120))
    alone = size * 8 / LINK_BPS
    print(f"\n{played.seconds['told'] / alone:.2f} times as long as alone")
    assert 1 / 0.7 < played.seconds["told"] / alone < 3, played
