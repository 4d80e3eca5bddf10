"""What `speedwell fsck` says at the end."""

import pytest

from speedwell.cluster.commands.fsck import _print
from speedwell.cluster.fsck import Check, compare
from speedwell.fs.proto.speedwell_pb2 import ContentEntry, ContentRecord


def check(files: int, unreachable: set[str], away: set[str]) -> Check:
    entries = [ContentEntry(inode=number, content=ContentRecord(file_id=bytes([number] * 16), size=1, replication=2),
                            dataserver_ids=("d0", "d1")) for number in range(1, files + 1)]
    return Check(files=files, unreachable=sorted(unreachable), away=sorted(away),
                 problems=compare(entries, {"d0": {}, "d1": {}}, unreachable, away=away))


def test_files_that_only_this_machine_does_not_reach_are_no_problems(capsys: pytest.CaptureFixture[str]) -> None:
    _print(check(123, {"d0", "d1"}, set()), [])
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert verdict == "123 files, 0 replicas: not all could be looked at, 123 files unreachable from this machine"
    assert lines[-2:] == ["unreachable: 113 more (--json names all)",
                          "not reached from this machine: dataserver d0, d1"]
    assert len(lines) == 12


def test_files_whose_dataservers_are_away_are_problems(capsys: pytest.CaptureFixture[str]) -> None:
    _print(check(3, set(), {"d0", "d1"}), [])
    assert capsys.readouterr().out.splitlines()[-1] == "3 files, 0 replicas: 3 problems (3 unreachable)"


def test_problems_are_counted_apart_from_files_that_this_machine_does_not_reach(
        capsys: pytest.CaptureFixture[str]) -> None:
    _print(check(2, {"d1"}, set()), [])
    assert capsys.readouterr().out.splitlines()[-1] == (
        "2 files, 0 replicas: 2 problems (2 lost-replica), 2 files unreachable from this machine")
