"""New versions of a file on a dataserver: their content, what they share, and that old ones stay."""

import os
import time
import uuid
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.fs.checksums import BLOCK_BYTES, SUM_BYTES, blocks_of, digest
from speedwell.fs.dataserver.disk.holes import blocks_to_verify, holes
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.replication.append_writer import AppendWriter
from speedwell.fs.dataserver.replication.version_writer import MAX_SOURCES, Change, VersionWriter
from speedwell.fs.errors import NoSuchFile, StorageFailed
from speedwell.fs.limits import MAX_FILE_BYTES

CHUNK_BYTES = 3 * BLOCK_BYTES + 100


def new_id() -> str:
    return str(uuid.uuid4())


def append(store: FileStore, file_id: str, data: bytes, chunk_size: int = CHUNK_BYTES) -> None:
    with store.opened_for_append(file_id, 7, b"/a", chunk_size) as file, file.turn:
        writer = AppendWriter(file)
        writer.write(memoryview(data))
        writer.commit()


def write(store: FileStore, base_id: str, change: Change, data: bytes, *, finish: bool = True) -> str:
    """Make a version; the bytes come in pieces that respect no border."""
    with store.opened(base_id) as base:
        file = store.new_version(new_id(), base, 7, b"/a", base.chunk_size)
        writer = VersionWriter(store, file, base, base.committed, change)
        try:
            writer.begin()
            for start in range(0, len(data), 50_001):
                writer.write(memoryview(data)[start:start + 50_001])
            if finish:
                writer.prepare()
                assert b"".join(os.pread(fd, count, at) for fd, at, count in writer.segments()) == data
                writer.commit()
        finally:
            writer.abort()
    return file.file_id


def content(store: FileStore, file_id: str) -> bytes:
    """The content, each block compared with its sum."""
    with store.opened(file_id) as file:
        data = b"".join(file.verified_block(block, file.committed) for block in range(blocks_of(file.length)))
        assert file.read(0, file.length) == data
        return data


def changed(old: bytes, change: Change, data: bytes) -> bytes:
    """What the new version is to hold."""
    result = bytearray(old[:min(change.keep, change.size)])
    result += bytes(change.size - len(result))
    for begin, end in change.zeros:
        end = min(end, change.size)
        if end > begin:
            result[begin:end] = bytes(end - begin)
    for begin, end in change.ranges:
        result[begin:end], data = data[:end - begin], data[end - begin:]
    return bytes(result)


OFFSETS = st.one_of(st.integers(0, 9 * BLOCK_BYTES),
                    st.builds(lambda block, more: max(0, block * BLOCK_BYTES + more), st.integers(0, 9),
                              st.integers(-2, 2)))


@dataclass
class Step:
    change: Change
    data: bytes
    append: bytes
    reopen: bool
    ids: list[str] = field(default_factory=list)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    size = draw(OFFSETS)
    edges = sorted(draw(st.sets(OFFSETS, max_size=8)))
    pieces = [(begin, min(end, size)) for begin, end in pairwise(edges) if begin < min(end, size)]
    ranges, zeros = pieces[::2], pieces[1::2]
    length = sum(end - begin for begin, end in ranges)
    data = draw(st.integers(1, 255)).to_bytes(1, "big") * length
    return Step(Change(size, draw(OFFSETS), ranges, zeros), data, b"+" * draw(st.sampled_from([0, 0, 5, 70_000])),
                draw(st.booleans()))


@settings(max_examples=80, deadline=None)
@given(first=st.sampled_from([1, BLOCK_BYTES, 200_000, 7 * BLOCK_BYTES]), plan=st.lists(steps(), max_size=5),
       chunk_size=st.sampled_from([CHUNK_BYTES, 1 << 28, 70_001]))
def test_versions_hold_what_a_plain_file_would_and_old_ones_do_not_change(
        tmp_path_factory: pytest.TempPathFactory, first: int, plan: list[Step], chunk_size: int) -> None:
    directory = tmp_path_factory.mktemp("store")
    store = FileStore(directory, "d0")
    current = new_id()
    append(store, current, b"a" * first, chunk_size)
    expected = {current: b"a" * first}
    for step in plan:
        newer = write(store, current, step.change, step.data)
        expected[newer] = changed(expected[current], step.change, step.data)
        if step.append:
            append(store, newer, step.append, chunk_size)
            expected[newer] += step.append
        if step.reopen:
            store.close()
            store = FileStore(directory, "d0")
        for file_id, wanted in expected.items():
            if wanted:
                assert content(store, file_id) == wanted
        if not expected[newer]:
            break
        current = newer
    for old in [file_id for file_id in expected if file_id != current]:
        store.delete(old)
    if expected[current]:
        assert content(store, current) == expected[current]
    store.close()


def test_a_small_change_of_a_large_file_costs_a_block(tmp_path: Path) -> None:
    store = FileStore(tmp_path, "d0")
    base = new_id()
    append(store, base, os.urandom(16 << 20), 1 << 28)
    version = write(store, base, Change(16 << 20, 1 << 62, [(5_000_000, 5_004_096)]), b"x" * 4096)
    place = tmp_path / version[:2] / version
    own = sum(path.stat().st_blocks * 512 for path in place.iterdir() if path.stat().st_nlink == 1)
    assert own <= 2 * BLOCK_BYTES
    assert sorted(path.name for path in place.iterdir()) == ["1", "meta", "p1", "sums"]
    store.close()


def test_a_hole_costs_no_space_and_reads_as_zeros(tmp_path: Path) -> None:
    store = FileStore(tmp_path, "d0")
    base = new_id()
    append(store, base, b"begin", 1 << 28)
    version = write(store, base, Change(1 << 40, 1 << 62), b"")
    place = tmp_path / version[:2] / version
    assert sum(path.stat().st_blocks * 512 for path in place.iterdir()) <= 4 * BLOCK_BYTES
    with store.opened(version) as file:
        assert file.read((1 << 40) - 10, 10) == bytes(10)
        assert file.verified_block(0, file.committed) == b"begin" + bytes(BLOCK_BYTES - 5)
        assert file.verified_block((1 << 24) - 1, file.committed) == bytes(BLOCK_BYTES)
        assert list(blocks_to_verify(file, file.committed)) == [0]
        assert list(holes(file, 7)) == [(BLOCK_BYTES, 1 << 40)]
        with (place / "sums").open("r+b") as sums:
            sums.seek(1_000_000 * SUM_BYTES)
            sums.write(b"bits")
        assert list(blocks_to_verify(file, file.committed)) == [0, 1_000_000]
    store.close()


def test_many_small_versions_do_not_pile_up_files(tmp_path: Path) -> None:
    store = FileStore(tmp_path, "d0")
    current = new_id()
    expected = bytearray(os.urandom(100 * BLOCK_BYTES))
    append(store, current, bytes(expected), 1 << 28)
    for number in range(100):
        at = (number * 37 % 100) * BLOCK_BYTES + 9
        expected[at:at + 3] = b"%03d" % number
        newer = write(store, current, Change(len(expected), 1 << 62, [(at, at + 3)]), b"%03d" % number)
        store.delete(current)
        current = newer
        if number % 10 == 0:
            append(store, current, b"tail", 1 << 28)
            expected += b"tail"
    assert content(store, current) == expected
    assert len(list((tmp_path / current[:2] / current).iterdir())) <= 2 * MAX_SOURCES
    store.close()


def test_a_half_made_version_is_gone_after_a_restart_and_the_old_one_is_whole(tmp_path: Path) -> None:
    store = FileStore(tmp_path, "d0")
    base = new_id()
    append(store, base, b"a" * 100_000)
    with store.opened(base) as file:
        version = store.new_version(new_id(), file, 7, b"/a", CHUNK_BYTES)
        writer = VersionWriter(store, version, file, file.committed, Change(100_000, 1 << 62, [(10, 20)]))
        writer.begin()
        writer.write(memoryview(b"12345"))  # neither finished nor aborted: the process died
    store.close()
    again = FileStore(tmp_path, "d0")
    assert list((tmp_path / "making").iterdir()) == []
    with pytest.raises(NoSuchFile), again.opened(version.file_id):
        pass
    assert content(again, base) == b"a" * 100_000
    again.close()


def test_an_aborted_version_leaves_no_trace(tmp_path: Path) -> None:
    store = FileStore(tmp_path, "d0")
    base = new_id()
    append(store, base, b"a" * 200_000)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    write(store, base, Change(200_000, 1 << 62, [(10, 20)]), b"12345", finish=False)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    store.close()


def test_a_damaged_block_does_not_become_a_good_one_by_a_change_beside_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path, "d0")
    base = new_id()
    append(store, base, b"a" * 200_000, 1 << 28)
    with (tmp_path / base[:2] / base / "1").open("r+b") as chunk:
        chunk.write(b"b")
    with pytest.raises(StorageFailed, match="block 0"):
        write(store, base, Change(200_000, 1 << 62, [(10, 20)]), b"1234567890")
    store.close()


@pytest.mark.parametrize("blocks", [(), (0,), (20_000, 39_999), (39_998,)])
def test_the_digest_of_a_sparse_file_is_that_of_all_its_sums(tmp_path: Path, blocks: tuple[int, ...]) -> None:
    store, base = FileStore(tmp_path, "d0"), new_id()
    append(store, base, b"some")
    size = 40_000 * BLOCK_BYTES - 7
    ranges = [(block * BLOCK_BYTES + 9, block * BLOCK_BYTES + 14) for block in blocks]
    sparse = write(store, base, Change(size, 0, ranges), b"bytes" * len(blocks))
    with store.opened(sparse) as file:
        for first, end in ((0, 40_000), (3, 39_999), (2_000, 40_000)):
            assert file.digest(first, end, file.committed) == digest(file.sums(first, end, file.committed))
        os.truncate(f"{file.directory}/sums", SUM_BYTES)
        with pytest.raises(StorageFailed, match="cut off"):
            file.digest(0, 40_000, file.committed)


def test_the_longest_file_there_can_be_is_compared_and_verified_at_once(tmp_path: Path) -> None:
    store, base = FileStore(tmp_path, "d0"), new_id()
    append(store, base, b"some")
    longest = write(store, base, Change(MAX_FILE_BYTES, 4), b"")
    with store.opened(longest) as file:
        began = time.thread_time()
        file.digest(0, blocks_of(file.length), file.committed)
        assert list(blocks_to_verify(file, file.committed)) == [0]
        assert time.thread_time() - began < 2
