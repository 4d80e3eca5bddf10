"""Writes on a small emulated fabric: the real filesystem places them as its controller says."""

from __future__ import annotations

import pytest

from speedwell.evaluation.papers.sinbad import RACK_AWARE, SINBAD, WriteMethod
from speedwell.evaluation.papers.sinbad_fabric import WriteTrace
from speedwell.evaluation.replay.writes import run_tasks

pytestmark = [pytest.mark.root, pytest.mark.full]


@pytest.mark.parametrize("method", [RACK_AWARE, SINBAD], ids=lambda method: method.policy)
def test_all_writes_end_and_the_controller_is_asked(method: WriteMethod) -> None:
    results = list(run_tasks([WriteTrace(method, seed, 4, 40e6) for seed in (1, 2)], lambda now: None))
    assert [result["task"]["seed"] for result in results] == [1, 2]
    for result in results:
        assert len(result["seconds"]) == 4 and sum(result["placed"].values()) == 4
        assert all(0.5 < seconds < 120 for seconds in result["seconds"])
        assert result["read_seconds"] > 0
