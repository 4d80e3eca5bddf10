"""A dataserver with several directories: where files go, and what a disk takes with it when it fails."""

import errno
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.fs.checksums import blocks_of
from speedwell.fs.dataserver.admission import Door
from speedwell.fs.dataserver.disk.contents import Contents, inventory
from speedwell.fs.dataserver.disk.data_directory import Directory
from speedwell.fs.dataserver.disk.disk_errors import write_file
from speedwell.fs.dataserver.disk.durability import sync
from speedwell.fs.dataserver.disk.holes import blocks_to_verify
from speedwell.fs.dataserver.disk.quarantine import Quarantine
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.disk.watch import Watch
from speedwell.fs.dataserver.metrics import StateMetrics
from speedwell.fs.dataserver.namespace_identity import Identity
from speedwell.fs.dataserver.replication.append_writer import AppendWriter
from speedwell.fs.dataserver.replication.lease import Lease
from speedwell.fs.dataserver.replication.version_writer import Change, VersionWriter
from speedwell.fs.errors import InvalidArgument, NoSuchFile, SpeedwellError, StorageFailed
from speedwell.fs.proto.speedwell_pb2 import FileReport, HeartbeatReply

NAMES = "a", "b", "c"


def id_of(number: int) -> str:
    return f"{number:02x}23abcd-0000-4000-8000-00000000000a"


def append(store: FileStore, number: int, data: bytes, epoch: int = 1) -> None:
    with store.opened_for_append(id_of(number), 7, b"/f", 1 << 20) as file, file.turn:
        writer = AppendWriter(file)
        writer.write(memoryview(data))
        writer.commit()
        file.ordering.log(file.length).raise_epoch(epoch)


def content(store: FileStore, number: int) -> bytes:
    with store.opened(id_of(number)) as file:
        return file.read(0, file.length)


def home(store: FileStore, number: int) -> str:
    """The directory that a file lies in."""
    with store.opened(id_of(number)) as file:
        return Path(file.directory).parent.parent.name


def fail(root: Path) -> None:
    """From now on no byte can be written to the disk, as after an error; what is there can be read."""
    if not (root / "probe").is_dir():
        (root / "probe").unlink(missing_ok=True)
        (root / "probe").mkdir()


def mend(root: Path) -> None:
    if (root / "probe").is_dir():
        (root / "probe").rmdir()


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in NAMES]


@pytest.fixture
def store(roots: list[Path]) -> Iterator[FileStore]:
    store = FileStore(roots, "d0")
    yield store
    store.close()


def filled(store: FileStore, files: int = 60) -> dict[int, str]:
    """Where each of so many files went."""
    for number in range(files):
        append(store, number, b"%d" % number)
    return {number: home(store, number) for number in range(files)}


def test_files_go_to_all_disks_and_are_listed_once(store: FileStore) -> None:
    homes = filled(store)
    assert set(homes.values()) == set(NAMES)
    assert sorted(store.ids()) == [id_of(number) for number in range(60)]
    assert [report.file_id for report in inventory(store, id_of(9), 20)] == [id_of(n) for n in range(10, 30)]


def test_more_files_go_where_more_is_free_and_none_where_nothing_is(
        store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"a": 0, "b": 1 << 30, "c": 9 << 30}
    monkeypatch.setattr(Directory, "capacity", lambda self: (10 << 30, free[self.path.name]))
    went = Counter(filled(store, 200).values())
    assert set(went) == {"b", "c"} and went["c"] > 2 * went["b"]
    free["c"] = 0
    assert home_of_next(store, 250) == "b"
    free["b"] = 0       # the reserve is left: files that are there may grow, and a new one is not refused here
    assert home_of_next(store, 251) in NAMES


def home_of_next(store: FileStore, number: int) -> str:
    append(store, number, b"x")
    return home(store, number)


def test_more_files_go_to_the_disk_that_is_less_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Directory, "capacity", lambda self: (10 << 30, 1 << 30))
    store = FileStore([tmp_path / "a", tmp_path / "b"], "d0", rate_bytes=1e6)
    busy, idle = store.directories.all
    store.directories.measure()
    busy.note_written(1 << 40)
    store.directories.measure()
    went = Counter(filled(store, 100).values())
    assert went[idle.path.name] > 3 * went[busy.path.name]
    assert busy.left_bytes < idle.left_bytes
    store.close()


def test_a_new_version_lies_beside_the_old_one(store: FileStore) -> None:
    homes = filled(store, 20)
    for number, where in homes.items():
        with store.opened(id_of(number)) as base:
            version = store.new_version(id_of(number + 100), base, 7, b"/f", 1 << 20)
            writer = VersionWriter(store, version, base, base.committed, Change(base.length, 1 << 62, [(0, 1)]))
            writer.begin()
            writer.write(memoryview(b"V"))
            writer.prepare()
            writer.commit()
        assert home(store, number + 100) == where and content(store, number + 100)[:1] == b"V"


def test_a_failed_disk_takes_its_own_files_out_and_no_others(
        store: FileStore, roots: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    homes = filled(store)
    contents = Contents(store, Quarantine(store))
    fail(roots[1])
    assert store.look_after_directories() and not store.look_after_directories()
    assert "b has failed" in caplog.text
    lost = {id_of(number) for number, where in homes.items() if where == "b"}
    assert set(store.ids()) == {id_of(number) for number in homes} - lost
    contents.compare([FileReport(file_id=id_of(number), inode=7) for number in homes], ())
    assert {report.file_id for report in contents.lost} == lost
    for number, where in homes.items():
        assert content(store, number) == b"%d" % number     # what can still be read is, until others have it
        if where == "b":
            with pytest.raises(StorageFailed, match="has failed"):
                append(store, number, b"more")
        else:
            append(store, number, b"more")
    failures = [use.failure for use in store.directories.uses()]
    assert failures[0] == failures[2] == "" and failures[1]


def test_a_lost_file_is_made_anew_on_another_disk_and_the_old_one_goes(store: FileStore, roots: list[Path]) -> None:
    homes = filled(store)
    fail(roots[0])
    store.look_after_directories()
    number = next(number for number, where in homes.items() if where == "a")
    os.rename(roots[0] / id_of(number)[:2], roots[0] / "kept")  # noqa: PTH104 - a disk that nothing is removed from
    store.begin_anew(id_of(number), 7)
    os.rename(roots[0] / "kept", roots[0] / id_of(number)[:2])  # noqa: PTH104
    with pytest.raises(NoSuchFile):
        content(store, number)
    append(store, number, b"anew", epoch=2)
    assert home(store, number) != "a" and content(store, number) == b"anew"
    store.close()
    mend(roots[0])
    again = FileStore(roots, "d0")
    assert content(again, number) == b"anew" and home(again, number) != "a"
    assert not list(roots[0].glob(f"*/{id_of(number)}*"))
    assert len(list(again.ids())) == len(homes)
    again.close()


def test_the_disk_that_is_left_is_enough_and_the_last_one_that_fails_is_said(
        store: FileStore, roots: list[Path]) -> None:
    for root in roots[:2]:
        fail(root)
    store.look_after_directories()
    assert set(filled(store).values()) == {"c"}
    fail(roots[2])
    store.look_after_directories()
    with pytest.raises(StorageFailed, match=r"(?s)a: .*b: .*c: "):
        store.directories.require_one()


@pytest.mark.parametrize("gone", ["moved away", "another one is there"])
def test_a_directory_that_goes_away_has_failed(store: FileStore, roots: list[Path], gone: str) -> None:
    homes = filled(store)
    roots[0].rename(roots[0].with_name("elsewhere"))
    if gone == "another one is there":
        FileStore(roots[0], "d0").close()
    assert store.look_after_directories()
    assert set(store.ids()) == {id_of(number) for number, where in homes.items() if where != "a"}
    append(store, 200, b"x")
    assert home(store, 200) != "a"


def test_metrics_name_each_disk(store: FileStore, roots: list[Path]) -> None:
    fail(roots[1])
    store.look_after_directories()
    told = {metric.name: {sample.labels["directory"]: sample.value for sample in metric.samples}
            for metric in StateMetrics(store, Lease(), Door(store)).collect() if "disk" in metric.name}
    assert told["speedwell_disk_failed"] == {str(roots[0]): 0, str(roots[1]): 1, str(roots[2]): 0}
    for name in ("speedwell_disk_capacity_bytes", "speedwell_disk_available_bytes"):
        assert set(told[name]) == {str(roots[0]), str(roots[2])} and min(told[name].values()) > 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.ENOMEM])
def test_a_disk_has_not_failed_if_it_is_full_or_the_server_is_short_of_something(
        store: FileStore, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr("speedwell.fs.dataserver.disk.data_directory.write_file", raising(number))
    assert not store.look_after_directories()


def test_full_disks_are_used_beside_a_new_one(roots: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with FileStoreOf(roots[:2]) as two:
        append(two, 1, b"one")
    monkeypatch.setattr("speedwell.fs.dataserver.disk.data_directory.write_file", raising(errno.ENOSPC))
    with FileStoreOf(roots) as three:
        assert list(three.directories) == roots and content(three, 1) == b"one"


def test_a_directory_whose_name_is_no_text_is_used_and_told_when_it_fails(roots: list[Path]) -> None:
    odd = roots[1].with_name(os.fsdecode(b"odd\xff"))
    for _ in range(2):
        with FileStoreOf([roots[0], odd]) as store:
            assert [use.path for use in store.directories.uses() if not use.failure][1].endswith("odd\ufffd")
    (odd / "dataserver").unlink()
    (odd / "dataserver").mkdir()    # it cannot be claimed
    with FileStoreOf([roots[0], odd]) as store:
        [use] = [each for each in store.directories.uses() if each.failure]
        assert use.path.endswith("odd\ufffd") and "odd\ufffd" in use.failure


def raising(number: int) -> Callable[..., None]:
    def write_file(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return write_file


def test_nothing_is_read_on_a_failed_disk_after_many_deletions(store: FileStore, roots: list[Path],
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speedwell.fs.dataserver.disk.store.MOST_FORSAKEN", 2)
    homes = filled(store)
    first, second, third, fourth = [number for number, where in homes.items() if where == "b"][:4]
    fail(roots[1])
    assert store.look_after_directories()
    store.delete(id_of(first))
    assert content(store, third) == b"%d" % third
    store.delete(id_of(second))
    with pytest.raises(NoSuchFile):
        content(store, fourth)


def test_what_was_made_anew_after_a_deletion_is_read_on_a_disk_that_fails_later(
        store: FileStore, roots: list[Path]) -> None:
    append(store, 1, b"old")
    first = home(store, 1)
    fail(roots[NAMES.index(first)])
    assert store.look_after_directories()
    store.begin_anew(id_of(1), 7)
    append(store, 1, b"anew", epoch=2)
    fail(roots[NAMES.index(home(store, 1))])
    assert store.look_after_directories()
    assert content(store, 1) == b"anew"


def test_a_directory_that_is_empty_at_the_start_is_a_disk_that_is_not_mounted(
        store: FileStore, roots: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    homes = filled(store)
    store.close()
    for damage in ("gone", "empty"):
        if damage == "gone":
            roots[1].rename(roots[1].with_name("elsewhere"))
        else:
            roots[1].mkdir()
        again = FileStore(roots, "d0")
        assert "mount its disk" in caplog.text and "--accept-empty" in caplog.text
        assert set(again.ids()) == {id_of(number) for number, where in homes.items() if where != "b"}
        assert [use.path for use in again.directories.uses() if use.failure] == [str(roots[1])]
        again.close()
        caplog.clear()
    with FileStoreOf(roots, accept_empty=True) as accepted:
        assert len(list(accepted.directories)) == 3
    with FileStoreOf(roots) as later:
        assert len(list(later.directories)) == 3


class FileStoreOf:
    """A store for the time of a `with`."""

    def __init__(self, roots: Sequence[Path], **options: bool) -> None:
        self._store = FileStore(roots, "d0", **options)

    def __enter__(self) -> FileStore:
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


def test_a_directory_more_or_less_is_fine(roots: list[Path]) -> None:
    with FileStoreOf(roots[:1]) as one:
        append(one, 1, b"one")
    with FileStoreOf(roots) as three:
        assert content(three, 1) == b"one"
        homes = filled(three)
    with FileStoreOf(roots[:2]) as two:
        assert len(list(two.ids())) == sum(where != "c" for where in homes.values())


def test_a_foreign_directory_ends_the_start_and_stays_as_it_is(roots: list[Path]) -> None:
    FileStore(roots[1], "d7").close()
    with pytest.raises(StorageFailed, match="belongs to the dataserver 'd7'"):
        FileStore(roots, "d0")
    with FileStoreOf([roots[0], roots[2]]):
        pass    # nothing holds the others
    file = roots[0].with_name("file")
    file.touch()
    with pytest.raises(StorageFailed, match="it is none"):
        FileStore([roots[0], file], "d0")


def test_directories_do_not_lie_in_each_other(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for other in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "link"):
        with pytest.raises(InvalidArgument, match="each needs a disk of its own"):
            FileStore([tmp_path / "a", other], "d0")


def test_directories_of_two_namespaces_are_refused_and_a_new_one_gets_that_of_the_others(roots: list[Path]) -> None:
    for root in roots:
        root.mkdir()
    Identity(roots[:1], lambda: False).check(HeartbeatReply(namespace=b"one"))
    assert Identity(roots, lambda: True).namespace == b"one"
    assert Identity(roots[2:], lambda: True).namespace == b"one"
    (roots[1] / "namespace").unlink()
    Identity(roots[1:2], lambda: False).check(HeartbeatReply(namespace=b"two"))
    with pytest.raises(StorageFailed, match=r"different namespaces: .*a to 6f6e65, .*b to 74776f"):
        Identity(roots, lambda: True)


def test_quarantine_keeps_each_content_on_its_disk_and_gives_it_back(store: FileStore, roots: list[Path]) -> None:
    homes = filled(store, 30)
    quarantine = Quarantine(store)
    for number in homes:
        quarantine.put(id_of(number))
    assert not list(store.ids())
    for root in roots:
        assert len(list((root / "quarantine").glob("*-*"))) == sum(where == root.name for where in homes.values())
    again = Quarantine(store)
    assert [report.file_id for report in again.reports("", 100)] == [id_of(number) for number in homes]
    for number, where in homes.items():
        assert again.restore(id_of(number)) and home(store, number) == where


def test_a_content_that_was_put_aside_on_two_disks_is_kept_once_and_its_newer_one_comes_back(
        store: FileStore, roots: list[Path]) -> None:
    for root, body in ((roots[0], b"older"), (roots[1], b"newer")):
        with FileStoreOf([root.with_name(f"{root.name}-alone")]) as alone:
            append(alone, 1, body)
            Quarantine(alone, 1000 if body == b"older" else 2000).put(id_of(1))
        for path in root.with_name(f"{root.name}-alone").glob("quarantine/*-*"):
            (root / "quarantine").mkdir(exist_ok=True)
            path.rename(root / "quarantine" / path.name)
    quarantine = Quarantine(store)
    assert len(quarantine.reports("", 10)) == 1 and not list((roots[0] / "quarantine").glob("*-*"))
    assert quarantine.restore(id_of(1)) and content(store, 1) == b"newer"


def test_a_content_that_was_made_anew_is_held_whatever_was_put_aside_on_a_disk_that_comes_back(
        store: FileStore) -> None:
    append(store, 1, b"old")
    quarantine = Quarantine(store)
    quarantine.put(id_of(1))
    append(store, 1, b"anew")
    contents = Contents(store, quarantine)
    contents.compare([FileReport(file_id=id_of(1), inode=7)], ())
    assert not contents.lost and content(store, 1) == b"anew" and len(quarantine.reports("", 10)) == 1


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The names of directories whose disks answer no write, without an error."""
    names, ended = set[str](), threading.Event()

    def write(path: str, content: bytes, sync: bool = False) -> None:
        if path.startswith(tuple(f"{root}/" for root in names)):
            ended.wait(60)
        write_file(path, content, sync)

    monkeypatch.setattr("speedwell.fs.dataserver.disk.data_directory.write_file", write)
    monkeypatch.setattr("speedwell.fs.dataserver.disk.data_directory.HANG_SECONDS", 2.0)
    monkeypatch.setattr("speedwell.fs.dataserver.disk.data_directory.GRACE_SECONDS", 1.0)
    yield names
    ended.set()


def test_a_server_ends_when_a_disk_hangs_and_not_before(
        store: FileStore, roots: list[Path], hangs: set[str], monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("speedwell.fs.dataserver.disk.watch.INTERVAL_SECONDS", 0.01)
    ended = threading.Event()
    watch = Watch(store.directories, ended.set)
    watch.start()
    assert not ended.wait(0.5)
    hangs.add(str(roots[1]))
    assert ended.wait(30)
    assert "b has not answered for 2 s: this dataserver ends" in caplog.text
    watch.stop()


def test_a_disk_that_answers_with_an_error_does_not_hang(store: FileStore, roots: list[Path]) -> None:
    fail(roots[1])
    store.directories.require_answers()


def test_a_server_starts_without_a_disk_that_hangs_and_touches_it_no_more(
        store: FileStore, roots: list[Path], hangs: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    homes = filled(store)
    store.close()
    (roots[1] / "directories").write_text("others\n")     # so that it is written at the start
    hangs.add(str(roots[1]))
    with FileStoreOf(roots) as again:
        [use] = [use for use in again.directories.uses() if use.failure]
        assert use.path == str(roots[1]) and "has not answered" in use.failure
        monkeypatch.setattr(Directory, "erase", only_where(roots[0], roots[2]))
        for number, where in homes.items():
            if where == "b":
                with pytest.raises(NoSuchFile):
                    content(again, number)
                append(again, number, b"anew", epoch=2)
            else:
                assert content(again, number) == b"%d" % number
            again.delete(id_of(number))


def only_where(*roots: Path) -> Callable[[Directory, str], None]:
    def erase(directory: Directory, file_id: str) -> None:
        assert directory.path in roots, "its disk hangs"

    return erase


def fill(monkeypatch: pytest.MonkeyPatch, *full: str) -> None:
    """No file may grow any more on these disks."""
    monkeypatch.setattr(Directory, "free_bytes", lambda self: 0 if self.path.name in full else 1 << 30)


def grow(store: FileStore, number: int, data: bytes) -> None:
    """As an append does that comes over the network."""
    with store.opened(id_of(number)) as file:
        store.make_room(file, len(data))
    append(store, number, data)


@pytest.mark.parametrize("size_bytes", [10, 1 << 20])
def test_a_file_whose_disk_is_full_moves_and_grows_while_it_is_read(
        store: FileStore, roots: list[Path], monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    body, more = os.urandom(size_bytes), os.urandom(size_bytes)
    append(store, 1, body)
    before = home(store, 1)
    fill(monkeypatch, before)
    with store.opened(id_of(1)) as file, ThreadPoolExecutor(1) as pool:
        sync(file)
        ended = threading.Event()
        reading = pool.submit(lambda: [file.read(0, size_bytes) == body for _ in iter(ended.is_set, True)])
        store.make_room(file, len(more))
        ended.set()
        assert all(reading.result(60))
    grow(store, 1, more)
    after = home(store, 1)
    assert after != before and content(store, 1) == body + more
    assert not list((roots[0].parent / before).glob("*/*23abcd*")) and not list(roots[0].parent.glob("*/making/*"))
    store.close()
    with FileStoreOf(roots) as again:
        assert home(again, 1) == after and content(again, 1) == body + more
        with again.opened(id_of(1)) as file:
            assert list(blocks_to_verify(file, file.committed)) == list(range(blocks_of(2 * size_bytes)))
            for block in range(blocks_of(2 * size_bytes)):
                file.verified_block(block, file.committed)


def test_a_file_stays_where_it_is_if_no_disk_has_room_or_it_is_too_long_to_move(
        store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    append(store, 1, b"stays")
    before = home(store, 1)
    fill(monkeypatch, *NAMES)
    grow(store, 1, b" here")
    assert home(store, 1) == before
    fill(monkeypatch, before)
    monkeypatch.setattr("speedwell.fs.dataserver.disk.store.MOVED_BYTES", 0)
    grow(store, 1, b"!")
    assert home(store, 1) == before and content(store, 1) == b"stays here!"


def test_a_move_that_fails_leaves_the_file_as_it_was(
        store: FileStore, roots: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    append(store, 1, bytes(1 << 20))
    before = home(store, 1)
    fill(monkeypatch, before)
    monkeypatch.setattr("speedwell.fs.dataserver.disk.moving.copy_sparse", raising(errno.ENOSPC))
    grow(store, 1, b"more")
    assert home(store, 1) == before and content(store, 1) == bytes(1 << 20) + b"more"
    assert len(list(roots[0].parent.glob("*/*/*23abcd*"))) == 1


def test_a_server_that_dies_amid_a_move_has_the_file_once(
        store: FileStore, roots: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        append(store, number, b"%d" % number)
    monkeypatch.setattr(Directory, "erase", lambda self, file_id: None)
    for number in range(20):
        fill(monkeypatch, home(store, number))
        grow(store, number, b"")
    monkeypatch.undo()
    store.close()
    with FileStoreOf(roots) as again:
        assert len(list(again.ids())) == 20
        assert [content(again, number) for number in range(20)] == [b"%d" % number for number in range(20)]


STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 7), st.binary(min_size=1, max_size=20)),
    st.tuples(st.just("fail"), st.integers(0, 2), st.none()),
    st.tuples(st.just("remake"), st.integers(0, 7), st.none()),
    st.tuples(st.just("delete"), st.integers(0, 7), st.none()),
    st.tuples(st.just("restart"), st.none(), st.none()))


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(STEP, max_size=25))
def test_whatever_fails_files_on_sound_disks_are_what_was_written_and_the_newest_one_counts(
        tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, bytes]]) -> None:
    """`remake` is what recovery does: what was lost is made anew from another replica, in a newer epoch."""
    logging.disable(logging.CRITICAL)
    base = tmp_path_factory.mktemp("directories")
    roots = [base / name for name in NAMES]
    with patch("os.fsync"):     # nothing here ends with the power
        go_through(roots, steps)


def go_through(roots: list[Path], steps: list[tuple[str, int, bytes]]) -> None:
    store, written, epoch = FileStore(roots, "d0"), dict[int, bytes](), 1
    try:
        for step, number, data in steps:
            failed = {use.path.rpartition("/")[2] for use in store.directories.uses() if use.failure}
            if step == "append":
                try:
                    append(store, number, data, epoch)
                    written[number] = written.get(number, b"") + data
                except StorageFailed:
                    assert failed
            elif step == "fail" and len(failed) < 2:
                fail(roots[number])
                store.look_after_directories()
            elif step == "remake" and number in written and home(store, number) in failed:
                epoch += 1
                store.begin_anew(id_of(number), 7)
                append(store, number, written[number], epoch)
                assert home(store, number) not in failed
            elif step == "delete":
                store.delete(id_of(number))
                store.begin_anew(id_of(number), 7)
                written.pop(number, None)
            elif step == "restart":
                store.close()
                for root in roots:
                    mend(root)
                store = FileStore(roots, "d0")
            for known, expected in written.items():
                assert content(store, known) == expected
            assert len(list(store.ids())) == len(set(store.ids()))
            for unknown in set(range(8)) - written.keys():
                with pytest.raises(SpeedwellError):
                    content(store, unknown)
    finally:
        logging.disable(logging.NOTSET)
        store.close()
