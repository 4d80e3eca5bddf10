"""docs/first-read.md goes as it is written, in one shell: a read leaves the server whose link is busy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.transcripts import is_as_expected, steps_of_page

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "first-read.md"


def test_a_newcomer_sees_what_the_page_shows(tmp_path: Path) -> None:
    steps = steps_of_page(PAGE)
    assert len(steps) > 12
    script = "".join(f"echo '#{number}'\n{step.command}\n" for number, step in enumerate(steps))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with (tmp_path / "shown").open("w") as shown:       # a file: what runs in the background would keep a pipe open
        subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=shown,
                       stderr=subprocess.STDOUT, timeout=280, check=False)
    said = [text.partition("\n")[2] for text in f"\n{(tmp_path / 'shown').read_text()}".split("\n#")[1:]]
    assert len(said) == len(steps)
    wrong = [f"$ {step.command}\n{text}" for step, text in zip(steps, said, strict=True)
             if not is_as_expected([line for line in text.splitlines() if line],
                                   [line.replace("spine0", "{text}") for line in step.lines])]
    assert not wrong, "\n".join(wrong)
