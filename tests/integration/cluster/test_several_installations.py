"""Two installations on one machine, and mounts made by hand: none hides another, none is forgotten."""

import json
import os

import pytest

from cluster import mounts
from tests.integration.cluster.speedwell import Speedwell, error_line
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
    assert refused.returncode == 1 and "no installation was started here" in error_line(refused)


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
    assert mounts.mounted(ours) is None
    assert mounts.mounted(others) is not None
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
    assert mounts.mounted(place) is None
