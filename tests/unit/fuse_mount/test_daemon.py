"""The parent of a daemon tells how the start went."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from speedwell.fuse_mount.daemon import Report, start_daemon

def serve(report):
    {body}

sys.exit(start_daemon(serve, Path(sys.argv[1])))
"""


def start(body: str, log: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM.format(body=body), log], capture_output=True, text=True,
                          timeout=20, check=False)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_ready_is_status_0_and_later_output_goes_to_the_log(log: Path) -> None:
    done = start("report.ready('ready /mnt'); print('later', flush=True); return 0", log)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready /mnt\n", "")
    # The pipes of `start` end with the daemon, so it has finished by now.
    assert log.read_text() == "later\n"


def test_a_failure_is_status_1_and_its_message(log: Path) -> None:
    done = start("report.failed('no nameserver'); return 1", log)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "no nameserver\n")


def test_only_the_first_report_counts(log: Path) -> None:
    done = start("report.failed('first'); report.failed('second'); return 1", log)
    assert done.stderr == "first\n"


def test_a_daemon_that_dies_without_a_word_is_reported_with_its_log(log: Path) -> None:
    done = start("import os; os._exit(3)", log)
    assert done.returncode == 1
    assert str(log) in done.stderr
