"""The cache of blocks on the local disk."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.fs.client.metrics import Metrics
from speedwell.fs.client.names.cache_order import LeastRecentlyUsed
from speedwell.fs.client.read.disk_cache import DISK_BLOCK_BYTES, DiskCache, block_key
from speedwell.fs.errors import InvalidArgument

KEYS = [block_key(str(uuid.UUID(int=number)), 1, number) for number in range(8)]
ROOM = 4 * DISK_BLOCK_BYTES


class Opened:
    def __init__(self, directory: Path, capacity_bytes: int = ROOM) -> None:
        self.directory = directory
        self.metrics = Metrics()
        self.cache = DiskCache(directory, capacity_bytes, self.metrics)

    def files(self) -> list[Path]:
        return [path for path in self.directory.rglob("*") if path.is_file()]

    def again(self) -> None:
        self.cache.close()
        self.__init__(self.directory)   # type: ignore[misc]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(tmp_path / "cache")
    yield opened
    opened.cache.close()


actions = st.lists(st.tuples(st.sampled_from(["add", "use", "remove"]), st.sampled_from("abcdef"),
                             st.integers(0, 12)), max_size=60)


@given(capacity=st.integers(1, 20), done=actions)
def test_entries_stay_within_the_capacity_and_the_least_recently_used_go(capacity: int,
                                                                        done: list[tuple[str, str, int]]) -> None:
    order = LeastRecentlyUsed(capacity)
    model: list[tuple[str, int]] = []
    for action, key, size in done:
        known = [entry for entry in model if entry[0] == key]
        if action == "add":
            model = [entry for entry in model if entry[0] != key] + [(key, size)]
            gone = []
            while sum(each for _, each in model) > capacity:
                gone.append(model.pop(0)[0])
            assert order.add(key, size) == gone
        elif action == "use":
            order.use(key)
            model = [entry for entry in model if entry[0] != key] + known
        else:
            order.remove(key)
            model = [entry for entry in model if entry[0] != key]
        assert order.used_bytes == sum(each for _, each in model) <= capacity
        assert len(order) == len(model)
        assert all((name in order) is any(name == each for each, _ in model) for name in "abcdef")


def test_a_block_comes_back_also_to_the_next_process(opened: Opened) -> None:
    opened.cache.put(KEYS[0], b"one")
    assert opened.cache.get(KEYS[0]) == b"one"
    opened.again()
    assert KEYS[0] in opened.cache
    assert opened.cache.get(KEYS[0]) == b"one"


def test_what_was_used_last_stays_also_for_the_next_process(opened: Opened) -> None:
    for number in range(4):
        opened.cache.put(KEYS[number], b"%d" % number)
        path, = opened.directory.rglob(KEYS[number])
        os.utime(path, ns=(number, number))
    assert opened.cache.get(KEYS[0]) == b"0"
    opened.again()
    opened.cache.put(KEYS[4], b"4")
    assert [key in opened.cache for key in KEYS[:5]] == [True, False, True, True, True]
    assert len(opened.files()) == 4


@given(at=st.integers(min_value=0), flips=st.integers(1, 255), cut=st.booleans())
def test_what_was_altered_on_the_disk_is_never_given_out(tmp_path_factory: pytest.TempPathFactory, at: int,
                                                         flips: int, cut: bool) -> None:
    opened = Opened(tmp_path_factory.mktemp("cache") / "own")
    opened.cache.put(KEYS[0], b"what was read" * 20)
    path, = opened.files()
    content = bytearray(path.read_bytes())
    at %= len(content)
    content[at] ^= flips
    path.write_bytes(content[:at] if cut else content)
    assert opened.cache.get(KEYS[0]) is None
    assert opened.metrics.cache_damaged == 1
    assert KEYS[0] not in opened.cache
    assert not opened.files()
    opened.cache.close()


def test_a_block_under_another_name_is_not_given_out(opened: Opened) -> None:
    for key in KEYS[:2]:
        opened.cache.put(key, key.encode())
    first, second = (next(opened.directory.rglob(key)) for key in KEYS[:2])
    first.replace(second)
    assert opened.cache.get(KEYS[1]) is None
    assert opened.metrics.cache_damaged == 1


def test_what_an_end_in_the_middle_left_goes(opened: Opened) -> None:
    (opened.directory / "partial-7").write_bytes(b"torn")
    mine = [opened.directory / name for name in ("mine.txt", "partial-report", "mine/partial-7")]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"not a block")
    opened.again()
    assert sorted(opened.files()) == sorted(mine)


def test_a_block_that_cannot_be_written_is_counted(opened: Opened) -> None:
    opened.cache.put(KEYS[0], b"one")
    (opened.directory / KEYS[1][:2]).rename(opened.directory / "away")
    (opened.directory / KEYS[1][:2]).write_bytes(b"")   # so that no file can be made there, for root neither
    opened.cache.put(KEYS[1], b"two")
    assert opened.metrics.cache_failures == 1
    assert KEYS[1] not in opened.cache
    assert not list(opened.directory.glob("partial-*"))


def test_a_directory_has_one_user_and_one_process(opened: Opened, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="in use by another mount"):
        Opened(opened.directory)
    assert opened.directory.stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(InvalidArgument, match="yours alone"):
        Opened(tmp_path / "open")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgument, match="cache_directory"):
        Opened(tmp_path / "file")


def test_a_second_close_leaves_descriptors_of_others_alone(opened: Opened) -> None:
    opened.cache.close()
    others = os.open(os.devnull, os.O_RDONLY)
    opened.cache.close()
    os.close(others)
