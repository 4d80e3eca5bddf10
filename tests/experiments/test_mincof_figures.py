"""MinCOF's figures in the simulator, as a user runs them."""

import csv
import json
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner

from cluster.commands.experiment import experiment
from sim.experiments import mincof


def test_a_quick_figure_leaves_its_results_and_what_was_assumed(tmp_path: Path) -> None:
    arguments = ["mincof-background", "--quick", "--output", str(tmp_path)]
    result = CliRunner().invoke(experiment, arguments)

    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [row["method"] for row in rows if row["point"] == "50 %"] == [method.name for method in mincof.METHODS]
    assert all(float(row["mean_seconds_value"]) >= float(row["mean_seconds_bound"]) for row in rows)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "manifest.json").read_text())["chosen_where_the_paper_is_silent"] == mincof.CHOSEN
    lines = (tmp_path / "results.jsonl").read_text()

    assert "--resume" in CliRunner().invoke(experiment, arguments).output
    assert CliRunner().invoke(experiment, [*arguments, "--resume"]).exit_code == 0
    assert (tmp_path / "results.jsonl").read_text() == lines


def test_equal_tasks_give_equal_results() -> None:
    task = mincof.tasks(mincof.FIGURES["mincof-size"], True, 3)[-1]

    assert mincof.run_task(task) == mincof.run_task(task)


@pytest.mark.parametrize("name", mincof.FIGURES)
def test_every_method_meets_the_same_coflows(name: str) -> None:
    figure = mincof.FIGURES[name]
    tasks = mincof.tasks(figure, False, 1)

    assert len(tasks) == len(figure.points) * len(figure.methods) * 5
    assert {task.seed for task in tasks} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(("name", "point"), [("mincof-width", "12"), ("mincof-width", "16"),
                                             ("mincof-blocking", "4:1")])
def test_coflow_plus_is_a_quarter_below_tailor_where_the_bound_lets_it_be(name: str, point: str) -> None:
    means: dict[str, list[float]] = {}
    bounds = []
    for task in mincof.tasks(mincof.FIGURES[name], quick=False, seed=1):
        if task.point.name == point and task.method.policy in ("tailor", "coflow-plus"):
            result = mincof.run_task(task)
            means.setdefault(task.method.policy, []).append(result["mean_seconds"])
            bounds.append(result["bound_seconds"])
    assert len(bounds) == 10
    assert fmean(means["coflow-plus"]) < 0.75 * fmean(means["tailor"])
    assert fmean(means["coflow-plus"]) < 1.15 * fmean(bounds)
