import subprocess
import sys
from pathlib import Path

import pytest

from speedwell.cluster import fabric_settings
from tests.logs import FABRIC, TRACEBACK, Logs

pytestmark = pytest.mark.tracebacks("the logs here are made up")


def test_each_traceback_is_told_once_wherever_a_process_logs(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    quiet, loud = tmp_path / "one0" / "d0.log", tmp_path / "two0" / "cluster" / "logs" / "h0"
    for log in (quiet, loud):
        log.parent.mkdir(parents=True)
        log.write_text("starts\n")
    assert logs.tracebacks() == []
    logs.look_for_no_more()
    with loud.open("ab") as log:
        log.write(b"fails\n" + TRACEBACK + b":\nValueError\n")
    assert logs.tracebacks() == [f"{loud}:\n{TRACEBACK.decode()}:\nValueError\n"]
    with loud.open("ab") as log:
        log.write(b"runs again\n")
    assert logs.tracebacks() == []


def test_what_others_wrote_before_into_a_shared_directory_is_not_told(tmp_path: Path) -> None:
    log = tmp_path / "fabric" / "logs" / "controller.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(TRACEBACK + b":\nOld\n")
    (tmp_path / "base").mkdir()
    logs = Logs(tmp_path / "base", tmp_path / "fabric")
    assert logs.tracebacks() == []
    assert fabric_settings.DIRECTORY == FABRIC
    again = log.with_suffix(".new")
    again.write_bytes(TRACEBACK + b":\nNew, in a log that was begun anew and is longer\n")
    again.replace(log)
    assert logs.tracebacks() == [f"{log}:\n{TRACEBACK.decode()}:\nNew, in a log that was begun anew and is longer\n"]


def test_a_log_that_leads_to_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "one0").mkdir()
    (tmp_path / "one0" / "d0.log").symlink_to("/dev/full")
    assert Logs(tmp_path).tracebacks() == []


def test_what_users_store_is_no_log(tmp_path: Path) -> None:
    stored = tmp_path / "one0" / "d0" / "3f" / "log"
    stored.parent.mkdir(parents=True)
    stored.write_bytes(TRACEBACK)
    assert Logs(tmp_path).tracebacks() == []


def test_a_traceback_in_a_log_fails_the_test_that_made_it(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(f"""
import pytest
def test_good(tmp_path): (tmp_path / "a.log").write_text("well")
def test_bad(tmp_path): (tmp_path / "b.log").write_text({TRACEBACK.decode()!r})
@pytest.mark.tracebacks("made up")
def test_allowed(tmp_path): (tmp_path / "c.log").write_text({TRACEBACK.decode()!r})
""")
    ended = subprocess.run([sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c",
                            "/dev/null", "--rootdir", tmp_path, "--basetemp", tmp_path / "made", tmp_path],
                           capture_output=True, text=True, check=False)
    assert "ERROR at teardown of test_bad" in ended.stdout and "3 passed" in ended.stdout, ended.stdout
    assert "1 error" in ended.stdout
