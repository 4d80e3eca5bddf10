"""The results of an experiment that are there when another run is asked for."""

from pathlib import Path

import pytest

from speedwell.evaluation.results.output import Output
from speedwell.evaluation.results.results_file import ResultsFile
from speedwell.sim.errors import InvalidSetting

OLD, NEW = {"task": {"seed": 1}, "mean": 1.0}, {"task": {"seed": 2}, "mean": 2.0}


def made(directory: Path) -> Path:
    file = ResultsFile(directory / "results.jsonl", resume=False)
    file.add(OLD)
    return directory / "results.jsonl"


def test_results_that_are_there_are_refused_with_what_helps(tmp_path: Path) -> None:
    path = made(tmp_path)
    with pytest.raises(InvalidSetting, match="--resume to go on with it, --force to replace it, or another --output"):
        ResultsFile(path, resume=False)


def test_force_replaces_them_when_the_first_new_one_is_there(tmp_path: Path) -> None:
    path = made(tmp_path)
    before = path.read_text()
    (tmp_path / "table.csv").write_text("of the old results")
    (tmp_path / "notes.txt").write_text("the user's own")

    results = Output(tmp_path, resume=False, force=True).open({"new": True}, {"fabric.json": "{}"})

    assert results.get(OLD["task"]) is None         # it is run again
    assert path.read_text() == before and not (tmp_path / "manifest.json").exists()
    results.add(NEW)
    results.add(OLD)
    assert ResultsFile(path, resume=True).get(NEW["task"]) == NEW
    assert len(path.read_text().splitlines()) == 2
    assert not (tmp_path / "table.csv").exists()
    assert '"new": true' in (tmp_path / "manifest.json").read_text()
    assert {"fabric.json", "notes.txt"} <= {path.name for path in tmp_path.iterdir()}


def test_nothing_is_made_before_the_first_result(tmp_path: Path) -> None:
    Output(tmp_path / "results", resume=False, force=False).open({})
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("content", ["no JSON\n", "[]\n", '{"mean": 1}\n', b"\xff\xfe\n"])
def test_a_file_that_holds_something_else_is_named_and_left_alone(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(raw)
    with pytest.raises(InvalidSetting, match=r"results\.jsonl"):
        ResultsFile(path, resume=True)
    assert path.read_bytes() == raw
