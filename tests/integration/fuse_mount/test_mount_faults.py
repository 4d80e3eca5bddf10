"""A mount whose servers fail: an errno in bounded time, and the mount lives on."""

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.fs.client.names.nameservers import CALL_SECONDS, TAKEOVER_SECONDS
from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.root

ANSWER_SECONDS = 20.0
ONE_OF_SEVERAL_SECONDS = TAKEOVER_SECONDS - CALL_SECONDS
"""So much longer a mount waits where another nameserver may take over."""
DISK_BYTES = 24 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The data directory of the one dataserver, on a disk of its own."""
    disk = tmp_path / "cluster" / "d0"
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", disk], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.fixture
def fragile(small_disk: Path, tmp_path: Path) -> Iterator[tuple[LocalCluster, Mounted]]:
    """A cluster of one dataserver, to be broken, and a mount of it."""
    with LocalCluster(tmp_path / "cluster", dataservers=1, replication=1) as cluster:
        mount = Mounted(tmp_path / "mount", cluster.nameserver.address, "--cache-seconds", "0")
        try:
            yield cluster, mount
        finally:
            mount.clean_up()


def errno_within_bound(operation: object, *arguments: object, seconds: float = ANSWER_SECONDS) -> int | None:
    started = time.monotonic()
    with pytest.raises(OSError) as caught:
        operation(*arguments)  # type: ignore[operator]
    assert time.monotonic() - started < seconds
    return caught.value.errno


def errno_without_nameserver(cluster: LocalCluster, operation: object, *arguments: object) -> int | None:
    more_seconds = ONE_OF_SEVERAL_SECONDS if "," in cluster.nameserver.address else 0
    return errno_within_bound(operation, *arguments, seconds=ANSWER_SECONDS + more_seconds)


def test_a_dataserver_that_is_gone_is_eio_and_its_return_heals(fragile: tuple[LocalCluster, Mounted]) -> None:
    cluster, mount = fragile
    path = mount.path / "file"
    content = os.urandom(1 << 20)
    path.write_bytes(content)
    cluster.dataserver("d0").kill()
    assert errno_within_bound(path.read_bytes) == errno.EIO
    assert path.stat().st_size == len(content)
    assert errno_within_bound(append_and_close, path, b"lost") == errno.EIO
    cluster.dataserver("d0").start()
    cluster.wait_alive({"d0"})
    assert path.read_bytes() == content
    append_and_close(path, b"kept")
    assert path.read_bytes() == content + b"kept"
    assert mount.stop() == 0


def append_and_close(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def test_a_nameserver_that_is_gone_is_eio_and_its_return_heals(fragile: tuple[LocalCluster, Mounted]) -> None:
    cluster, mount = fragile
    path = mount.path / "file"
    path.write_bytes(b"content")
    cluster.nameserver.kill()
    assert errno_without_nameserver(cluster, path.stat) == errno.EIO
    cluster.nameserver.start()
    wait_until(lambda: readable(path), ANSWER_SECONDS, "the file did not come back with the nameserver")
    assert path.read_bytes() == b"content"
    assert mount.stop() == 0


def readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def is_stopped(pid: int) -> bool:
    """Whether every thread of a process has taken notice of SIGSTOP."""
    return all((thread / "stat").read_text().rpartition(") ")[2].startswith("T")
               for thread in Path(f"/proc/{pid}/task").iterdir())


def test_a_nameserver_that_hangs_does_not_hang_the_mount(fragile: tuple[LocalCluster, Mounted]) -> None:
    cluster, mount = fragile
    cluster.nameserver.pause()
    wait_until(lambda: is_stopped(cluster.nameserver.pid), ANSWER_SECONDS, "the nameserver runs on")
    try:
        assert errno_without_nameserver(cluster, os.listdir, mount.path) == errno.EIO
        assert mount.stop() == 0
    finally:
        cluster.nameserver.resume()


def test_a_full_disk_is_enospc_at_fsync_and_leaves_what_was_there(fragile: tuple[LocalCluster, Mounted]) -> None:
    _, mount = fragile
    path = mount.path / "file"
    path.write_bytes(b"before")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        assert errno_within_bound(write_until_it_fails, descriptor) == errno.ENOSPC
        assert path.stat().st_size > DISK_BYTES // 2  # what the disk took is there at once
        assert errno_within_bound(os.fsync, descriptor) == errno.ENOSPC
    finally:
        assert errno_within_bound(os.close, descriptor) == errno.ENOSPC
    assert path.read_bytes().startswith(b"before")
    path.unlink()
    small = mount.path / "small"
    wait_until(lambda: writable(small), ANSWER_SECONDS * 5, "nothing can be written after the disk was freed")


def write_until_it_fails(descriptor: int) -> None:
    piece = bytes(1 << 20)
    for _ in range(2 * DISK_BYTES // len(piece)):
        os.write(descriptor, piece)
    os.fsync(descriptor)


def writable(path: Path) -> bool:
    try:
        append_and_close_new(path)
    except OSError:
        return False
    return True


def append_and_close_new(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(descriptor, b"fits")
    finally:
        os.close(descriptor)
