"""Small files on a dataserver's disk: one file each, until they grow."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.fs.checksums import BLOCK_BYTES, blocks_of
from speedwell.fs.dataserver.disk import small_file
from speedwell.fs.dataserver.disk.small_file import enlarge
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.disk.version_file import SMALL_BYTES
from speedwell.fs.dataserver.replication.append_log import Record
from speedwell.fs.dataserver.replication.append_writer import AppendWriter
from speedwell.fs.dataserver.replication.one_change import cut, note
from speedwell.fs.errors import NoSuchFile, StorageFailed

FILE_ID = "0123abcd-0000-4000-8000-00000000000a"
CHUNK_BYTES = 1 << 28


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    store = FileStore(tmp_path, "d0")
    yield store
    store.close()


def append(store: FileStore, data: bytes, *, writer_id: int = 1, commit: bool = True, path: bytes = b"/a") -> None:
    """As a primary does it: the bytes, the note of the append, the commit."""
    with store.opened_for_append(FILE_ID, 7, path, CHUNK_BYTES, len(data)) as file, file.turn:
        writer = AppendWriter(file)
        writer.write(memoryview(data)[:len(data) // 3])
        writer.write(memoryview(data)[len(data) // 3:])
        writer.prepare()
        note(file, [Record(writer_id, 1, file.length, len(data))], 2)
        if commit:
            writer.commit()
        else:
            writer.abort()
            cut(file)


def content(store: FileStore) -> bytes:
    """The content, each block compared with its sum."""
    with store.opened(FILE_ID) as file:
        data = b"".join(file.verified_block(block, file.committed) for block in range(blocks_of(file.length)))
        assert file.read(0, file.length) == data
        return data


def names(store: FileStore) -> set[str]:
    return {str(path.relative_to(store.directory)) for path in store.directory.rglob("*") if path.is_file()} - {
        "boot", "dataserver"}


SMALL = f"01/{FILE_ID}.small"
LARGE = {f"01/{FILE_ID}/{name}" for name in ("meta", "1", "sums")}


def test_a_small_file_is_one_file_of_the_disk(store: FileStore) -> None:
    append(store, b"x" * BLOCK_BYTES)
    assert names(store) == {SMALL}
    assert content(store) == b"x" * BLOCK_BYTES
    assert set(store.ids()) == {FILE_ID}
    store.delete(FILE_ID)
    assert names(store) == set()


def test_a_file_that_grows_gets_a_directory_with_all_that_was_known(store: FileStore) -> None:
    first, second = os.urandom(SMALL_BYTES), os.urandom(5)
    append(store, first)
    assert names(store) == {SMALL}
    append(store, second, writer_id=2)
    assert names(store) == LARGE
    store.close()
    again = FileStore(store.directory, "d0")
    assert content(again) == first + second
    with again.opened(FILE_ID) as file:
        log = file.ordering.log(file.length)
        assert log.epoch == 2
        assert log.beyond(0) == [Record(1, 1, 0, SMALL_BYTES), Record(2, 1, SMALL_BYTES, 5)]
        assert (file.path, file.inode, file.chunk_size) == (b"/a", 7, CHUNK_BYTES)
    assert set(again.ids()) == {FILE_ID}
    again.delete(FILE_ID)
    assert names(again) == set()
    again.close()


def test_a_file_whose_description_has_no_room_has_a_directory(store: FileStore) -> None:
    append(store, b"abc", path=b"/" + b"\xff" * 4000)
    assert SMALL not in names(store)
    assert content(store) == b"abc"


@settings(max_examples=60, deadline=None)
@given(appends=st.lists(st.tuples(st.sampled_from([1, 1000, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1,
                                                   SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1]),
                                  st.booleans(), st.booleans()), min_size=1, max_size=7))
def test_the_content_is_what_was_committed_at_every_size(
        tmp_path_factory: pytest.TempPathFactory, appends: list[tuple[int, bool, bool]]) -> None:
    store = FileStore(tmp_path_factory.mktemp("store"), "d0")
    expected, committed = b"", 0
    for number, (length, commit, reopen) in enumerate(appends):
        data = bytes([number + 1]) * length
        append(store, data, writer_id=number + 1, commit=commit)
        expected += data if commit else b""
        committed += commit
        if reopen:
            store.close()
            store = FileStore(store.directory, "d0")
        if expected:
            assert content(store) == expected
            with store.opened(FILE_ID) as file:
                assert len(file.ordering.log(file.length).beyond(0)) == committed
        else:
            with pytest.raises(NoSuchFile):
                content(store)
    store.close()


def test_bytes_that_did_not_commit_before_a_crash_are_not_there_and_are_overwritten(store: FileStore) -> None:
    append(store, b"abc")
    with store.opened_for_append(FILE_ID, 7, b"/a", CHUNK_BYTES) as file:
        AppendWriter(file).write(memoryview(b"LOST" * 5))  # neither commit nor abort: the process died
    store.close()
    again = FileStore(store.directory, "d0")
    assert content(again) == b"abc"
    append(again, b"def", writer_id=2)
    assert content(again) == b"abcdef"
    again.close()


def test_a_crash_while_a_file_gets_its_directory_loses_nothing(
        store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    append(store, b"abc" * 1000)
    saved = (store.directory / SMALL).read_bytes()

    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    for step in ("rename", "unlink"):
        with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt), store.opened(FILE_ID) as file:
            broken.setattr(small_file.os, step, crash)
            enlarge(file, file.length)
        store.close()
        store = FileStore(store.directory, "d0")
        assert content(store) == b"abc" * 1000
        assert list((store.directory / "making").iterdir()) == []
    assert names(store) == LARGE - {f"01/{FILE_ID}/sums"}
    (store.directory / SMALL).write_bytes(saved)  # found by who removes it
    store.delete(FILE_ID)
    assert names(store) == set()
    store.close()


def test_a_reader_that_has_looked_already_finds_the_bytes_in_the_directory(store: FileStore) -> None:
    append(store, b"x" * BLOCK_BYTES + b"y")
    with store.opened(FILE_ID) as file:
        committed = file.committed
        segments = file.segments(BLOCK_BYTES, 1)
        path, _ = file.located("1", 0)
        enlarge(file, file.length)
        assert not Path(path).exists()
        descriptor, start, count = next(segments)
        assert os.pread(descriptor, count, start) == b"y"
        file.small = True       # as a reader would that looked before
        with pytest.raises(StorageFailed):
            file.read(0, 1)
        file.small = False
        assert file.verified_block(0, committed) == b"x" * BLOCK_BYTES


def test_a_disk_that_refuses_the_directory_leaves_a_small_file(store: FileStore) -> None:
    append(store, b"x" * SMALL_BYTES)
    shutil.rmtree(store.directory / "making")
    with pytest.raises(StorageFailed):
        append(store, b"y" * 10, writer_id=2)
    assert content(store) == b"x" * SMALL_BYTES
    (store.directory / "making").mkdir()
    append(store, b"y" * 10, writer_id=2)
    assert content(store) == b"x" * SMALL_BYTES + b"y" * 10


def test_a_damaged_description_is_an_error(store: FileStore) -> None:
    append(store, b"abc")
    store.close()
    with (store.directory / SMALL).open("r+b") as file:
        file.write(b"x")
    again = FileStore(store.directory, "d0")
    with pytest.raises(StorageFailed, match="damaged"):
        content(again)
    again.close()
