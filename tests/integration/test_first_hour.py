"""What a newcomer does in the first hour, on terminals of two widths: every message is as the transcripts have it.

In 80 columns, with `-m full` in 200 too:
    local     installations beside each other, replicas that move, fabrics that are refused, click's errors
    mounts    every mount belongs to its installation; one in use, one in the place of a killed one
    commands  a shared disk, quotas, trash, fsck for cron, --watch, bench, warmup, dump, load, man pages
    own       a policy and a fabric of one's own, the table of an experiment
    prompt    Mininet's prompt, mn without a controller, a killed fabric
    fabric    who is not on the fabric, names, switches that are entered, REST, flows, repair by `up`

The demonstration's paths are in `cluster/test_demo.py`, policies of every kind in
`tests/unit/test_own_policies.py`.
"""

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


@pytest.fixture
def directory() -> Iterator[Path]:
    """With a short name, so that tables have room in 80 columns."""
    made = Path(tempfile.mkdtemp(prefix="fh", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize(("name", "columns"), [
    pytest.param(path.stem, columns, marks=marks) for path in sorted(TRANSCRIPTS.glob("*.txt"))
    for columns, marks in ((80, ()), (200, pytest.mark.full))])
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
