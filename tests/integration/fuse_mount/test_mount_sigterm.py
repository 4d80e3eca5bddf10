"""SIGTERM amid everything that programs do: nothing acknowledged is lost."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from speedwell.fs.mount_table import mounted_here
from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.root

OPEN_FILES = 100
LOST_FILES = 50     # each waits for a dataserver for seconds
ENTRIES = 1000
ROUNDS = 5
FLOCK_SYSTEM_CALL = "73 "
PROGRAM = """
import fcntl, itertools, os, signal, sys

role, here = sys.argv[1:]
os.chdir(here)

def acknowledge(number):
    os.write(1, b"%d\\n" % number)

def write():
    file = os.open("written", os.O_WRONLY | os.O_CREAT)
    for number in itertools.count(1):
        os.write(file, b"%09d\\n" % number)
        acknowledge(number)

def change():
    file = os.open("changed", os.O_RDWR)
    for number in itertools.count(1):
        os.pwrite(file, b"%09d\\n" % number, (number - 1) % 1000 * 10)
        acknowledge(number)

def keep():
    files = [os.open(f"kept{number}", os.O_RDWR | os.O_CREAT) for number in range(OPEN_FILES)]
    for number, file in enumerate(files, 1):
        os.write(file, b"kept")
        acknowledge(number)
    signal.pause()

def rename():
    os.mknod("name0")
    for number in itertools.count(1):
        os.rename(f"name{number - 1}", f"name{number}")
        acknowledge(number)

def list():
    for number in itertools.count(1):
        assert len(os.listdir("large")) == ENTRIES
        acknowledge(number)

def lock():
    file = os.open("locked", os.O_RDWR)
    acknowledge(ROUNDS)
    fcntl.flock(file, fcntl.LOCK_EX)

try:
    globals()[role]()
except OSError as error:
    acknowledge(-error.errno)
"""


class Busy:
    """A program that says a number for each call that the mount has acknowledged, and at last minus its errno."""

    def __init__(self, role: str, here: Path) -> None:
        constants = f"OPEN_FILES, ENTRIES, ROUNDS = {OPEN_FILES}, {ENTRIES}, {ROUNDS}\n"
        self.output = here.parent.parent / f"{role}.out"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen([sys.executable, "-c", constants + PROGRAM, role, here], stdout=output)

    def acknowledged(self) -> int:
        return max((number for number in self._numbers() if number > 0), default=0)

    def errno(self) -> int:
        """That with which it has ended."""
        self.process.wait(60)
        return -self._numbers()[-1]

    def _numbers(self) -> list[int]:
        return [int(line) for line in self.output.read_text().splitlines()]


@contextmanager
def busy(role: str, here: Path) -> Iterator[Busy]:
    program = Busy(role, here)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.wait()


def test_what_was_acknowledged_is_there_after_sigterm_amid_everything(
        cluster: LocalCluster, here: Path, tmp_path: Path) -> None:
    (here / "changed").write_bytes(bytes(10_000))
    (here / "locked").touch()
    (here / "large").mkdir()
    for number in range(ENTRIES):
        (here / "large" / f"entry{number}").touch()
    mount = Mounted(tmp_path / "busy", cluster.nameserver.address)
    place = mount.path / here.name
    try:
        with ExitStack() as running, (here / "locked").open("r+b") as locked:
            fcntl.flock(locked, fcntl.LOCK_EX)
            roles = ("write", "change", "rename", "list", "lock", "keep")
            programs = {role: running.enter_context(busy(role, place)) for role in roles}
            wait_until(lambda: all(program.acknowledged() >= ROUNDS for program in programs.values())
                       and programs["keep"].acknowledged() == OPEN_FILES and waits_for_a_lock(programs["lock"]),
                       60, "the programs do not come along")
            mount.process.send_signal(signal.SIGTERM)
            assert mount.process.wait(60) == 0
            assert mounted_here(mount.path) is None
            gone = {errno.ENOTCONN, errno.ECONNABORTED}
            assert {programs[role].errno() for role in ("write", "change", "rename", "list")} <= gone
            assert programs["lock"].errno() == errno.ENOTCONN
        lines = (here / "written").read_bytes().splitlines(keepends=True)
        assert len(lines) - programs["write"].acknowledged() in (0, 1)
        assert lines == [b"%09d\n" % number for number in range(1, len(lines) + 1)]
        assert last_change(here / "changed") - programs["change"].acknowledged() in (0, 1)
        assert all((here / f"kept{number}").read_bytes() == b"kept" for number in range(OPEN_FILES))
        [name] = [path.name for path in here.glob("name*")]
        assert int(name.removeprefix("name")) - programs["rename"].acknowledged() in (0, 1)
    finally:
        mount.clean_up()


def waits_for_a_lock(program: Busy) -> bool:
    return Path(f"/proc/{program.process.pid}/syscall").read_text().startswith(FLOCK_SYSTEM_CALL)


def last_change(file: Path) -> int:
    """The last number, after checking that all before it are there."""
    found = [int(line) for line in file.read_bytes().strip(b"\0").splitlines()]
    last = max(found)
    assert found == [number + (last - number) // 1000 * 1000 for number in range(1, len(found) + 1)]
    return last


def test_sigterm_ends_with_1_if_something_that_was_written_is_lost(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", dataservers=1, replication=1) as cluster:
        mount = Mounted(tmp_path / "mount", cluster.nameserver.address)
        try:
            files = [os.open(mount.path / f"file{number}", os.O_WRONLY | os.O_CREAT) for number in range(LOST_FILES)]
            for file in files:
                os.write(file, b"no dataserver gets this")
            cluster.dataservers[0].kill()
            mount.process.send_signal(signal.SIGTERM)
            assert mount.process.wait(60) == 1
            assert mounted_here(mount.path) is None
            assert "not everything written was saved" in mount.log.read_text()
            for file in files:
                with pytest.raises(OSError):
                    os.close(file)
        finally:
            mount.clean_up()
