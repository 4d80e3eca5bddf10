"""pjdfstest, the suite that asks a filesystem for everything POSIX says of names and attributes.

`scripts/install-suites` installs it. A part always runs, all of it is marked `full`. What is left out is in
pjdfstest_left_out.txt.
"""

import fnmatch
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("pjdfstest", path=f"{os.environ['PATH']}:{Path.home()}/.cargo/bin") is None,
                       reason="pjdfstest is not installed (scripts/install-suites does it)"),
]

LEFT_OUT = Path(__file__).with_name("pjdfstest_left_out.txt")
RESULT = re.compile(r"^(\S+::\S+) +(ok|FAILED|skipped)$", re.MULTILINE)
CONFIGURATION = """
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.001
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"""


def left_out() -> list[str]:
    return [line for line in LEFT_OUT.read_text().splitlines() if line and not line.startswith("#")]


def check(directory: Path, place: Path, *patterns: str, timeout_seconds: float = 120) -> None:
    """Run the cases whose names match, all without a pattern; every one has to pass or be left out."""
    config = place / "pjdfstest.toml"
    config.write_text(CONFIGURATION)
    directory.chmod(0o755)
    command = shutil.which("pjdfstest", path=f"{os.environ['PATH']}:{Path.home()}/.cargo/bin")
    done = subprocess.run([str(command), "-c", config, "-p", directory, *patterns], capture_output=True, text=True,
                          timeout=timeout_seconds, check=False)
    results = dict(RESULT.findall(done.stdout))
    assert results, done.stderr
    excused = {name for name in results for pattern in left_out() if fnmatch.fnmatchcase(name, pattern)}
    failed = sorted(name for name, result in results.items() if result != "ok" and name not in excused)
    passed = sorted(name for name in excused if results[name] == "ok")
    assert not failed, f"{failed}\n{done.stdout[-6000:]}"
    assert not passed, f"{passed} pass: they need not be left out any more"
    if not patterns:
        unused = [pattern for pattern in left_out() if not fnmatch.filter(results, pattern)]
        assert not unused, f"{unused} match no case"


def test_links_and_removals_pass(here: Path, tmp_path: Path) -> None:
    check(here, tmp_path, "unlink", "symlink")


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_the_whole_suite_passes(here: Path, tmp_path: Path) -> None:
    check(here, tmp_path, timeout_seconds=1100)
