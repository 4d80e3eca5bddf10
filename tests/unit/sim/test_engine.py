"""Runs in other processes say once that they compile."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from numba import njit

from speedwell.evaluation.results.engine import run_all
from speedwell.evaluation.results.results_file import ResultsFile

SAID = "compiling the simulator: a minute or two, the first time only"


@dataclass(frozen=True)
class Sum:
    left: int
    right: float

    def parameters(self) -> dict[str, Any]:
        return asdict(self)


def run_compiled(task: Sum) -> dict[str, Any]:
    return {"task": task.parameters(), "sum": njit(lambda left, right: left + right)(task.left, task.right)}


def run_plain(task: Sum) -> dict[str, Any]:
    return {"task": task.parameters(), "sum": task.left + task.right}


@pytest.mark.parametrize(("run", "said"), [(run_compiled, [SAID]), (run_plain, [])])
def test_who_waits_for_a_compilation_is_told_once(run: Any, said: list[str], tmp_path: Path,
                                                  capfd: pytest.CaptureFixture[str]) -> None:
    tasks = [Sum(number, 0.5) for number in range(4)]
    results = run_all(tasks, run, ResultsFile(tmp_path / "results.jsonl", resume=False), lambda done: None)
    assert [result["sum"] for result in results] == [0.5, 1.5, 2.5, 3.5]
    assert capfd.readouterr().err.splitlines() == said


@pytest.mark.parametrize("moment", ["before", "after"])
def test_who_interrupts_while_a_result_is_written_hears_how_many_are_kept(moment: str, tmp_path: Path) -> None:
    class Interrupted(ResultsFile):
        def add(self, result: dict[str, Any]) -> None:
            if moment == "before" and heard[-1] == 1:
                raise KeyboardInterrupt
            with self._path.open("a") as file:
                file.write(json.dumps(result) + "\n")
            if moment == "after":
                raise KeyboardInterrupt

    heard: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_all([Sum(number, 0.5) for number in range(4)], run_plain,
                Interrupted(tmp_path / "results.jsonl", resume=False), heard.append)
    assert heard[-1] == len((tmp_path / "results.jsonl").read_text().splitlines()) == 1
