"""Processes of an installation, with small real programs in place of the daemons."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from speedwell.cluster.errors import AlreadyRunning, ClusterError, InvalidState, StartFailed
from speedwell.cluster.processes import (
    Command,
    Processes,
    ProcessRecord,
    is_running,
    program,
    resident_bytes,
    start_ticks,
)
from speedwell.cluster.state_files import exclusive
from tests.waiting import wait_until

SERVES = "import time; print('ready 127.0.0.1:7000 extra', flush=True); time.sleep(600)"
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SERVES
FAILS = "import sys; print('disk is on fire', file=sys.stderr); sys.exit(3)"
SILENT = "import time; time.sleep(600)"


def python(name: str, code: str, **options) -> Command:
    return Command(name, [sys.executable, "-c", code], **options)


@pytest.fixture
def processes(tmp_path):
    made = Processes(tmp_path / "cluster")
    yield made
    made.stop(timeout_seconds=0.5)


def test_a_started_daemon_is_recorded_with_its_address_and_found_by_a_later_command(processes):
    record = processes.start(python("server", SERVES))
    assert record.address == "127.0.0.1:7000 extra"
    later = Processes(processes.directory)
    assert later.running() == [record]
    assert later.find("server") == record
    assert (resident_bytes(record) or 0) > 1_000_000


def test_a_daemon_has_its_own_session_and_none_of_the_callers_standard_streams(processes):
    record = processes.start(python("server", SERVES))
    assert os.getsid(record.pid) == record.pid
    targets = [str(Path(f"/proc/{record.pid}/fd/{number}").readlink()) for number in range(3)]
    assert targets == ["/dev/null", record.log, record.log]


def test_a_daemon_outlives_the_command_that_started_it(tmp_path):
    code = ("import sys; from pathlib import Path; from speedwell.cluster.processes import *\n"
            f"server = Command('server', [sys.executable, '-c', {SERVES!r}])\n"
            f"Processes(Path({str(tmp_path)!r})).start(server)")
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20,
                              check=False)
    assert finished.returncode == 0, finished.stderr
    later = Processes(tmp_path)
    assert later.find("server")
    later.stop()
    assert later.records == []


def test_the_command_prefix_runs_in_front_and_the_pid_stays_the_daemons(processes):
    record = processes.start(python("server", SERVES, prefix=["env", "COLOUR=blue"]))
    assert b"COLOUR=blue" in Path(f"/proc/{record.pid}/environ").read_bytes()
    assert Path(f"/proc/{record.pid}/exe").resolve() == Path(sys.executable).resolve()


def test_a_daemon_that_exits_early_is_reported_with_its_last_log_lines(processes):
    with pytest.raises(StartFailed, match=r"server stopped \(exit code 3\) before it was ready(.|\n)*on fire"):
        processes.start(python("server", FAILS))
    assert Processes(processes.directory).records == []


def test_what_a_daemon_says_at_its_end_may_have_a_meaning(processes):
    with pytest.raises(StartFailed, match=r"^server stopped: call the fire brigade$"):
        processes.start(python("server", FAILS, last_words={b"on fire": "call the fire brigade"}))


def test_a_daemon_that_is_never_ready_is_stopped_and_named(processes):
    with pytest.raises(StartFailed, match=r"slow was not ready after 0\.3 s; it wrote nothing to .*slow"):
        processes.start(python("slow", SILENT, ready_timeout_seconds=0.3))
    assert processes.running() == []


def test_when_one_of_several_fails_all_of_them_stop_and_earlier_ones_stay(processes):
    first = processes.start(python("first", SERVES))
    with pytest.raises(StartFailed, match="bad stopped"):
        processes.start_together([python("good", SERVES), python("bad", FAILS)])
    assert processes.running() == [first]


def test_a_program_that_does_not_exist_is_named(processes):
    with pytest.raises(StartFailed, match="cannot start ghost: /no/such/program is not an executable program"):
        processes.start(Command("ghost", ["/no/such/program"]))


def test_a_caller_that_is_killed_before_it_recorded_a_daemon_leaves_none(tmp_path):
    code = ("import os, signal, sys; from pathlib import Path; from speedwell.cluster.processes import *\n"
            "Processes.save = lambda self: os.kill(os.getpid(), signal.SIGKILL)\n"
            f"server = Command('server', ['touch', {str(tmp_path / 'ran')!r}])\n"
            f"Processes(Path({str(tmp_path)!r})).start(server)")
    log = tmp_path / "logs" / "server.log"
    killed = subprocess.run([sys.executable, "-c", code], timeout=20, check=False)
    assert killed.returncode == -signal.SIGKILL
    wait_until(lambda: identity(log.stat()) not in open_files(), 10, "the child is gone")
    assert not (tmp_path / "ran").exists()


def identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def open_files() -> set[tuple[int, int]]:
    """What every process that may be looked at has open; descriptors come and go meanwhile."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(identity(descriptor.stat()))
    return found


def test_the_same_name_twice_is_refused_and_the_first_stays(processes):
    record = processes.start(python("server", SERVES))
    with pytest.raises(StartFailed, match="server runs already"):
        processes.start(python("server", SERVES))
    assert processes.running() == [record]


def test_stages_stop_in_reverse_order(processes):
    processes.start(python("first", SERVES))
    processes.start_together([python("second", SERVES), python("third", SERVES)])
    order: list[str] = []
    processes.stop(progress=order.append)
    assert set(order[:2]) == {"second", "third"}
    assert order[2:] == ["first"]
    assert Processes(processes.directory).records == []


def test_a_daemon_that_ignores_sigterm_is_killed_within_the_limit(processes):
    record = processes.start(python("stubborn", IGNORES_TERM))
    processes.stop(timeout_seconds=0.2)
    assert not is_running(record)


def test_a_daemon_that_is_stopped_by_a_signal_ends_as_any_other(processes, tmp_path):
    code = ("import signal, sys, time; from pathlib import Path\n"
            f"signal.signal(signal.SIGTERM, lambda *_: (Path({str(tmp_path / 'ended')!r}).touch(), sys.exit()))\n"
            f"{SERVES}")
    record = processes.start(python("stopped", code))
    os.kill(record.pid, signal.SIGSTOP)
    processes.stop(timeout_seconds=60)
    assert not is_running(record) and (tmp_path / "ended").exists()


def test_a_reused_pid_is_neither_taken_for_ours_nor_killed(processes):
    other = subprocess.Popen([sys.executable, "-c", SERVES], stdout=subprocess.DEVNULL)
    try:
        ticks = start_ticks(other.pid)
        assert ticks is not None
        processes.records = [ProcessRecord("server", other.pid, ticks - 1, 0, ["x"], "x.log")]
        processes.save()
        later = Processes(processes.directory)
        assert later.running() == []
        later.stop()
        assert later.records == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_killed_daemon_is_noticed_and_forgotten(processes):
    record = processes.start(python("server", SERVES))
    later = Processes(processes.directory)
    os.kill(record.pid, signal.SIGKILL)
    wait_until(lambda: not later.running(), 15, "the killed daemon counts as dead")
    assert later.forget_dead() == [record]
    assert Processes(processes.directory).records == []


def test_processes_of_an_earlier_boot_are_forgotten_and_settings_kept(processes):
    processes.settings["mount"] = "/mnt"
    processes.start(python("server", SERVES))
    state = json.loads(processes.state_file.read_text())
    state["boot_id"] = "another"
    other = processes.directory.parent / "other"
    other.mkdir()
    (other / "state.json").write_text(json.dumps(state))
    later = Processes(other)
    assert later.records == []
    assert later.settings == {"mount": "/mnt"}


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 99}', '{"version": 1, "boot_id": 3}'])
def test_a_damaged_state_file_is_refused_by_name(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(InvalidState, match=r"state\.json is not a state file"):
        Processes(tmp_path)


def test_a_second_command_is_refused_and_told_who_holds_the_lock(tmp_path):
    lock = tmp_path / "lock"
    with exclusive(lock, "speedwell up"), \
            pytest.raises(AlreadyRunning, match=rf"speedwell up \(pid {os.getpid()}\) is already at work"), \
            exclusive(lock, "speedwell down"):
        pass
    with exclusive(lock, "speedwell down"):
        pass


def test_the_lock_is_free_again_after_its_holder_was_killed(tmp_path):
    lock = tmp_path / "lock"
    code = ("import time; from pathlib import Path; from speedwell.cluster.state_files import exclusive\n"
            f"with exclusive(Path({str(lock)!r}), 'demo'):\n    print('held', flush=True); time.sleep(600)")
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(AlreadyRunning, match=rf"demo \(pid {holder.pid}\)"), exclusive(lock, "up"):
        pass
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with exclusive(lock, "up"):
        pass


def test_the_log_of_the_run_before_is_kept(processes):
    with pytest.raises(StartFailed):
        processes.start(python("server", FAILS))
    record = processes.start(python("server", SERVES))
    assert "on fire" in Path(record.log + ".1").read_text()
    assert "on fire" not in Path(record.log).read_text()


def test_a_program_that_is_not_installed_is_named():
    with pytest.raises(ClusterError, match="speedwell-nonsense is not installed"):
        program("speedwell-nonsense")
