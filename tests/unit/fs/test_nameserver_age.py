"""How long things are kept, whatever becomes of the machine's clock; time is set by the tests."""

import random

import pytest

from speedwell.fs.nameserver.backup.namespace_age import KEEP_SECONDS
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import MemoryStore

DAY_SECONDS = 86400.0


class Served:
    """A nameserver with one dataserver, and its two clocks."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now_seconds = 1000.0
        self.wall_clock_seconds = 1_700_000_000.0
        self.restart()
        self.beat()

    def restart(self) -> None:
        self.service = NameserverService(
            self.store, Settings(deletion_grace_seconds=60), generator=random.Random(1),
            clock_ns=lambda: int((self.now_seconds + self.wall_clock_seconds) * 1e9),
            clock_seconds=lambda: self.now_seconds)

    def wait(self, seconds: float) -> None:
        self.now_seconds += seconds

    def beat(self) -> list[str]:
        """What the dataserver is told to delete."""
        return list(self.told().delete)

    def told(self) -> pb.HeartbeatReply:
        server = pb.Replica(dataserver_id="d0", host="10.0.0.1", port=7000)
        return self.service.dataservers.heartbeat(pb.HeartbeatRequest(
            server=server, capacity_bytes=1000, available_bytes=500, term=self.service.provenance.term,
            inventory_complete=True))

    def remove_a_file(self) -> str:
        file_id = self.service.create(pb.CreateRequest(path=b"/f", mode=0o644)).attributes.file_id
        self.service.remove(pb.RemoveRequest(path=b"/f"))
        return file_id


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("jump_seconds", [DAY_SECONDS, -DAY_SECONDS])
def test_a_jump_of_the_wall_clock_deletes_nothing_sooner_or_later(served: Served, jump_seconds: float,
                                                                 restarted: bool) -> None:
    removed = served.remove_a_file()
    served.wall_clock_seconds += jump_seconds
    if restarted:
        served.restart()
    served.wait(59)
    assert served.beat() == []
    served.wait(2)
    assert served.beat() == [removed]


@pytest.mark.parametrize("jump_seconds", [10 * DAY_SECONDS, -10 * DAY_SECONDS])
def test_a_jump_of_the_wall_clock_keeps_the_trash_for_as_long_as_was_said(served: Served,
                                                                          jump_seconds: float) -> None:
    served.service.trash.set_trash(pb.SetTrashRequest(path=b"/", keep_ns=1000 * 10**9))
    served.remove_a_file()
    served.wall_clock_seconds += jump_seconds
    served.wait(990)
    served.beat()
    entry = served.service.trash.entries(pb.TrashRequest()).entries[0]
    assert entry.kept_until_ns / 1e9 == pytest.approx(served.wall_clock_seconds + served.now_seconds + 10, abs=0.01)
    served.wait(11)
    served.beat()
    assert not served.service.trash.entries(pb.TrashRequest()).entries


def test_the_time_before_a_crash_counts_but_for_the_last_seconds(served: Served) -> None:
    served.wait(500)   # nothing waits: not a moment of this is written down
    served.beat()
    removed = served.remove_a_file()
    for _ in range(10):
        served.wait(KEEP_SECONDS)
        served.beat()
    served.wait(KEEP_SECONDS - 1)
    served.restart()
    served.wait(9)
    assert served.beat() == []
    served.wait(2)
    assert served.beat() == [removed]


@pytest.mark.parametrize("jump_seconds", [10 * DAY_SECONDS, -10 * DAY_SECONDS])
def test_a_jump_of_the_wall_clock_makes_no_key_for_tokens_and_ends_none(served: Served, jump_seconds: float) -> None:
    before = served.told().admission
    served.wall_clock_seconds += jump_seconds
    served.wait(30)
    after = served.told().admission
    assert [key.number for key in after.keys] == [key.number for key in before.keys]
    assert after.now_ms - before.now_ms == 30_000


@pytest.mark.parametrize("behind_seconds", [50, DAY_SECONDS])
def test_a_nameserver_whose_clock_is_behind_makes_a_key_only_where_it_is_far_behind(
        served: Served, behind_seconds: float) -> None:
    before = served.told().admission
    served.wall_clock_seconds -= behind_seconds
    served.restart()
    after = served.told().admission
    assert (after.keys[0], len(after.keys)) == (before.keys[0], len(before.keys) + (behind_seconds == DAY_SECONDS))


def test_owners_date_tokens_by_the_clock_of_the_owner_of_block_0(served: Served) -> None:
    other = Served()
    other.wall_clock_seconds += DAY_SECONDS
    other.restart()
    other.wait(500)
    served.service.hear(other.service.statistics(pb.StatisticsRequest()))
    served.wait(5)
    other.wait(5)
    now_ms = served.told().admission.now_ms
    assert now_ms == other.told().admission.now_ms
    served.service.hear(pb.StatisticsReply())       # of a version that says nothing of it
    assert served.told().admission.now_ms == now_ms
