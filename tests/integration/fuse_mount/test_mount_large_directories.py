"""Directories with very many entries: listed whole and quickly, while others are served."""

# ruff: noqa: PTH208 (the names as the system call lists them)

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from speedwell.fs.errors import NoSuchFile
from speedwell.fuse_mount.door import Caller
from speedwell.fuse_mount.operations import SpeedwellOperations
from tests.integration.fuse_mount.mounting import Mounted, run
from tests.local_cluster import LocalCluster

pytestmark = pytest.mark.root

MAKERS = 4
SOME_SECONDS = 5.0
LIST_SECONDS = 120e-6
LIST_AND_STAT_SECONDS = 400e-6
"""For each entry, about four times what it took while others worked on the machine too; and SOME_SECONDS once."""
LOOKS_PER_SECOND = 10
"""While a directory is listed: far fewer than there are if nobody has to wait for the end of it."""
MEMORY_MIB = 4096 / (1 << 20)
"""For each entry of the longest directory that is listed: it took 2.5 KiB."""


def fill(cluster: LocalCluster, directory: str, count: int) -> set[str]:
    """Make `count` empty files; their names."""
    names = [f"an entry whose name is as long as they are {number:06}" for number in range(count)]

    def make(some: list[str]) -> None:
        client = cluster.client()
        for name in some:
            client.create(f"{directory}/{name}")

    with ThreadPoolExecutor(MAKERS) as makers:
        list(makers.map(make, [names[first::MAKERS] for first in range(MAKERS)]))
    return set(names)


class Looks:
    """How often a thread of its own has got the attributes of a path, one `stat` after the other."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        self._path = path
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Looks":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.005):
            self._path.stat()
            self.count += 1


def seconds_while_others_are_served(work: Callable[[], object], *others: Looks) -> float:
    """How long `work` takes. AssertionError if it keeps others waiting."""
    before = [other.count for other in others]
    began = time.monotonic()
    work()
    seconds = time.monotonic() - began
    looks = [other.count - count for other, count in zip(others, before, strict=True)]
    assert min(looks) >= int(seconds * LOOKS_PER_SECOND), (looks, seconds)
    return seconds


@pytest.mark.parametrize("count", [
    5_000, pytest.param(100_000, marks=[pytest.mark.full, pytest.mark.timeout(900)])])
def test_very_many_entries_are_listed_whole_while_others_are_served(
        cluster: LocalCluster, two_mounts: tuple[Mounted, Mounted], here: Path, there: Path, count: int) -> None:
    (here / "many").mkdir()
    (here / "other").touch()
    names = fill(cluster, f"/{here.name}/many", count)
    memory_before = two_mounts[0].memory_mib()
    listed: list[str] = []
    with Looks(here / "other") as on_same_mount, Looks(there / "other") as on_other_mount:
        others = on_same_mount, on_other_mount
        seconds = seconds_while_others_are_served(lambda: listed.extend(os.listdir(here / "many")), *others)
        assert len(listed) == count and set(listed) == names
        assert seconds < SOME_SECONDS + count * LIST_SECONDS
        listed.clear()
        seconds = seconds_while_others_are_served(
            lambda: listed.extend(run("ls", "-lU", here / "many").splitlines()), *others)
        assert len(listed) == count + 1     # and how much it takes up in all
        assert seconds < SOME_SECONDS + count * LIST_AND_STAT_SECONDS
    assert two_mounts[0].memory_mib() - memory_before < count * MEMORY_MIB
    first = min(names)
    (there / "many" / first).unlink()
    (there / "many" / "new").touch()
    assert set(os.listdir(here / "many")) == names - {first} | {"new"}
    if count < 10_000:
        run("rm", "-r", there / "many")
        assert os.listdir(here) == ["other"]


def test_a_directory_that_changes_while_it_is_listed(cluster: LocalCluster, here: Path) -> None:
    directory = here / "many"
    directory.mkdir()
    names = sorted(fill(cluster, f"/{here.name}/many", 2_500))
    kept, changed, removed = names[2_000], names[2_100], names[2_200]
    with os.scandir(directory) as entries:
        listed = [next(entries).name]   # the kernel has asked for the first of them only
        (directory / changed).chmod(0o741)
        (directory / removed).unlink()
        for number in range(3):
            (directory / f"an early name {number}").touch()
        modes = {}
        for entry in entries:
            listed.append(entry.name)
            if entry.name in (kept, changed):
                modes[entry.name] = entry.stat().st_mode & 0o777
    assert len(listed) == len(set(listed)) and set(listed) >= {*names} - {removed}
    assert modes == {kept: 0o644, changed: 0o741}
    assert not (directory / removed).exists()
    run("rm", "-r", directory)


def test_names_that_go_one_after_the_other_are_looked_up_in_pages_and_never_as_they_were(
        cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.client().mkdir("/emptied")
    names = [os.fsencode(name) for name in sorted(fill(cluster, "/emptied", 300))]
    client = cluster.client(metadata_cache_seconds=60.0)
    mount = SpeedwellOperations(client, SimpleNamespace(caller=lambda: Caller(0, 0, 77, 0)))  # type: ignore[arg-type]
    directory = client.lookup("/emptied").inode
    asked: Counter[str] = Counter()
    call = client.metadata.requests.ask
    monkeypatch.setattr(client.metadata.requests, "ask", lambda method, request: (
        asked.update([method]), call(method, request))[1])
    for name in names[:280]:
        mount.lookup(directory, name)
        mount.unlink(directory, name)
    assert asked["Remove"] == 280
    assert asked["Lookup"] + asked["List"] < 20
    mount.rename(directory, names[-1], directory, names[-2], 0)
    moved = mount.lookup(directory, names[-2]).inode
    assert moved == cluster.client().lookup(b"/emptied/" + names[-2], fresh=True).inode
    for gone in (names[279], names[-1]):
        with pytest.raises(NoSuchFile):
            mount.lookup(directory, gone)


class Programs:
    """A mount without a kernel, and who asks it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.process = 77
        self.mount = SpeedwellOperations(
            cluster.client(metadata_cache_seconds=60.0),
            SimpleNamespace(caller=lambda: Caller(0, 0, self.process, 0)))  # type: ignore[arg-type]

    def names_told_of(self, directory: int, count: int) -> list[str]:
        """Of a directory with so many entries, those whose attributes come with the listing."""
        number = self.mount.opendir(directory)
        listing = self.mount.entries(directory, number, 0, 1000, statuses=True)
        assert len(listing.names) == 2 + count and not listing.has_more
        statuses, _ = self.mount.looked_up(directory, listing, 0, 2 + count)
        self.mount.releasedir(number)
        return [os.fsdecode(name) for name, status in zip(listing.names, statuses, strict=True) if status]


def test_a_program_that_looks_at_no_file_is_told_of_directories_alone(cluster: LocalCluster) -> None:
    client = cluster.client()
    client.mkdir("/walked")
    for directory in "abcd":
        client.mkdir(f"/walked/{directory}")
    names = sorted([fill(cluster, f"/walked/{directory}", 100) for directory in "abcd"].pop())
    walked, a, b, c, d = (client.lookup(path).inode for path in (
        "/walked", "/walked/a", "/walked/b", "/walked/c", "/walked/d"))
    programs = Programs(cluster)
    assert programs.names_told_of(walked, 4) == ["a", "b", "c", "d"]
    assert programs.names_told_of(a, 100) == names[1:]      # the first is left out to see who looks it up
    assert programs.names_told_of(b, 100) == []
    assert programs.names_told_of(walked, 4) == ["a", "b", "c", "d"]
    programs.mount.lookup(walked, b"c")
    assert programs.names_told_of(c, 100) == []             # to look up a directory tells nothing
    programs.process += 1
    assert programs.names_told_of(b, 100) == names[1:]
    programs.process -= 1
    found = programs.mount.lookup(d, os.fsencode(names[50]))
    assert found.inode == client.lookup(f"/walked/d/{names[50]}").inode
    assert programs.names_told_of(c, 100) == names


def test_of_what_was_left_out_the_mount_knows_what_the_nameserver_said(
        cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    client = cluster.client()
    client.mkdir("/left-out")
    names = sorted(fill(cluster, "/left-out", 100))
    directory, first = client.lookup("/left-out").inode, client.lookup(f"/left-out/{names[0]}")
    programs = Programs(cluster)
    assert programs.names_told_of(directory, 100) == names[1:]
    with monkeypatch.context() as without_nameserver:
        without_nameserver.setattr(programs.mount._client.metadata.requests, "ask", None)
        assert programs.mount.lookup(directory, os.fsencode(names[0])).inode == first.inode
    programs.process += 1
    assert programs.names_told_of(directory, 100) == names  # the kernel has them all


def test_programs_that_walk_and_look_see_what_is_there(here: Path, there: Path) -> None:
    sizes = {}
    for directory in range(4):
        (here / str(directory)).mkdir()
        for number in range(70):
            path = Path(str(directory)) / f"{number:03}"
            sizes[str(path)] = directory * 100 + number
            (here / path).write_bytes(bytes(sizes[str(path)]))
    for options in ([], ["-printf", "%s %P\\n"], []):
        listed = run("find", there, "-type", "f", *options).split("\n")[:-1]
        assert sorted(listed) == sorted(
            f"{size} {path}" if options else str(there / path) for path, size in sizes.items())
    run("rm", "-r", *there.iterdir())
    assert os.listdir(here) == []
