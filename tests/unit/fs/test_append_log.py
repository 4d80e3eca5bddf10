"""Which appends a file holds, over restarts and with more writers than are remembered."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from speedwell.fs.dataserver.disk.disk_errors import write_at
from speedwell.fs.dataserver.replication import append_log
from speedwell.fs.dataserver.replication.append_log import AppendLog, Record
from speedwell.fs.errors import StorageFailed

Open = Callable[[int], AppendLog]
"""The log of a file of so many bytes, as a process finds it that starts now."""


@pytest.fixture
def place(tmp_path: Path) -> tuple[str, int]:
    path = tmp_path / "meta"
    path.write_bytes(b"description")
    return str(path), 4096


@pytest.fixture
def log_of(place: tuple[str, int]) -> Open:
    def write(parts: Iterable[tuple[int, bytes]]) -> None:
        for offset, data in parts:
            write_at(place[0], place[1] + offset, data, sync=False)

    return lambda length: AppendLog(lambda: place, write, length)


def test_the_last_append_of_each_writer_survives_a_restart(log_of: Open) -> None:
    log = log_of(0)
    for record in (Record(7, 1, 0, 10), Record(8, 5, 10, 5), Record(7, 2, 15, 5)):
        log.note([record], epoch=3)
    again = log_of(20)
    assert (again.last(7), again.last(8), again.last(9)) == (Record(7, 2, 15, 5), Record(8, 5, 10, 5), None)
    assert again.epoch == 3
    assert again.beyond(12) == [Record(8, 5, 10, 5), Record(7, 2, 15, 5)]


def test_what_did_not_become_part_of_the_file_never_happened(log_of: Open) -> None:
    log = log_of(0)
    log.note([Record(7, 1, 0, 10)], epoch=1)
    log.note([Record(8, 1, 10, 10)], epoch=1)
    after_a_kill = log_of(10)
    assert (after_a_kill.last(7), after_a_kill.last(8)) == (Record(7, 1, 0, 10), None)
    assert log_of(1000).last(8) is None  # also when the file has grown since
    log.cut(5)
    assert log.last(7) is None
    assert log_of(1000).last(7) is None


def test_epochs_only_grow(log_of: Open) -> None:
    log = log_of(0)
    log.raise_epoch(5)
    log.raise_epoch(4)
    log.note([Record(7, 1, 0, 10)], epoch=3)
    assert log.epoch == log_of(10).epoch == 5


def test_of_too_many_writers_the_longest_silent_is_forgotten_and_that_is_known(
        log_of: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_log, "MAX_WRITERS", 3)
    log = log_of(0)
    for number in range(3):
        log.note([Record(number + 1, 1, number, 1)], epoch=1)
    assert not log.forgot
    log.note([Record(1, 2, 3, 1)], epoch=1)
    log.note([Record(9, 1, 4, 1)], epoch=1)
    for state in (log, log_of(5)):
        assert [record.writer for record in state.beyond(0)] == [3, 1, 9]
        assert state.forgot


def test_only_appends_that_are_all_here_count_as_held(log_of: Open) -> None:
    log = log_of(0)
    log.note([Record(7, 1, 0, 10)], epoch=1)
    assert log.holds([Record(7, 1, 0, 10)])
    assert not log.holds([Record(7, 1, 0, 10), Record(8, 1, 10, 1)])
    assert not log.holds([Record(7, 1, 0, 9)])
    assert not log.holds([])


def test_a_damaged_log_is_reported(log_of: Open, place: tuple[str, int]) -> None:
    path, start = place
    with Path(path).open("wb") as file:
        file.seek(start)
        file.write(b"x" * 64)
    with pytest.raises(StorageFailed, match="damaged"):
        log_of(10)
