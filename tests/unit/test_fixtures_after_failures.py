"""What a failed test leaves in a fixture of its module, the next test does not meet."""

import re
import subprocess
import sys
from pathlib import Path

MODULE = """
import pytest

@pytest.fixture(scope="module")
def shared():
    made = []
    yield made
    print("ended with", made)

@pytest.mark.parametrize("number", range(4))
def test_it(shared, number):
    shared.append(number)
    assert number != 1
"""


def test_the_fixtures_of_a_module_are_made_anew_after_a_test_that_failed(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(MODULE)
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-s",
                           "-c", "/dev/null", f"--rootdir={tmp_path}", f"--basetemp={tmp_path / 'base'}", tmp_path],
                          cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False)
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert re.findall(r"ended with (.*)", done.stdout) == ["[0, 1]", "[2, 3]"]
