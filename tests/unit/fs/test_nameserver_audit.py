"""The nameserver's audit log."""

import json
import logging
from pathlib import Path

import pytest

from speedwell.fs.errors import StorageFailed
from speedwell.fs.identity.scope import NOBODY
from speedwell.fs.nameserver.service import audit
from speedwell.fs.nameserver.service.audit import Audit, Note
from speedwell.fs.proto import speedwell_pb2 as pb


def note(path: bytes = b"/a", method: str = "Create", request: bytes | None = None) -> Note:
    made = pb.CreateRequest(path=path, mode=0o644, gid=5).SerializeToString() if request is None else request
    return Note(1e9, "mount m", "10.0.0.1", method, made, "ok")


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_who_what_and_how_it_ended(tmp_path: Path) -> None:
    log = Audit(tmp_path / "log")
    log.note(note(b"/\x0017/na\nme\xff"))
    log.note(note(request=b"\xff", method="Create"))
    log.note(note(method="NoSuch{}%s"))
    log.close()
    first, malformed, unknown = lines(tmp_path / "log")
    assert first == {"time": "2001-09-09T01:46:40.000+00:00", "who": "mount m", "from": "10.0.0.1", "what": "Create",
                     "result": "ok", "path": "inode 17/na\nme\\xff", "mode": 0o644, "uid": 0, "gid": 5}
    assert (malformed["what"], "path" in malformed, unknown["what"]) == ("Create", False, "NoSuch{}%s")
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_whatever_a_request_has_the_line_is_json(tmp_path: Path) -> None:
    made, log = {}, Audit(tmp_path / "log")
    for method in sorted(audit.AUDITED):
        request = getattr(pb, f"{method}Request")()
        for field in request.DESCRIPTOR.fields:
            if field.name in audit._SHOWN:
                setattr(request, field.name, b'/"\\\x00\xff' if field.type == field.TYPE_BYTES else
                        '"\n' if field.type == field.TYPE_STRING else 7)
        made[method] = {field.name for field, _ in request.ListFields()}
        log.note(note(method=method, request=request.SerializeToString()))
    log.close()
    told = lines(tmp_path / "log")
    assert [line["what"] for line in told] == sorted(made)
    assert all(made[str(line["what"])] <= line.keys() for line in told)


def test_of_attributes_those_that_change_are_told(tmp_path: Path) -> None:
    log = Audit(tmp_path / "log")
    log.note(note(method="SetAttributes", request=pb.SetAttributesRequest(path=b"/a", mode=0).SerializeToString()))
    log.note(note(method="SetAttributes", request=pb.SetAttributesRequest(path=b"/a", uid=0).SerializeToString()))
    log.close()
    told = [{key: line[key] for key in ("mode", "uid") if key in line} for line in lines(tmp_path / "log")]
    assert told == [{"mode": 0}, {"uid": 0}]


def test_root_of_who_may_not_act_for_root_is_nobody(tmp_path: Path) -> None:
    log = Audit(tmp_path / "log")
    for method, request in (("Remove", pb.RemoveRequest(path=b"/a", uid=0)), ("Create", pb.CreateRequest(path=b"/a")),
                            ("Remove", pb.RemoveRequest(path=b"/a", uid=7)), ("Remove", pb.RemoveRequest(path=b"/a")),
                            ("SetAttributes", pb.SetAttributesRequest(path=b"/a", uid=0))):
        log.note(note(method=method, request=request.SerializeToString())._replace(squashed=True))
    log.close()
    assert [line.get("uid") for line in lines(tmp_path / "log")] == [NOBODY, NOBODY, 7, None, 0]


def test_what_is_lost_is_counted_in_the_log_and_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PAUSE_SECONDS", 60)
    log = Audit(tmp_path / "log", most=2)
    for _ in range(5):
        log.note(note())
    log.close()
    assert [line.get("lost") for line in lines(tmp_path / "log")] == [None, None, 3]
    assert log.lost.collect()[0].samples[0].value == 3


def test_long_requests_that_wait_take_so_much_memory_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_BYTES", 2500)
    monkeypatch.setattr(audit, "PAUSE_SECONDS", 60)
    log = Audit(tmp_path / "log")
    for _ in range(3):
        log.note(note(request=bytes(1000)))
    log._write()
    log.note(note(request=bytes(1000)))     # there is room again
    log.close()
    assert [line.get("lost") for line in lines(tmp_path / "log")] == [None, None, 1, None]


def test_the_log_is_rotated_and_no_line_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "FILE_BYTES", 1000)
    monkeypatch.setattr(audit, "NOTES_AT_ONCE", 3)
    monkeypatch.setattr(audit, "PAUSE_SECONDS", 60)
    log = Audit(tmp_path / "log")
    for number in range(50):
        log.note(note(b"/%d" % number))
    log.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == audit.FILES + 1 and all(file.stat().st_size <= 1000 for file in files)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert lines(tmp_path / "log")[-1]["path"] == "/49"
    assert all(lines(file) for file in files)


def test_a_log_that_cannot_be_begun_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="--audit-log"):
        Audit(tmp_path / "none" / "log")


def test_a_full_disk_stops_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    log = Audit(tmp_path / "log")
    log.note(note())
    with caplog.at_level(logging.ERROR):
        log.close()
    assert "the audit log cannot be written: 1 lines are lost" in caplog.text
    assert log.lost.collect()[0].samples[0].value == 1
