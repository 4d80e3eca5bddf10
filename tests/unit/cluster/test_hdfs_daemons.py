"""Processes that end with their standard input: started a few at once, ended whoever dies."""

import signal
import subprocess
import sys

import pytest

from speedwell.cluster.errors import StartFailed
from speedwell.cluster.processes import start_ticks
from speedwell.evaluation.hdfs.daemons import Daemons
from tests.waiting import wait_until

SERVES = ["sh", "-c", "echo $$ > $0; echo ready somewhere; exec cat"]


@pytest.fixture
def daemons(tmp_path):
    daemons = Daemons(tmp_path / "logs")
    yield daemons
    daemons.stop()


def pid_of(path):
    return int(path.read_text())


def test_all_are_ready_when_start_returns_and_gone_when_stop_returns(daemons, tmp_path):
    names = [f"d{number}" for number in range(5)]
    heard = []
    daemons.start([(name, [*SERVES, str(tmp_path / name)]) for name in names], at_once=2, timeout_seconds=20,
                  ready=heard.append)
    assert heard[-1] == 5
    pids = [pid_of(tmp_path / name) for name in names]
    assert all(start_ticks(pid) for pid in pids)
    daemons.stop()
    assert not any(start_ticks(pid) for pid in pids)


def test_one_that_ends_before_it_is_ready_is_named_with_its_last_words(daemons):
    with pytest.raises(StartFailed, match=r"(?s)datanode-a stopped \(exit code 3\).*no room"):
        daemons.start([("datanode-a", ["sh", "-c", "echo no room >&2; exit 3"])], at_once=1, timeout_seconds=20)


def test_one_that_is_never_ready_is_named_when_the_time_is_over(daemons):
    with pytest.raises(StartFailed, match="namenode was not ready after"):
        daemons.start([("namenode", ["cat"])], at_once=1, timeout_seconds=0.3)


def test_a_program_that_is_not_there_is_named(daemons):
    with pytest.raises(StartFailed, match="cannot start namenode: /no/such/java"):
        daemons.start([("namenode", ["/no/such/java"])], at_once=1, timeout_seconds=1)


def test_one_that_ignores_the_end_of_its_input_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("speedwell.evaluation.hdfs.daemons.STOP_SECONDS", 0.2)
    daemons = Daemons(tmp_path)
    daemons.start([("stubborn", ["sh", "-c", "echo $$ > $0; echo ready; exec sleep 600", str(tmp_path / "pid")])],
                  at_once=1, timeout_seconds=20)
    daemons.stop()
    assert not start_ticks(pid_of(tmp_path / "pid"))


def test_they_end_when_whoever_started_them_is_killed(tmp_path):
    program = (f"from pathlib import Path\nfrom speedwell.evaluation.hdfs.daemons import Daemons\n"
               f"import time\n"
               f"Daemons(Path({str(tmp_path)!r})).start([('d', {[*SERVES, str(tmp_path / 'pid')]!r})], at_once=1, "
               f"timeout_seconds=20)\nprint('up', flush=True)\ntime.sleep(600)\n")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as starter:
        assert starter.stdout.readline() == b"up\n"
        pid = pid_of(tmp_path / "pid")
        assert start_ticks(pid)
        starter.send_signal(signal.SIGKILL)
    wait_until(lambda: not start_ticks(pid), 10, "the daemon lives on")
