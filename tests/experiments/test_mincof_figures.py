"""MinCOF's figures in the simulator, as a user runs them."""

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from speedwell.evaluation.commands.experiment import experiment
from speedwell.evaluation.experiment import Choices
from speedwell.evaluation.papers import mincof
from speedwell.sim.errors import InvalidSetting


def test_a_quick_figure_leaves_its_results_and_what_was_assumed(tmp_path: Path) -> None:
    arguments = ["mincof-size", "--quick", "--point", "< 200 MB", "--output", str(tmp_path)]
    result = CliRunner().invoke(experiment, arguments)

    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [row["method"] for row in rows if row["point"] == "< 200 MB"] == [method.name for method in mincof.METHODS]
    assert all(float(row["mean_seconds_value"]) >= float(row["mean_seconds_bound"]) for row in rows)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "manifest.json").read_text())["chosen_where_the_paper_is_silent"] == mincof.CHOSEN
    lines = (tmp_path / "results.jsonl").read_text()

    assert "--resume" in CliRunner().invoke(experiment, arguments).output
    assert CliRunner().invoke(experiment, [*arguments, "--resume"]).exit_code == 0
    assert (tmp_path / "results.jsonl").read_text() == lines


def test_single_methods_and_points_are_chosen_by_name_and_others_are_named() -> None:
    figure = mincof.EXPERIMENTS["mincof-background"]
    tasks = figure.tasks(Choices(methods=("MinCOF",), places=("50 %", "10 %")))

    assert {(task.point.name, task.method.name) for task in tasks} == {
        (point, method) for point in ("10 %", "50 %") for method in ("MinCOF", mincof.BASE)}
    for choices, wrong in ((Choices(methods=("minCOF",)), "minCOF"), (Choices(places=("60 %",)), "60 %")):
        with pytest.raises(InvalidSetting, match=wrong):
            figure.tasks(choices)


def test_equal_tasks_give_equal_results() -> None:
    task = mincof.EXPERIMENTS["mincof-size"].tasks(Choices(quick=True, seed=3))[-1]

    assert mincof.run_task(task) == mincof.run_task(task)


@pytest.mark.parametrize("name", mincof.EXPERIMENTS)
def test_every_method_meets_the_same_coflows(name: str) -> None:
    figure = mincof.EXPERIMENTS[name]
    tasks = figure.tasks(Choices())

    assert len(tasks) == len(figure.points) * len(figure.methods) * figure.runs
    assert {task.seed for task in tasks} == set(range(1, figure.runs + 1))


@pytest.mark.parametrize(("name", "point"), [(name, point.name) for name, figure in mincof.EXPERIMENTS.items()
                                             for point in figure.points])
def test_coflow_plus_is_near_the_bound_with_queues_at_hosts_and_no_worse_than_fair_sharing_without(
        name: str, point: str) -> None:
    figure = mincof.EXPERIMENTS[name]
    results = {task.method.name: mincof.run_task(task) for task in figure.tasks(Choices(seed=201))
               if task.point.name == point and task.seed == 201
               and (task.method.policy == "coflow-plus" or task.method.name == "fair sharing + ECMP")}
    with_queues, without, fair = (results[method]["mean_seconds"] for method in (
        "coflow-plus, hosts enforce", "coflow-plus", "fair sharing + ECMP"))

    assert with_queues < 1.15 * results["coflow-plus"]["bound_seconds"]
    assert with_queues < without < 1.02 * fair
