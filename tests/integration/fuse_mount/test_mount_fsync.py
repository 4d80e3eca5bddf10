"""fsync, O_SYNC and fsync of a directory on a mount, and then the power fails everywhere."""

import os
import random
from pathlib import Path

import pytest

from tests.integration.fs.test_power_failure import fail_power, forgetful
from tests.integration.fuse_mount.mounting import Mounted
from tests.preloaded import requires_compiler

pytestmark = [pytest.mark.root, requires_compiler]

LARGE = os.urandom(300_000)


def written(path: Path, flags: int, data: bytes) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    assert os.write(descriptor, data) == len(data)
    return descriptor


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_what_was_synced_through_a_mount_is_there_after_a_power_failure(tmp_path: Path) -> None:
    with forgetful(tmp_path) as (cluster, disks):
        mount = Mounted(tmp_path / "mount", cluster.nameserver.address)
        try:
            descriptor = written(mount.path / "fsynced", 0, LARGE)
            os.pwrite(descriptor, b"changed", 1000)
            os.fsync(descriptor)
            descriptor = written(mount.path / "fdatasynced", os.O_APPEND, b"data")
            os.fdatasync(descriptor)
            descriptor = written(mount.path / "o_sync", os.O_SYNC, b"one")
            os.write(descriptor, b"two")
            descriptor = written(mount.path / "o_dsync", os.O_DSYNC, b"three")
            (mount.path / "directory").mkdir()
            (mount.path / "directory" / "moved").symlink_to("there")
            (mount.path / "directory" / "moved").rename(mount.path / "directory" / "link")
            sync_directory(mount.path / "directory")
        finally:
            mount.clean_up()
        fail_power(cluster, disks, random.Random(1), 0.0)
        mount = Mounted(tmp_path / "after", cluster.nameserver.address)
        try:
            assert (mount.path / "fsynced").read_bytes() == LARGE[:1000] + b"changed" + LARGE[1007:]
            assert (mount.path / "fdatasynced").read_bytes() == b"data"
            assert (mount.path / "o_sync").read_bytes() == b"onetwo"
            assert (mount.path / "o_dsync").read_bytes() == b"three"
            assert [path.name for path in (mount.path / "directory").iterdir()] == ["link"]
            assert (mount.path / "directory" / "link").readlink() == Path("there")
        finally:
            mount.clean_up()
