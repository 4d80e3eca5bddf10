"""The judge of mixed loads: what it accepts of a directory, and what it does not."""

from tests.mixed_load import Expected, Operation

PUT = Operation("put", "f", size=100, seed=1)
APPEND = Operation("append", "f", size=50, seed=2)
PATCH = Operation("patch", "f", offset=90, size=20, seed=3)
MOVE = Operation("rename", "f", other="g")


def after(*acknowledged: Operation, unanswered: Operation | None = None) -> Expected:
    expected = Expected()
    for operation in acknowledged:
        expected.acknowledged(operation)
    if unanswered is not None:
        expected.unanswered(unanswered)
    return expected


def test_acknowledged_bytes_have_to_be_there() -> None:
    expected = after(PUT, APPEND)
    whole = PUT.data() + APPEND.data()
    assert expected.differences({"f": whole}) == []
    for wrong in ({}, {"f": whole[:-1]}, {"f": whole + APPEND.data()}, {"f": b"x" + whole[1:]},
                  {"f": whole, "stranger": b""}):
        assert len(expected.differences(wrong)) == 1


def test_an_append_without_an_answer_may_be_there_in_part_but_once() -> None:
    expected = after(PUT, unanswered=APPEND)
    for allowed in (b"", APPEND.data()[:7], APPEND.data()):
        assert expected.differences({"f": PUT.data() + allowed}) == []
    for wrong in (PUT.data()[:-1], PUT.data() + 2 * APPEND.data(), PUT.data() + b"x"):
        assert expected.differences({"f": wrong})


def test_a_patch_without_an_answer_is_there_whole_or_not_at_all() -> None:
    expected = after(PUT, unanswered=PATCH)
    before, patched = PUT.data(), PUT.data()[:90] + PATCH.data()
    assert expected.differences({"f": before}) == expected.differences({"f": patched}) == []
    assert expected.differences({"f": patched[:100] + before[100:]})
    assert expected.differences({"f": before[:90] + PATCH.data()[:5] + before[95:]})


def test_a_rename_without_an_answer_loses_nothing() -> None:
    expected = after(PUT, unanswered=MOVE)
    assert expected.differences({"f": PUT.data()}) == expected.differences({"g": PUT.data()}) == []
    assert expected.differences({})
    assert expected.differences({"f": PUT.data(), "g": PUT.data()})


def test_what_was_removed_stays_away_unless_nobody_answered() -> None:
    remove = Operation("remove", "f")
    assert after(PUT, remove).differences({}) == []
    assert after(PUT, remove).differences({"f": PUT.data()})
    for allowed in ({}, {"f": PUT.data()}):
        assert after(PUT, unanswered=remove).differences(allowed) == []
