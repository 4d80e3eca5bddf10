"""What a check says of files whose end no dataserver has."""

from speedwell.cluster.fsck import compare
from speedwell.fs.proto.speedwell_pb2 import ContentEntry, ContentRecord, FileReport

FILE_ID = "01234567-89ab-cdef-0123-456789abcdef"
CONTENT = ContentRecord(file_id=bytes.fromhex(FILE_ID.replace("-", "")), size=100, replication=2)


def kinds(lengths: dict[str, int], members: tuple[str, ...] = ("d0", "d1"), unreachable: tuple[str, ...] = ()
          ) -> list[tuple[str, int | None, tuple[str, ...]]]:
    inventories = {name: {FILE_ID: FileReport(file_id=FILE_ID, inode=7, size=size)} if size else {}
                   for name, size in lengths.items()}
    entry = ContentEntry(inode=7, content=CONTENT, dataserver_ids=members)
    return [(problem.kind, problem.left, problem.holders)
            for problem in compare([entry], inventories, set(unreachable)) if problem.kind != "orphaned"]


def test_a_file_longer_than_every_replica_has_lost_its_tail() -> None:
    assert kinds({"d0": 60, "d1": 80})[0] == ("lost-tail", 80, ("d1",))
    assert kinds({"d0": 80, "d1": 80})[0] == ("lost-tail", 80, ("d0", "d1"))
    assert kinds({"d0": 0, "d1": 80})[0] == ("lost-tail", 80, ("d1",))


def test_a_replica_that_nobody_could_ask_may_have_the_tail() -> None:
    assert "lost-tail" not in [kind for kind, _, _ in kinds({"d0": 60, "d1": 0}, unreachable=("d1",))]


def test_one_whole_replica_is_enough() -> None:
    assert "lost-tail" not in [kind for kind, _, _ in kinds({"d0": 100, "d1": 80})]


def test_a_longer_copy_outside_the_set_is_not_given_up() -> None:
    assert "lost-tail" not in [kind for kind, _, _ in kinds({"d0": 60, "d1": 60, "d2": 90})]


def test_a_file_of_which_nothing_is_left_is_missing() -> None:
    assert "missing" in [kind for kind, _, _ in kinds({"d0": 0, "d1": 0})]


def test_what_nobody_could_ask_is_not_called_missing() -> None:
    for lengths in ({"d0": 0, "d1": 0}, {"d0": 0}):
        found = [kind for kind, _, _ in kinds(lengths, unreachable=("d1",))]
        assert "unreachable" in found and "missing" not in found


def test_a_replica_that_cannot_be_reached_from_here_is_not_counted_as_lost() -> None:
    assert kinds({"d0": 100, "d1": 0}, unreachable=("d1",)) == []


def test_sizes_are_told_as_people_read_them() -> None:
    content = ContentRecord(file_id=CONTENT.file_id, size=3 << 20, replication=2)
    entry = ContentEntry(inode=7, content=content, dataserver_ids=("d0", "d1"))

    def told(inventories: dict[str, dict[str, FileReport]], unreachable: set[str]) -> list[str]:
        return [problem.detail for problem in compare([entry], inventories, unreachable)]

    report = {FILE_ID: FileReport(file_id=FILE_ID, inode=7, size=2 << 20)}
    assert told({"d0": report, "d1": {}}, set())[0].startswith("the last 1.0 MiB of 3.0 MiB are on no dataserver")
    assert "it lacks 1.0 MiB of 3.0 MiB" in told({"d0": report, "d1": {}}, {"d1"})
    assert told({"d0": {}, "d1": {}}, {"d0", "d1"}) == ["its 3.0 MiB may be on d0, d1, which cannot be asked"]
    assert told({"d0": {}, "d1": {}, "d2": report}, set())[-1] == "2.0 MiB: the dataserver is not in the file's set"
