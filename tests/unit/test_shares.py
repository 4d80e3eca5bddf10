import os
import re
import subprocess
import sys
from pathlib import Path

from tests.shares import OPTION

ROOT = Path(__file__).parents[2]
MODULES = 6
MODULE = """
import time
import pytest

@pytest.fixture(scope="module", autouse=True)
def _whole():
    yield
    time.sleep(0.05)

@pytest.mark.parametrize("number", range(3))
def test_it(number):
    assert number != {wrong}
"""


def started(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """A run beside others, whose modules are below `directory`."""
    base = directory / f"base-{os.urandom(4).hex()}"
    return subprocess.Popen([sys.executable, "-m", "pytest", "-v", "-p", "tests.conftest", "-p", "no:cacheprovider",
                             "-c", "/dev/null", f"--rootdir={directory}", f"--basetemp={base}",
                             "--import-mode=importlib", f"{OPTION}={directory / 'share'}", *arguments, directory],
                            cwd=ROOT, stdout=subprocess.PIPE, text=True)


def run_by(said: str) -> list[str]:
    return re.findall(r"(test_m\d\.py::\S+) (?:PASSED|FAILED)", said)


def test_each_test_is_run_once_by_one_of_those_that_share_and_a_module_by_one_alone(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    for number in range(MODULES):
        (tmp_path / f"test_m{number}.py").write_text(MODULE.format(wrong=1 if number == 2 else -1))
    runs = [started(tmp_path), started(tmp_path)]
    said = [run.communicate(timeout=120)[0] for run in runs]
    whole = [run_by(each) for each in said]
    assert sorted(whole[0] + whole[1]) == sorted(f"test_m{module}.py::test_it[{number}]" for module in range(MODULES)
                                                 for number in range(3)), said
    modules = [{test.partition("::")[0] for test in each} for each in whole]
    assert not modules[0] & modules[1]
    assert sorted(run.returncode for run in runs) == [0, 1]
