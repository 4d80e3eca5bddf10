"""A local installation without a mount: started, broken, started again, stopped."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from speedwell.cluster.processes import Processes, is_running, start_ticks
from speedwell.cluster.state_files import exclusive
from tests.integration.cluster.executable import Speedwell, error_line, kill, pids
from tests.waiting import wait_until


@pytest.fixture
def installation(tmp_path):
    """A running installation and its directory."""
    speedwell, directory = Speedwell(tmp_path / "state"), tmp_path / "c"
    speedwell.ok("up", "--local", directory)
    yield speedwell, directory
    speedwell.ok("down", "--local", directory, "--force")


def test_a_second_up_says_so_and_changes_nothing(installation):
    speedwell, directory = installation
    before = pids(directory)
    assert set(before) == {"nameserver", "d0", "d1", "d2", "supervisor"}
    assert f"already running in {directory}" in speedwell.ok("up", "--local", directory)
    assert pids(directory) == before
    assert json.loads(speedwell.ok("up", "--local", directory, "--json"))["started"] == []


def test_commands_at_the_same_time_are_refused_and_name_the_one_at_work(installation):
    speedwell, directory = installation
    with exclusive(directory / "lock", "`speedwell up`"):
        for command in ("up", "down"):
            refused = speedwell.run(command, "--local", directory)
            assert refused.returncode == 1
            assert f"`speedwell up` (pid {os.getpid()}) is already at work" in error_line(refused)


def test_killed_servers_are_named_by_status_and_started_again_by_up_with_the_data(installation):
    speedwell, directory = installation
    speedwell.ok("put", "-", "/x", stdin=b"precious")
    before = pids(directory)
    kill(directory, "supervisor", "nameserver", "d1")
    status = speedwell.run("status")
    assert status.returncode == 1
    assert b"nameserver is not running" in status.stderr
    assert b"d1 is not running" in status.stderr
    assert b"no supervisor runs" in status.stderr
    speedwell.ok("up")
    after = pids(directory)
    assert {name for name in before if before[name] == after[name]} == {"d0", "d2"}
    assert speedwell.ok("cat", "/x") == "precious"
    speedwell.ok("append", "/x", stdin=b" and more")
    assert speedwell.ok("cat", "/x") == "precious and more"


def test_after_everything_was_killed_up_needs_only_the_directory(installation):
    speedwell, directory = installation
    speedwell.ok("put", "-", "/x", stdin=b"precious")
    kill(directory, "supervisor", "d0", "d1", "d2", "nameserver")
    speedwell.ok("up", "--local", directory)
    assert speedwell.ok("cat", "/x") == "precious"


def test_what_ends_is_started_again_without_a_command_and_status_tells(installation):
    speedwell, directory = installation
    speedwell.ok("put", "-", "/x", stdin=b"precious")
    before = pids(directory)
    for name in ("d1", "nameserver"):
        os.kill(before[name], signal.SIGKILL)
    wait_until(lambda: is_whole(speedwell), 20, "what was killed is not started again")
    after = pids(directory)
    assert {name for name in before if before[name] != after[name]} == {"d1", "nameserver"}
    assert speedwell.ok("cat", "/x") == "precious"
    for line in (f"d1 was started again once, the last time because it ended (pid {before['d1']})",
                 "nameserver was started again once"):
        wait_until(lambda line=line: line in speedwell.ok("status"), 20, f"status does not tell: {line}")


def test_one_that_cannot_start_is_tried_again_until_it_can_and_status_says_why(installation, tmp_path):
    speedwell, directory = installation
    data = directory / "dataservers" / "d1"
    data.rename(tmp_path / "aside")
    data.write_text("not a directory")
    kill(directory, "d1")
    wait_until(lambda: b"d1 does not run: d1 stopped (exit code" in speedwell.run("status").stderr, 20,
               "status does not say why d1 does not run")
    wait_until(lambda: len(pids(directory)) == 4, 20, "d1 does not end again")     # it is tried again all the time
    data.unlink()
    (tmp_path / "aside").rename(data)
    wait_until(lambda: is_whole(speedwell), 60, "d1 is not started again")


def test_after_its_supervisor_was_killed_up_starts_another_one_and_down_stops_everything(tmp_path):
    speedwell, directory = Speedwell(tmp_path / "state"), tmp_path / "c"
    speedwell.ok("up", "--local", directory, "--dataservers", "1")
    before = pids(directory)
    kill(directory, "supervisor")
    assert json.loads(speedwell.ok("up", "--json"))["started"] == ["supervisor"]
    kill(directory, "supervisor")
    assert set(pids(directory)) == {"nameserver", "d0"}
    assert "stopped d0, nameserver" in speedwell.ok("down")
    assert pids(directory) == {}
    assert [pid for pid in before.values() if Path(f"/proc/{pid}").exists() and start_ticks(pid)] == []


def test_status_shows_every_directory_of_a_dataserver_and_which_has_failed(tmp_path):
    speedwell, directory = Speedwell(tmp_path / "state"), tmp_path / "c"
    speedwell.ok("up", "--local", directory, "--dataservers", "1", "--directories-per-server", "2")
    disks = [directory / "dataservers" / name for name in ("d0", "d0-disk2")]

    def lines() -> list[list[str]]:
        shown = [line.split() for line in speedwell.run("status").stdout.decode().splitlines()]
        return [line for line in shown if line[:1] == ["d0"] and line[1].startswith(str(directory))]

    try:
        wait_until(lambda: [line[1:4] for line in lines()] == [[str(disk), "in", "use"] for disk in disks], 30,
                   lambda: f"not shown: {lines()}")
        disks[1].rename(directory / "aside")
        wait_until(lambda: [line[2] for line in lines()] == ["in", "FAILED"], 30, lambda: f"not failed: {lines()}")
        assert speedwell.run("status").returncode == 1
    finally:
        speedwell.ok("down", "--force")


def is_whole(speedwell: Speedwell) -> bool:
    return speedwell.run("status").returncode == 0


def test_after_the_machine_was_started_anew_old_pids_mean_nothing(installation):
    speedwell, directory = installation
    speedwell.ok("put", "-", "/x", stdin=b"precious")
    kill(directory, "supervisor", "d0", "d1", "d2", "nameserver")
    state = json.loads((directory / "state.json").read_text())
    state["boot_id"] = "before"
    for process in state["processes"]:  # pids that now belong to somebody else
        process["pid"] = os.getpid()
    (directory / "state.json").write_text(json.dumps(state))
    assert speedwell.run("status").returncode == 1
    speedwell.ok("up", "--local", directory)
    assert speedwell.ok("cat", "/x") == "precious"


def test_a_port_taken_by_somebody_else_meanwhile_is_no_obstacle(installation):
    speedwell, directory = installation
    speedwell.ok("put", "-", "/x", stdin=b"precious")
    address = Processes(directory).settings["addresses"]["nameserver"]
    kill(directory, "supervisor", "nameserver")
    host, port = address.split(":")
    with socket.create_server((host, int(port))):
        speedwell.ok("up", "--local", directory)
        assert Processes(directory).settings["addresses"]["nameserver"] != address
        assert speedwell.ok("cat", "/x") == "precious"


def test_more_dataservers_join_a_stopped_installation(installation):
    speedwell, directory = installation
    speedwell.ok("put", "-", "/x", stdin=b"precious")
    speedwell.ok("down")
    speedwell.ok("up", "--local", directory, "--dataservers", "4")
    assert set(pids(directory)) == {"nameserver", "d0", "d1", "d2", "d3", "supervisor"}
    assert speedwell.ok("cat", "/x") == "precious"


def test_when_a_server_cannot_start_everything_stops_and_its_log_is_shown(tmp_path):
    speedwell, directory = Speedwell(tmp_path / "state"), tmp_path / "c"
    speedwell.ok("up", "--local", directory)
    speedwell.ok("down")
    data = directory / "dataservers" / "d1"
    data.rename(tmp_path / "aside")
    data.write_text("not a directory")
    failed = speedwell.run("up", "--local", directory)
    assert failed.returncode == 1
    assert b"speedwell: d1 stopped (exit code" in failed.stderr
    assert b"Traceback" not in failed.stderr
    assert pids(directory) == {}
    data.unlink()
    (tmp_path / "aside").rename(data)
    speedwell.ok("up", "--local", directory)
    speedwell.ok("down")


def test_down_leaves_no_process_and_a_second_down_is_no_error(tmp_path):
    speedwell, directory = Speedwell(tmp_path / "state"), tmp_path / "c"
    speedwell.ok("up", "--local", directory, "--dataservers", "1")
    records = Processes(directory).running()
    assert len(records) == 3
    assert "stopped" in speedwell.ok("down")
    assert [record for record in records if is_running(record)] == []
    assert "nothing to stop" in speedwell.ok("down")
    assert "nothing was running" in speedwell.ok("down", "--local", directory)
    assert speedwell.run("ls").returncode == 1


def test_an_interrupted_up_leaves_nothing_running(tmp_path):
    speedwell, directory = Speedwell(tmp_path / "state"), tmp_path / "c"
    process = speedwell.start("up", "--local", directory)
    wait_until(lambda: (directory / "logs" / "nameserver.log").exists(), 10, "up has begun")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert pids(directory) == {}
    speedwell.ok("up", "--local", directory)
    speedwell.ok("down")


def test_a_nameserver_that_is_not_there_is_named_and_waited_for_with_a_limit(tmp_path):
    speedwell = Speedwell(tmp_path / "state")
    result = speedwell.run("ls", "--nameserver", "127.0.0.1:1")
    assert result.returncode == 1
    assert "127.0.0.1:1" in error_line(result)
    result = speedwell.run("status", "--json", "--nameserver", "127.0.0.1:1")
    assert result.returncode == 1
    document = json.loads(result.stdout)
    assert document["statistics"] is None
    assert "127.0.0.1:1" in document["problems"][0]


@pytest.mark.parametrize("moment", ["nameserver", "d1"])
def test_after_an_up_that_was_killed_half_way_the_next_one_completes(tmp_path, moment):
    speedwell, directory = Speedwell(tmp_path / "state"), tmp_path / "c"
    process = speedwell.start("up", "--local", directory)
    wait_until(lambda: (directory / "logs" / f"{moment}.log").exists(), 10, f"up has reached {moment}")
    process.kill()
    process.communicate(timeout=60)
    speedwell.ok("up", "--local", directory)
    records = Processes(directory).running()
    assert sorted(record.name for record in records) == ["d0", "d1", "d2", "nameserver", "supervisor"]
    assert all(record.address for record in records)
    speedwell.ok("put", "-", "/x", stdin=b"1")
    speedwell.ok("down")
    assert [record for record in records if is_running(record)] == []


def test_two_installations_run_side_by_side_and_the_last_is_the_default(tmp_path):
    speedwell = Speedwell(tmp_path / "state")
    for name in ("one", "two"):
        speedwell.ok("up", "--local", tmp_path / name, "--dataservers", "1")
        speedwell.ok("put", "-", f"/{name}", stdin=b"1")
    assert speedwell.ok("ls") == "two\n"
    first = json.loads(speedwell.ok("status", "--json", "--local", tmp_path / "one"))["nameserver"]
    assert speedwell.ok("ls", "--nameserver", first) == "one\n"
    speedwell.ok("down")
    speedwell.ok("down", "--local", tmp_path / "one")
