"""A nameserver that lost its directory gets the namespace back from the dataservers' copies, exactly, or waits."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speedwell.fs.dataserver.upkeep import mirror
from speedwell.fs.errors import SpeedwellError
from speedwell.fs.nameserver.backup import mirrors, rebuilding
from speedwell.fs.proto import speedwell_pb2 as pb
from tests.mirrored_nameserver import Holder, MirroredNameserver
from tests.namespace_histories import NamespaceHistory
from tests.waiting import wait_until

NAMES = ["d0", "d1", "d2"]


def changed(installation: MirroredNameserver, count: int, seed: int = 1) -> dict[bytes, bytes]:
    """The namespace after `count` random changes."""
    installation.beat()
    NamespaceHistory(lambda: installation.service, random.Random(seed)).run(count)
    return installation.contents()


def put_back(installation: MirroredNameserver, end: Callable[[], None]) -> dict[bytes, bytes]:
    """Go on, end the nameserver with `end`, and put an earlier state of its directory there; what was lost so."""
    earlier = installation.place.with_name("earlier")
    changed(installation, 60)
    installation.settle()
    installation.crash()
    shutil.copytree(installation.place, earlier)
    installation.start()
    expected = changed(installation, 40, seed=2)
    installation.settle()
    end()
    shutil.rmtree(installation.place)
    earlier.rename(installation.place)
    return expected


def make_directories(installation: MirroredNameserver, *paths: str) -> None:
    for path in paths:
        installation.service.make_directory(pb.MakeDirectoryRequest(path=path.encode(), mode=0o755))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), before=st.integers(0, 80), between=st.integers(0, 80), late=st.booleans())
def test_the_rebuilt_namespace_is_the_one_that_was_lost(tmp_path_factory: pytest.TempPathFactory, seed: int,
                                                        before: int, between: int, late: bool) -> None:
    """Also with changes while copies were made, after a crash, and the second time."""
    directory = tmp_path_factory.mktemp("rebuild")
    generator = random.Random(seed)
    with MirroredNameserver(directory, NAMES) as installation:
        history = NamespaceHistory(lambda: installation.service, generator)
        installation.beat()
        history.run(before)
        if late:
            installation.settle()
        history.run(between)
        installation.settle()
        expected = installation.contents()
        for lose in (installation.lose, installation.crash, installation.lose):
            lose()
            installation.rebuild()
            assert installation.contents() == expected
            history.run(20)
            installation.settle()
            expected = installation.contents()
    shutil.rmtree(directory)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_copy_made_in_pieces_while_the_namespace_changes_is_whole(tmp_path_factory: pytest.TempPathFactory,
                                                                    seed: int) -> None:
    generator = random.Random(seed)
    directory = tmp_path_factory.mktemp("pieces")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirrors, "COPY_BYTES", 300)
        patch.setattr(mirror, "PART_BYTES", 500)
        with MirroredNameserver(directory, ["d0"]) as installation:
            history = NamespaceHistory(lambda: installation.service, generator)
            history.run(100)
            holder = installation.holders["d0"]
            pull = Holder._pull

            def pull_and_change(self: Holder, requests: object) -> bool:
                history.run(2 if generator.random() < 0.5 and self.mirror.position is None else 0)
                if generator.random() < 0.1:
                    self.restart()
                return pull(self, requests)  # type: ignore[arg-type]

            patch.setattr(Holder, "_pull", pull_and_change)
            installation.settle()
            assert holder.mirror.position is not None
            expected = installation.contents()
            installation.lose()
            installation.rebuild()
            assert installation.contents() == expected
    shutil.rmtree(directory)


def test_a_first_start_serves_at_once_and_an_empty_directory_waits(tmp_path: Path) -> None:
    with MirroredNameserver(tmp_path, NAMES) as installation:
        assert installation.serves
        installation.lose()
        installation.start()
        assert "a nameserver that is to begin a new one is started with --new" in installation.stays_waiting()


def test_one_of_the_holders_missing_is_named_and_waited_for(tmp_path: Path) -> None:
    with MirroredNameserver(tmp_path, NAMES) as installation:
        expected = changed(installation, 50)
        installation.settle()
        installation.lose()
        absent = installation.holders.pop("d1")
        installation.start()
        assert "waits for d1, which may have the newest copy" in installation.stays_waiting()
        installation.holders["d1"] = absent
        installation.wait_rebuilt()
        assert installation.contents() == expected


def test_an_operator_can_give_up_a_holder_which_then_is_not_believed(tmp_path: Path) -> None:
    with MirroredNameserver(tmp_path, NAMES) as installation:
        changed(installation, 50)
        installation.settle()
        absent = installation.holders.pop("d2")
        make_directories(installation, "/only-here")
        absent.beat(installation.requests)       # it alone has the last change
        assert absent.mirror.position is not None
        ahead = absent.mirror.position.sequence
        installation.lose()
        installation.rebuild(force=True)
        with pytest.raises(SpeedwellError):
            installation.service.lookup(pb.LookupRequest(path=b"/only-here"))
        make_directories(installation, "/new")
        expected = installation.contents()
        installation.holders["d2"] = absent
        installation.settle()
        assert installation.serves and absent.mirror.position.sequence != ahead
        installation.lose()
        installation.rebuild()
        assert installation.contents() == expected


def test_a_nameserver_killed_while_it_rebuilds_does_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "PART_BYTES", 100)
    with MirroredNameserver(tmp_path, NAMES) as installation:
        make_directories(installation, *(f"/d{number}" for number in range(20)))
        expected = changed(installation, 100)
        installation.settle()
        assert all(len(list(holder.mirror.parts())) > 10 for holder in installation.holders.values())
        installation.lose()
        for parts in (0, 1, 3):
            installation.start()

            def asked_for(parts: int = parts) -> bool:
                for holder in installation.holders.values():
                    holder.beat(installation.requests, parts)
                return (installation.place / "rebuilding").exists()

            wait_until(asked_for, 20, "no copy is asked for")
            asked_for()
            assert not installation.serves
            installation.crash()
        installation.rebuild()
        assert installation.contents() == expected


def test_a_machine_that_lost_power_takes_what_it_lost_from_the_copies(tmp_path: Path) -> None:
    with MirroredNameserver(tmp_path, NAMES) as installation:
        expected = put_back(installation, installation.crash)
        _pretend_another_boot(installation.place)
        installation.start()
        assert "the machine was started again" in installation.refusal()
        installation.wait_rebuilt()
        assert installation.contents() == expected


def test_a_machine_that_lost_power_and_nothing_else_goes_on(tmp_path: Path) -> None:
    with MirroredNameserver(tmp_path, NAMES) as installation:
        changed(installation, 60)
        installation.settle()
        make_directories(installation, "/not-copied-yet")
        expected = installation.contents()
        installation.crash()
        _pretend_another_boot(installation.place)
        installation.rebuild()
        assert installation.contents() == expected


def test_with_sync_a_machine_that_lost_power_serves_at_once(tmp_path: Path) -> None:
    with MirroredNameserver(tmp_path, NAMES, sync=True) as installation:
        expected = changed(installation, 30)
        installation.settle()
        installation.crash()
        _pretend_another_boot(installation.place)
        installation.start()
        assert installation.serves and installation.contents() == expected


def test_a_nameserver_that_is_behind_its_copies_stops_serving(tmp_path: Path) -> None:
    """For example a directory that came from a backup."""
    with MirroredNameserver(tmp_path, NAMES) as installation:
        expected = put_back(installation, installation.stop)
        installation.start()
        assert installation.serves
        installation.beat()
        wait_until(lambda: not installation.serves, 15, "it serves an old state")
        installation.wait_rebuilt()
        assert installation.contents() == expected


def test_lengths_that_the_copies_do_not_know_come_from_the_primaries(tmp_path: Path) -> None:
    with MirroredNameserver(tmp_path, NAMES) as installation:
        installation.beat()
        attributes = installation.service.create(pb.CreateRequest(path=b"/f", mode=0o644)).attributes
        installation.settle()
        installation.lose()
        for name, size in ((attributes.replicas[0].dataserver_id, 700), (attributes.replicas[1].dataserver_id, 900)):
            installation.holders[name].lengths = [pb.FileLength(inode=attributes.inode, file_id=attributes.file_id,
                                                                size=size)]
        installation.rebuild()
        assert installation.service.lookup(pb.LookupRequest(path=b"/f")).attributes.size == 700


def test_epochs_are_raised_beyond_what_dataservers_report_and_the_one_that_knows_the_newest_orders(
        tmp_path: Path) -> None:
    with MirroredNameserver(tmp_path, NAMES) as installation:
        installation.beat()
        made = installation.service.create(pb.CreateRequest(path=b"/f", mode=0o644)).attributes
        installation.settle()
        installation.lose()
        primary, second, third = (replica.dataserver_id for replica in made.replicas)
        for name, epoch in ((primary, 1), (second, 7), (third, 5)):
            installation.holders[name].reports = [pb.FileReport(file_id=made.file_id, inode=made.inode, epoch=epoch)]
        installation.rebuild()
        found = installation.service.lookup(pb.LookupRequest(path=b"/f")).attributes
        assert found.epoch > 7
        assert found.replicas[0].dataserver_id == second
        assert {replica.dataserver_id for replica in found.replicas} == {primary, second, third}


def test_a_dataserver_of_another_namespace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with MirroredNameserver(tmp_path / "one", ["d0"]) as one, MirroredNameserver(tmp_path / "two", ["d1"]) as two:
        one.settle()
        two.settle()
        two.holders["d1"].beat(one.requests)
        assert "belongs to the namespace" in two.holders["d1"].refused
        assert [status.dataserver_id for status in one.service.statistics(pb.StatisticsRequest()).mirrors] == ["d0"]


def test_a_holder_that_stays_away_is_replaced_and_drops_its_copy_when_it_returns(tmp_path: Path) -> None:
    with MirroredNameserver(tmp_path, ["d0", "d1", "d2", "d3"]) as installation:
        changed(installation, 30)
        installation.settle()
        number = installation.service.administration.number_of("d1", "dataserver_id")
        absent = installation.holders.pop("d1")
        installation.service._registry._status[number].last_heartbeat_seconds -= 1e6

        def replaced() -> bool:
            installation.beat()
            return set(installation.holders["d0"].mirror.holders.members) == {"d0", "d2", "d3"}

        wait_until(replaced, 15, "the holder that is away is not replaced")
        installation.holders["d1"] = absent
        expected = installation.contents()
        installation.settle()
        assert absent.mirror.holders.members and "d1" not in absent.mirror.holders.members
        installation.lose()
        installation.rebuild()
        assert installation.contents() == expected


@pytest.mark.parametrize("kind", ["namespace/*.ldb", "namespace/*.log", "namespace/MANIFEST-*", "namespace/CURRENT",
                                  "journal/*", "state"])
def test_flipped_bits_in_the_nameservers_directory_are_repaired_or_harmless(tmp_path: Path, kind: str) -> None:
    with MirroredNameserver(tmp_path, NAMES) as installation:
        changed(installation, 150)
        for seed in range(8):
            if kind != "namespace/*.log":
                installation.stop()
                installation.start()    # opening turns the log into a table
            make_directories(installation, f"/seed{seed}")
            expected = installation.contents()
            installation.settle()
            if seed % 2:
                installation.stop()
            else:
                installation.crash()
            _flip(installation.place, kind, seed)
            installation.rebuild()
            assert installation.checked_contents() == expected, f"seed {seed}"


@pytest.mark.parametrize("kind", ["*/*.ldb", "*/*.log", "*/MANIFEST-*", "*/CURRENT", "holders-1"])
def test_flipped_bits_in_a_dataservers_copy_are_repaired_or_harmless(tmp_path: Path, kind: str) -> None:
    with MirroredNameserver(tmp_path, NAMES) as installation:
        changed(installation, 150)
        installation.settle()
        for seed in range(6):
            holder = installation.holders[NAMES[seed % 3]]
            if kind != "*/*.log":
                holder.restart()    # opening turns the log into a table
            make_directories(installation, f"/seed{seed}")
            expected = installation.contents()
            installation.settle()
            holder.mirror.close()
            _flip(holder.directory / "mirror", kind, seed)
            holder.restart()
            if seed >= 3:
                installation.settle()
            installation.lose()
            installation.rebuild()
            assert installation.contents() == expected, f"seed {seed}"
            installation.settle()


@pytest.mark.parametrize("which", mirror.HOLDERS_FILES)
def test_with_a_damaged_copy_the_other_holders_are_known_from_either_file(tmp_path: Path, which: str) -> None:
    with MirroredNameserver(tmp_path, NAMES) as installation:
        expected = changed(installation, 50)
        installation.settle()
        holder = installation.holders["d1"]
        for _ in range(2):      # the second time the file is there again
            holder.mirror.close()
            (holder.directory / "mirror" / which).write_bytes(b"damaged")
            for current in (holder.directory / "mirror").glob("*/CURRENT"):
                current.write_bytes(b"damaged")
            holder.restart()
            installation.lose()
            installation.rebuild()
            assert installation.contents() == expected
            installation.settle()
        assert {(holder.directory / "mirror" / name).read_bytes()[:1] for name in mirror.HOLDERS_FILES} == {b"{"}


def test_a_copy_that_is_found_damaged_while_it_is_sent_is_not_taken(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilding, "SILENT_SECONDS", 0.3)
    with MirroredNameserver(tmp_path, NAMES) as installation:
        expected = changed(installation, 150)
        installation.settle()
        for name in ("d1", "d2"):       # the last one is asked first when all are level
            holder = installation.holders[name]
            holder.restart()
            holder.restart()
            installation.settle()
            table = max((holder.directory / "mirror").glob("*/*.ldb"))
            data = bytearray(table.read_bytes())
            data[len(data) // 3] ^= 1
            table.write_bytes(data)
            holder.restart()
        installation.lose()
        installation.rebuild()
        assert installation.contents() == expected


def _flip(directory: Path, kind: str, seed: int) -> None:
    """Another value for one bit in one file of that kind that is not empty."""
    generator = random.Random(seed)
    path = generator.choice([path for path in sorted(directory.glob(kind)) if path.stat().st_size])
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0"))
    data[generator.randrange(used)] ^= 1 << generator.randrange(8)
    path.write_bytes(data)


def _pretend_another_boot(place: Path) -> None:
    text = (place / "state").read_bytes().rpartition(b" ")[0]
    state = json.loads(text)
    assert state["condition"] == "serving"
    state["boot"] = "before"
    text = json.dumps(state).encode()
    (place / "state").write_bytes(text + b" %08x\n" % crc32c(text))
