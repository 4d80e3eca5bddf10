"""The mixed load on a small emulated fabric: the real filesystem under all five systems, and under none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from speedwell.evaluation.papers.together import KINDS, NONE, SUBSETS, Subset, Task
from speedwell.evaluation.replay.together import point_of, run_tasks

pytestmark = [pytest.mark.root, pytest.mark.full]
POINT = replace(point_of(40.0), seconds=6.0, hosts=2, rate=0.2, files=4)


@pytest.mark.parametrize("subset", [SUBSETS[0], NONE], ids=lambda subset: subset.name)
def test_all_that_is_asked_for_ends_and_what_it_cost_is_told(subset: Subset) -> None:
    [found] = run_tasks([Task(POINT, subset, 1)], lambda now: None)
    assert all(0 < found[f"{kind}_mean"] <= found[f"{kind}_p99"] < 120e3 for kind in (*KINDS, "background"))
    assert found["read_mean"] > 1e3 * 0.8 * POINT.size_bytes / 4 * 8 / POINT.host_bps
    assert 0 < found["link_use"] < 1 and 0 < found["fairness"] <= 1
    assert found["cpu_controller"] > 0 and found["cpu_hosts"] > 0
