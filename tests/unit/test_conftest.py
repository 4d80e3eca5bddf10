"""What tests/conftest.py makes of failures and of a time limit."""

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

LEFT = """
import pytest

@pytest.fixture(scope="module")
def shared():
    yield
    raise RuntimeError("cannot end")

def test_it(shared):
    assert False
"""


def test_a_fixture_that_cannot_end_after_a_test_that_failed_spoils_no_other_directory(tmp_path: Path) -> None:
    for name, content in (("one", LEFT), ("two", "def test_it(): pass")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "test_module.py").write_text(content)
    assert "1 failed, 1 passed, 1 error" in run(tmp_path)


def test_the_fixtures_of_a_module_are_made_anew_after_a_test_that_failed(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(MODULE)
    said = run(tmp_path)
    assert "1 failed, 3 passed" in said, said
    assert re.findall(r"ended with (.*)", said) == ["[0, 1]", "[2, 3]"]


def test_what_has_not_begun_in_time_is_skipped_by_name_and_what_runs_ends(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(
        "import time\ndef test_long(): time.sleep(3)\ndef test_late(): pass\ndef test_later(): pass")
    said = run(tmp_path, "--within", "2", "-rs")
    assert "1 passed, 2 skipped" in said and "SKIPPED [2]" in said and "the time is over" in said, said


def run(directory: Path, *arguments: str) -> str:
    options = [*arguments, "-p", "tests.conftest", "-p", "no:cacheprovider", "-s", "-c", "/dev/null",
               f"--rootdir={directory}", f"--basetemp={directory / 'base'}"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options, directory], cwd=Path(__file__).parents[2],
                          capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr
