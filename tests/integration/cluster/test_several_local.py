"""Local installations beside each other, moved, removed and damaged: commands name what there is, and nothing is
left that no command finds."""

import json
import shutil

import pytest

from speedwell.cluster.processes import STATE_FILE, start_ticks
from tests.integration.cluster.executable import Speedwell, error_line, pids
from tests.waiting import wait_until


@pytest.fixture
def speedwell(tmp_path):
    return Speedwell(tmp_path / "state")


@pytest.fixture
def two(speedwell, tmp_path):
    """Two running installations; the names are such as a shell has to quote."""
    first, second = tmp_path / "the first", tmp_path / "second \u00fc"
    for directory in (first, second):
        speedwell.ok("up", "--local", directory, "--dataservers", "1")
    yield first, second
    for directory in (first, second):
        if (directory / STATE_FILE).exists():
            speedwell.ok("down", "--local", directory)


def listed(speedwell):
    return {row["directory"]: row for row in json.loads(speedwell.run("list", "--json").stdout)}


def test_commands_say_at_once_how_to_start_an_installation_that_was_stopped(speedwell, two):
    first, _ = two
    speedwell.ok("down", "--installation", first)
    again = f"`speedwell up --local '{first}'`"
    for command in (["ls"], ["put", "-", "/x"], ["fsck"], ["node", "list"], ["status"]):
        refused = speedwell.run(*command, "--installation", first)
        assert refused.returncode == 1 and again in refused.stderr.decode(), refused.stderr
    assert f"is stopped; {again} starts it again" in error_line(speedwell.run("ls", "--installation", first))


def test_an_installation_is_named_once(speedwell, two):
    first, second = two
    for command in ("down", "status"):
        refused = speedwell.run(command, "--installation", first, "--local", second)
        assert refused.returncode == 2 and "--installation does not go with --local" in error_line(refused)
    refused = speedwell.run("ls", "--installation", first, "--nameserver", "127.0.0.1:1")
    assert refused.returncode == 2 and "--nameserver does not go with --installation" in error_line(refused)
    assert all(row["running"] == row["processes"] for row in listed(speedwell).values())


@pytest.mark.parametrize("moved", [False, True])
def test_what_runs_of_an_installation_that_is_removed_or_moved_is_stopped(speedwell, two, moved, tmp_path):
    first, second = two
    speedwell.ok("put", "-", "/kept", stdin=b"kept")
    ended = pids(second)
    if moved:
        second.rename(tmp_path / "moved")
    else:
        shutil.rmtree(second)
    wait_until(lambda: not any(map(start_ticks, ended.values())), 30, "servers of it run on")
    assert list(listed(speedwell)) == [str(first)]
    assert speedwell.ok("ls") == "", "the other is the default now"
    if moved:
        speedwell.ok("up", "--local", tmp_path / "moved")
        assert speedwell.ok("cat", "/kept") == "kept"
        speedwell.ok("down", "--local", tmp_path / "moved")


def test_a_damaged_installation_hides_no_other(speedwell, two):
    first, second = two
    state = first / "state.json"
    kept = state.read_text()
    state.write_text("{")
    try:
        shown = speedwell.run("list")
        assert shown.returncode == 1 and str(state) in error_line(shown)
        assert b"damaged" in shown.stdout and b"running" in shown.stdout
        assert listed(speedwell)[str(second)]["default"]
    finally:
        state.write_text(kept)


def test_an_installation_that_is_not_the_default_is_started_again_by_its_directory(speedwell, two):
    first, second = two
    speedwell.ok("down", "--installation", first)
    assert "nameserver" in speedwell.ok("up", "--installation", first)
    rows = listed(speedwell)
    assert rows[str(first)]["running"] == rows[str(first)]["processes"] and rows[str(first)]["default"]
    for options in (["--local", second], ["--fabric", "spine-leaf"]):
        refused = speedwell.run("up", "--installation", first, *options)
        assert refused.returncode == 2 and "--installation" in error_line(refused)
