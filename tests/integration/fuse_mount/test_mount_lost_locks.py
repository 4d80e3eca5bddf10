"""A mount that was paused for longer than its session's lease, while another one got its locks."""

import errno
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.root

LEASE_SECONDS = 1.0
WAIT_SECONDS = 20.0
EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB
BEFORE, OTHERS, OURS = b"before" * 100, b"others", b"ours"

Lock = Callable[[int, int], None]


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[tuple[Mounted, Mounted]]:
    with LocalCluster(tmp_path / "cluster", dataservers=1, replication=1,
                      nameserver_arguments=("--session-lease", str(LEASE_SECONDS))) as cluster:
        both = [Mounted(tmp_path / name, cluster.nameserver.address) for name in ("paused", "other")]
        try:
            yield both[0], both[1]
        finally:
            for mount in both:
                mount.process.send_signal(signal.SIGCONT)
                mount.clean_up()


def errno_of(call: Callable[[], object]) -> int:
    try:
        call()
    except OSError as error:
        return error.errno or 0
    return 0


def have_the_lock_taken(mounts: tuple[Mounted, Mounted], lock: Lock) -> None:
    """The first mount is paused until a program on the second one has the lock, and has written under it."""
    paused, other = mounts
    paused.process.send_signal(signal.SIGSTOP)
    descriptor = os.open(other.path / "file", os.O_RDWR)
    wait_until(lambda: not errno_of(lambda: lock(descriptor, EXCLUSIVE)), WAIT_SECONDS, "the lock is not lost")
    os.pwrite(descriptor, OTHERS, 0)
    os.close(descriptor)
    paused.process.send_signal(signal.SIGCONT)


def content(mounts: tuple[Mounted, Mounted]) -> bytes:
    return (mounts[1].path / "file").read_bytes()


@pytest.mark.parametrize("lock", [fcntl.lockf, fcntl.flock], ids=["fcntl", "flock"])
@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY | os.O_APPEND], ids=["anywhere", "append"])
def test_who_lost_a_lock_reads_and_writes_nothing_any_more_until_it_opens_again(
        mounts: tuple[Mounted, Mounted], lock: Lock, flags: int) -> None:
    path = mounts[0].path / "file"
    path.write_bytes(BEFORE)
    descriptor = os.open(path, flags)
    lock(descriptor, EXCLUSIVE)
    have_the_lock_taken(mounts, lock)
    assert errno_of(lambda: os.write(descriptor, OURS)) == errno.EIO
    assert errno_of(lambda: os.fsync(descriptor)) == errno.EIO
    assert errno_of(lambda: lock(descriptor, EXCLUSIVE)) == errno.EIO
    assert errno_of(lambda: os.close(descriptor)) in (0, errno.EIO)
    assert content(mounts) == OTHERS + BEFORE[len(OTHERS):]
    descriptor = os.open(path, os.O_RDWR)
    wait_until(lambda: not errno_of(lambda: lock(descriptor, EXCLUSIVE)), WAIT_SECONDS, "the other one keeps it")
    os.pwrite(descriptor, OURS, 0)
    os.close(descriptor)
    assert content(mounts)[:len(OURS)] == OURS


@pytest.mark.parametrize("where", [0, len(BEFORE)], ids=["staged", "appended"])
def test_what_was_written_before_the_lock_was_lost_and_not_published_stays_out(
        mounts: tuple[Mounted, Mounted], where: int) -> None:
    path = mounts[0].path / "file"
    path.write_bytes(BEFORE)
    descriptor = os.open(path, os.O_RDWR)
    fcntl.lockf(descriptor, EXCLUSIVE)
    os.pwrite(descriptor, OURS, where)
    have_the_lock_taken(mounts, fcntl.lockf)
    assert errno_of(lambda: os.fsync(descriptor)) == errno.EIO
    assert errno_of(lambda: os.close(descriptor)) in (0, errno.EIO)
    assert content(mounts) == OTHERS + BEFORE[len(OTHERS):]


def test_a_short_pause_loses_nothing(mounts: tuple[Mounted, Mounted]) -> None:
    path = mounts[0].path / "file"
    path.write_bytes(BEFORE)
    descriptor = os.open(path, os.O_RDWR)
    fcntl.lockf(descriptor, EXCLUSIVE)
    mounts[0].process.send_signal(signal.SIGSTOP)
    mounts[0].process.send_signal(signal.SIGCONT)
    os.pwrite(descriptor, OURS, 0)
    os.fsync(descriptor)
    os.close(descriptor)
    assert content(mounts)[:len(OURS)] == OURS
