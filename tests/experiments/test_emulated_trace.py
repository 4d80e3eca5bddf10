"""A short trace on a small emulated fabric: the real filesystem and controller, and the simulator beside them."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from speedwell.evaluation.experiment import Choices
from speedwell.evaluation.papers.mayflower import EXPERIMENTS
from speedwell.evaluation.replay import agreement
from speedwell.evaluation.replay.experiment import emulated_tasks, run_emulated, speedwell
from speedwell.evaluation.replay.scale import Scale
from speedwell.evaluation.results.results_file import ResultsFile
from tests.machine_state import left_on_machine

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

SMALL = Scale(host_bps=16e6, speedup=8.0, pods=2, racks_per_pod=2, hosts_per_rack=2)


def test_reads_of_a_trace_are_steered_and_compared_with_the_simulated_ones(tmp_path: Path) -> None:
    before = left_on_machine()
    figure = EXPERIMENTS["mayflower-fig4"]
    first, *_ = tasks = [replace(task, rate=0.03) for task in emulated_tasks(figure, Choices(quick=True), 1, 6)
                         if task.method.name in ("Mayflower", "mayflower-plus")]
    results_file = ResultsFile(tmp_path / "results.jsonl", resume=False)
    said: list[str] = []

    results = run_emulated(tasks, SMALL, results_file, lambda done: None, said.append,
                           partial(speedwell, progress=said.append, directory=tmp_path / "cluster"))

    assert left_on_machine() == before
    assert [result["task"]["method"]["name"] for result in results] == [task.method.name for task in tasks]
    for result in results:
        assert len(result["seconds"]) == 6
        assert result["machine"]["not_steered"] == 0
        assert result["mean_seconds"] >= result["bound_seconds"]
    assert any(text.startswith("storing files: 1 of") for text in said)
    rows = agreement.compare([first], SMALL, results_file, agreement.delays_at(SMALL))
    assert [row.method for row in rows] == ["Mayflower"]
    assert abs(rows[0].difference) < 3, "a few reads on a busy machine; the experiment itself aims at 15 %"
    assert rows[0].same_paths is not None and rows[0].same_paths > 0
