"""The local socket of a mount."""

import os
from pathlib import Path

import pytest

from fuse_mount import monitor
from fuse_mount.access_log import AccessLog
from fuse_mount.monitor import Monitor

DEVICE = os.makedev(0, 45)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(monitor, "socket_path", lambda owner, device: tmp_path / "own" / device)
    return tmp_path / "own" / "0:45"


def started() -> Monitor:
    one = Monitor(dict, AccessLog())
    one.start(DEVICE)
    return one


def test_a_mount_that_ends_takes_its_socket_away(place: Path) -> None:
    one = started()
    assert place.is_socket()
    one.stop()
    assert not place.exists()


def test_a_mount_that_ends_late_leaves_the_socket_of_the_next_with_its_number(place: Path) -> None:
    first, second = started(), started()
    first.stop()
    assert place.is_socket()
    second.stop()
    assert not place.exists()


def test_a_directory_that_others_may_write_to_is_not_used(place: Path) -> None:
    place.parent.mkdir()
    place.parent.chmod(0o777)
    with pytest.raises(PermissionError, match="somebody else's"):
        started()
    assert not place.exists()
