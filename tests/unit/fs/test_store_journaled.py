"""A store with a journal: it goes on where it was after every kind of end, and its journal repeats its batches."""

import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from speedwell.fs.errors import DatabaseDamaged, StorageFailed
from speedwell.fs.store import Batch, JournaledStore, LevelDBStore, MemoryStore, Position
from speedwell.fs.store.change_encoding import decode_changes
from speedwell.fs.store.journal import Journal
from speedwell.fs.store.journaled import STATE_KEY

START = Position(bytes(range(16)), timeline=1)


def make(directory: Path) -> JournaledStore:
    return JournaledStore.begin(LevelDBStore(directory / "db"), Journal(directory / "journal", last=0), START)


def open_again(directory: Path) -> JournaledStore:
    return JournaledStore(LevelDBStore(directory / "db", create=False), Journal(directory / "journal", last=0))


def batch(**changes: bytes | None) -> Batch:
    made = Batch()
    made.changes.update((key.encode(), value) for key, value in changes.items())
    return made


def history(store: JournaledStore, count: int, seed: int = 1) -> dict[bytes, bytes]:
    """Random batches; what they leave."""
    generator, model = random.Random(seed), dict(store.iterate(b""))
    for _ in range(count):
        made = Batch()
        for _ in range(generator.randrange(1, 5)):
            key = b"k%d" % generator.randrange(50)
            if generator.random() < 0.3:
                made.delete(key)
                model.pop(key, None)
            else:
                value = generator.randbytes(generator.randrange(100))
                made.put(key, value)
                model[key] = value
        store.write(made)
    return model


def test_every_batch_counts_one_and_the_number_is_not_seen(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.write(batch(a=b"1"))
    store.write(batch(b=b"2", a=None))
    assert store.position.sequence == 2
    assert list(store.iterate(b"")) == [(b"b", b"2")]
    store.close()
    again = open_again(tmp_path)
    assert again.position == Position(START.namespace, 1, 2)
    again.close()


def test_the_journal_repeats_the_store(tmp_path: Path) -> None:
    store = make(tmp_path)
    model = history(store, 300)
    copy = MemoryStore()
    for _, changes in store.journal.records(0):
        made = Batch()
        made.changes.update(decode_changes(changes))
        copy.write(made)
    assert dict(copy.iterate(b"\x01")) == model == dict(store.iterate(b""))
    assert Position.decode(copy.get(STATE_KEY) or b"") == store.position
    store.close()


def test_nothing_is_lost_with_kill_9(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        history(make(tmp_path), 200)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (tmp_path / "other").mkdir()
    expected = make(tmp_path / "other")
    model = history(expected, 200)
    store = open_again(tmp_path)
    assert dict(store.iterate(b"")) == model
    assert store.position.sequence == 200
    store.close()
    expected.close()


def test_what_the_database_lost_comes_from_the_journal(tmp_path: Path) -> None:
    """A machine that loses power without `sync`: the database's log ends early."""
    store = make(tmp_path)
    model = history(store, 50)
    store.close()
    log = max((tmp_path / "db").glob("*.log"))
    os.truncate(log, log.stat().st_size * 2 // 3)
    again = open_again(tmp_path)
    assert dict(again.iterate(b"")) == model
    assert again.position.sequence == 50
    again.close()


def test_a_journal_that_lost_its_end_begins_anew(tmp_path: Path) -> None:
    store = make(tmp_path)
    model = history(store, 50)
    store.close()
    for path in (tmp_path / "journal").iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    again = open_again(tmp_path)
    assert dict(again.iterate(b"")) == model
    assert again.journal.read(10, 50, 1000) is None
    again.write(batch(z=b"1"))
    assert again.journal.read(50, 51, 1000)
    again.close()


def test_a_failed_write_is_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path)
    store.write(batch(a=b"1"))

    def fail(self: LevelDBStore, made: Batch) -> None:
        raise StorageFailed("the disk is gone")

    monkeypatch.setattr(LevelDBStore, "write", fail)
    for _ in range(3):
        with pytest.raises(StorageFailed):
            store.write(batch(a=b"2"))
    monkeypatch.undo()
    store.write(batch(b=b"3"))
    assert dict(store.iterate(b"")) == {b"a": b"1", b"b": b"3"}
    assert [number for number, _ in store.journal.records(0)] == [1, 2]
    store.close()


def test_a_database_without_a_position_is_damaged(tmp_path: Path) -> None:
    LevelDBStore(tmp_path / "db").close()
    with pytest.raises(DatabaseDamaged):
        open_again(tmp_path)


@pytest.mark.parametrize("kind", ["*.ldb", "*.log", "MANIFEST-*", "CURRENT"])
def test_flipped_bits_are_found_or_harmless(tmp_path: Path, kind: str) -> None:
    original = tmp_path / "original"
    small = LevelDBStore(original / "db", write_buffer_bytes=64 << 10)
    store = JournaledStore.begin(small, Journal(original / "journal", last=0), START)
    generator = random.Random(5)
    model = {}
    for _ in range(1200):
        key, value = b"key%d" % generator.randrange(900), generator.randbytes(200)
        store.write(batch(**{key.decode(): value}))
        model[key] = value
    store.close()
    found = 0
    for seed in range(25):
        copy = tmp_path / f"copy{seed}"
        shutil.copytree(original, copy)
        flip(copy / "db", kind, seed)
        try:
            again = open_again(copy)
            assert dict(again.iterate(b"")) == model, f"seed {seed}"
            again.close()
        except DatabaseDamaged:
            found += 1
    assert found


def flip(directory: Path, kind: str, seed: int) -> None:
    generator = random.Random(seed)
    path = generator.choice([path for path in sorted(directory.glob(kind)) if path.stat().st_size])
    data = bytearray(path.read_bytes())
    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    path.write_bytes(data)


def test_a_position_tells_who_can_go_on_with_batches_alone() -> None:
    namespace, other = bytes(range(16)), bytes(16)
    now = Position(namespace, timeline=2, sequence=20, parent=1, forked_after=10)
    assert now.continues(Position(namespace, 2, 20)) and now.continues(Position(namespace, 2, 0))
    assert not now.continues(Position(namespace, 2, 21))
    assert now.continues(Position(namespace, 1, 10)) and not now.continues(Position(namespace, 1, 11))
    assert not now.continues(Position(namespace, 3, 5)) and not now.continues(Position(other, 2, 5))
