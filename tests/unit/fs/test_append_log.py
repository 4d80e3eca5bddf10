"""Which appends a file holds, over restarts and with more writers than are remembered."""

from pathlib import Path

import pytest

from fs.dataserver import append_log
from fs.dataserver.append_log import AppendLog, Record
from fs.errors import StorageFailed


def test_the_last_append_of_each_writer_survives_a_restart(tmp_path: Path) -> None:
    log = AppendLog(str(tmp_path), 0)
    for record in (Record(7, 1, 0, 10), Record(8, 5, 10, 5), Record(7, 2, 15, 5)):
        log.note([record], epoch=3)
    again = AppendLog(str(tmp_path), 20)
    assert (again.last(7), again.last(8), again.last(9)) == (Record(7, 2, 15, 5), Record(8, 5, 10, 5), None)
    assert again.epoch == 3
    assert again.beyond(12) == [Record(8, 5, 10, 5), Record(7, 2, 15, 5)]


def test_what_did_not_become_part_of_the_file_never_happened(tmp_path: Path) -> None:
    log = AppendLog(str(tmp_path), 0)
    log.note([Record(7, 1, 0, 10)], epoch=1)
    log.note([Record(8, 1, 10, 10)], epoch=1)
    after_a_kill = AppendLog(str(tmp_path), 10)
    assert (after_a_kill.last(7), after_a_kill.last(8)) == (Record(7, 1, 0, 10), None)
    assert AppendLog(str(tmp_path), 1000).last(8) is None  # also when the file has grown since
    log.cut(5)
    assert log.last(7) is None
    assert AppendLog(str(tmp_path), 1000).last(7) is None


def test_epochs_only_grow(tmp_path: Path) -> None:
    log = AppendLog(str(tmp_path), 0)
    log.raise_epoch(5)
    log.raise_epoch(4)
    log.note([Record(7, 1, 0, 10)], epoch=3)
    assert log.epoch == AppendLog(str(tmp_path), 10).epoch == 5


def test_of_too_many_writers_the_longest_silent_is_forgotten_and_that_is_known(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_log, "MAX_WRITERS", 3)
    log = AppendLog(str(tmp_path), 0)
    for number in range(3):
        log.note([Record(number + 1, 1, number, 1)], epoch=1)
    assert not log.forgot
    log.note([Record(1, 2, 3, 1)], epoch=1)
    log.note([Record(9, 1, 4, 1)], epoch=1)
    for state in (log, AppendLog(str(tmp_path), 5)):
        assert [record.writer for record in state.beyond(0)] == [3, 1, 9]
        assert state.forgot


def test_only_appends_that_are_all_here_count_as_held(tmp_path: Path) -> None:
    log = AppendLog(str(tmp_path), 0)
    log.note([Record(7, 1, 0, 10)], epoch=1)
    assert log.holds([Record(7, 1, 0, 10)])
    assert not log.holds([Record(7, 1, 0, 10), Record(8, 1, 10, 1)])
    assert not log.holds([Record(7, 1, 0, 9)])
    assert not log.holds([])


def test_a_damaged_log_is_reported(tmp_path: Path) -> None:
    (tmp_path / append_log.NAME).write_bytes(b"x" * 64)
    with pytest.raises(StorageFailed, match="damaged"):
        AppendLog(str(tmp_path), 10)
