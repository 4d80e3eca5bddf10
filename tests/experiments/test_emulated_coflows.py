"""MinCOF's figures on an emulated fabric: a short run of each kind of policy ends and is compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from speedwell.evaluation.coflow_replay.experiment import EMULATED, CoflowScale, emulated_tasks, run_emulated
from speedwell.evaluation.experiment import Choices
from speedwell.evaluation.papers.mincof import EXPERIMENTS
from speedwell.evaluation.results.results_file import ResultsFile
from speedwell.sim.coflow_workload import CoflowWorkload

pytestmark = [pytest.mark.root, pytest.mark.full]

SCALE = CoflowScale(20e6)


def test_every_policy_is_played_and_finished_runs_are_kept(tmp_path: Path) -> None:
    figure = EXPERIMENTS["mincof-size"]
    tasks = [replace(task, point=replace(task.point, workload=CoflowWorkload(
        2, (2, 2), (2, 2), (2.5e6, 5e6), 1.0, 1.0))) for task in emulated_tasks(figure, Choices(quick=True), 1)
        if task.point.name == figure.points[0].name]
    assert {task.method.policy for task in tasks} == set(EMULATED)
    results_file = ResultsFile(tmp_path / "results.jsonl", False)
    results = run_emulated(tasks, SCALE, results_file, lambda done: None, lambda now: None, pytest.fail)
    assert len(results) == len(tasks)
    for result in results:
        assert 0.9 * result["bound_seconds"] < result["mean_seconds"] < 60, result
    again = run_emulated(tasks, SCALE, ResultsFile(tmp_path / "results.jsonl", True), lambda done: None,
                         lambda now: None, pytest.fail)
    assert again == results
