"""Every store keeps the contract of `speedwell.fs.store.contract.Store`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speedwell.fs.errors import DatabaseDamaged, StorageFailed
from speedwell.fs.store import Batch, LevelDBStore, MemoryStore, Store, end_of_prefix

FOOTER_BYTES = 48
"""Of a table of LevelDB: not covered by a checksum."""

OpenStore = Callable[[], Store]

keys = st.binary(max_size=4)
changes = st.lists(st.tuples(keys, st.one_of(st.none(), st.binary(max_size=8))), max_size=12)


@pytest.fixture(params=["memory", "leveldb", "leveldb-sync"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = (MemoryStore() if request.param == "memory"
                     else LevelDBStore(tmp_path / "store", sync=request.param == "leveldb-sync"))
    yield opened
    opened.close()


def batch_of(*pairs: tuple[bytes, bytes | None]) -> Batch:
    batch = Batch()
    for key, value in pairs:
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
    return batch


def test_a_key_that_was_never_written_has_no_value(store: Store) -> None:
    assert store.get(b"nothing") is None


def test_an_empty_value_is_a_value(store: Store) -> None:
    store.write(batch_of((b"key", b"")))
    assert store.get(b"key") == b""
    store.write(batch_of((b"key", None)))
    assert store.get(b"key") is None


def test_the_values_of_several_keys_come_in_their_order(store: Store) -> None:
    store.write(batch_of((b"a", b"1"), (b"b", b""), (b"bb", b"2"), (b"c", b"3"), (b"d", b"4")))
    assert list(store.get_all([b"c", b"a", b"no", b"b", b"c"])) == [b"3", b"1", None, b"", b"3"]
    assert list(store.get_all([])) == []


def test_the_last_change_of_a_key_in_a_batch_wins(store: Store) -> None:
    store.write(batch_of((b"a", b"1"), (b"a", None), (b"b", None), (b"b", b"2")))
    assert store.get(b"a") is None
    assert store.get(b"b") == b"2"


def test_deleting_a_key_that_does_not_exist_is_no_error(store: Store) -> None:
    store.write(batch_of((b"a", None)))
    assert list(store.iterate(b"")) == []


def test_iteration_begins_at_start_and_ends_before_stop(store: Store) -> None:
    store.write(batch_of(*((bytes([n]), b"x") for n in range(10))))
    assert [key for key, _ in store.iterate(b"\x03", b"\x06")] == [b"\x03", b"\x04", b"\x05"]
    assert [key for key, _ in store.iterate(b"\x08")] == [b"\x08", b"\x09"]


def test_iteration_shows_the_store_as_it_was_when_it_began(store: Store) -> None:
    store.write(batch_of((b"a", b"1"), (b"b", b"2"), (b"c", b"3")))
    pairs = store.iterate(b"")
    first = next(pairs)
    store.write(batch_of((b"b", None), (b"c", b"changed"), (b"d", b"new")))
    assert [first, *pairs] == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def test_a_closed_store_refuses_with_a_message_and_closes_again(store: Store) -> None:
    store.close()
    store.close()
    for use in (lambda: store.get(b"a"), lambda: store.write(batch_of((b"a", b"1"))),
                lambda: list(store.iterate(b""))):
        with pytest.raises(StorageFailed, match="closed"):
            use()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(batches=st.lists(changes, max_size=6), start=keys, stop=st.one_of(st.none(), keys))
def test_a_store_behaves_like_a_sorted_dictionary(store: Store, batches: list[list[tuple[bytes, bytes | None]]],
                                                  start: bytes, stop: bytes | None) -> None:
    store.write(batch_of(*((key, None) for key, _ in list(store.iterate(b"")))))
    model: dict[bytes, bytes] = {}
    for batch in batches:
        store.write(batch_of(*batch))
        for key, value in batch:
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
    expected = sorted((key, value) for key, value in model.items()
                      if key >= start and (stop is None or key < stop))
    assert list(store.iterate(start, stop)) == expected


@given(prefix=st.binary(max_size=3), key=st.binary(max_size=5))
def test_the_end_of_a_prefix_separates_keys_with_it_from_later_ones(prefix: bytes, key: bytes) -> None:
    end = end_of_prefix(prefix)
    inside = key >= prefix and (end is None or key < end)
    assert inside == key.startswith(prefix)


# ------------------------------------------------------------------ LevelDB alone


def test_leveldb_keeps_its_content_when_it_is_opened_again(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path)
    store.write(batch_of((b"a", b"1")))
    store.close()
    again = LevelDBStore(tmp_path)
    assert again.get(b"a") == b"1"
    again.close()


def test_leveldb_that_is_in_use_is_refused_with_a_message(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path)
    with pytest.raises(StorageFailed, match=f"{tmp_path} is in use"):
        LevelDBStore(tmp_path)
    store.close()


def test_leveldb_in_a_directory_that_cannot_be_made_is_refused_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match=r"cannot make the directory .*/file/store: Not a directory"):
        LevelDBStore(tmp_path / "file" / "store")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_leveldb_in_a_directory_without_write_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageFailed, match="is not writable"):
        LevelDBStore(tmp_path)


def test_every_flipped_bit_of_a_tables_footer_is_harmless_or_called_damage(tmp_path: Path) -> None:
    LevelDBStore(tmp_path / "whole").close()
    with closing(LevelDBStore(tmp_path / "whole")) as store:
        store.write(batch_of(*((b"key%d" % number, bytes(50)) for number in range(100))))
    LevelDBStore(tmp_path / "whole").close()    # opening turns the log into a table
    [table] = (tmp_path / "whole").glob("*.ldb")
    whole, outcomes = table.read_bytes(), set()
    for place, bit in product(range(len(whole) - FOOTER_BYTES, len(whole)), range(8)):
        shutil.copytree(tmp_path / "whole", tmp_path / "flipped")
        flipped = bytearray(whole)
        flipped[place] ^= 1 << bit
        (tmp_path / "flipped" / table.name).write_bytes(flipped)
        try:
            with closing(LevelDBStore(tmp_path / "flipped", create=False)) as store:
                outcomes.add("read")
                assert [store.get(b"key%d" % number) for number in range(100)] == [bytes(50)] * 100
        except DatabaseDamaged:
            outcomes.add("damaged")
        shutil.rmtree(tmp_path / "flipped")
    assert outcomes == {"read", "damaged"}


def test_a_damaged_leveldb_is_refused_with_a_message(tmp_path: Path) -> None:
    store = LevelDBStore(tmp_path)
    store.write(batch_of((b"a", b"1")))
    store.close()
    (tmp_path / "CURRENT").write_text("nonsense\n")
    with pytest.raises(StorageFailed, match="is damaged"):
        LevelDBStore(tmp_path)


def test_a_batch_survives_the_death_of_the_process(tmp_path: Path) -> None:
    program = ("import os, sys; from pathlib import Path; from speedwell.fs.store import Batch, LevelDBStore\n"
               "store = LevelDBStore(Path(sys.argv[1])); batch = Batch()\n"
               "[batch.put(b'%d' % n, b'x') for n in range(100)]; store.write(batch); os.kill(os.getpid(), 9)")
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    store = LevelDBStore(tmp_path)
    assert len(list(store.iterate(b""))) == 100
    store.close()
