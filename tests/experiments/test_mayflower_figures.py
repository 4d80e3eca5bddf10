"""The experiment command, end to end, in its quick form or smaller."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from speedwell.evaluation.commands.experiment import experiment
from speedwell.evaluation.experiment import Choices, Experiment
from speedwell.evaluation.papers import mayflower


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(experiment, list(arguments))


def shorter(figure: Experiment, reads: int) -> Callable[[Any, Any, int, Choices], Any]:
    """Makes the figure's tasks, of so many reads each."""
    return lambda *of: replace(figure.task(*of), reads=reads)


@pytest.fixture
def few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of 120 reads at the first point, by the first two methods."""
    for name, figure in mayflower.EXPERIMENTS.items():
        monkeypatch.setitem(mayflower.EXPERIMENTS, name, replace(
            figure, points=figure.points[:1], methods=figure.methods[:2], runs=2, task=shorter(figure, 120)))


def test_figure_4_in_its_quick_form_shows_what_the_paper_shows(tmp_path: Path) -> None:
    result = invoke("mayflower-fig4", "--quick", "--output", str(tmp_path))

    assert result.exit_code == 0, result.output
    assert "1.4 to 3.4" in result.output
    rows = {row["method"]: row for row in csv.DictReader((tmp_path / "table.csv").open())}
    ratio = {method: float(row["mean_seconds_ratio_value"]) for method, row in rows.items()}
    assert ratio.pop("mayflower-plus") < ratio.pop("Mayflower, two replicas") < ratio.pop("Mayflower") == 1
    assert min(ratio.values()) == ratio["Sinbad-R Mayflower"] > 1.1
    assert ratio["Nearest Mayflower"] <= ratio["Nearest ECMP"] and (
        ratio["Rack-aware Mayflower"] <= ratio["Rack-aware ECMP"])
    for measure in ("mean_seconds", "p95_seconds"):
        assert all(0 < float(row[f"{measure}_bound"]) <= float(row[f"{measure}_value"]) for row in rows.values())
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["seed"], manifest["workload"]["zipf_exponent"]) == (1, 1.1)


@pytest.mark.usefixtures("few_reads")
def test_an_interrupted_sweep_keeps_what_has_finished_and_goes_on(tmp_path: Path) -> None:
    assert invoke("mayflower-fig7", "--output", str(tmp_path)).exit_code == 0
    whole = (tmp_path / "results.jsonl").read_text().splitlines()
    table = (tmp_path / "table.csv").read_text()
    (tmp_path / "results.jsonl").write_text("\n".join(whole[:2]) + "\n" + whole[2][:40])

    refused = invoke("mayflower-fig7", "--output", str(tmp_path))
    resumed = invoke("mayflower-fig7", "--output", str(tmp_path), "--resume")

    assert refused.exit_code == 1 and "--resume" in refused.output
    assert resumed.exit_code == 0, resumed.output
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert lines[:2] == whole[:2]
    assert sorted(lines) == sorted(whole)
    assert (tmp_path / "table.csv").read_text() == table


def test_the_emulations_options_are_refused_for_the_simulator(tmp_path: Path) -> None:
    result = invoke("mayflower-fig4", "--reads", "100", "--output", str(tmp_path / "results"))

    assert result.exit_code == 2 and "--emulate" in result.output
    assert not (tmp_path / "results").exists()


@pytest.mark.usefixtures("few_reads")
def test_figure_8_in_the_simulator_takes_hdfs_for_its_policy(tmp_path: Path) -> None:
    result = invoke("mayflower-fig8", "--output", str(tmp_path))

    assert result.exit_code == 0, result.output
    assert "more than 80 %" in result.output
    rows = {row["method"]: row for row in csv.DictReader((tmp_path / "table.csv").open())}
    assert list(rows) == ["Mayflower", "HDFS Mayflower"]
    tasks = [json.loads(line)["task"] for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {task["method"]["replica_policy"] for task in tasks if task["method"]["name"] == "HDFS Mayflower"} == {
        "nearest"}


def test_mayflower_plus_ends_reads_earlier_and_shows_its_distance_to_the_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = mayflower.EXPERIMENTS["mayflower-plus"]
    monkeypatch.setitem(mayflower.EXPERIMENTS, "mayflower-plus", replace(
        figure, quick_points=(2,), methods=(mayflower.MAYFLOWER, mayflower.PLUS), quick_runs=2,
        task=shorter(figure, 200)))

    result = invoke("mayflower-plus", "--quick", "--output", str(tmp_path))

    assert result.exit_code == 0, result.output
    row = {row["method"]: row for row in csv.DictReader((tmp_path / "table.csv").open())}["mayflower-plus"]
    assert float(row["mean_seconds_ratio_value"]) < 0.95
    for measure in ("mean_seconds", "p95_seconds"):
        assert float(row[f"{measure}_value"]) >= float(row[f"{measure}_bound"])
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "manifest.json").read_text())["mayflower_plus"]["patience"] > 0
    lines = (tmp_path / "results.jsonl").read_text()
    (tmp_path / "results.jsonl").write_text(lines[:-30])
    assert invoke("mayflower-plus", "--quick", "--output", str(tmp_path), "--resume").exit_code == 0
    assert (tmp_path / "results.jsonl").read_text() == lines
