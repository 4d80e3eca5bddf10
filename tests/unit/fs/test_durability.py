"""What is left of a file when the machine has lost its power: at least what was synced, and nothing torn."""

import os
import random
import shutil
from pathlib import Path

import pytest

from speedwell.fs.checksums import BLOCK_BYTES
from speedwell.fs.dataserver.disk import durability
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.replication.append_writer import AppendWriter

FILE_ID = "0123abcd-0000-4000-8000-00000000000a"
CHUNK_BYTES = 3 * BLOCK_BYTES


def append(store: FileStore, data: bytes, expected_bytes: int) -> None:
    with store.opened_for_append(FILE_ID, 7, b"/a", CHUNK_BYTES, expected_bytes) as file, file.turn:
        writer = AppendWriter(file)
        writer.write(memoryview(data))
        writer.commit()


def after_reboot(directory: Path) -> tuple[int, bytes]:
    """Length and content of the file once a dataserver has started on what the disk has."""
    (directory / "boot").write_bytes(b"another")
    store = FileStore(directory, "d0")
    try:
        with store.opened(FILE_ID) as file:
            blocks = range(-(-file.length // BLOCK_BYTES))
            return file.length, b"".join(file.verified_block(block, file.committed) for block in blocks)
    finally:
        store.close()


@pytest.mark.parametrize("first, more", [(10, 20), (100, 2 * BLOCK_BYTES), (BLOCK_BYTES, 5), (200_000, 300_000),
                                         (CHUNK_BYTES, CHUNK_BYTES)])
@pytest.mark.parametrize("lost", ["data", "sums", "record"])
def test_an_append_that_reached_the_disk_in_part_takes_nothing_synced_with_it(
        tmp_path: Path, first: int, more: int, lost: str) -> None:
    """The bytes, the sums or the record of a second append did not reach the disk."""
    generator = random.Random(first)
    data = generator.randbytes(first)
    store = FileStore(tmp_path / "d", "d0")
    append(store, data, 1 << 20)        # not a small file
    with store.opened(FILE_ID) as file:
        durability.sync(file)
        place = Path(file.directory)
    shutil.copytree(place, tmp_path / "synced")
    append(store, generator.randbytes(more), 0)
    store.close()
    for path in list(place.iterdir()):
        kind = {"meta": "record", "sums": "sums"}.get(path.name, "data")
        if kind == lost:
            path.unlink()
            if (tmp_path / "synced" / path.name).exists():
                shutil.copyfile(tmp_path / "synced" / path.name, path)
    length, content = after_reboot(tmp_path / "d")
    assert first <= length <= first + more
    assert content[:first] == data


def test_a_small_file_that_lost_its_last_bytes_is_cut_to_what_was_synced(tmp_path: Path) -> None:
    store = FileStore(tmp_path, "d0")
    append(store, b"synced", 6)
    with store.opened(FILE_ID) as file:
        durability.sync(file)
        record = Path(file.record)
    length = record.stat().st_size
    append(store, b" and lost", 0)
    store.close()
    with record.open("r+b") as stream:
        stream.truncate(length)
    assert after_reboot(tmp_path) == (6, b"synced")


def test_a_slot_that_was_being_written_leaves_the_one_before(tmp_path: Path) -> None:
    store = FileStore(tmp_path, "d0")
    for number in range(3):
        append(store, b"%d" % number * 100, 100)
        with store.opened(FILE_ID) as file:
            durability.sync(file)
            slots = durability._read_slots(file)
            assert max(slot[0] for slot in slots if slot) == 100 * (number + 1)
    with store.opened(FILE_ID) as file:
        newest = max(range(2), key=lambda number: (durability._read_slots(file)[number] or (0, 0))[0])
        durability._put_slot(file, newest, b"torn")
        assert [slot for slot in durability._read_slots(file) if slot] == [(200, slots[1 - newest][1])]  # type: ignore[index]
    store.close()
    assert after_reboot(tmp_path)[0] == 300


def test_what_was_written_long_before_the_machine_stopped_is_not_read_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    store = FileStore(tmp_path, "d0")
    append(store, b"old", 3)
    with store.opened(FILE_ID) as file:
        record = file.record
    append_other = "0123abcd-0000-4000-8000-00000000000b"
    with store.opened_for_append(append_other, 8, b"/b", CHUNK_BYTES, 3) as file, file.turn:
        writer = AppendWriter(file)
        writer.write(memoryview(b"new"))
        writer.commit()
    os.utime(record, (1, 1))
    store.close()
    (tmp_path / "boot").write_bytes(b"another")
    seen = []
    monkeypatch.setattr("speedwell.fs.dataserver.disk.store.recover", lambda file: seen.append(file.file_id) or 0)
    FileStore(tmp_path, "d0").close()
    assert seen == [append_other]
