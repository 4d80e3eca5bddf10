"""The dataserver's store: committed bytes stay, others leave no trace."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.fs.checksums import BLOCK_BYTES
from speedwell.fs.dataserver.disk.holes import blocks_to_verify, holes
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.disk.stored_file import StoredFile
from speedwell.fs.dataserver.replication.append_writer import AppendWriter
from speedwell.fs.errors import InvalidArgument, NoSuchFile, StorageFailed

FILE_ID = "0123abcd-0000-4000-8000-00000000000a"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    store = FileStore(tmp_path, "d0")
    yield store
    store.close()


def append(store: FileStore, data: bytes, *, file_id: str = FILE_ID, chunk_size: int = 10,
           commit: bool = True) -> None:
    with store.opened_for_append(file_id, 7, b"/a/b", chunk_size) as file, file.turn:
        writer = AppendWriter(file)
        writer.write(memoryview(data))
        if commit:
            writer.commit()
        else:
            writer.abort()


def content(store: FileStore, offset: int = 0, length: int | None = None, file_id: str = FILE_ID) -> bytes:
    with store.opened(file_id) as file:
        wanted = file.length - offset if length is None else length
        return b"".join(os.pread(descriptor, count, start)
                        for descriptor, start, count in file.segments(offset, wanted))


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_chunks_are_numbered_files_in_a_directory_named_by_the_file_id(store: FileStore) -> None:
    append(store, b"0123456789abcdefghijXYZ")
    place = f"01/{FILE_ID}"
    assert names(store.directory) == {"boot", "dataserver", f"{place}/meta", f"{place}/1", f"{place}/2", f"{place}/3"}
    assert (store.directory / place / "2").read_bytes() == b"abcdefghij"


@settings(max_examples=50)
@given(appends=st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.booleans()), max_size=8),
       chunk_size=st.integers(1, 15))
def test_the_content_is_what_was_committed_also_after_reopening(
        tmp_path_factory: pytest.TempPathFactory, appends: list[tuple[bytes, bool]], chunk_size: int) -> None:
    directory = tmp_path_factory.mktemp("store")
    store = FileStore(directory, "d0")
    for data, commit in appends:
        append(store, data, chunk_size=chunk_size, commit=commit)
    expected = b"".join(data for data, commit in appends if commit)
    for _ in range(2):
        if expected:
            assert content(store) == expected
            middle = len(expected) // 2
            assert content(store, middle, 1) == expected[middle:middle + 1]
        else:
            with pytest.raises(NoSuchFile), store.opened(FILE_ID):
                pass
        store.close()
        store = FileStore(directory, "d0")
    store.close()


def test_an_aborted_append_gives_its_space_back(store: FileStore) -> None:
    append(store, b"committed!!")
    before = {path: path.read_bytes() for path in store.directory.rglob("*") if path.is_file()}
    append(store, b"x" * 35, commit=False)
    assert {path: path.read_bytes() for path in store.directory.rglob("*") if path.is_file()} == before


def test_an_aborted_first_append_leaves_no_file(store: FileStore) -> None:
    append(store, b"x" * 35, commit=False)
    assert names(store.directory) == {"boot", "dataserver"}


def test_bytes_beyond_the_committed_length_are_overwritten_after_a_crash(store: FileStore) -> None:
    append(store, b"abc")
    with store.opened_for_append(FILE_ID, 7, b"/a/b", 10) as file:
        AppendWriter(file).write(memoryview(b"LOST" * 5))  # neither commit nor abort: the process died
    store.close()
    again = FileStore(store.directory, "d0")
    assert content(again) == b"abc"
    append(again, b"def")
    assert content(again) == b"abcdef"
    again.close()


def test_zeros_of_a_copy_are_holes_in_which_a_crash_leaves_nothing(store: FileStore) -> None:
    chunk_size = 16 * BLOCK_BYTES
    data = b"begin" + bytes(40 * BLOCK_BYTES) + b"end"
    with store.opened_for_append(FILE_ID, 7, b"/a/b", chunk_size) as file, file.turn:
        AppendWriter(file).write(memoryview(b"LOST" * BLOCK_BYTES))  # neither commit nor abort: the process died
        writer = AppendWriter(file, holes=True)
        for start in range(0, len(data), 2 * BLOCK_BYTES):
            writer.write(memoryview(data)[start:start + 2 * BLOCK_BYTES])
        writer.commit()
        assert list(blocks_to_verify(file, file.committed)) == [0, 1, 40]
        assert list(holes(file, 0)) == [(2 * BLOCK_BYTES, 40 * BLOCK_BYTES)]
        assert list(holes(file, 5 * BLOCK_BYTES)) == [(5 * BLOCK_BYTES, 40 * BLOCK_BYTES)]
    assert content(store) == data
    place = store.directory / "01" / FILE_ID
    assert sum((place / name).stat().st_blocks for name in "123") * 512 <= 6 * BLOCK_BYTES


def test_reads_see_only_committed_bytes_while_an_append_is_under_way(store: FileStore) -> None:
    append(store, b"abc")
    with store.opened_for_append(FILE_ID, 7, b"/a/b", 10) as file, file.turn:
        writer = AppendWriter(file)
        writer.write(memoryview(b"x" * 20))
        assert content(store) == b"abc"
        writer.commit()
        assert content(store) == b"abc" + b"x" * 20


def test_a_missing_or_short_chunk_is_an_error_not_wrong_data(store: FileStore) -> None:
    append(store, b"x" * 25)
    chunk = store.directory / "01" / FILE_ID / "2"
    os.truncate(chunk, 5)
    with pytest.raises(StorageFailed, match="chunk 2"):
        content(store)
    chunk.unlink()
    with pytest.raises(StorageFailed, match="chunk 2"):
        content(store)
    assert content(store, 0, 10) == b"x" * 10


def test_a_damaged_meta_is_an_error(store: FileStore) -> None:
    append(store, b"abc")
    store.close()
    (store.directory / "01" / FILE_ID / "meta").write_text("not a length at all")
    again = FileStore(store.directory, "d0")
    with pytest.raises(StorageFailed, match="damaged"), again.opened(FILE_ID):
        pass
    again.close()


def test_a_file_whose_making_was_cut_off_is_made_anew(store: FileStore) -> None:
    directory = store.directory / "01" / FILE_ID
    directory.mkdir(parents=True)
    (directory / "meta").touch()
    with pytest.raises(NoSuchFile):
        content(store)
    append(store, b"abc")
    assert content(store) == b"abc"


def test_a_deleted_file_is_gone_and_does_not_come_back_by_a_late_append(store: FileStore) -> None:
    append(store, b"abc")
    store.delete(FILE_ID)
    store.delete(FILE_ID)
    assert names(store.directory) == {"boot", "dataserver"}
    with pytest.raises(NoSuchFile):
        content(store)
    with pytest.raises(NoSuchFile):
        append(store, b"late")
    assert names(store.directory) == {"boot", "dataserver"}


def test_a_content_is_begun_anew_for_its_own_file_alone(store: FileStore) -> None:
    append(store, b"abc")
    with pytest.raises(InvalidArgument, match="another file than inode 8"):
        store.begin_anew(FILE_ID, 8)
    assert content(store) == b"abc"
    store.begin_anew(FILE_ID, 7)
    append(store, b"new")
    assert content(store) == b"new"


def test_an_append_to_a_file_deleted_meanwhile_fails(store: FileStore) -> None:
    append(store, b"abc")
    with store.opened_for_append(FILE_ID, 7, b"/a/b", 10) as file:
        writer = AppendWriter(file)
        writer.write(memoryview(b"late"))
        store.delete(FILE_ID)
        with pytest.raises(StorageFailed):
            writer.commit()


@pytest.mark.parametrize("file_id", ["", "..", "../../etc/passwd", FILE_ID.upper(), FILE_ID + "/", "0" * 36,
                                     "a" * 5000])
def test_a_file_id_that_is_no_uuid_is_refused(store: FileStore, file_id: str) -> None:
    with pytest.raises(InvalidArgument, match="file_id"), store.opened(file_id):
        pass
    with pytest.raises(InvalidArgument, match="file_id"):
        append(store, b"x", file_id=file_id)
    with pytest.raises(InvalidArgument, match="file_id"):
        store.delete(file_id)


def test_another_chunk_size_for_a_known_file_is_refused(store: FileStore) -> None:
    append(store, b"abc")
    with pytest.raises(InvalidArgument, match="chunk_size"):
        append(store, b"abc", chunk_size=11)


def test_a_directory_serves_one_process_and_one_dataserver(store: FileStore) -> None:
    with pytest.raises(StorageFailed, match="another dataserver is running"):
        FileStore(store.directory, "d0")
    store.close()
    with pytest.raises(StorageFailed, match="belongs to the dataserver 'd0'"):
        FileStore(store.directory, "d1")


def test_a_path_of_any_bytes_survives_in_the_meta_file(store: FileStore) -> None:
    path = b"/\xff\xfe\n\"name\\"
    with store.opened_for_append(FILE_ID, 7, path, 10) as file, file.turn:
        writer = AppendWriter(file)
        writer.write(memoryview(b"abc"))
        writer.commit()
    store.close()
    again = FileStore(store.directory, "d0")
    with again.opened(FILE_ID) as file:
        assert (file.path, file.inode, file.chunk_size, file.length) == (path, 7, 10, 3)
    again.close()


def test_lengths_to_report_are_taken_once_and_a_newer_one_wins(store: FileStore) -> None:
    ids = [str(uuid.uuid4()) for _ in range(3)]
    files: list[StoredFile] = []
    for file_id in ids:
        append(store, b"abc", file_id=file_id)
        with store.opened(file_id) as file:
            store.grown.note(file)
            files.append(file)
    taken = store.grown.take(2)
    assert len(taken) == 2 and len(store.grown.take(10)) == 1 and store.grown.take(10) == []
    append(store, b"more", file_id=taken[0].file_id)
    with store.opened(taken[0].file_id) as file:
        store.grown.note(file)
    store.grown.put_back(taken)
    assert {length.file_id: length.size for length in store.grown.take(10)} == {
        taken[0].file_id: 7, taken[1].file_id: 3}


def test_all_files_on_disk_are_listed(store: FileStore) -> None:
    ids = {str(uuid.uuid4()) for _ in range(20)}
    for file_id in ids:
        append(store, b"abc", file_id=file_id)
    assert set(store.ids()) == ids


def test_new_files_are_offered_less_than_the_disk_has_free(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    for reserved, expected in ((0, free), (free // 2, free // 2), (2 * free, 0), (None, free - (1 << 30))):
        store = FileStore(tmp_path / f"{reserved}", "d0", reserved)
        if reserved is None and disk.f_blocks * disk.f_frsize < 50 << 30:
            expected = free - disk.f_blocks * disk.f_frsize // 50
        [use] = store.directories.uses()
        assert use.capacity_bytes == disk.f_blocks * disk.f_frsize
        assert abs(use.available_bytes - max(0, expected)) < max(64 << 20, free // 20)    # others write meanwhile
        store.close()
