"""Sinbad's experiments in the simulator, as a user runs them, on a small trace."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest
from click.testing import CliRunner

from speedwell.evaluation.commands.experiment import experiment
from speedwell.evaluation.experiment import Choices
from speedwell.evaluation.papers import sinbad, sinbad_fabric
from speedwell.evaluation.papers.sinbad_paper import beside_the_paper
from speedwell.sim.errors import InvalidSetting
from speedwell.sim.floods import Flood, FloodedSimulation
from speedwell.sim.mixed_load import Messages, Systems, Transfer

RACKS, SECONDS = 8, 1400


@pytest.fixture(name="trace", scope="module")
def _trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A coflow every 5 s from one or two racks to two or three others, a gigabyte and more each."""
    draw = Random(1)
    lines = [f"{RACKS} {SECONDS // 5}"]
    for number in range(SECONDS // 5):
        mappers = draw.sample(range(RACKS), draw.choice((1, 2)))
        reducers = draw.sample(range(RACKS), draw.choice((2, 3)))
        lines.append(" ".join(map(str, (number + 1, 5000 * number, len(mappers), *mappers, len(reducers),
                                        *(f"{rack}:{draw.randrange(1000, 8000)}" for rack in reducers)))))
    path = tmp_path_factory.mktemp("trace") / "small.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def results_of(name: str, trace: Path | None, runs: int = 2, **changes: Any) -> dict[str, list[dict[str, Any]]]:
    figure = sinbad.EXPERIMENTS[name]
    figure = replace(figure, points=tuple(replace(point, **changes) for point in figure.points), runs=runs)
    results: dict[str, list[dict[str, Any]]] = {}
    for task in figure.tasks(Choices(trace=trace)):
        results.setdefault(task.method.name, []).append(sinbad.run_task(task))
    return results


def test_a_quick_experiment_leaves_its_results_and_the_papers_figures(tmp_path: Path, trace: Path) -> None:
    arguments = ["sinbad-imbalance", "--quick", "--trace", str(trace), "--output", str(tmp_path)]
    result = CliRunner().invoke(experiment, arguments)

    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [row["method"] for row in rows] == ["HDFS", "Sinbad", "sinbad-plus"]
    assert "median Cv lower by, rack to core" in result.output and "0.35" in result.output
    assert "expected to run a minute after the last write: 0" in result.output
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "manifest.json").read_text())["chosen_where_the_paper_is_silent"] == sinbad.CHOSEN


@pytest.mark.parametrize(("arguments", "reason"), [
    (["sinbad-write"], "trace: name the file"), (["mayflower-fig4", "--trace", __file__], "--trace goes with"),
    (["sinbad-write", "--trace", __file__], "line 1: not a line of a coflow-benchmark trace"),
    (["sinbad-write", "--reads", "20"], "go with --emulate"),
    (["sinbad-load", "--emulate"], "in the simulator only")])
def test_what_cannot_be_run_is_refused_with_the_reason(tmp_path: Path, arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(experiment, [*arguments, "--output", str(tmp_path / "out")])
    assert result.exit_code in (1, 2) and reason in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_every_method_is_asked_for_the_same_blocks_and_equal_tasks_give_equal_results(trace: Path) -> None:
    results = results_of("sinbad-memory", trace, runs=1, window_seconds=10.0)
    assert len({tuple(run["job_megabytes"]) for runs in results.values() for run in runs}) == 1
    task = sinbad.EXPERIMENTS["sinbad-memory"].tasks(Choices(quick=True, trace=trace))[2]
    assert sinbad.run_task(task) == sinbad.run_task(task)


def test_sinbad_writes_faster_than_hdfs_and_a_quantum_costs_time(trace: Path) -> None:
    results = results_of("sinbad-write", trace, window_seconds=60.0)
    means = {name: fmean(run["mean_seconds"] for run in runs) for name, runs in results.items()}
    assert means["Sinbad"] < 0.95 * means["HDFS"]
    assert means["sinbad-plus"] < means["Sinbad"] < means["Sinbad, q = 1 s"]
    table = beside_the_paper("sinbad-write", [run for runs in results.values() for run in runs], "HDFS")
    assert table is not None
    improved, same, slower = (float(row[2].split()[0]) for row in table.rows[1:4])
    assert improved + same + slower == pytest.approx(1.0, abs=0.02)


def test_the_busiest_link_is_less_busy_and_nothing_stays_reserved() -> None:
    results = results_of("sinbad-busiest", None, runs=1, files=1000)
    assert {run["reserved_after_a_minute"] for runs in results.values() for run in runs} == {0}
    off, on = results["Rack-aware"][0], results["Sinbad"][0]
    assert on["busiest_over_mean"] < 0.85 * off["busiest_over_mean"]
    assert on["cv_down"] < off["cv_down"] - 0.2


def test_on_the_emulated_fabrics_events_writes_are_faster_where_the_network_is_idle() -> None:
    figure = sinbad_fabric.EXPERIMENTS["sinbad-fabric"]
    means: dict[str, list[float]] = {}
    for task in replace(figure, runs=3).tasks(Choices(seed=41)):
        result = sinbad_fabric.run_task(task)
        assert len(result["seconds"]) == task.writes
        means.setdefault(task.method.name, []).append(result["mean_seconds"])
    assert fmean(means["Sinbad"]) < 0.95 * fmean(means["Rack-aware"])
    assert fmean(means["sinbad-plus"]) < fmean(means["Sinbad"])


def test_a_flood_takes_its_part_of_a_link_for_its_time_and_counters_see_it() -> None:
    fabric = sinbad_fabric.fabric_of(8e6)
    write = Transfer("write", 1.0, writer="r0h0", size_bits=80e6)
    flood = Flood("flood", 0.0, writer="r0h0", client="r1h0", rate_bps=6e6, seconds=5.0)
    systems = Systems(reads="mayflower", coflows="", placements="rack-aware", turns="", metadata="")
    seconds = {}
    for transfers in ([write], [flood, write]):
        simulation = FloodedSimulation(fabric, systems, 1, Messages(metadata_rate=0.0, short_rate=0.0))
        ((_, seconds[len(transfers)]),) = simulation.play(transfers, 2.0).seconds["write"]
    assert seconds[1] == pytest.approx(10.0)
    assert seconds[2] == pytest.approx(4.0 + (80e6 - 4.0 * 2e6) / 8e6), "2 of 8 Mbit/s until the flood ends"


def test_counters_have_of_a_flood_what_was_sent_by_then() -> None:
    fabric = sinbad_fabric.fabric_of(8e6)
    systems = Systems(reads="mayflower", coflows="", placements="rack-aware", turns="", metadata="")
    simulation = FloodedSimulation(fabric, systems, 1, Messages(metadata_rate=0.0, short_rate=0.0))
    told: dict[float, float] = {}
    simulation._placement.link_measured = lambda link, rate_bps, now: bool(     # type: ignore[method-assign]
        told.__setitem__(now, rate_bps) if link[0] == "r0h0" else None)
    simulation.play([Flood("flood", 0.75, writer="r0h0", client="r1h0", rate_bps=6e6, seconds=1.0)], 3.5)
    assert [told[second] for second in (1.0, 2.0, 3.0)] == pytest.approx([1.5e6, 4.5e6, 0.0], abs=0.2e6)


def test_a_part_in_which_nothing_is_written_is_drawn_again(trace: Path) -> None:
    for seed in (1, 2, 9, 10, 17, 18):
        assert sinbad._writes(trace, sinbad.WritePoint("short", window_seconds=2.0), seed).writers
    with pytest.raises(InvalidSetting, match="nothing is written in 50 parts"):
        sinbad._writes(trace, sinbad.WritePoint("behind its end"), 7)
