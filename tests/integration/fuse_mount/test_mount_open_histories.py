"""Histories on one file that two mounts have open at once, with the attributes that they keep by default.

What close-to-open consistency leaves open is allowed, and nothing else: what was closed or synced is seen by every
open that follows, and by whoever gets a lock; a handle that was open reads bytes that the file has had since it was
opened, and what was written on its own mount; `stat` is at most as old as the mount keeps attributes, and never shows
what was not. The writers take turns, as they would with locks: at most one mount has unpublished changes.
"""

# ruff: noqa: PTH116 (the system calls by their names)

import errno
import fcntl
import itertools
import mmap
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster

pytestmark = pytest.mark.root

Step = tuple[Any, ...]
KEPT_SECONDS = 1.0      # speedwell-mount's default
CLOCK_SECONDS = 0.05    # the kernel's timer, by which it forgets
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE = 1, 2, 16


numbers_of_histories = itertools.count()

HISTORIES: list[list[Step]] = [
    [("open", 0, True), ("open", 0, False), ("write", 0, 0, b"synced by the reader"), ("sync", 1),
     ("open", 1, False)],
    [("open", 0, True), ("open", 0, False), ("write", 0, 0, b"X"), ("close", 1), ("take", 0), ("open", 1, True),
     ("write", 1, 3, b"Y"), ("stat", 0), ("take", 0), ("read", 0, 0, 300)],
    [("open", 0, False), ("open", 1, True), ("write", 0, 0, b"newer"), ("open", 0, True), ("map", 1, 0, b"Z")],
]


@dataclass
class Handle:
    """An open file: which of the contents that were published was the newest when it was opened."""

    descriptor: int
    mount: int
    since: int
    writes: bool
    wrote: bool = False
    locked: bool = False


class Shared:
    """The file, and what it may be read as."""

    def __init__(self, mounts: list[Path]) -> None:
        name = f"history{next(numbers_of_histories)}"   # a name that leads elsewhere may be known for a while
        self.directories = [mount / name for mount in mounts]
        self.directories[0].mkdir()
        self.published = [b"the beginning"]
        self.moments = [0.0]                    # when each was there at the latest
        self.changing: bytearray | None = None  # what the writing mount has of its own
        self.writer: int | None = None
        self.handles: list[Handle] = []
        self.change_began_ns = 0
        self.change(lambda: (self.directories[0] / "f").write_bytes(self.published[0]))

    def path(self, mount: int) -> Path:
        return self.directories[mount] / "f"

    def change(self, action: Callable[[], Any]) -> None:
        """Something that gives the file new times, unless it returns False."""
        began_ns = time.time_ns()
        if action() is not False:
            self.change_began_ns = began_ns

    def publish(self, content: bytes) -> None:
        self.published.append(content)
        self.moments.append(time.monotonic())

    # ------------------------------------------------------------------ steps

    def open(self, mount: int, writes: bool) -> None:
        if len(self.handles) == 4:
            return
        self.settle(mount)
        descriptor = os.open(self.path(mount), os.O_RDWR if writes else os.O_RDONLY)
        handle = Handle(descriptor, mount, len(self.published) - 1, writes)
        self.handles.append(handle)
        self.check_whole(handle, "after open")
        self.check_status(os.fstat(descriptor))

    def close(self, number: int) -> None:
        if self.handles:
            handle = self.handles.pop(number % len(self.handles))
            if handle.locked:   # the kernel tells of the close later
                self.unlock(handle)
            os.close(handle.descriptor)
            if handle.mount == self.writer and handle.wrote:
                self.published_by_writer()

    def change_by(self, number: int, action: Callable[[Handle, bytearray], Any]) -> None:
        """With what is the newest: it is locked, changed, and published later."""
        writers = [handle for handle in self.handles if handle.writes]
        if not writers:
            return
        handle = writers[number % len(writers)]
        if self.writer not in (None, handle.mount):
            self.settle(handle.mount)
        self.lock(handle)
        content = self.changing if self.changing is not None else bytearray(self.published[-1])
        self.change(lambda: action(handle, content))
        self.changing, self.writer, handle.wrote = content, handle.mount, True

    def write(self, number: int, offset: int, data: bytes) -> None:
        def action(handle: Handle, content: bytearray) -> None:
            content.extend(bytes(max(0, offset - len(content))))
            content[offset:offset + len(data)] = data
            assert os.pwrite(handle.descriptor, data, offset) == len(data)
        self.change_by(number, action)

    def map(self, number: int, offset: int, data: bytes) -> None:
        def action(handle: Handle, content: bytearray) -> bool:
            fitting = data[:max(0, len(content) - offset)]
            if not fitting:
                return False
            try:
                mapped = mmap.mmap(handle.descriptor, len(content))
            except OSError as error:    # somebody on this mount had an older content open then
                assert error.errno == errno.ENODEV
                return False
            with mapped:
                assert mapped[:] == content
                mapped[offset:offset + len(fitting)] = fitting
                mapped.flush()
            content[offset:offset + len(fitting)] = fitting
            return True
        self.change_by(number, action)

    def resize(self, number: int, size: int) -> None:
        def action(handle: Handle, content: bytearray) -> None:
            del content[size:]
            content.extend(bytes(size - len(content)))
            os.ftruncate(handle.descriptor, size)
        self.change_by(number, action)

    def zero(self, number: int, mode: int, offset: int, length: int) -> None:
        def action(handle: Handle, content: bytearray) -> bool:
            before = bytes(content)
            end = min(offset + length, len(content))
            if mode & (FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
                content[offset:end] = bytes(max(0, end - offset))
            if not mode & FALLOC_KEEP_SIZE:
                content.extend(bytes(max(0, offset + length - len(content))))
            fallocate(handle.descriptor, mode, offset, length)
            return content != before
        self.change_by(number, action)

    def sync(self, number: int) -> None:
        """Through any descriptor of the mount, as fsync(2) is about the file."""
        there = [handle for handle in self.handles if handle.mount == self.writer]
        if there:
            os.fsync(there[number % len(there)].descriptor)
            self.published_by_writer()

    def replace(self, mount: int, data: bytes) -> None:
        """Another file takes the name; who has the old one open goes on with it, and is not compared any more."""
        self.settle(mount)
        for handle in self.handles:
            os.close(handle.descriptor)
        self.handles.clear()
        self.published_by_writer()

        def action() -> None:
            new = self.directories[mount] / "new"
            new.write_bytes(data)
            new.rename(self.path(mount))
        self.change(action)
        self.publish(data)

    def read(self, number: int, offset: int, size: int) -> None:
        if not self.handles:
            return
        handle = self.handles[number % len(self.handles)]
        data = os.pread(handle.descriptor, size, offset)
        possible = self.possible(handle)
        assert any(len(data) == len(content[offset:offset + size]) for content in possible), (len(data), possible)
        for at, byte in enumerate(data, start=offset):
            assert any(content[at:at + 1] == bytes([byte]) for content in possible), (at, data, possible)

    def take(self, number: int) -> None:
        """Lock through a handle, and see all that was published."""
        if self.handles:
            handle = self.handles[number % len(self.handles)]
            self.settle(handle.mount)
            self.lock(handle)
            self.check_whole(handle, "under a lock")

    def stat(self, mount: int) -> None:
        earliest = time.monotonic() - KEPT_SECONDS - CLOCK_SECONDS
        status = os.stat(self.path(mount))
        first = next((number for number, moment in enumerate(self.moments[1:]) if moment >= earliest),
                     len(self.published) - 1)
        sizes = {len(content) for content in self.published[first:]}
        if self.changing is not None:   # the kernel may write back what is mapped, and appends are there at once
            sizes.add(len(self.changing))
            if self.writer != mount:
                return
        assert status.st_size in sizes, (status.st_size, sizes)

    # ------------------------------------------------------------------ what holds

    def possible(self, handle: Handle) -> list[bytes]:
        own = [bytes(self.changing)] if self.changing is not None else []
        return [*self.published[handle.since:], *own]

    def lock(self, handle: Handle) -> None:
        for other in self.handles:
            if other.locked and other is not handle:
                self.unlock(other)
        fcntl.flock(handle.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        handle.locked = True
        handle.since = len(self.published) - 1

    def unlock(self, handle: Handle) -> None:
        fcntl.flock(handle.descriptor, fcntl.LOCK_UN)
        handle.locked = False
        if handle.mount == self.writer and handle.wrote:
            self.published_by_writer()

    def settle(self, mount: int) -> None:
        """Before another mount looks: the one that writes publishes."""
        if self.writer not in (None, mount):
            self.sync(0)

    def published_by_writer(self) -> None:
        if self.changing is not None:
            self.publish(bytes(self.changing))
        self.changing = self.writer = None

    def check_whole(self, handle: Handle, when: str) -> None:
        wanted = bytes(self.changing) if self.changing is not None else self.published[-1]
        found = os.pread(handle.descriptor, len(wanted) + 1000, 0)
        assert found == wanted, f"{when}: {found!r}, not {wanted!r}"

    def check_status(self, status: os.stat_result) -> None:
        """Of a file that was just opened."""
        wanted = bytes(self.changing) if self.changing is not None else self.published[-1]
        assert status.st_size == len(wanted)
        assert self.change_began_ns <= status.st_mtime_ns <= status.st_ctime_ns <= time.time_ns()

    def end(self) -> None:
        while self.handles:
            self.close(0)
        self.published_by_writer()
        for mount in range(len(self.directories)):
            assert self.path(mount).read_bytes() == self.published[-1]


def fallocate(descriptor: int, mode: int, offset: int, length: int) -> None:
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, mode, ctypes.c_long(offset), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    directory = tmp_path_factory.mktemp("open")
    mounted: list[Mounted] = []
    with LocalCluster(directory / "cluster", dataservers=2, replication=1, chunk_size=1 << 16) as cluster:
        try:
            for name in ("first", "second"):
                mounted.append(Mounted(directory / name, cluster.nameserver.address))
            yield [mount.path for mount in mounted]
        finally:
            for mount in mounted:
                mount.clean_up()


sides, numbers = st.integers(0, 1), st.integers(0, 3)
offsets = st.integers(0, 300) | st.sampled_from([4095, 4096, 9000])
data = st.binary(min_size=1, max_size=40) | st.just(b"long" * 1500)
lengths = st.integers(1, 300) | st.just(5000)
histories = st.lists(st.one_of(
    st.tuples(st.just("open"), sides, st.booleans()), st.tuples(st.just("close"), numbers),
    st.tuples(st.just("write"), numbers, offsets, data), st.tuples(st.just("map"), numbers, offsets, data),
    st.tuples(st.just("resize"), numbers, offsets),
    st.tuples(st.just("zero"), numbers, st.sampled_from([
        0, FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, FALLOC_ZERO_RANGE,
        FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE]), offsets, lengths),
    st.tuples(st.just("sync"), numbers), st.tuples(st.just("replace"), sides, data),
    st.tuples(st.just("read"), numbers, offsets, lengths), st.tuples(st.just("take"), numbers),
    st.tuples(st.just("stat"), sides)), max_size=30)


def replay(mounts: list[Path], history: list[Step]) -> None:
    shared = Shared(mounts)
    try:
        for operation, *arguments in history:
            getattr(shared, operation)(*arguments)
        shared.end()
    finally:
        for handle in shared.handles:
            os.close(handle.descriptor)


@pytest.mark.parametrize("number", range(len(HISTORIES)))
def test_a_recorded_history_of_a_file_that_is_open(mounts: list[Path], number: int) -> None:
    replay(mounts, HISTORIES[number])


def checked(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(max_examples=examples, deadline=None, print_blob=True,
                    suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink))


@checked(30)
@given(history=histories)
def test_drawn_histories_of_a_file_that_both_mounts_have_open(mounts: list[Path], history: list[Step]) -> None:
    replay(mounts, history)


@pytest.mark.full
@pytest.mark.timeout(1800)
@checked(1500)
@given(history=histories)
def test_many_histories_of_a_file_that_both_mounts_have_open(mounts: list[Path], history: list[Step]) -> None:
    replay(mounts, history)
