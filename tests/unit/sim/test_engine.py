"""Runs in other processes say once that they compile."""

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
