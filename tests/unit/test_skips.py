import subprocess
import sys
from pathlib import Path

from tests.skips import ALLOWED, OPTION

ROOT = Path(__file__).parents[2]
MODULE = """
import pytest
def test_it(): pass
@pytest.mark.skipif(True, reason="fio is not installed")
def test_marked(): pass
@pytest.fixture(name="missing")
def _missing(): pytest.skip("the trace is not there")
def test_of_fixture(missing): pass
@pytest.mark.xfail(reason="known", strict=True)
def test_expected(): assert False
"""


def run(directory: Path, *options: str) -> str:
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-ra",
                           "-c", "/dev/null", f"--rootdir={directory}", f"--basetemp={directory / 'base'}", *options,
                           directory], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def test_a_skip_that_is_not_allowed_fails_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(MODULE)
    assert "1 passed, 2 skipped, 1 xfailed" in run(tmp_path)
    said = run(tmp_path, OPTION)
    assert "1 passed, 1 xfailed, 2 errors" in said, said
    assert "fio is not installed; this may not be skipped here" in said
    assert "the trace is not there; this may not be skipped here" in said


def test_a_module_that_skips_itself_fails_too(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text('import pytest\npytest.importorskip("no_such_module")\n')
    assert "1 skipped" in run(tmp_path)
    said = run(tmp_path, OPTION)
    assert "1 error" in said and "this may not be skipped here" in said, said


def test_what_is_allowed_is_skipped(tmp_path: Path) -> None:
    allowed = ALLOWED[0]
    module = tmp_path / allowed.where
    module.parent.mkdir(parents=True)
    module.write_text(f'import pytest\n@pytest.mark.skip(reason="well, {allowed.says} here")\ndef test_it(): pass\n'
                      '@pytest.mark.skip(reason="something else")\ndef test_other(): pass\n')
    said = run(tmp_path, OPTION)
    assert "1 skipped, 1 error" in said, said


def test_every_entry_is_a_skip_of_a_test_that_is_there() -> None:
    for allowed in ALLOWED:
        place = ROOT / allowed.where
        assert allowed.says in place.read_text(), allowed
        assert allowed.because
