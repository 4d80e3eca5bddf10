"""Sums of blocks: those of the store are those of its content, whichever way it was written."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.fs import checksums
from speedwell.fs.checksums import BLOCK_BYTES, block_sum, blocks_of, extended
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.replication.append_writer import AppendWriter
from speedwell.fs.errors import StorageFailed

FILE_ID = "0123abcd-0000-4000-8000-00000000000a"


def test_a_block_of_zeros_has_the_sum_zero() -> None:
    assert block_sum(bytes(BLOCK_BYTES)) == 0
    assert block_sum(b"") == checksums.EMPTY


@given(first=st.binary(max_size=100), second=st.binary(max_size=100))
def test_a_sum_can_be_extended(first: bytes, second: bytes) -> None:
    assert extended(block_sum(first), second) == block_sum(first + second)


@given(count=st.integers(0, 300_000), before=st.integers(0, 2**32 - 1))
def test_the_digest_of_zeros_is_that_of_as_many_zero_bytes(count: int, before: int) -> None:
    assert checksums.digest_of_zeros(count, before) == checksums.digest(bytes(count), before)


def test_sums_survive_packing() -> None:
    assert checksums.unpack(checksums.pack([0, 1, 2**32 - 1]) + b"xy") == (0, 1, 2**32 - 1)


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.sampled_from([1, 7, 4096, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 200_000]),
                        min_size=1, max_size=8),
       aborted=st.sets(st.integers(0, 7)), chunk_size=st.sampled_from([10_000, BLOCK_BYTES, 150_000, 1 << 28]))
def test_every_block_of_an_appended_file_has_its_sum_also_after_reopening(
        tmp_path_factory: pytest.TempPathFactory, lengths: list[int], aborted: set[int], chunk_size: int) -> None:
    directory = tmp_path_factory.mktemp("store")
    store = FileStore(directory, "d0")
    content = b""
    for number, length in enumerate(lengths):
        data = bytes([number + 1]) * length
        with store.opened_for_append(FILE_ID, 7, b"/a", chunk_size) as file, file.turn:
            writer = AppendWriter(file)
            writer.write(memoryview(data)[:length // 2])
            writer.write(memoryview(data)[length // 2:])
            if number in aborted:
                writer.abort()
            else:
                writer.commit()
                content += data
        store.close()
        store = FileStore(directory, "d0")
        if content:
            with store.opened(FILE_ID) as file:
                read = [file.verified_block(block, file.committed) for block in range(blocks_of(len(content)))]
                assert b"".join(read) == content
    store.close()


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    store = FileStore(tmp_path, "d0")
    with store.opened_for_append(FILE_ID, 7, b"/a", 1 << 28) as file, file.turn:
        writer = AppendWriter(file)
        writer.write(memoryview(b"x" * 200_000))
        writer.commit()
        chunk = tmp_path / "01" / FILE_ID / "1"
        with chunk.open("r+b") as raw:
            raw.seek(70_000)
            raw.write(b"y")
        assert file.verified_block(0, file.committed) == b"x" * BLOCK_BYTES
        with pytest.raises(StorageFailed, match="block 1"):
            file.verified_block(1, file.committed)
    store.close()
