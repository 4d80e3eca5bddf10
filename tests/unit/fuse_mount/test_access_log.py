"""What readers of a mount's requests get, and what they cost."""

import errno

import pytest

from speedwell.fuse_mount.access_log import AccessLog, Reader
from speedwell.fuse_mount.door import Caller
from tests.unit.fuse_mount.test_measures import Answers

CALLER = Caller(1000, 100, 4711, 0)


def noted(operation: str, *arguments: object, error: int = 0, result: int = 0) -> dict[str, object]:
    log, reader = AccessLog(), Reader()
    log.add(reader)
    log.note(5 * 10**9, 1_500_000, CALLER, operation, arguments, error, result)
    [[record], lost] = reader.take(10)
    assert lost == 0
    return record


def test_a_record_says_who_asked_what_and_what_came_of_it() -> None:
    assert noted("lookup", 1, b"a", result=7) == {
        "time_ns": 5 * 10**9, "uid": 1000, "gid": 100, "pid": 4711, "operation": "lookup", "inode": 1, "name": "a",
        "found": 7, "result": "OK", "seconds": 0.0015}


@pytest.mark.parametrize(("operation", "arguments", "told"), [
    ("read", (5, 4096, 8192, object()), {"inode": 5, "size": 4096, "offset": 8192, "bytes": 9}),
    ("write", (5, 0xBEEF, 4096, 8192, object()), {"inode": 5, "size": 4096, "offset": 8192, "bytes": 9}),
    ("rename", (1, b"a", 2, b"b", 0), {"inode": 1, "name": "a", "to": 2, "to_name": "b"}),
    ("setxattr", (5, b"user.x", 0xBEEF, 3, 0), {"inode": 5, "name": "user.x", "size": 3}),
    ("getattr", (5, object()), {"inode": 5}),
    ("symlink", (b"there", 1, b"link"), {"target": "there", "inode": 1, "name": "link", "found": 9}),
])
def test_arguments_are_told_by_name_and_addresses_are_not(operation: str, arguments: tuple[object, ...],
                                                          told: dict[str, object]) -> None:
    record = noted(operation, *arguments, result=9)
    assert {name: record[name] for name in record if name not in (
        "time_ns", "uid", "gid", "pid", "operation", "result", "seconds")} == told


def test_an_error_is_told_by_its_name_and_without_a_result() -> None:
    record = noted("create", 1, b"\xff", error=errno.EDQUOT, result=9)
    assert (record["result"], record["name"]) == ("EDQUOT", "\udcff")
    assert "found" not in record


def test_who_reads_too_slowly_is_told_how_much_was_lost_after_what_was_kept() -> None:
    reader = Reader(most=3)
    for number in range(10):
        reader.put({"number": number})
    assert reader.take(2) == ([{"number": 0}, {"number": 1}], 0)
    assert reader.take(2) == ([{"number": 2}], 7)
    assert reader.take(2) == ([], 0)


def test_each_reader_gets_all_and_one_that_ended_costs_nothing() -> None:
    log, readers = AccessLog(), [Reader(), Reader()]
    for reader in readers:
        log.add(reader)
    log.note(0, 0, CALLER, "statfs", (1,), 0, 0)
    log.remove(readers[0])
    log.note(0, 0, CALLER, "statfs", (1,), 0, 0)
    assert [len(reader.take(10)[0]) for reader in readers] == [1, 2]
    log.remove(readers[1])
    assert log.readers == ()


def test_without_a_reader_nobody_asks_who_the_program_is() -> None:
    answers = Answers()     # has no kernel to ask
    answers.serve_one("getattr")
    answers.access_log.add(reader := Reader())
    answers.caller = lambda: CALLER     # type: ignore[method-assign]
    answers.serve_one("getattr", error=OSError(errno.ESTALE, "gone"))
    [[record], _] = reader.take(10)
    assert (record["pid"], record["result"]) == (4711, "ESTALE")
