"""Empty files and directories that a dataserver makes ahead."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fs.dataserver import spares as spares_module
from fs.dataserver.append_writer import AppendWriter
from fs.dataserver.spares import Spares
from fs.dataserver.store import FileStore
from tests.waiting import wait_until

SECONDS = 20.0
FILE_ID = "aa000000-0000-4000-8000-000000000001"


@pytest.fixture(autouse=True)
def few_and_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FILES", 5), ("DIRECTORIES", 2), ("FIRST_PAUSE_SECONDS", 0.01), ("PAUSE_SECONDS", 0.01),
                        ("FULL_PAUSE_SECONDS", 0.01)):
        monkeypatch.setattr(spares_module, name, value)


@contextmanager
def running(spares: Spares) -> Iterator[Spares]:
    spares.start()
    try:
        yield spares
    finally:
        spares.stop()


def kinds(directory: Path) -> tuple[int, int]:
    """How many files and directories there are."""
    found = list(directory.iterdir()) if directory.exists() else []
    return sum(path.is_file() for path in found), sum(path.is_dir() for path in found)


def test_they_are_made_and_what_is_used_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    with running(Spares(f"{tmp_path}/spare", lambda: 0)) as spares:
        wait_until(lambda: kinds(tmp_path / "spare") == (5, 2), SECONDS, "no spares")
        assert spares.put_file(f"{tmp_path}/place/file")
        assert spares.put_directory(f"{tmp_path}/place/directory")
        assert (tmp_path / "place/file").read_bytes() == b""
        assert (tmp_path / "place/directory").is_dir()
        wait_until(lambda: kinds(tmp_path / "spare") == (5, 2), SECONDS, "not made again")


def test_none_are_made_while_something_is_to_be_done(tmp_path: Path) -> None:
    looks = threading.Semaphore(0)

    def always_more() -> int:
        looks.release()
        return next(numbers)

    numbers = iter(range(10**9))
    with running(Spares(f"{tmp_path}/spare", always_more)) as spares:
        for _ in range(10):
            assert looks.acquire(timeout=SECONDS)
        assert kinds(tmp_path / "spare") == (0, 0)
        assert not spares.put_file(f"{tmp_path}/file")


def test_a_place_that_is_not_there_costs_no_spare(tmp_path: Path) -> None:
    with running(Spares(f"{tmp_path}/spare", lambda: 0)) as spares:
        wait_until(lambda: kinds(tmp_path / "spare") == (5, 2), SECONDS, "no spares")
        assert not spares.put_file(f"{tmp_path}/nowhere/file")
        spares.stop()
        for number in range(5):
            assert spares.put_file(f"{tmp_path}/{number}")
        assert not spares.put_file(f"{tmp_path}/5")


def test_a_new_process_takes_the_empty_ones_and_leaves_the_others_alone(tmp_path: Path) -> None:
    left = tmp_path / "spare"
    (left / "7").mkdir(parents=True)
    (left / "8").write_bytes(b"bytes of somebody")
    (left / "9").touch()
    os.link(left / "9", tmp_path / "other name")
    (left / "3").touch()
    with running(Spares(str(left), lambda: 0)) as spares:
        wait_until(lambda: kinds(left) == (5 + 2, 2), SECONDS, "no spares")
        spares.stop()
        for number in range(5):
            assert spares.put_file(f"{tmp_path}/{number}")
    assert (left / "8").read_bytes() == b"bytes of somebody"
    assert (tmp_path / "other name").stat().st_nlink == 2
    assert not (left / "3").exists()


def test_a_directory_that_cannot_be_used_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "spare").touch()
    with running(Spares(f"{tmp_path}/spare", lambda: 0)) as spares:
        assert not spares.put_file(f"{tmp_path}/file")


def test_a_store_puts_spares_where_small_files_belong(tmp_path: Path) -> None:
    store = FileStore(tmp_path, "d0")
    store.spares.start()
    wait_until(lambda: kinds(tmp_path / "spare") == (5, 2), SECONDS, "no spares")
    store.spares.stop()
    inodes = {path.stat().st_ino for path in (tmp_path / "spare").iterdir()}
    with store.opened_for_append(FILE_ID, 5, b"/a", 1 << 20, 3) as file:
        writer = AppendWriter(file)
        writer.write(memoryview(b"abc"))
        writer.commit()
        assert Path(file.record).stat().st_ino in inodes
    store.close()
    again = FileStore(tmp_path, "d0")
    with again.opened(FILE_ID) as file:
        assert file.read(0, 3) == b"abc"
    again.close()
