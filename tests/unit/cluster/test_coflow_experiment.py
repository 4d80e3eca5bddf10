"""MinCOF's figures on an emulated fabric: what is played, and what is shown of the switches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from speedwell.evaluation.coflow_replay import experiment
from speedwell.evaluation.coflow_replay.experiment import (
    EMULATED,
    QUICK_COFLOWS,
    CoflowScale,
    cpu_table,
    emulated_tasks,
    simulated_table,
)
from speedwell.evaluation.coflow_replay.replay import ReplayFailed
from speedwell.evaluation.commands.experiment import experiment as experiment_command
from speedwell.evaluation.experiment import Choices
from speedwell.evaluation.papers.mincof import EXPERIMENTS, CoflowTask
from speedwell.evaluation.results.results_file import ResultsFile


def test_each_method_is_played_once_at_each_point_and_seed() -> None:
    for figure in EXPERIMENTS.values():
        tasks = emulated_tasks(figure, Choices(seed=3), 2)
        methods = {task.method for task in tasks}
        assert {method.policy for method in methods} == set(EMULATED)
        assert sorted((task.point.name, task.method.name, task.seed) for task in tasks) == sorted(
            (point.name, method.name, seed) for point in figure.points for method in methods for seed in (3, 4))


def test_files_shrink_with_the_links_and_grow_with_the_slowdown() -> None:
    assert CoflowScale(20e6).of_sizes == pytest.approx(0.2)
    assert CoflowScale(20e6, 3.0).of_sizes == pytest.approx(0.6)


@pytest.mark.parametrize(("arguments", "reason"), [
    (["--slowdown", "2"], "go with --emulate"), (["--host-mbps", "20"], "go with --emulate"),
    (["--runs", "2"], "go with --emulate"), (["--emulate", "--reads", "20"], "of no use to coflows"),
    (["--emulate", "--host-mbps", "0"], "range"), (["--emulate", "--scheduler", "x:1"], "without --scheduler")])
def test_options_that_would_do_nothing_are_refused(arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(experiment_command, ["mincof-width", *arguments])
    assert result.exit_code == 2 and reason in result.output


def test_a_quick_run_has_few_coflows_that_come_soon() -> None:
    [whole, *_], [quick, *_] = (emulated_tasks(EXPERIMENTS["mincof-size"], Choices(is_quick), 1)
                                for is_quick in (False, True))
    assert quick.point.workload.coflows == QUICK_COFLOWS < whole.point.workload.coflows
    assert quick.point.workload.interval_mean_seconds < whole.point.workload.interval_mean_seconds
    assert quick.point.workload.file_bytes == whole.point.workload.file_bytes
    assert {task.point.workload.coflows for is_quick in (False, True)
            for task in emulated_tasks(EXPERIMENTS["mincof-size"], Choices(is_quick), 1, 16)} == {16}


def test_a_run_that_fails_does_not_keep_the_others_from_being_made(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(task: CoflowTask, scale: CoflowScale, say: Any) -> dict[str, Any]:
        if task.method.policy == "tailor":
            raise ReplayFailed("r0h0 could not send: no route")
        return {"task": experiment._parameters(task, scale)}

    monkeypatch.setattr(experiment, "_run", run)
    tasks = emulated_tasks(EXPERIMENTS["mincof-size"], Choices(quick=True), 1)
    failures: list[str] = []
    results = experiment.run_emulated(tasks, CoflowScale(20e6), ResultsFile(tmp_path / "results.jsonl", False),
                                      lambda done: None, lambda now: None, failures.append)
    assert len(failures) == 2 and len(results) == len(tasks) - 2
    assert failures[0] == "< 40 MB, Tailor, seed 1: r0h0 could not send: no route"


def test_means_stand_beside_the_simulators_with_the_slowest_coflow() -> None:
    def result(seed: int, seconds: list[float], simulated: float) -> dict:
        return {"task": {"point": "1:1", "method": {"name": "Tailor"}, "seed": seed}, "seconds": seconds,
                "mean_seconds": sum(seconds) / len(seconds), "simulated_seconds": simulated}

    table = simulated_table([result(1, [1.0, 3.0], 2.0), result(2, [1.0, 7.0], 3.0)])
    assert table.rows == [("1:1", "Tailor", "3.00", "2.50", "1.20", "7.0")]


def test_every_switch_is_shown_with_its_part_of_a_processor() -> None:
    def result(method: str, switches: dict[str, float]) -> dict:
        return {"task": {"point": "1:1", "method": {"name": method}}, "switch_cpu": switches, "machine_busy": 0.5}

    table = cpu_table([
        result("Tailor", {"leaf0": 0.1, "spine0": 0.3}), result("Tailor", {"leaf0": 0.2, "spine0": 0.3}),
        result("MinCOF", {"leaf0": 0.4})])
    assert table.rows == [("1:1", "Tailor", "15.0%", "30.0%", "50%"), ("1:1", "MinCOF", "40.0%", "", "50%")]
