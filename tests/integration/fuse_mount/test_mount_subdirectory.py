"""A directory of the filesystem as the root of a mount."""

# ruff: noqa: PTH208 (the names as the system call lists them)

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from speedwell.fs.client import Client
from speedwell.fs.errors import NoSuchFile
from speedwell.fs.mount_table import mounted_here
from tests.integration.fuse_mount.mounting import Mounted, run
from tests.integration.fuse_mount.test_mount_lifecycle import refusal
from tests.local_cluster import LocalCluster

pytestmark = pytest.mark.root

PLACE = "/projects/a"


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    client = cluster.client()
    client.mkdir("/projects")
    client.mkdir(PLACE)
    yield client
    for path in ("/elsewhere", PLACE, "/projects"):
        with suppress(NoSuchFile):
            client.rmdir(path)


@pytest.fixture
def mount(cluster: LocalCluster, client: Client, tmp_path: Path) -> Iterator[Mounted]:
    mount = Mounted(tmp_path / "mount", cluster.nameserver.address, "--subdirectory", PLACE, "--cache-seconds", "0")
    try:
        yield mount
        assert mount.stop() == 0
    finally:
        mount.clean_up()


def test_what_is_done_in_the_mount_is_done_in_the_directory(mount: Mounted, client: Client, tmp_path: Path) -> None:
    root = mount.path
    assert root.stat().st_ino == client.lookup(PLACE).inode
    assert (root / "..").samefile(tmp_path)
    (root / "file").write_text("content")
    assert client.open_read(f"{PLACE}/file").read(0, 100) == b"content"
    os.link(root / "file", root / "link")
    (root / "symbolic").symlink_to("file")
    (root / "inner").mkdir()
    (root / "file").rename(root / "inner" / "moved")
    (root / "inner" / "moved").rename(root / "file")
    assert sorted(os.listdir(root)) == ["file", "inner", "link", "symbolic"]
    assert (root / "inner" / "..").samefile(root) and (root / "symbolic").read_text() == "content"
    with pytest.raises(OSError) as caught:
        (root / "inner").rename(tmp_path / "outside")
    assert caught.value.errno == errno.EXDEV
    os.setxattr(root, "user.of", b"root")
    os.utime(root, ns=(5, 5))
    assert client.lookup(PLACE, fresh=True).mtime_ns == 5 and os.getxattr(root, "user.of") == b"root"
    run("sh", "-c", 'rm -r "$0"/*', root)
    assert os.listdir(root) == []


def test_df_counts_the_quota_of_the_directory(mount: Mounted, client: Client) -> None:
    client.metadata.operator.set_quota(PLACE, max_bytes=8 << 20, max_files=5)
    try:
        room = os.statvfs(mount.path)
        assert (room.f_blocks * room.f_frsize, room.f_files) == (8 << 20, 5)
        for name in "abcd":    # the directory itself counts
            (mount.path / name).touch()
        with pytest.raises(OSError) as caught:
            (mount.path / "e").touch()
        assert caught.value.errno == errno.EDQUOT
        assert os.getxattr(mount.path, "speedwell.quota").startswith(PLACE.encode())
    finally:
        client.metadata.operator.set_quota(PLACE)
        run("sh", "-c", 'rm -f "$0"/*', mount.path)


def test_the_mount_stays_on_a_directory_that_is_moved(mount: Mounted, client: Client) -> None:
    (mount.path / "before").touch()
    client.rename(PLACE, "/elsewhere")
    (mount.path / "after").touch()
    assert sorted(os.listdir(mount.path)) == ["after", "before"]
    assert client.lookup("/elsewhere/after").size == 0
    (mount.path / "before").unlink()
    (mount.path / "after").unlink()


def test_a_root_that_is_removed_is_stale_and_can_be_unmounted(mount: Mounted, client: Client) -> None:
    client.rmdir(PLACE)
    assert errno_of(os.stat, mount.path) == errno.ESTALE
    assert errno_of(os.listdir, mount.path) == errno.ESTALE
    assert errno_of(os.statvfs, mount.path) == errno.ESTALE
    assert errno_of(os.mkdir, mount.path / "new") == errno.ESTALE
    client.mkdir(PLACE)
    assert errno_of(os.stat, mount.path) == errno.ESTALE
    run("umount", mount.path)
    assert mounted_here(mount.path) is None and mount.process.wait(60) == 0


def errno_of(call: Callable[[Path], object], path: Path) -> int | None:
    try:
        call(path)
    except OSError as error:
        return error.errno
    return None


def test_what_is_no_directory_is_refused(cluster: LocalCluster, client: Client, tmp_path: Path) -> None:
    client.create(f"{PLACE}/file")
    try:
        def said(subdirectory: str) -> str:
            return refusal(tmp_path / "mount", "--nameserver", cluster.nameserver.address, "--log", "/dev/null",
                           "--subdirectory", subdirectory)

        (tmp_path / "mount").mkdir(exist_ok=True)
        assert f"{PLACE}/file is not a directory" in said(f"{PLACE}/file")
        assert "/missing" in said("/missing") and "not absolute" in said("projects")
    finally:
        client.remove(f"{PLACE}/file")
