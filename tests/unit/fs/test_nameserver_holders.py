"""Which copy of the namespace a nameserver takes that lost its own, and what it waits for."""

from speedwell.fs.nameserver.backup.copy_holders import FORCE_FLAG, Holders, Report, Take, Wait, decide, next_timeline
from speedwell.fs.store import Position

ONE, OTHER = b"1" * 16, b"2" * 16


def report(version: int, members: str, sequence: int | None = None, *, timeline: int = 1, namespace: bytes = ONE,
           damage: str = "") -> Report:
    mirror = None if sequence is None else Position(namespace, timeline, sequence)
    return Report(Holders(namespace, version, tuple(members.split())), mirror, damage)


def taken(reports: dict[str, Report], *, own: Report | None = None, namespace: bytes = b"",
          force: bool = False) -> str | None:
    decision = decide(reports, own or Report(), namespace=namespace, force=force)
    assert isinstance(decision, Take), decision
    return decision.source


def waits_for(reports: dict[str, Report], *, own: Report | None = None, namespace: bytes = b"",
              force: bool = False) -> str:
    decision = decide(reports, own or Report(), namespace=namespace, force=force)
    assert isinstance(decision, Wait), decision
    return decision.why


def test_the_copy_that_is_furthest_is_taken() -> None:
    reports = {"a": report(3, "a b c", 10), "b": report(3, "a b c", 12), "c": report(3, "a b c", 11)}
    assert taken(reports) == "b"


def test_all_of_the_newest_list_must_have_reported() -> None:
    reports = {"a": report(3, "a b c", 10), "c": report(2, "a c", 10)}
    assert waits_for(reports).startswith("b, which may have the newest copy") and FORCE_FLAG in waits_for(reports)
    assert taken(reports, force=True) == "c"


def test_who_has_lost_its_copy_and_the_list_is_not_waited_for() -> None:
    reports = {"a": Report(), "b": report(3, "a b c", 12), "c": report(3, "a b c", 11)}
    assert taken(reports) == "b"
    reports["a"] = Report(damage="a flipped bit")
    assert waits_for(reports).startswith("a, ")


def test_a_list_heard_by_one_without_a_copy_counts() -> None:
    reports = {"a": report(3, "a b c", 10), "b": report(3, "a b c", 10), "c": report(3, "a b c", 10),
               "x": report(4, "b c d")}
    assert waits_for(reports).startswith("d, ")


def test_an_older_timeline_is_older_however_long() -> None:
    reports = {"a": report(3, "a b", 50, timeline=1), "b": report(3, "a b", 40, timeline=2)}
    assert taken(reports) == "b"


def test_the_nameservers_own_state_is_taken_if_none_is_further() -> None:
    own = report(3, "a b", 12)
    assert taken({"a": report(3, "a b", 12), "b": report(3, "a b", 11)}, own=own) is None
    assert taken({"a": report(3, "a b", 12), "b": report(3, "a b", 13)}, own=own) == "b"
    assert waits_for({"a": report(3, "a b", 12)}, own=own).startswith("b, ")


def test_a_damaged_copy_is_named_when_there_is_no_other() -> None:
    reports = {"a": report(3, "a b", damage="a flipped bit"), "b": report(3, "a b", 9)}
    assert taken(reports) == "b"
    reports["b"] = report(3, "a b")
    assert "a: a flipped bit" in waits_for(reports)


def test_dataservers_of_another_namespace_do_not_count() -> None:
    reports = {"a": report(1, "a", 5), "x": report(9, "x", 90, namespace=OTHER)}
    assert taken(reports, namespace=ONE) == "a"
    assert "dataservers of 2 report" in waits_for(reports)


def test_new_dataservers_alone_make_no_namespace() -> None:
    assert "--new" in waits_for({"a": Report(), "b": Report()})
    assert "--new" in waits_for({})


def test_a_new_timeline_is_above_all_that_were_seen() -> None:
    assert next_timeline([1 << 16, (7 << 16) | 0xFFFF], 5) == (8 << 16) | 5
    assert next_timeline([], 0) == 1 << 16
