"""A rename over a file that programs have open, on this mount and on others."""

# ruff: noqa: PTH104, PTH208 (the system calls by their names)

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.fuse_mount.mounting import Mounted
from tests.local_cluster import LocalCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.root

RENAMES = 150


class Poller:
    """Does something again and again in a thread of its own until it is stopped or fails."""

    def __init__(self, look: Callable[[], object]) -> None:
        self.rounds = 0
        self.failure: BaseException | None = None
        self._look = look
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._look()
                self.rounds += 1
        except BaseException as failure:
            self.failure = failure

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


@contextmanager
def polling(*looks: Callable[[], object]) -> Iterator[None]:
    """None of `looks` fails meanwhile, and all are done at least once."""
    pollers = [Poller(look) for look in looks]
    try:
        yield
        wait_until(lambda: all(poller.rounds or poller.failure for poller in pollers), 10, "a poller does nothing")
    finally:
        for poller in pollers:
            poller.stop()
    assert [poller.failure for poller in pollers if poller.failure is not None] == []


def replace_again_and_again(directory: Path, name: str, count: int) -> None:
    """Rename over `name` while it is open under its name, and what was open before too."""
    opened: list[int] = []
    try:
        for number in range(count):
            opened.append(os.open(directory / "file", os.O_RDWR if number % 2 else os.O_RDONLY))
            new = directory / name
            new.write_bytes(b"%s %d" % (name.encode(), number))
            new.rename(directory / "file")
            if len(opened) > 3:
                os.close(opened.pop(0))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def test_a_name_leads_somewhere_on_every_mount_while_open_files_under_it_are_replaced(here: Path,
                                                                                      there: Path) -> None:
    (here / "file").write_bytes(b"first")
    with polling((here / "file").stat, (there / "file").stat, (there / "file").read_bytes,
                 lambda: os.listdir(there).index("file")):
        replace_again_and_again(here, "new", RENAMES)
    assert (there / "file").read_bytes() == b"new %d" % (RENAMES - 1)
    assert os.listdir(here) == ["file"]


def test_two_mounts_that_replace_the_same_open_file_never_miss_it(here: Path, there: Path,
                                                                  cluster: LocalCluster) -> None:
    (here / "file").write_bytes(b"first")
    files_before = cluster.client().statistics().files
    files = here / "file", there / "file"
    with polling(*(file.stat for file in files), *(file.read_bytes for file in files)):
        other = threading.Thread(target=replace_again_and_again, args=(there, "other", RENAMES // 3))
        other.start()
        try:
            replace_again_and_again(here, "new", RENAMES // 3)
        finally:
            other.join()
    assert os.listdir(here) == os.listdir(there) == ["file"]
    assert (here / "file").read_bytes() in (b"new %d" % (RENAMES // 3 - 1), b"other %d" % (RENAMES // 3 - 1))
    wait_until(lambda: cluster.client().statistics().files == files_before, 15, "a replaced file is kept for a mount")


def test_who_has_the_replaced_file_open_on_another_mount_keeps_it(here: Path, there: Path) -> None:
    (here / "file").write_bytes(b"old" * 100_000)
    with (there / "file").open("rb", buffering=0) as reader, (there / "file").open("r+b", buffering=0) as writer:
        assert reader.read(3) == b"old"
        (here / "new").write_bytes(b"new")
        (here / "new").rename(here / "file")
        assert reader.read(300_000) == (b"old" * 100_000)[3:]
        writer.write(b"OLD")
        writer.seek(0, os.SEEK_END)
        writer.write(b"more")
        os.fsync(writer.fileno())
        assert (there / "file").read_bytes() == b"new"
    assert (here / "file").read_bytes() == (there / "file").read_bytes() == b"new"


def test_an_open_file_that_another_mount_has_replaced_is_replaced_once_more(here: Path, there: Path,
                                                                            cluster: LocalCluster) -> None:
    (here / "file").write_bytes(b"first")
    client = cluster.client()
    files_before = client.statistics().files
    with (here / "file").open("rb", buffering=0) as reader:
        for mount, content in ((there, b"second"), (here, b"third")):
            (mount / "new").write_bytes(content)
            (mount / "new").rename(mount / "file")
        assert reader.read() == b"first"
        assert (here / "file").read_bytes() == (there / "file").read_bytes() == b"third"
    wait_until(lambda: client.statistics().files == files_before, 15, "a replaced file is kept for the mount")


def test_a_rename_that_is_refused_leaves_the_open_file_where_it_was(here: Path, there: Path,
                                                                    cluster: LocalCluster) -> None:
    (here / "full").mkdir()
    (here / "full" / "file").write_bytes(b"kept")
    (here / "large").write_bytes(b"x" * 1000)
    cluster.set_quota(f"/{here.name}/full", max_bytes=100, max_files=None)
    with (here / "full" / "file").open("rb+", buffering=0) as opened:
        with pytest.raises(OSError) as refused:
            (here / "large").rename(here / "full" / "file")
        assert refused.value.errno == errno.EDQUOT
        assert (there / "full" / "file").read_bytes() == (here / "full" / "file").read_bytes() == b"kept"
        assert os.fstat(opened.fileno()).st_nlink == 1
        assert opened.read() == b"kept"
        opened.write(b" still")
    assert (here / "full" / "file").read_bytes() == b"kept still"
    assert (there / "full" / "file").read_bytes() == b"kept still"
    assert os.listdir(there / "full") == ["file"]


def test_renaming_one_name_of_an_open_file_over_another_changes_nothing(here: Path, there: Path) -> None:
    (here / "a").write_bytes(b"x")
    os.link(here / "a", here / "b")
    with (here / "b").open("rb") as opened:
        os.rename(here / "a", here / "b")
        assert sorted(os.listdir(there)) == ["a", "b"]
        assert opened.read() == b"x"
        assert os.fstat(opened.fileno()).st_nlink == 2
    assert (there / "b").read_bytes() == (here / "a").read_bytes() == b"x"


def test_a_file_may_have_a_name_like_those_that_libfuse_hides_files_under(here: Path, there: Path) -> None:
    name = ".fuse_hidden0123456789abcdef"
    (here / "file").write_bytes(b"x")
    with (here / "file").open("ab") as opened:
        (here / "file").rename(here / name)
        opened.write(b"y")
    assert os.listdir(there) == [name]
    assert (there / name).read_bytes() == b"xy"


def test_a_program_that_dies_while_it_has_replaced_files_open_leaves_nothing(cluster: LocalCluster,
                                                                             tmp_path: Path) -> None:
    mounted = Mounted(tmp_path / "own", cluster.nameserver.address)
    try:
        directory = mounted.path / "dying"
        directory.mkdir()
        (directory / "file").write_bytes(b"first")
        replaced = os.open(directory / "file", os.O_RDONLY)
        (directory / "new").write_bytes(b"second")
        (directory / "new").rename(directory / "file")
        mounted.kill()
        os.close(replaced)
    finally:
        mounted.clean_up()
    client = cluster.client()
    assert [entry.name for entry in client.list("/dying")] == [b"file"]
    client.remove("/dying/file")
    client.rmdir("/dying")
