"""Two installations on one machine, and mounts made by hand: none hides another, none is forgotten."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from speedwell.cluster import mounts
from speedwell.cluster.processes import Processes, is_running
from tests.integration.cluster.executable import Speedwell, error_line, kill
from tests.waiting import wait_until

pytestmark = pytest.mark.root


@pytest.fixture
def two(tmp_path):
    speedwell, first, second = Speedwell(tmp_path / "state"), tmp_path / "first", tmp_path / "second"
    speedwell.ok("up", "--local", first, "--dataservers", "1")
    speedwell.ok("up", "--local", second, "--dataservers", "1")
    yield speedwell, first, second
    for directory in (first, second):
        speedwell.ok("down", "--local", directory, "--force")


def listed(speedwell):
    return {row["directory"]: row for row in json.loads(speedwell.ok("list", "--json"))}


def test_both_are_listed_and_each_is_reached_by_its_directory(two):
    speedwell, first, second = two
    speedwell.ok("put", "-", "/of-first", "--installation", first, stdin=b"1")
    speedwell.ok("put", "-", "/of-second", stdin=b"2")
    assert speedwell.ok("ls", "--installation", first).split() == ["of-first"]
    assert speedwell.ok("ls", "--installation", second).split() == ["of-second"]
    rows = listed(speedwell)
    assert {directory: row["default"] for directory, row in rows.items()} == {str(first): False, str(second): True}
    assert all(row["running"] == row["processes"] == 3 for row in rows.values())
    assert str(first) in speedwell.ok("list")


def test_the_end_of_one_leaves_the_other_to_be_found(two):
    speedwell, first, second = two
    speedwell.ok("put", "-", "/of-first", "--installation", first, stdin=b"1")
    speedwell.ok("down")
    rows = listed(speedwell)
    assert (rows[str(second)]["running"], rows[str(first)]["default"]) == (0, True)
    assert speedwell.ok("ls").split() == ["of-first"]
    speedwell.ok("down", "--installation", first)
    assert [row["running"] for row in listed(speedwell).values()] == [0, 0]
    refused = speedwell.run("ls")
    assert refused.returncode == 1 and "no installation runs here" in error_line(refused)


def test_a_directory_in_which_nothing_was_started_is_refused_by_name(two, tmp_path):
    speedwell = two[0]
    for command in ("ls", "status", "down"):
        refused = speedwell.run(command, "--installation", tmp_path)
        assert refused.returncode == 1
        assert f"no installation was started in {tmp_path}" in error_line(refused)


def test_down_unmounts_what_was_mounted_by_hand_of_its_own_alone(two, tmp_path):
    speedwell, first, second = two
    ours, others = tmp_path / "ours", tmp_path / "others"
    speedwell.ok("mount", ours, "--installation", first)
    speedwell.ok("mount", others, "--installation", second)
    assert str(ours) in speedwell.ok("status", "--installation", first)
    assert listed(speedwell)[str(first)]["mounts"] == [str(ours)]
    speedwell.ok("down", "--installation", first)
    assert mounts.mounted_here(ours) is None
    assert mounts.mounted_here(others) is not None
    (others / "x").write_text("still served")


def test_a_mount_made_by_hand_that_is_in_use_stops_nothing(two, tmp_path):
    speedwell, first, _ = two
    place = tmp_path / "ours"
    speedwell.ok("mount", place, "--installation", first)
    (place / "x").write_text("open")
    with (place / "x").open():
        refused = speedwell.run("down", "--installation", first)
        assert refused.returncode == 1
        assert f"(pid {os.getpid()})" in error_line(refused)
        assert listed(speedwell)[str(first)]["running"] == 3
    wait_until(lambda: speedwell.run("down", "--installation", first).returncode == 0, 15, "it stays in use")
    assert mounts.mounted_here(place) is None


@pytest.mark.parametrize("spelled", ["localhost:{port}", "127.0.0.1:1,127.0.0.1:{port}"])
def test_a_mount_belongs_to_its_installation_however_the_nameserver_was_named(two, tmp_path, spelled):
    speedwell, first, _ = two
    place = tmp_path / "ours"
    port = listed(speedwell)[str(first)]["nameserver"].rpartition(":")[2]
    speedwell.ok("mount", place, "--nameserver", spelled.format(port=port))
    assert f"mount {place}: mounted" in speedwell.ok("status", "--installation", first)
    assert listed(speedwell)[str(first)]["mounts"] == [str(place)]
    speedwell.ok("down", "--installation", first)
    assert mounts.mounted_here(place) is None


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that a signal stopped; it goes on at the end, if it is still there, so that nothing waits for it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_mount_that_hangs_holds_up_no_status(two, tmp_path):
    speedwell, first, _ = two
    place = tmp_path / "ours"
    speedwell.ok("mount", place, "--installation", first)
    [record] = Processes(tmp_path / "state" / "mounts").running()
    with stopped(record.pid):
        status = speedwell.run("status", "--installation", first)
        assert status.returncode == 1
        assert f"the mount {place} does not answer" in status.stderr.decode()
        assert f"mount {place}: NOT WORKING" in status.stdout.decode()
    assert f"mount {place}: mounted" in speedwell.ok("status", "--installation", first)


def test_a_mount_whose_process_is_stopped_is_unmounted_by_force_only(two, tmp_path):
    speedwell, first, _ = two
    place = tmp_path / "ours"
    speedwell.ok("mount", place, "--installation", first)
    [record] = Processes(tmp_path / "state" / "mounts").running()
    with stopped(record.pid):
        refused = speedwell.run("umount", place)
        assert refused.returncode == 1
        assert f"{place} does not answer: its process (pid {record.pid}) is stopped" in error_line(refused)
        assert speedwell.run("mount", place, "--installation", first).returncode == 1
        speedwell.ok("umount", place, "--force")
    assert mounts.mounted_here(place) is None and not is_running(record)


def test_an_installation_is_stopped_whose_mounts_processes_are_stopped(two, tmp_path):
    speedwell, first, _ = two
    place, own = tmp_path / "ours", tmp_path / "own"
    speedwell.ok("down", "--installation", first)
    speedwell.ok("up", "--local", first, "--mount", own)
    speedwell.ok("mount", place, "--installation", first)
    [other] = Processes(tmp_path / "state" / "mounts").running()
    processes = Processes(first)
    with stopped(other.pid), stopped(processes.find("mount").pid):
        speedwell.ok("down", "--installation", first)
    assert mounts.mounted_here(place) is None and mounts.mounted_here(own) is None
    assert not processes.running()


def test_a_mount_of_an_installation_stays_unmounted_that_was_stopped_and_forced_off(two, tmp_path):
    speedwell, first, _ = two
    own = tmp_path / "own"
    speedwell.ok("down", "--installation", first)
    speedwell.ok("up", "--local", first, "--mount", own)
    with stopped(Processes(first).find("mount").pid):
        speedwell.ok("umount", own, "--force")
    kill(first, "d0")
    wait_until(lambda: Processes(first).find("d0"), 30, "the supervisor starts nothing again")
    assert mounts.mounted_here(own) is None and not Processes(first).find("mount")


def test_a_mount_is_taken_away_when_the_nameserver_has_to_take_another_address(two, tmp_path):
    speedwell, first, _ = two
    place = tmp_path / "ours"
    speedwell.ok("mount", place, "--installation", first)
    port = int(listed(speedwell)[str(first)]["nameserver"].rpartition(":")[2])
    kill(first, "supervisor", "nameserver")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        started = speedwell.run("up", "--local", first)
    assert started.returncode == 0 and f"unmounting {place}, as the nameserver" in started.stderr.decode()
    assert mounts.mounted_here(place) is None
    speedwell.ok("mount", place, "--installation", first)
    assert list(place.iterdir()) == []
