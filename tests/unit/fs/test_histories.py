"""The checker of histories finds what it is there to find."""

from tests.histories import RECORD_BYTES, Append, History, Read, digest, record, violations

A1, A2, B1 = record(1, 1), record(1, 2), record(2, 1)


def history() -> History:
    """Writer 1 appends twice, writer 2 once at the same time as the second; somebody reads at 3.5."""
    return History({(1, 1): Append(1, 1, 1.0, 2.0, 0), (1, 2): Append(1, 2, 3.0, 5.0, 2 * RECORD_BYTES),
                    (2, 1): Append(2, 1, 2.5, 6.0, RECORD_BYTES)},
                   [Read(3, 3.5, 3.6, RECORD_BYTES, digest(A1))])


def kinds(found: list[str]) -> set[str]:
    return {text.partition(":")[0] for text in found}


def test_a_history_that_can_be_put_in_order_is_accepted() -> None:
    assert violations(history(), A1 + B1 + A2) == []


def test_an_append_without_an_acknowledgement_may_be_there_or_not() -> None:
    recorded = history()
    recorded.appends[2, 2] = Append(2, 2, 7.0)
    assert violations(recorded, A1 + B1 + A2) == []
    assert violations(recorded, A1 + B1 + A2 + record(2, 2)) == []


def test_a_lost_record_is_found() -> None:
    assert kinds(violations(history(), A1 + B1)) == {"lost"}


def test_a_duplicate_is_found() -> None:
    assert kinds(violations(history(), A1 + B1 + A2 + B1)) == {"duplicated"}


def test_a_torn_record_is_found() -> None:
    assert kinds(violations(history(), A1 + B1 + A2 + A1[:100])) == {"torn"}
    assert "torn" in kinds(violations(history(), A1 + B1[:100] + A2[100:] + A2))


def test_a_record_of_nobody_is_found() -> None:
    assert kinds(violations(history(), A1 + B1 + A2 + record(9, 9))) == {"invented"}


def test_records_out_of_the_order_of_their_times_are_found() -> None:
    recorded = history()
    recorded.appends[1, 1].offset, recorded.appends[2, 1].offset = RECORD_BYTES, 0
    recorded.reads.clear()
    assert kinds(violations(recorded, B1 + A1 + A2)) == {"reordered"}


def test_a_read_of_what_is_gone_later_is_found() -> None:
    recorded = history()
    recorded.reads.append(Read(3, 2.2, 2.3, RECORD_BYTES * 2, digest(A1 + A2)))
    assert kinds(violations(recorded, A1 + B1 + A2)) == {"changed"}


def test_a_read_that_misses_what_was_acknowledged_is_found() -> None:
    recorded = history()
    recorded.reads.append(Read(3, 5.5, 5.6, RECORD_BYTES, digest(A1)))
    assert kinds(violations(recorded, A1 + B1 + A2)) == {"stale"}
