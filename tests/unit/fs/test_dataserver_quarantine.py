"""What a dataserver does with contents that no file has, and with nameservers that it does not belong to."""

import uuid
from pathlib import Path

import pytest

from speedwell.fs.dataserver.disk import quarantine as implementation
from speedwell.fs.dataserver.disk.contents import ADOPTED_SECONDS, PAUSE_SECONDS, Contents
from speedwell.fs.dataserver.disk.quarantine import Quarantine
from speedwell.fs.dataserver.disk.store import FileStore
from speedwell.fs.dataserver.namespace_identity import Identity
from speedwell.fs.dataserver.replication.append_writer import AppendWriter
from speedwell.fs.dataserver.upkeep.mirror import Mirror
from speedwell.fs.errors import NoSuchFile, WrongNamespace
from speedwell.fs.nameserver.backup.copy_holders import Holders
from speedwell.fs.proto.speedwell_pb2 import FileReport, HeartbeatReply, HeartbeatRequest
from speedwell.fs.wire.identification import UNKNOWN_NAMESPACE

OWN, OTHER = bytes(range(16)), bytes(range(16, 32))
SMALL, LARGE = 100, 300_000


def make(store: FileStore, size: int, inode: int = 5, path: bytes = b"/made/as") -> str:
    file_id = str(uuid.uuid4())
    with store.opened_for_append(file_id, inode, path, 1 << 20, size) as file, file.turn:
        writer = AppendWriter(file)
        writer.write(memoryview(b"x" * size))
        writer.commit()
    return file_id


def content(store: FileStore, file_id: str) -> int:
    with store.opened(file_id) as file:
        return file.length


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "data", "d0")


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the quarantine."""
    now = [1000.0]
    monkeypatch.setattr(implementation.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_what_no_file_has_is_moved_aside_listed_and_comes_back_whole(store: FileStore, size: int) -> None:
    file_id = make(store, size)
    quarantine = Quarantine(store, 100)
    Contents(store, quarantine).drop([FileReport(file_id=file_id, inode=5)], ())
    with pytest.raises(NoSuchFile):
        content(store, file_id)
    report, = quarantine.reports("", 10)
    assert (report.file_id, report.inode, report.size, report.path) == (file_id, 5, size, b"/made/as")
    assert 98 < report.seconds_left <= 100
    assert quarantine.restore(file_id)
    assert content(store, file_id) == size
    assert not quarantine.reports("", 10)
    assert not quarantine.restore(file_id)


def test_a_surplus_replica_of_a_file_is_deleted_at_once(store: FileStore) -> None:
    file_id = make(store, SMALL)
    quarantine = Quarantine(store, 100)
    Contents(store, quarantine).drop([FileReport(file_id=file_id, inode=5, epoch=3)], ())
    assert not quarantine
    with pytest.raises(NoSuchFile):
        content(store, file_id)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_it_goes_for_good_after_its_time_in_which_stops_do_not_count(store: FileStore, size: int,
                                                                    seconds: list[float]) -> None:
    file_id = make(store, size)
    quarantine = Quarantine(store, 100)
    quarantine.put(file_id)
    seconds[0] += 70
    quarantine.expire()
    seconds[0] += 1e6    # the machine is off
    quarantine = Quarantine(store, 100)
    quarantine.expire()
    assert [report.file_id for report in quarantine.reports("", 10)] == [file_id]
    seconds[0] += 31
    quarantine.expire()
    assert not quarantine
    assert [path.name for path in (store.directory / "quarantine").iterdir()] == ["age"]


def test_a_lost_age_keeps_things_for_longer(store: FileStore, seconds: list[float]) -> None:
    quarantine = Quarantine(store, 100)
    seconds[0] += 1000
    quarantine.put(make(store, SMALL))
    (store.directory / "quarantine" / "age").write_text("damaged")
    quarantine = Quarantine(store, 100)
    seconds[0] += 101
    quarantine.expire()
    assert quarantine


def test_a_content_that_the_namespace_expects_comes_out_of_quarantine_by_itself(store: FileStore) -> None:
    file_id = make(store, SMALL)
    quarantine = Quarantine(store, 100)
    quarantine.put(file_id)
    contents = Contents(store, quarantine)
    contents.compare([FileReport(file_id=file_id, inode=5, size=SMALL)], ())
    assert contents.lost == []
    assert content(store, file_id) == SMALL


def test_a_restored_content_is_not_reported_as_an_orphan_at_once(store: FileStore) -> None:
    quarantine, file_id = Quarantine(store, 100), make(store, SMALL)
    quarantine.put(file_id)
    quarantine.restore(file_id)
    contents = Contents(store, quarantine)
    contents.scan()
    assert contents.reports == []


def test_an_inventory_is_complete_when_the_last_reports_have_been_answered(store: FileStore) -> None:
    made = {make(store, SMALL, inode) for inode in (7, 9, 8)}
    contents = Contents(store, Quarantine(store))
    contents.limit_bytes = 60   # a report begins as long as there is room
    contents.begin_again()
    contents.scan()
    first = list(contents.reports)
    assert (len(first), contents.is_complete) == (2, False)
    contents.scan()     # that heartbeat was not answered
    assert contents.reports == first
    contents.reported()
    contents.scan()
    assert {report.file_id for report in [*first, *contents.reports]} == made
    assert (contents.is_complete, contents.highest_inodes) == (True, [9])
    contents.begin_again()
    assert not contents.is_complete


def test_lengths_are_reported_once_after_a_start_and_again_for_a_while_after_an_adoption(
        store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("speedwell.fs.dataserver.disk.contents.time.monotonic", lambda: now[0])
    file_id, contents = make(store, SMALL), Contents(store, Quarantine(store))

    def reported() -> list[str]:
        now[0] += PAUSE_SECONDS
        contents.scan()
        contents.reported()
        return [length.file_id for length in store.grown.take(10)]

    reported()
    assert reported() == []
    contents.begin_again(lengths=True)      # the primary may be another one by the next report
    assert [reported(), reported()] == [[file_id]] * 2
    now[0] += ADOPTED_SECONDS
    reported()
    assert reported() == []


def test_contents_are_reported_by_bytes(store: FileStore) -> None:
    for inode in range(1, 301):
        make(store, SMALL, inode)
    contents = Contents(store, Quarantine(store))
    contents.limit_bytes = 1000
    sizes = []
    while not contents.is_complete:
        contents.scan()
        sizes.append(HeartbeatRequest(reports=contents.reports).ByteSize())
        contents.reported()
    assert all(900 < size < 1100 for size in sizes[:5])
    assert contents.highest_inodes == [300]


# ---------------------------------------------------------------------- identity


def introduced(identity: Identity) -> bytes:
    request = HeartbeatRequest()
    identity.introduce(request)
    return request.namespace


def test_an_empty_dataserver_belongs_where_it_is_answered_first_and_remembers_it(tmp_path: Path) -> None:
    identity = Identity([tmp_path], lambda: False)
    assert introduced(identity) == b""
    identity.check(HeartbeatReply(namespace=OWN))
    again = Identity([tmp_path], lambda: True)
    assert introduced(again) == OWN
    with pytest.raises(WrongNamespace, match=OTHER.hex()):
        again.check(HeartbeatReply(namespace=OTHER))
    again.refused()
    assert introduced(again) == OWN
    again.check(HeartbeatReply(rebuilding=True))


def test_one_that_holds_nothing_goes_over_to_a_nameserver_that_refused_it(tmp_path: Path) -> None:
    identity = Identity([tmp_path], lambda: False)
    identity.check(HeartbeatReply(namespace=OWN))
    identity.refused()
    assert introduced(identity) == b""
    identity.check(HeartbeatReply(namespace=OTHER))
    assert introduced(Identity([tmp_path], lambda: True)) == OTHER


def test_contents_of_an_unknown_namespace_are_not_given_to_the_next_nameserver(tmp_path: Path) -> None:
    identity = Identity([tmp_path], lambda: True)
    assert introduced(identity) == UNKNOWN_NAMESPACE
    with pytest.raises(WrongNamespace):
        identity.check(HeartbeatReply(namespace=OWN))
    identity.check(HeartbeatReply(namespace=OWN, adopt=True))
    assert introduced(Identity([tmp_path], lambda: True)) == OWN


def test_a_damaged_record_is_made_good_by_the_copy_of_the_namespace(tmp_path: Path) -> None:
    Identity([tmp_path], lambda: False).check(HeartbeatReply(namespace=OWN))
    (tmp_path / "namespace").write_bytes(b"00 00000000\n")
    assert introduced(Identity([tmp_path], lambda: True, mirrored=OWN)) == OWN
    assert introduced(Identity([tmp_path], lambda: True)) == UNKNOWN_NAMESPACE


def test_an_adopted_dataserver_keeps_its_copy_of_the_namespace_it_belonged_to(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "mirror")
    mirror.learn(Holders(OWN, 1, ("d0",)))
    (tmp_path / "mirror" / "1").mkdir()
    mirror.learn(Holders(OTHER, 1, ("d0",)))
    assert (tmp_path / "mirror" / f"of-{OWN.hex()}-1").is_dir()
    assert Mirror(tmp_path / "mirror").holders.namespace == OTHER
