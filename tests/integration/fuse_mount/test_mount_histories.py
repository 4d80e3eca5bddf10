"""Histories of operations, drawn by Hypothesis, on two mounts and on a plain directory: every result has to be the
same, and every errno, and in the end every name, attribute, time and byte.

An operation goes through either mount; while a file is open, all go through the mount that has it open, so that
what close-to-open consistency leaves to chance does not count. A history that failed is a list: it goes into
HISTORIES and is replayed from then on.
"""

# ruff: noqa: PTH101, PTH102, PTH106, PTH108, PTH115, PTH118, PTH208, PTH211 (the system calls by their names)

import ctypes
import fcntl
import mmap
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster

pytestmark = pytest.mark.root

Step = tuple[Any, ...]  # operation, mount, arguments
libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
MAX_HANDLES = 3
CLOCK_REALTIME_COARSE = 5   # linux/time.h
HANDLE_OPERATIONS = ("close", "fstat", "pread", "pwrite", "resize", "fallocate", "map", "flock")

HISTORIES: list[list[Step]] = [
    [("write", 0, "a", 0, b"one"), ("link", 0, "a", "b"), ("open", 0, "a", os.O_RDWR), ("unlink", 0, "a"),
     ("fstat", 0, 0), ("unlink", 0, "b"), ("fstat", 0, 0), ("pwrite", 0, 0, 2, b"xyz"), ("pread", 0, 0, 0, 10),
     ("close", 0, 0), ("list", 1, ".")],
    [("mkdir", 0, "a", 0o755), ("write", 1, "a/a", 0, b"x"), ("rename", 0, "a", "a/b", 0),
     ("rename", 1, "a", "b", 2), ("write", 1, "b", 3, b"y"), ("rename", 0, "a", "b", 2), ("list", 1, "b"),
     ("rename", 1, "b", "a", 1), ("rmdir", 0, "b"), ("lstat", 0, "b/a")],
    [("symlink", 0, "b", "a"), ("write", 1, "a", 5, b"through"), ("lstat", 0, "b"), ("readlink", 1, "a"),
     ("rename", 0, "a", "b", 0), ("read", 1, "b"), ("truncate", 0, "b", 0)],
    [("write", 0, "a", 0, b"old"), ("write", 0, "b", 0, b"new"), ("open", 0, "a", os.O_RDONLY),
     ("rename", 0, "b", "a", 0), ("fstat", 0, 0), ("pread", 0, 0, 0, 9), ("read", 0, "a"), ("close", 0, 0),
     ("read", 1, "a"), ("lstat", 1, "b")],
]


def shown(status: os.stat_result) -> tuple[Any, ...]:
    """What two filesystems agree on. The size of a directory is each one's own."""
    size = None if stat.S_ISDIR(status.st_mode) else status.st_size
    return status.st_mode, status.st_nlink, status.st_uid, status.st_gid, size, status.st_rdev


class Times(NamedTuple):
    """When content and attributes were changed, in nanoseconds of the machine's clock."""

    content_ns: int
    attributes_ns: int


class Moments:
    """When each step began and ended.

    While files are open all steps are one: what is written gets its time when it is published, at the latest when the
    file is closed. A local filesystem may take its times from the clock that the kernel's timer sets (up to 10 ms
    late), the nameserver from the clock itself.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[int, int, int]] = []
        self._goes_on = False
        self.begin()

    def begin(self) -> None:
        if not self._goes_on:
            self._began = time.clock_gettime_ns(CLOCK_REALTIME_COARSE), time.time_ns()

    def end(self, goes_on: bool = False) -> None:
        self._goes_on = goes_on
        self._steps.append((*self._began, time.time_ns()))

    def __str__(self) -> str:
        return f"steps (coarse clock, clock, clock at the end): {self._steps}"

    def agree(self, plain_ns: int, mount_ns: int) -> bool:
        """Whether one step may have set both."""
        return plain_ns == mount_ns or any(
            coarse_began <= plain_ns <= ended and began <= mount_ns <= ended
            for coarse_began, began, ended in self._steps)


class Side:
    """One directory that gets the operations, and the files that are open in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.handles: dict[int, int] = {}

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def do(self, operation: str, *arguments: Any) -> Any:
        """The result, or the number of the error."""
        method: Callable[..., Any] = getattr(self, operation)
        try:
            return method(*arguments)
        except OSError as error:
            return f"errno {error.errno}"

    def mkdir(self, name: str, mode: int) -> None:
        os.mkdir(self.path(name), mode)

    def rmdir(self, name: str) -> None:
        os.rmdir(self.path(name))

    def unlink(self, name: str) -> None:
        os.unlink(self.path(name))

    def link(self, name: str, new: str) -> None:
        os.link(self.path(name), self.path(new), follow_symlinks=False)

    def symlink(self, target: str, name: str) -> None:
        os.symlink(target, self.path(name))

    def readlink(self, name: str) -> str:
        return os.readlink(self.path(name))

    def mkfifo(self, name: str, mode: int) -> None:
        os.mkfifo(self.path(name), mode)

    def rename(self, name: str, new: str, flags: int) -> None:
        if libc.renameat2(AT_FDCWD, os.fsencode(self.path(name)), AT_FDCWD, os.fsencode(self.path(new)), flags):
            raise OSError(ctypes.get_errno(), "renameat2")

    def chmod(self, name: str, mode: int) -> None:
        os.chmod(self.path(name), mode)

    def chown(self, name: str, uid: int, gid: int) -> None:
        os.lchown(self.path(name), uid, gid)

    def utime(self, name: str, atime_ns: int, mtime_ns: int) -> tuple[int, int]:
        os.utime(self.path(name), ns=(atime_ns, mtime_ns), follow_symlinks=False)
        status = os.lstat(self.path(name))
        return status.st_atime_ns, status.st_mtime_ns

    def lstat(self, name: str) -> tuple[Any, ...]:
        return shown(os.lstat(self.path(name)))

    def list(self, name: str) -> list[str]:
        return sorted(os.listdir(self.path(name)))

    def setxattr(self, name: str, key: str, value: bytes, flags: int) -> None:
        os.setxattr(self.path(name), f"user.{key}", value, flags, follow_symlinks=False)

    def getxattr(self, name: str, key: str) -> bytes:
        return os.getxattr(self.path(name), f"user.{key}", follow_symlinks=False)

    def write(self, name: str, offset: int, data: bytes) -> int:
        return self._with(name, os.O_WRONLY | os.O_CREAT, lambda file: os.pwrite(file, data, offset))

    def append(self, name: str, data: bytes) -> int:
        return self._with(name, os.O_WRONLY | os.O_APPEND, lambda file: os.write(file, data))

    def replace(self, name: str, data: bytes) -> int:
        return self._with(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, lambda file: os.write(file, data))

    def read(self, name: str) -> bytes:
        return self._with(name, os.O_RDONLY, lambda file: os.read(file, 1 << 20))

    def truncate(self, name: str, size: int) -> None:
        os.truncate(self.path(name), size)

    def _with(self, name: str, flags: int, action: Callable[[int], Any]) -> Any:
        file = os.open(self.path(name), flags | os.O_NONBLOCK, 0o640)
        try:
            return action(file)
        finally:
            os.close(file)

    def open(self, name: str, flags: int) -> None:
        file = os.open(self.path(name), flags | os.O_NONBLOCK, 0o600)
        self.handles[next(number for number in range(MAX_HANDLES) if number not in self.handles)] = file

    def close(self, handle: int) -> None:
        os.close(self.handles.pop(handle))

    def fstat(self, handle: int) -> tuple[Any, ...]:
        return shown(os.fstat(self.handles[handle]))

    def pread(self, handle: int, offset: int, size: int) -> bytes:
        return os.pread(self.handles[handle], size, offset)

    def pwrite(self, handle: int, offset: int, data: bytes) -> int:
        return os.pwrite(self.handles[handle], data, offset)

    def resize(self, handle: int, size: int) -> None:
        os.ftruncate(self.handles[handle], size)

    def fallocate(self, handle: int, mode: int, offset: int, length: int) -> None:
        if libc.fallocate(self.handles[handle], mode, ctypes.c_long(offset), ctypes.c_long(length)):
            raise OSError(ctypes.get_errno(), "fallocate")

    def map(self, handle: int, offset: int, data: bytes) -> bytes:
        """Change a shared mapping as far as the file goes; all of it before."""
        size = os.fstat(self.handles[handle]).st_size
        if not size:
            return b""
        with mmap.mmap(self.handles[handle], size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
            before = mapped[:]
            data = data[:max(0, size - offset)]
            mapped[offset:offset + len(data)] = data
            mapped.flush()
        return before

    def flock(self, handle: int, operation: int) -> None:
        fcntl.flock(self.handles[handle], operation | fcntl.LOCK_NB)

    def times(self, name: str) -> Times:
        status = os.lstat(self.path(name))
        return Times(status.st_mtime_ns, status.st_ctime_ns)

    def tree(self) -> dict[str, Any]:
        """Everything below the directory."""
        found: dict[str, Any] = {}
        for place, directories, files in os.walk(self.directory):
            for name in (*directories, *files):
                path = os.path.join(place, name)
                status = os.lstat(path)
                content: Any = None
                if stat.S_ISREG(status.st_mode):
                    content = Path(path).read_bytes()
                elif stat.S_ISLNK(status.st_mode):
                    content = os.readlink(path)
                times = Times(status.st_mtime_ns, status.st_ctime_ns)
                found[os.path.relpath(path, self.directory)] = (shown(status), content, times)
        return found

    def close_all(self) -> None:
        for handle in list(self.handles):
            self.close(handle)


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Two mounts that remember no attributes: whatever they answer is compared."""
    directory = tmp_path_factory.mktemp("histories")
    mounted: list[Mounted] = []
    with LocalCluster(directory / "cluster", dataservers=2, replication=1, chunk_size=1 << 16) as cluster:
        try:
            for name in ("first", "second"):
                mounted.append(Mounted(directory / name, cluster.nameserver.address, "--cache-seconds", "0"))
            yield [mount.path for mount in mounted]
        finally:
            for mount in mounted:
                mount.clean_up()


def replay(mounts: list[Path], plain: Path, steps: list[Step]) -> None:
    """Do every step on a mount and on the plain directory; AssertionError where they differ."""
    moments = Moments()
    for directory in (mounts[0] / "work", plain):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
    both = [Side(mount / "work") for mount in mounts]
    expected = Side(plain)
    owner: int | None = None
    moments.end()

    def compare(found: Any, wanted: Any, what: str) -> None:
        if isinstance(found, Times) and isinstance(wanted, Times):
            assert all(map(moments.agree, wanted, found)), f"{what}: {found}, not {wanted}; {moments}"
        else:
            assert found == wanted, f"{what}: {found}, not {wanted}"

    try:
        for number, (operation, mount, *arguments) in enumerate(steps):
            if operation in HANDLE_OPERATIONS and arguments[0] not in expected.handles:
                continue
            if operation == "open" and len(expected.handles) == MAX_HANDLES:
                continue
            through = mount if owner is None else owner
            moments.begin()
            wanted, found = expected.do(operation, *arguments), both[through].do(operation, *arguments)
            moments.end(goes_on=bool(expected.handles))
            compare(found, wanted, f"step {number} {(operation, through, *arguments)}")
            owner = through if expected.handles else None
        expected.close_all()
        if owner is not None:
            both[owner].close_all()
            moments.end()
        wanted_tree = expected.tree()
        for side in both:
            found_tree = side.tree()
            assert sorted(found_tree) == sorted(wanted_tree)
            for name, wanted in wanted_tree.items():
                for found_part, wanted_part in zip(found_tree[name], wanted, strict=True):
                    compare(found_part, wanted_part, f"in the end {name!r}")
    finally:
        for side in (expected, *both):
            side.close_all()


names = st.sampled_from(["a", "b", "c", "a/a", "a/b", "b/a", "b/b", "a/a/a"])
places = st.one_of(names, st.just("."))
sides = st.integers(0, 1)
modes = st.sampled_from([0o755, 0o644, 0o600, 0o6755, 0o1777, 0])
content = st.binary(min_size=1, max_size=200) | st.just(b"long" * 5000)
# The plain directory may lie on ext4, which keeps all attributes of a file in one block.
attribute_values = st.binary(min_size=1, max_size=200) | st.just(b"long" * 250)
offsets = st.integers(0, 300) | st.sampled_from([4096, 65536])
handles = st.integers(0, MAX_HANDLES - 1)
times_ns = st.integers(-10**18, 4 * 10**18)
ATTRIBUTES = st.sampled_from(["x", "y"])
ALLOCATIONS = st.sampled_from([0, 1, 1 | 2, 16, 16 | 1, 64])     # linux/falloc.h
LOCKS = st.sampled_from([fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN])
OPENINGS = st.sampled_from([os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_EXCL,
                            os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND])


def step(operation: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(operation), sides, *arguments)


steps = st.lists(st.one_of(
    step("mkdir", names, modes), step("rmdir", names), step("unlink", names), step("link", names, names),
    step("symlink", names, names), step("readlink", names), step("mkfifo", names, modes),
    step("rename", names, names, st.integers(0, 2)), step("chmod", names, modes),
    step("chown", names, st.integers(-1, 3), st.integers(-1, 3)), step("utime", names, times_ns, times_ns),
    step("lstat", places), step("list", places), step("times", places),
    step("setxattr", names, ATTRIBUTES, attribute_values, st.integers(0, 2)),
    step("getxattr", names, ATTRIBUTES), step("write", names, offsets, content), step("append", names, content),
    step("replace", names, content), step("read", names), step("truncate", names, offsets),
    step("open", names, OPENINGS), step("close", handles), step("fstat", handles),
    step("pread", handles, offsets, offsets), step("pwrite", handles, offsets, content),
    step("resize", handles, offsets), step("fallocate", handles, ALLOCATIONS, offsets, offsets),
    step("map", handles, offsets, content), step("flock", handles, LOCKS)), max_size=40)


@pytest.mark.parametrize("number", range(len(HISTORIES)))
def test_a_recorded_history_gives_what_a_plain_directory_gives(mounts: list[Path], tmp_path: Path, number: int
                                                               ) -> None:
    replay(mounts, tmp_path / "plain", HISTORIES[number])


def checked(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(max_examples=examples, deadline=None, print_blob=True,
                    suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink))


@checked(25)
@given(history=steps)
def test_drawn_histories_give_what_a_plain_directory_gives(mounts: list[Path], tmp_path: Path,
                                                           history: list[Step]) -> None:
    replay(mounts, tmp_path / "plain", history)


@pytest.mark.full
@pytest.mark.timeout(1800)
@checked(1500)
@given(history=steps)
def test_many_drawn_histories_give_what_a_plain_directory_gives(mounts: list[Path], tmp_path: Path,
                                                                history: list[Step]) -> None:
    replay(mounts, tmp_path / "plain", history)
