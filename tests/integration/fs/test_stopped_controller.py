"""A controller that stands still holds up one create for a moment, and no look-up."""

from __future__ import annotations

from pathlib import Path

from speedwell.evaluation.placement_trial import counted, creates_and_stats, stopped
from tests.placing_cluster import WRITER, placing_cluster

SLOWER = 5
"""The bounds are a quiet machine's: `scripts/bench-placement` shows 60 ms and 2 ms there."""


def test_creates_wait_for_a_moment_and_stats_not_at_all_while_the_controller_stands_still(tmp_path: Path) -> None:
    with placing_cluster(tmp_path) as cluster:
        _, stats = creates_and_stats(cluster.nameserver, WRITER, "/before", 4.0)
        with stopped(cluster.controller_pid):
            before = counted(cluster.nameserver)
            creates, stats_then = creates_and_stats(cluster.nameserver, WRITER, "/still", 4.0)
            not_placed = counted(cluster.nameserver)
        waited = sum(not_placed.get(why, 0) - before.get(why, 0) for why in ("late", "failed"))
        assert 1 <= waited < len(creates.seconds) / 2
        assert creates.longest_ms < SLOWER * 60
        assert stats_then.p99_ms < stats.p99_ms + SLOWER * 2
        after = counted(cluster.nameserver)
        creates_and_stats(cluster.nameserver, WRITER, "/again", 4.0)
        assert counted(cluster.nameserver)["refused"] > after["refused"], "it is not asked again when it goes on"
