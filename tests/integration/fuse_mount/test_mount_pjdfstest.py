"""pjdfstest, the suite that asks a filesystem for everything POSIX says of names and attributes: the one in Rust, and
the older and larger one in C.

`scripts/install-suites` installs them, the one in C from the directory PJDFSTEST_SOURCES. What is left out of the one
in Rust is in pjdfstest_left_out.txt.
"""

import fnmatch
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.fuse_mount.mounting import HAS_CARGO, PROGRAMS
from tests.integration.fuse_mount.test_mount_by_fstab import Machine
from tests.local_cluster import LocalCluster

pytestmark = pytest.mark.root

IN_RUST = shutil.which("pjdfstest", path=PROGRAMS)
MISSING = "pjdfstest is not installed (scripts/install-suites does it)" if HAS_CARGO else "pjdfstest needs cargo"
IN_C = Path("/usr/local/lib/pjdfstest")
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
allow_remount = true
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"""


def left_out() -> list[str]:
    return [line for line in LEFT_OUT.read_text().splitlines() if line and not line.startswith("#")]


def unused_patterns(names: list[str]) -> list[str]:
    return [pattern for pattern in left_out() if not fnmatch.filter(names, pattern)]


@pytest.fixture
def machine(cluster: LocalCluster) -> Iterator[Machine]:
    """With a mount where the suite's other users can get to, which pytest's own directories keep out, and where
    mount(8) finds what mounts it anew."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        machine = Machine(Path(place), cluster.nameserver.address, "mount")
        try:
            machine.run("mount", "-t", "speedwell", "-o", f"log={place}/log", machine.nameserver, machine.place)
            yield machine
        finally:
            machine.end()


def run_suite(machine: Machine, *command: str | Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """In a directory of its own on the mount."""
    directory = machine.place / "suite"
    machine.run("mkdir", "--parents", "--mode=755", directory)
    inside = [*machine.inside, "env", f"--chdir={directory}"]
    return subprocess.run([*inside, *command], capture_output=True, text=True, timeout=seconds, check=False)


@pytest.mark.timeout(900)
@pytest.mark.skipif(IN_RUST is None, reason=MISSING)
def test_every_case_passes_that_is_not_left_out(machine: Machine, tmp_path: Path) -> None:
    config = tmp_path / "pjdfstest.toml"
    config.write_text(CONFIGURATION)
    suite = (str(IN_RUST), "-c", config, "-p", ".", "-s", tmp_path)
    done = run_suite(machine, *suite, seconds=400)
    results = dict(RESULT.findall(done.stdout))
    assert len(results) > 300, done.stdout[-2000:] + done.stderr[-2000:]
    # Cases before them leave files open for writing, which keeps any filesystem from becoming read-only.
    read_only = run_suite(machine, *suite, "erofs", seconds=400)
    results |= dict(RESULT.findall(read_only.stdout))
    excused = {name for name in results for pattern in left_out() if fnmatch.fnmatchcase(name, pattern)}
    failed = sorted(name for name, result in results.items() if result != "ok" and name not in excused)
    passed = sorted(name for name in excused if results[name] == "ok")
    assert not failed, f"{failed}\n{done.stdout[-6000:]}{read_only.stdout[-6000:]}"
    assert not passed, f"{passed} pass: they need not be left out any more"
    assert not unused_patterns(list(results)), f"{unused_patterns(list(results))} match no case"


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not (IN_C / "pjdfstest").exists() or shutil.which("prove") is None,
                    reason="pjdfstest in C is not installed (scripts/install-suites does it where its sources are)")
def test_every_check_of_the_suite_in_c_passes(machine: Machine) -> None:
    done = run_suite(machine, "prove", "--quiet", "--jobs=4", "--recurse", IN_C / "tests", seconds=1700)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    checks = re.search(r"Files=(\d+), Tests=(\d+)", done.stdout)
    assert checks is not None and int(checks[2]) > 8000, done.stdout[-2000:]
