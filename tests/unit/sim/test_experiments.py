"""What all experiments have in common: the table of them, their tasks, and what is made of any results."""

from __future__ import annotations

import json
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from speedwell.evaluation import listing
from speedwell.evaluation.coflow_replay import experiment as coflows
from speedwell.evaluation.commands.experiment import experiment as command
from speedwell.evaluation.experiment import PAPERS, Choices, all_experiments, named
from speedwell.evaluation.replay import experiment as reads
from speedwell.evaluation.results.changes import changes_table
from speedwell.evaluation.results.output import Output
from speedwell.evaluation.results.page import write_page
from speedwell.evaluation.results.plot import MOST_BARS, looks_of, plot
from speedwell.evaluation.results.report import Layout, Measure, Row, rows_of, write_csv
from speedwell.evaluation.results.statistics import Estimate
from speedwell.sim.errors import InvalidSetting

TRACE = Path("trace.txt")


@pytest.mark.parametrize("name", all_experiments())
def test_every_method_meets_the_same_seeds_at_every_point(name: str) -> None:
    found = named(name)
    assert found is not None and name.partition("-")[0] in PAPERS
    for quick in (False, True):
        tasks = found.tasks(Choices(quick, 7, trace=TRACE))
        runs = found.quick_runs if quick else found.runs
        points = {json.dumps(task.parameters() | {"method": None, "seed": None}, sort_keys=True) for task in tasks}
        assert len(tasks) == len(points) * len(found.methods) * runs
        assert {task.parameters()["seed"] for task in tasks} == set(range(7, 7 + runs))
        assert len({json.dumps(task.parameters(), sort_keys=True) for task in tasks}) == len(tasks)


@pytest.mark.parametrize("name", all_experiments())
def test_a_manifest_names_the_points_and_methods_that_are_run(name: str) -> None:
    found = all_experiments()[name]
    tasks = found.tasks(Choices(trace=TRACE))
    manifest = json.loads(json.dumps(found.manifest(name, "simulate", Choices(), tasks)))
    assert [method["name"] for method in manifest["methods"]] == [method.name for method in found.methods]
    assert len(manifest["points"]) == len(found.points) and manifest["runs"] == len(tasks)


def test_the_list_shows_every_experiment() -> None:
    assert [row[0] for row in listing.table().rows] == list(all_experiments())
    listed = CliRunner().invoke(command, ["--list"])
    assert listed.exit_code == 0 and "mincof-width" in listed.output


def test_a_name_that_no_experiment_has_is_refused_with_where_to_look() -> None:
    refused = CliRunner().invoke(command, ["mayflower-fig9"])
    assert refused.exit_code == 2 and "--list" in refused.output


def test_methods_look_different_and_the_same_in_every_figure_of_a_paper() -> None:
    looks: dict[tuple[str, str], object] = {}
    for name, found in all_experiments().items():
        own = looks_of(found, [])
        assert {method.name for method in found.methods} <= own.keys(), name
        for drawn_as in ("hatch", "line"):
            assert len({(look.colour, getattr(look, drawn_as)) for look in own.values()}) == len(own), name
        assert all(one.line != other.line for one, other in pairwise(own.values())), name
        for method, look in own.items():
            assert looks.setdefault((name.partition("-")[0], method), look) == look


def test_of_one_place_there_are_bars_and_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: list[str] = []
    monkeypatch.setattr(Axes, "bar", lambda axis, x, height, *where, **look: drawn.append(look["label"]))
    layout = Layout(title="", x_label="", claims=(), lines=True, measures=(Measure("a", "a, s"),))
    rows = [Row("", str(x), x, "method", 2, 0, {"a": Estimate(1.0, 0.9, 1.1)}, {}, {}, {}) for x in (1.0, 2.0)]
    plot(layout, rows, tmp_path / "lines.png")
    assert drawn == []
    plot(layout, rows[:1], tmp_path / "bars.png")
    assert drawn == ["method"]


def results(name: str, scale: float = 1.0) -> list[dict[str, object]]:
    """Made up: every measure is the seed times something."""
    found = all_experiments()[name]
    return [{"task": task.parameters(), "seconds": [], **{measure.name: scale * (10 + task.seed)
             for measure in found.measures}, **dict.fromkeys(found.bounds.values(), 1.0)}
            for task in found.tasks(Choices(trace=TRACE))]


def kept(directory: Path, name: str, scale: float = 1.0) -> Path:
    """A directory as the command leaves it."""
    found, made = all_experiments()[name], results(name, scale)
    directory.mkdir(parents=True)
    (directory / "results.jsonl").write_text("".join(json.dumps(result) + "\n" for result in made))
    manifest = found.manifest(name, "emulate" if found.emulation else "simulate", Choices(),
                              found.tasks(Choices(trace=TRACE)))
    (directory / "manifest.json").write_text(json.dumps(manifest))
    write_csv(rows_of(made, found), directory / "table.csv", found)
    return directory


def test_a_page_has_every_table_and_what_was_run_and_no_markup_of_results(tmp_path: Path) -> None:
    kept(tmp_path / "<b>one", "mincof-size")
    (tmp_path / "two").mkdir()
    simulated = {"layout": {"title": "Own", "claims": [], "x_label": "x", "base": "a", "lines": False}}
    (tmp_path / "two" / "manifest.json").write_text(json.dumps(simulated))
    (tmp_path / "two" / "results.jsonl").write_text("")
    page = write_page([tmp_path / "<b>one", tmp_path / "two"], tmp_path / "new" / "page.html").read_text()
    assert "coflow-plus" in page and "12.94 %" in page and "log-uniform" in page and "Own" in page
    assert "<b>one" not in page and "&lt; 200 MB" in page


def test_a_directory_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="there are no results"):
        write_page([tmp_path], tmp_path / "page.html")


def test_what_has_left_its_interval_is_listed_and_nothing_else(tmp_path: Path) -> None:
    old, same, other = (kept(tmp_path / name, "mincof-size", scale) for name, scale in
                        (("old", 1.0), ("same", 1.0), ("other", 2.0)))
    compared = [("size", old / "table.csv", same / "table.csv"), ("new", tmp_path / "none.csv", same / "table.csv")]
    unchanged = changes_table(compared)
    assert not unchanged.rows and "size" in unchanged.caption and "compare with: new" in unchanged.caption
    changed = changes_table([("size", old / "table.csv", other / "table.csv")])
    assert {row[3] for row in changed.rows} == {"mean seconds", "p95 seconds"}      # their ratios are as before
    lines = (same / "table.csv").read_text().splitlines()
    (same / "table.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert changes_table(compared[:1]).rows[0][3:] == ("all", "there", "missing")


@pytest.mark.parametrize("name", all_experiments())
def test_a_value_of_the_paper_is_of_something_that_is_measured(name: str) -> None:
    found = all_experiments()[name]
    places = {(task.parameters().get("panel", ""), task.parameters()["point"], task.method.name)
              for task in found.tasks(Choices(trace=TRACE))}
    measures = {measure.name for measure in found.measures}
    for panel, point, method, measure in found.papers:
        assert (panel, point, method) in places and measure in measures


def test_a_policy_that_is_compared_anyway_is_run_once() -> None:
    found = all_experiments()["xco-incast"]
    assert found.tasks(Choices(policies=("xco", "xco"))) == found.tasks(Choices())


@pytest.mark.parametrize(("arguments", "why"), [
    (["all", "--policy", "xco"], "--policy goes with one experiment"),
    (["all", "--runs", "2"], "go with --emulate"),
    (["all", "--emulate", "--reads", "50"], "--reads and --coflows go with one"),
    (["all", "--emulate", "--trace", __file__], "--trace does not go with --emulate"),
    (["all", "--emulate", "--scheduler", "h:1"], "--scheduler does not go with --emulate"),
    (["sinbad-busiest", "--trace", __file__], "sinbad-busiest plays no trace"),
])
def test_an_option_that_would_do_nothing_is_refused(arguments: list[str], why: str, tmp_path: Path) -> None:
    refused = CliRunner().invoke(command, [*arguments, "--output", str(tmp_path / "new")])
    assert refused.exit_code == 2 and why in refused.output
    assert not (tmp_path / "new").exists()


def test_all_is_refused_before_the_first_run_if_the_last_has_results(tmp_path: Path) -> None:
    kept(tmp_path / "metaflow-cpu", "metaflow-cpu")
    refused = CliRunner().invoke(command, ["all", "--quick", "--output", str(tmp_path)])
    assert refused.exit_code == 1 and "metaflow-cpu/results.jsonl exists" in refused.output
    assert [each.name for each in tmp_path.iterdir()] == ["metaflow-cpu"]


@pytest.mark.parametrize(("text", "why"), [
    (None, "has no xco-rtt.csv"), ("a,b\n1,2\n", "xco-rtt.csv is not a table.csv"),
    ("panel,point,method,good_value\n,p,m,much\n", "xco-rtt.csv is not a table.csv"),
])
def test_what_nothing_can_be_compared_with_is_refused_before_the_first_run(text: str | None, why: str,
                                                                           tmp_path: Path) -> None:
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    if text is not None:
        (earlier / "xco-rtt.csv").write_text(text)
    refused = CliRunner().invoke(command, ["xco-rtt", "--against", str(earlier), "--output", str(tmp_path / "new")])
    assert refused.exit_code == 1 and why in refused.output
    assert not (tmp_path / "new").exists()


def test_all_makes_its_page_without_what_could_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, *arguments: Any) -> None:
        if name != "mayflower-fig8":        # as without Java
            kept(next(each.directory for each in arguments if isinstance(each, Output)), name)

    monkeypatch.setattr("speedwell.evaluation.commands.experiment._run", run)
    kept(tmp_path / "earlier", "mayflower-fig4")
    for name in ("mayflower-fig4", "mayflower-fig8"):
        (tmp_path / f"{name}.csv").write_text((tmp_path / "earlier" / "table.csv").read_text())
    done = CliRunner().invoke(command, ["all", "--emulate", "--output", str(tmp_path), "--against", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "Within their intervals: mayflower-fig4." in done.output
    page = (tmp_path / "report.html").read_text()
    assert "mayflower-fig7" in page and "mayflower-fig8" not in page


def test_what_ends_an_emulation_stops_its_fabric_though_emulate_is_not_named(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []
    monkeypatch.setattr("speedwell.evaluation.replay.emulation.agreement",
                        lambda *arguments: handlers.append(signal.getsignal(signal.SIGTERM)))
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = CliRunner().invoke(command, ["mayflower-agreement", "--output", str(tmp_path / "new")])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.exit_code == 0, done.output
    assert handlers != [before] and callable(handlers[0])


def test_directories_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        kept(tmp_path / name / "size", "mincof-size")
    page = write_page([tmp_path / name / "size" for name in ("one", "two")], tmp_path / "page.html").read_text()
    assert f'id="{tmp_path}/one/size"' in page and f'id="{tmp_path}/two/size"' in page


@pytest.mark.parametrize("manifest", ["[]", "{}", '{"experiment": "mincof-size"}', '{"layout": {"titel": "x"}}'])
def test_a_manifest_that_the_command_does_not_write_is_named(manifest: str, tmp_path: Path) -> None:
    kept(tmp_path / "size", "mincof-size")
    (tmp_path / "size" / "manifest.json").write_text(manifest)
    with pytest.raises(InvalidSetting, match="size: its manifest"):
        write_page([tmp_path / "size"], tmp_path / "page.html")


@pytest.mark.parametrize("quick", [False, True])
def test_an_emulated_experiment_has_as_many_runs_as_are_asked_for(quick: bool) -> None:
    plus, width = (all_experiments()[name] for name in ("mayflower-plus", "mincof-width"))
    for tasks in (reads.emulated_tasks(plus, Choices(quick), 9, 100),
                  coflows.emulated_tasks(width, Choices(quick), 9)):
        assert {task.seed for task in tasks} == set(range(1, 10))


def test_more_methods_than_bars_can_show_are_one_table_of_ratios(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    written: list[str] = []
    monkeypatch.setattr(Axes, "text", lambda axis, x, y, text, **look: written.append(f"{x} {y} {text}"))
    names = [f"method {number}" for number in range(1 + MOST_BARS)]
    layout = Layout(title="", x_label="", claims=(), base=names[0],
                    measures=(Measure("a", "a, s"), Measure("b", "b, s")))
    values = {"a": Estimate(1.0, 1.0, 1.0), "b": Estimate(0.0, 0.0, 0.0)}
    plot(layout, [Row("", "", 0.0, name, 1, 0, values, values, {}, {}) for name in names[:-1]] +
         [Row("", "", 0.0, names[-1], 1, 1, {}, {}, {}, {})], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0
    assert written[:2] == ["0 0 1.00", "1 0 0.00"] and written[-1] == f"1 {MOST_BARS} overloaded"
