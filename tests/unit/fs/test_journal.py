"""The journal of a store's batches: what was written is read back, by number, also after kill -9 and damage."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.fs.errors import NoSpace
from speedwell.fs.store import change_encoding as records
from speedwell.fs.store.change_encoding import MalformedRecord
from speedwell.fs.store.journal import Journal

changes = st.lists(st.tuples(st.binary(max_size=20), st.one_of(st.none(), st.binary(max_size=50))), max_size=8)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal", last=0, segment_bytes=4096, max_segments=4)
    yield opened
    opened.close()


def body(number: int) -> bytes:
    return records.encode_changes([(b"key%d" % number, bytes([number % 256]) * (number % 300))])


def contents(data: bytes | None) -> list[int]:
    assert data is not None
    found = []
    for number, encoded in records.decode_records(data):
        assert encoded == body(number)
        found.append(number)
    return found


@given(st.lists(changes, max_size=5))
def test_records_are_read_as_they_were_written(batches: list[list[tuple[bytes, bytes | None]]]) -> None:
    data = b"".join(records.encode_record(number, records.encode_changes(batch))
                    for number, batch in enumerate(batches, 1))
    assert [(number, list(records.decode_changes(encoded))) for number, encoded in records.decode_records(data)] == \
        list(enumerate(batches, 1))


@given(changes, st.data())
def test_a_flipped_bit_in_a_record_is_found(batch: list[tuple[bytes, bytes | None]], data: st.DataObject) -> None:
    record = bytearray(records.encode_record(7, records.encode_changes(batch)))
    bit = data.draw(st.integers(0, len(record) * 8 - 1))
    record[bit // 8] ^= 1 << bit % 8
    with pytest.raises(MalformedRecord):
        list(records.decode_records(bytes(record)))


def test_readers_go_on_where_they_were_through_all_segments(journal: Journal) -> None:
    read: list[int] = []
    generator = random.Random(1)
    for number in range(1, 60):
        assert journal.append(body(number)) == number
        while generator.random() < 0.4 and len(read) < number:
            read += contents(journal.read(len(read), number, 700))
    while len(read) < 59:
        read += contents(journal.read(len(read), 59, 700))
    assert read == list(range(1, 60))
    assert journal.read(59, 59, 700) == b""


def test_nothing_behind_the_limit_is_read(journal: Journal) -> None:
    for number in range(1, 6):
        journal.append(body(number))
    assert contents(journal.read(0, 3, 1 << 20)) == [1, 2, 3]


def test_what_was_dropped_is_not_there_any_more(journal: Journal) -> None:
    for number in range(1, 300):
        journal.append(body(number))
    assert journal.first > 1
    assert journal.read(0, 299, 1000) is None
    assert contents(journal.read(journal.first - 1, 299, 1000))[0] == journal.first
    assert journal.first <= 290
    assert [number for number, _ in journal.records(289)] == list(range(290, 300))


def test_a_record_can_be_larger_than_a_segment(journal: Journal) -> None:
    large = records.encode_changes([(b"k", os.urandom(20000))])
    journal.append(body(1))
    journal.append(large)
    journal.append(body(3))
    data = journal.read(1, 3, 100)
    assert data is not None and list(records.decode_records(data)) == [(2, large)]
    assert contents(journal.read(2, 3, 100)) == [3]


def test_a_record_that_was_taken_back_is_written_anew(journal: Journal) -> None:
    for number in range(1, 4):
        journal.append(body(number))
    journal.take_back(2)
    journal.take_back(2)
    assert journal.last == 2
    assert journal.append(body(3)) == 3
    assert contents(journal.read(0, 3, 1 << 20)) == [1, 2, 3]


def test_it_goes_on_after_kill_9(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        writer = Journal(tmp_path, last=0, segment_bytes=4096)
        for number in range(1, 51):
            writer.append(body(number))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    journal = Journal(tmp_path, last=0, segment_bytes=4096)
    assert journal.last == 50
    journal.append(body(51))
    assert [number for number, _ in journal.records(0)] == list(range(1, 52))
    journal.close()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_damage_never_gives_other_records(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    directory = tmp_path_factory.mktemp("journal")
    writer = Journal(directory, last=0, segment_bytes=4096)
    for number in range(1, 41):
        writer.append(body(number))
    writer.close()
    generator = random.Random(seed)
    path = generator.choice(sorted(directory.iterdir()))
    data = bytearray(path.read_bytes())
    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    path.write_bytes(data)
    journal = Journal(directory, last=0, segment_bytes=4096)
    number = 0
    try:
        for number, encoded in journal.records(journal.first - 1):
            assert encoded == body(number)
    except MalformedRecord:
        pass
    assert number <= journal.last <= 40
    journal.close()


def test_a_full_disk_is_told_before_anything_is_written(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.append(body(1))

    def full(descriptor: int, offset: int, count: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoSpace):
        for number in range(2, 100):
            journal.append(body(number))
    last = journal.last
    monkeypatch.undo()
    assert journal.append(body(last + 1)) == last + 1
    assert [number for number, _ in journal.records(0)] == list(range(1, last + 2))
