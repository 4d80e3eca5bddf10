"""Nameservers that are killed in the middle of changes: programs on a mount see what a local directory shows."""

import errno
import os
import random
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.etcd import EtcdCluster, requires_etcd
from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import Daemon, LocalCluster
from tests.several_nameservers import Installation
from tests.waiting import wait_until

pytestmark = pytest.mark.root

DATASERVER = str(Path(sys.executable).parent / "speedwell-dataserver")
PROGRAMS = 6
CHANGES_BETWEEN = 150
LEASE = ("--lease", "30")   # a dataserver that is slow to report is not what is tested
NAMES = ("a", "b", "c")
ATTRIBUTE = "user.a"

Change = Callable[[Path], object]


def changes(generator: random.Random) -> Iterator[Change]:
    """Changes below a directory; each returns what a program sees of it, or raises OSError."""
    def path() -> str:
        return "/".join(generator.choice(NAMES) for _ in range(generator.choice((1, 1, 2))))

    def remove_open(root: Path, name: str) -> int:
        descriptor = os.open(root / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return 0   # the kernel opens a fifo without telling the mount, which then does not keep it
            (root / name).unlink()
            return os.fstat(descriptor).st_nlink
        finally:
            os.close(descriptor)

    kinds: list[Callable[[Path, str, str], object]] = [
        lambda root, one, two: (root / one).mkdir(),
        lambda root, one, two: (root / one).rmdir(),
        lambda root, one, two: os.close(os.open(root / one, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)),
        lambda root, one, two: (root / one).symlink_to(two),
        lambda root, one, two: os.mkfifo(root / one, 0o600),
        lambda root, one, two: os.link(root / one, root / two, follow_symlinks=False),
        lambda root, one, two: (root / one).rename(root / two) and None,
        lambda root, one, two: (root / one).unlink(),
        lambda root, one, two: remove_open(root, one),
        lambda root, one, two: os.setxattr(root / one, ATTRIBUTE, two.encode(), os.XATTR_CREATE),
        lambda root, one, two: os.setxattr(root / one, ATTRIBUTE, two.encode(), os.XATTR_REPLACE),
        lambda root, one, two: os.removexattr(root / one, ATTRIBUTE),
    ]
    while True:
        kind, one, two = generator.choice(kinds), path(), path()
        yield lambda root, kind=kind, one=one, two=two: kind(root, one, two)


class Program(threading.Thread):
    """Makes one change after the other in a directory of the mount and in a local one until they differ."""

    def __init__(self, seed: int, mounted: Path, local: Path, ended: threading.Event) -> None:
        super().__init__()
        self.difference = ""
        self.done = 0
        self._changes = changes(random.Random(seed))
        self.directories = [root / str(seed) for root in (mounted, local)]
        self._ended = ended

    def run(self) -> None:
        for directory in self.directories:
            directory.mkdir()
        seen: list[object] = []
        while not self._ended.is_set() and not self.difference:
            change = next(self._changes)
            ours, theirs = (self._result(change, directory) for directory in self.directories)
            seen = [*seen[-5:], ours]
            self.done += 1
            if ours != theirs:
                self.difference = f"change {self.done}: {ours} where a local directory has {theirs}; before: {seen}"

    @staticmethod
    def _result(change: Change, root: Path) -> object:
        try:
            return change(root)
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def trees(self) -> list[list[object]]:
        return [[description(directory, path) for path in sorted(directory.rglob("*"))]
                for directory in self.directories]


def description(root: Path, path: Path) -> object:
    status = path.lstat()
    kind = stat.S_IFMT(status.st_mode)
    attribute = None
    if kind in (stat.S_IFREG, stat.S_IFDIR) and ATTRIBUTE in os.listxattr(path):
        attribute = os.getxattr(path, ATTRIBUTE)
    return (path.relative_to(root), status.st_mode, attribute, status.st_nlink if kind != stat.S_IFDIR else None,
            path.readlink() if kind == stat.S_IFLNK else None)


def kill_under_load(mounted: Path, local: Path, kills: int, kill: Callable[[], None]) -> None:
    ended = threading.Event()
    programs = [Program(seed, mounted, local, ended) for seed in range(PROGRAMS)]
    for program in programs:
        program.start()

    def wait_for_more() -> None:
        counts = [program.done for program in programs]
        wait_until(lambda: all(program.difference or program.done > count + CHANGES_BETWEEN
                               for program, count in zip(programs, counts, strict=True)),
                   60, "the programs do not go on")

    try:
        wait_for_more()
        for _ in range(kills):
            kill()
            wait_for_more()
    finally:
        ended.set()
        for program in programs:
            program.join()
    assert [program.difference for program in programs] == [""] * PROGRAMS
    for program in programs:
        ours, theirs = program.trees()
        assert ours == theirs


@contextmanager
def mounted_on(tmp_path: Path, nameserver: str) -> Iterator[Path]:
    mount = Mounted(tmp_path / "mount", nameserver)
    try:
        yield mount.path
        assert mount.stop() == 0
    finally:
        mount.clean_up()


@pytest.fixture
def local(tmp_path: Path) -> Path:
    directory = tmp_path / "local"
    directory.mkdir()
    try:
        os.setxattr(directory, ATTRIBUTE, b"")
    except OSError:
        pytest.skip(f"{tmp_path} has no extended attributes to compare with")
    return directory


@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=[pytest.mark.full, pytest.mark.timeout(900)])])
def test_programs_do_not_notice_that_the_nameserver_is_killed_and_started_again(tmp_path: Path, local: Path,
                                                                               kills: int) -> None:
    with LocalCluster(tmp_path / "cluster", dataservers=1, nameserver_arguments=LEASE) as cluster:
        def kill() -> None:
            cluster.nameserver.kill()
            cluster.nameserver.start()

        address = cluster.nameserver.address
        # Named twice, it is waited for twice as long: on a slow machine it needs a while to start.
        with mounted_on(tmp_path, f"{address},{address}") as mounted:
            kill_under_load(mounted, local, kills, kill)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path) as cluster:
        yield cluster


@requires_etcd
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=[pytest.mark.full, pytest.mark.timeout(900)])])
def test_programs_do_not_notice_that_another_nameserver_takes_over(etcd: EtcdCluster, tmp_path: Path, local: Path,
                                                                  kills: int) -> None:
    installation = Installation(tmp_path, etcd, 2, *LEASE)
    dataserver = Daemon("d0", [DATASERVER, "--id", "d0", "--nameserver", installation.address, "--directory",
                               str(tmp_path / "d0")], tmp_path / "d0.log")

    def kill() -> None:
        leader = installation.leader()
        leader.kill()
        leader.start()

    try:
        dataserver.start()
        with mounted_on(tmp_path, installation.address) as mounted:
            kill_under_load(mounted, local, kills, kill)
    finally:
        dataserver.kill()
        installation.stop()
