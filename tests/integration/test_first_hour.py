"""What a newcomer does in the first hour, on terminals of two widths: every message is as the transcripts have it."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transcripts import is_as_expected, on_terminal, read_transcript

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
TRANSCRIPTS = Path(__file__).parent / "transcripts"
STEP_SECONDS = 150.0
LONGEST_MARGIN = "  "


@pytest.fixture
def directory() -> Iterator[Path]:
    """With a short name, so that tables have room in 80 columns."""
    made = Path(tempfile.mkdtemp(prefix="fh", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize(("name", "columns"), [
    pytest.param(path.stem, columns, marks=pytest.mark.full if path.stem == "fabric" and columns == 200 else ())
    for path in sorted(TRANSCRIPTS.glob("*.txt")) for columns in (80, 200)])
def test_the_first_hour_goes_as_it_was_written_down(name: str, columns: int, directory: Path) -> None:
    kept = {variable: value for variable, value in os.environ.items() if not variable.startswith("SPEEDWELL_")}
    state = {} if name.startswith("fabric") else {"SPEEDWELL_STATE_DIRECTORY": str(directory / "state")}
    environment = {**kept, **state, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "xterm",
                   "ROOT": str(ROOT)}
    wrong = []
    for step in read_transcript(TRANSCRIPTS / f"{name}.txt"):
        shown, code = on_terminal(["bash", "-c", step.command], columns, directory, environment, STEP_SECONDS)
        lines = [line.replace(str(directory), "DIR") for line in shown]
        if code != step.code or not is_as_expected(lines, step.lines):
            wrong.append("\n".join([f"$ {step.command}", *lines, *([f"[{code}]"] if code else [])]))
        wrong += [f"cut at {columns} columns: {line}" for line in shown if "\u2026" in line]
    assert not wrong, "\n".join(["these went otherwise:", *wrong])
