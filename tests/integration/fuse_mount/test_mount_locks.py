"""Locks of fcntl(2) and flock(2) between two mounts."""

import errno
import fcntl
import os
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.root

EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB
SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB
WAIT_SECONDS = 20.0
LEASE_SECONDS = 1.0


@pytest.fixture
def both(here: Path, there: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """One file, open through both mounts."""
    (here / "file").write_bytes(b"x" * 100)
    with (here / "file").open("rb+", buffering=0) as first, (there / "file").open("rb+", buffering=0) as second:
        yield first, second


def holder(path: Path, call: str) -> "subprocess.Popen[bytes]":
    """A process that has taken a lock on `path` and keeps it until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import fcntl, sys; file = open(sys.argv[1], 'rb+'); {call}; "
         "print(flush=True); sys.stdin.read()", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    return process


def can_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.lockf(file, EXCLUSIVE)
    except BlockingIOError:
        return False
    return True


def test_byte_ranges_exclude_each_other_between_mounts(both: tuple[IO[bytes], IO[bytes]]) -> None:
    first, second = both
    fcntl.lockf(first, EXCLUSIVE, 10, 0)
    fcntl.lockf(second, EXCLUSIVE, 10, 10)
    with pytest.raises(BlockingIOError):
        fcntl.lockf(second, EXCLUSIVE, 1, 9)
    fcntl.lockf(first, fcntl.LOCK_UN, 5, 5)
    fcntl.lockf(second, EXCLUSIVE, 5, 5)
    with pytest.raises(BlockingIOError):
        fcntl.lockf(second, SHARED, 5, 0)


def test_getlk_tells_what_is_in_the_way(both: tuple[IO[bytes], IO[bytes]]) -> None:
    first, second = both
    fcntl.lockf(first, SHARED, 7, 3)
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, begin, length, _ = struct.unpack("hhqqi4x", fcntl.fcntl(second, fcntl.F_GETLK, asked))
    assert (kind, begin, length) == (fcntl.F_RDLCK, 3, 7)
    asked = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    assert struct.unpack("hhqqi4x", fcntl.fcntl(second, fcntl.F_GETLK, asked))[0] == fcntl.F_UNLCK


def test_whoever_waits_gets_the_lock_when_the_other_mount_lets_go(both: tuple[IO[bytes], IO[bytes]]) -> None:
    first, second = both
    fcntl.lockf(first, EXCLUSIVE)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(fcntl.lockf, second, fcntl.LOCK_EX)
        assert not waiter.done()
        fcntl.lockf(first, fcntl.LOCK_UN)
        waiter.result(WAIT_SECONDS)
    assert not can_lock(first)


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_the_end_of_a_program_frees_its_locks(both: tuple[IO[bytes], IO[bytes]], here: Path, ending: str) -> None:
    process = holder(here / "file", "fcntl.lockf(file, fcntl.LOCK_EX)")
    assert not can_lock(both[1])
    if ending == "kill":
        process.kill()
    process.communicate(timeout=WAIT_SECONDS)
    wait_until(lambda: can_lock(both[1]), WAIT_SECONDS, "the lock is still held")


def test_closing_a_file_frees_the_locks_on_it_and_no_others(both: tuple[IO[bytes], IO[bytes]], here: Path) -> None:
    first, second = both
    (here / "other").write_bytes(b"x")
    with (here / "other").open("rb+") as other:
        fcntl.lockf(first, EXCLUSIVE)
        fcntl.lockf(other, EXCLUSIVE)
    assert not can_lock(second)
    os.close(os.dup(first.fileno()))  # POSIX: closing any descriptor of the file frees the program's locks
    assert can_lock(second)


def test_flock_excludes_between_mounts_and_goes_with_its_file(both: tuple[IO[bytes], IO[bytes]], here: Path) -> None:
    first, second = both
    fcntl.flock(first, SHARED)
    fcntl.flock(second, SHARED)
    with pytest.raises(BlockingIOError):
        fcntl.flock(second, EXCLUSIVE)
    fcntl.lockf(second, EXCLUSIVE)  # the two kinds do not meet
    fcntl.flock(first, fcntl.LOCK_UN)
    fcntl.flock(second, EXCLUSIVE)
    second.close()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(fcntl.flock, first, fcntl.LOCK_EX).result(WAIT_SECONDS)


COUNTING = """
import fcntl, os, sys
path, lock, count = sys.argv[1], getattr(fcntl, sys.argv[2]), int(sys.argv[3])
descriptor = os.open(path, os.O_RDWR)
for _ in range(count):
    lock(descriptor, fcntl.LOCK_EX)
    number = int(os.pread(descriptor, 10, 0))
    os.pwrite(descriptor, b"%010d" % (number + 1), 0)
    os.pwrite(descriptor, b".", os.fstat(descriptor).st_size)
    lock(descriptor, fcntl.LOCK_UN)
"""


@pytest.mark.parametrize("lock", ["flock", "lockf"])
def test_who_gets_a_lock_sees_what_the_other_mount_wrote_under_it(here: Path, there: Path, lock: str) -> None:
    (here / "count").write_bytes(b"%010d" % 0)
    each = 15
    counters = [subprocess.Popen([sys.executable, "-c", COUNTING, place / "count", lock, str(each)])
                for place in (here, there, here, there)]
    assert [counter.wait(WAIT_SECONDS) for counter in counters] == [0] * 4
    expected = b"%010d" % (4 * each) + b"." * (4 * each)
    assert (here / "count").read_bytes() == (there / "count").read_bytes() == expected


def count_in_a_database(here: Path, there: Path) -> None:
    """Four programs on two mounts count in one database."""
    with closing(sqlite3.connect(here / "db")) as database:
        database.execute("create table counted (number)")
        database.execute("insert into counted values (0)")
        database.commit()
    program = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
for _ in range(8):
    database.execute("begin immediate")
    database.execute("update counted set number = number + 1")
    database.execute("commit")
"""
    writers = [subprocess.Popen([sys.executable, "-c", program, place / "db"])
               for place in (here, there, here, there)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    with closing(sqlite3.connect(there / "db")) as database:
        assert database.execute("select number from counted").fetchall() == [(32,)]
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]


def test_a_database_is_whole_when_programs_on_two_mounts_change_it(here: Path, there: Path) -> None:
    count_in_a_database(here, there)


SLOW_KERNEL = """
import runpy, sys, time
from speedwell.fuse_mount.libfuse import Session

def serve(self, *arguments, serve=Session.serve):
    drop = self._libfuse.fuse_lowlevel_notify_inval_inode
    def drop_slowly(session, inode, offset, length):
        time.sleep(0.1 if offset >= 0 else 0)
        return drop(session, inode, offset, length)
    self._libfuse.fuse_lowlevel_notify_inval_inode = drop_slowly
    return serve(self, *arguments)

Session.serve = serve
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_database_is_whole_where_the_kernel_takes_long_to_drop_old_pages(
        cluster: LocalCluster, tmp_path: Path) -> None:
    mounts: list[Mounted] = []
    try:
        for name in ("here", "there"):
            mounts.append(Mounted(tmp_path / name, cluster.nameserver.address,
                                  prefix=(sys.executable, "-c", SLOW_KERNEL)))
        (mounts[0].path / "slow").mkdir()
        for attempt in ("a", "b", "c"):
            (mounts[0].path / "slow" / attempt).mkdir()
            count_in_a_database(*(mount.path / "slow" / attempt for mount in mounts))
    finally:
        for mount in mounts:
            mount.clean_up()


def test_a_deadlock_between_mounts_is_told_to_one_of_the_two(here: Path, there: Path) -> None:
    for name in ("a", "b"):
        (here / name).write_bytes(b"x")
    take = "other = open(sys.argv[1][:-1] + '{}', 'rb+'); fcntl.lockf(file, fcntl.LOCK_EX)"
    processes = [subprocess.Popen(
        [sys.executable, "-c", f"import fcntl, sys; file = open(sys.argv[1], 'rb+'); {take.format(other)}; "
         "print(flush=True); sys.stdin.readline(); fcntl.lockf(other, fcntl.LOCK_EX); print('both', flush=True)",
         path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for path, other in ((here / "a", "b"), (there / "b", "a"))]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [process.communicate(timeout=WAIT_SECONDS) for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 1]
    assert sum("both" in out for out, _ in ends) == 1
    assert sum(f"[Errno {errno.EDEADLK}]" in error for _, error in ends) == 1


def test_a_program_that_waits_for_a_lock_can_be_killed(both: tuple[IO[bytes], IO[bytes]], there: Path) -> None:
    fcntl.lockf(both[0], EXCLUSIVE)
    waiter = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys; file = open(sys.argv[1], 'rb+'); print(flush=True); "
         "fcntl.lockf(file, fcntl.LOCK_EX)", there / "file"], stdout=subprocess.PIPE)
    assert waiter.stdout is not None
    assert waiter.stdout.readline() == b"\n"
    waiter.send_signal(signal.SIGTERM)
    assert waiter.wait(WAIT_SECONDS) == -signal.SIGTERM
    waiter.stdout.close()
    fcntl.lockf(both[0], fcntl.LOCK_UN)
    wait_until(lambda: can_lock(both[1]), WAIT_SECONDS, "the killed program has the lock")


def test_locks_of_a_dead_mount_end_with_its_lease_and_survive_the_nameserver(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", dataservers=1, replication=1,
                      nameserver_arguments=("--session-lease", str(LEASE_SECONDS))) as cluster:
        mounts = [Mounted(tmp_path / name, cluster.nameserver.address) for name in ("dies", "lives")]
        try:
            (mounts[0].path / "file").write_bytes(b"x")
            with (mounts[1].path / "file").open("rb+") as survivor:
                victim = holder(mounts[0].path / "file", "fcntl.lockf(file, fcntl.LOCK_EX)")
                assert not can_lock(survivor)
                cluster.nameserver.kill()
                cluster.revive()
                assert not can_lock(survivor)
                mounts[0].kill()
                wait_until(lambda: can_lock(survivor), WAIT_SECONDS, "the dead mount still holds its lock")
                victim.communicate(timeout=WAIT_SECONDS)
        finally:
            for mount in mounts:
                mount.clean_up()


def test_a_mount_ends_when_told_to_while_a_program_waits_for_a_lock(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", dataservers=1, replication=1) as cluster:
        mount = Mounted(tmp_path / "mount", cluster.nameserver.address)
        try:
            file = mount.path / "file"
            file.write_bytes(b"x")
            first = holder(file, "fcntl.lockf(file, fcntl.LOCK_EX)")
            second = subprocess.Popen([sys.executable, "-c", "import fcntl, sys; file = open(sys.argv[1], 'rb+'); "
                                       "fcntl.lockf(file, fcntl.LOCK_EX)", file], stderr=subprocess.DEVNULL)
            in_fcntl = "72 "
            wait_until(lambda: Path(f"/proc/{second.pid}/syscall").read_text().startswith(in_fcntl), WAIT_SECONDS,
                       "the second program does not wait")
            mount.process.send_signal(signal.SIGTERM)
            mount.process.wait(WAIT_SECONDS)
            assert second.wait(WAIT_SECONDS) != 0
            first.communicate(timeout=WAIT_SECONDS)
        finally:
            mount.clean_up()


def test_a_file_that_another_mount_has_removed_can_be_locked(both: tuple[IO[bytes], IO[bytes]], there: Path) -> None:
    first, second = both
    (there / "file").unlink()
    fcntl.flock(first, EXCLUSIVE)
    assert os.fstat(first.fileno()).st_nlink == 0
    with pytest.raises(BlockingIOError):
        fcntl.flock(second, EXCLUSIVE)


REMOVING = """
import errno, fcntl, os, sys
count, lock = sys.argv[1] + "/count", sys.argv[1] + "/lock"
for _ in range(int(sys.argv[2])):
    while True:
        try:
            held = os.open(lock, os.O_CREAT | os.O_RDWR)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            continue
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            if os.stat(lock).st_ino == os.fstat(held).st_ino:
                break
        except FileNotFoundError:
            pass
        os.close(held)
    with open(count) as file:
        number = int(file.read())
    with open(count, "w") as file:
        file.write(str(number + 1))
    os.unlink(lock)
    os.close(held)
"""


def test_programs_on_two_mounts_exclude_each_other_by_a_lock_file_that_its_holder_removes(here: Path,
                                                                                          there: Path) -> None:
    (here / "count").write_text("0")
    programs = [subprocess.Popen([sys.executable, "-c", REMOVING, mount, "10"]) for mount in (here, there) * 3]
    assert [program.wait(60) for program in programs] == [0] * 6
    assert (here / "count").read_text() == "60"
