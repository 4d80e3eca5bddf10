"""The mount table, and who is in the way of unmounting."""

import os
import subprocess
from pathlib import Path

import pytest

from speedwell.cluster import mounts
from speedwell.cluster.errors import InvalidSetting, StopFailed


def test_the_kernels_own_mounts_are_found_and_other_directories_are_none(tmp_path):
    found = mounts.mounted_here(Path("/proc"))
    assert found is not None
    assert found.filesystem_type == "proc"
    assert mounts.mounted_here(tmp_path) is None


@pytest.mark.parametrize(("source", "place", "below"), [
    ("speedwell@h:7400", "h:7400", "/"), ("h:1,i:2:/a/b", "h:1,i:2", "/a/b"),
    ("[::1]:7400:/a:/b", "[::1]:7400", "/a:/b"),
    ("/srv/speedwell", "/srv/speedwell", "/"), ("/srv/speedwell:/a b", "/srv/speedwell", "/a b")])
def test_a_source_names_an_installation_and_a_directory_in_it(source, place, below):
    assert mounts.source_of(source) == (place, below)


def test_a_mount_point_is_located_through_links_of_its_parents(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert mounts.locate(tmp_path / "link" / "x" / ".." / "m") == tmp_path / "real" / "m"
    assert mounts.locate("/") == Path("/")


def test_a_process_inside_is_named(tmp_path):
    with subprocess.Popen(["sleep", "600"], cwd=tmp_path) as sleeper:
        assert mounts.users(tmp_path) == [f"sleep (pid {sleeper.pid})"]
        sleeper.kill()


def test_an_open_file_inside_names_its_process_and_a_similar_name_does_not(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m2").mkdir()
    with (tmp_path / "m2" / "file").open("w"):
        assert mounts.users(tmp_path / "m") == []
        [user] = mounts.users(tmp_path / "m2")
        assert f"pid {os.getpid()}" in user


@pytest.fixture
def usable_device(monkeypatch):
    """Whether this machine has FUSE is not what these tests ask."""
    real_access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path == "/dev/fuse" or real_access(path, mode))


def test_a_mount_point_with_files_in_it_is_refused(tmp_path, usable_device):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSetting, match="is not empty"):
        mounts.require_usable(tmp_path)


def test_a_mount_point_that_is_a_file_or_a_mount_is_refused(tmp_path, usable_device):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSetting, match="is not a directory"):
        mounts.require_usable(tmp_path / "file")
    with pytest.raises(InvalidSetting, match="is already a mount point of proc"):
        mounts.require_usable(Path("/proc"))


def test_a_mount_point_that_does_not_exist_is_made(tmp_path, usable_device):
    mounts.require_usable(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_without_the_fuse_device_the_message_says_what_else_works(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != "/dev/fuse")
    with pytest.raises(InvalidSetting, match=r"cannot open /dev/fuse.*speedwell put"):
        mounts.require_usable(tmp_path)


def test_unmounting_what_is_not_mounted_is_no_error(tmp_path):
    mounts.unmount(tmp_path)


def test_who_did_not_mount_it_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(mounts, "mounted_here", lambda mountpoint: True)
    monkeypatch.setattr(mounts.os, "geteuid", lambda: 1000)
    said = f"fusermount3: entry for {tmp_path} not found in /etc/mtab"
    monkeypatch.setattr(mounts, "_detach", lambda mountpoint, lazy: said)
    with pytest.raises(StopFailed, match=r"mounted by another user: only they or root can unmount it$"):
        mounts.unmount(tmp_path)
