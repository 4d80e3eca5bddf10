"""The store that etcd keeps: the contract of every store, one leader at a time, nothing written lost."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from speedwell.fs.errors import NotLeader, StorageFailed
from speedwell.fs.etcd_client import EtcdClient
from speedwell.fs.store import Batch, MemoryStore, Store
from speedwell.fs.store import replicated as implementation
from speedwell.fs.store.replicated import ReplicatedStore
from tests.etcd import EtcdCluster, requires_etcd
from tests.unit.fs import test_store as contract
from tests.waiting import wait_until

pytestmark = requires_etcd
ELECTION_SECONDS = 10

test_a_key_that_was_never_written_has_no_value = contract.test_a_key_that_was_never_written_has_no_value
test_an_empty_value_is_a_value = contract.test_an_empty_value_is_a_value
test_the_last_change_in_a_batch_wins = contract.test_the_last_change_of_a_key_in_a_batch_wins
test_deleting_a_missing_key_is_no_error = contract.test_deleting_a_key_that_does_not_exist_is_no_error
test_iteration_keeps_its_bounds = contract.test_iteration_begins_at_start_and_ends_before_stop
test_iteration_is_a_snapshot = contract.test_iteration_shows_the_store_as_it_was_when_it_began
test_a_closed_store_refuses = contract.test_a_closed_store_refuses_with_a_message_and_closes_again
test_it_behaves_like_a_sorted_dictionary = contract.test_a_store_behaves_like_a_sorted_dictionary


class Member:
    """A store that follows in a thread until it leads."""

    def __init__(self, endpoints: list[str], prefix: str, name: str, mirror: Store | None = None) -> None:
        self.mirror = mirror or MemoryStore()
        self.store = ReplicatedStore(EtcdClient(endpoints), self.mirror, prefix, name)
        self._thread = threading.Thread(target=self.store.follow_until_elected)
        self._thread.start()

    def wait_until_it_leads(self) -> ReplicatedStore:
        wait_until(lambda: self.store.leads, ELECTION_SECONDS, "nobody was elected")
        return self.store

    def close(self) -> None:
        self.store.stop()
        self._thread.join()
        self.store.close()


@pytest.fixture
def join(etcd: EtcdCluster) -> Iterator[Callable[..., Member]]:
    prefix, members = f"/test/{uuid.uuid4()}", []

    def start(name: str, mirror: Store | None = None) -> Member:
        members.append(Member(etcd.endpoints, prefix, name, mirror))
        return members[-1]

    yield start
    for member in members:
        member.close()


@pytest.fixture
def store(join: Callable[..., Member]) -> Store:
    return join("a").wait_until_it_leads()


def put(store: Store, **pairs: str) -> None:
    batch = Batch()
    for key, value in pairs.items():
        batch.put(key.encode(), value.encode())
    store.write(batch)


def test_one_member_leads_and_the_others_refuse(join: Callable[..., Member]) -> None:
    first = join("a").wait_until_it_leads()
    second = join("b")
    wait_until(lambda: second.store.leader() == "a", 15, "the follower does not see the leader")
    with pytest.raises(NotLeader):
        second.store.get(b"key")
    with pytest.raises(NotLeader):
        put(second.store, key="value")
    assert first.leads and not second.store.leads


def test_a_member_that_resigns_hands_everything_over_at_once(join: Callable[..., Member]) -> None:
    first, second = join("a"), join("b")
    wait_until(lambda: first.store.leads or second.store.leads, ELECTION_SECONDS, "nobody was elected")
    old, new = (first, second) if first.store.leads else (second, first)
    for number in range(50):
        put(old.store, **{f"key{number}": "value"})
    old.close()
    assert len(list(new.wait_until_it_leads().iterate(b""))) == 50


def test_a_leader_that_lost_its_turn_cannot_write(join: Callable[..., Member],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    old = join("a").wait_until_it_leads()
    put(old, key="old")
    # As after a long pause of the process: its lease has ended, it has not noticed.
    etcd_lease = old._lease
    monkeypatch.setattr(old._etcd, "renew_lease", lambda lease: 60.0)
    old._leads_until += 60
    old._etcd.revoke_lease(etcd_lease)
    new = join("b").wait_until_it_leads()
    put(new, key="new")
    with pytest.raises(NotLeader):
        put(old, key="late")
    assert not old.leads
    assert new.get(b"key") == b"new"


def test_a_batch_whose_answer_was_lost_is_not_applied_twice_and_not_lost(
        store: ReplicatedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, key="1")
    real, calls = store._etcd.transaction, []

    def answer_lost_once(request: object) -> object:
        calls.append(request)
        if len(calls) == 1:
            real(request)      # type: ignore[arg-type]
        return real(request)   # type: ignore[arg-type]

    monkeypatch.setattr(store._etcd, "transaction", answer_lost_once)
    put(store, key="2")
    put(store, other="3")
    assert store.leads
    assert dict(store.iterate(b"")) == {b"key": b"2", b"other": b"3"}


def test_a_member_that_was_away_longer_than_etcd_remembers_loads_everything(
        join: Callable[..., Member], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementation, "PAGE", 7)
    mirror = _KeptStore()
    away = join("away", mirror)
    put(away.wait_until_it_leads(), gone="x", kept="old")
    away.close()
    there = join("there")
    store = there.wait_until_it_leads()
    for number in range(30):
        put(store, **{f"key{number:02}": "value"})
    batch = Batch()
    batch.delete(b"gone")
    store.write(batch)
    store._etcd.compact(store._revision)
    there.close()
    again = join("away", mirror).wait_until_it_leads()
    pairs = dict(again.iterate(b""))
    assert b"gone" not in pairs and pairs[b"kept"] == b"old" and len(pairs) == 31


def test_etcd_forgets_old_revisions_and_need_not_for_a_batch_to_be_written(
        store: ReplicatedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementation, "COMPACT_EVERY", 5)
    before = store._revision
    compact = store._etcd.compact

    def refuse(revision: int) -> None:
        raise StorageFailed("not now")

    monkeypatch.setattr(store._etcd, "compact", refuse)
    for number in range(7):
        put(store, **{f"key{number}": "value"})
    assert len(list(store.iterate(b""))) == 7
    monkeypatch.setattr(store._etcd, "compact", compact)
    put(store, key7="value")
    watching = store._etcd.watch(store._prefix, store._end, before)
    assert any(answer.compact_revision > before for answer in watching if answer.canceled)


def test_a_leader_whose_mirror_fails_leads_no_more(join: Callable[..., Member],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = MemoryStore()
    store = join("a", mirror).wait_until_it_leads()
    write = mirror.write

    def full(batch: Batch) -> None:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(mirror, "write", full)
    with pytest.raises(NotLeader, match="full"):
        put(store, key="value")
    assert not store.leads
    monkeypatch.setattr(mirror, "write", write)
    assert store.follow_until_elected()
    assert store.get(b"key") == b"value"


def test_a_minority_of_etcd_may_die_at_any_time(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path, members=3) as etcd:
        member = Member(etcd.endpoints, "/test", "a")
        try:
            member.wait_until_it_leads()
            written = []
            for victim in range(3):
                etcd.kill(victim)
                for number in range(10):
                    written.append(_put_until_done(member, f"key{victim}{number}"))
                etcd.start(victim)
            assert sorted(key.decode() for key, _ in member.store.iterate(b"")) == sorted(written)
        finally:
            member.close()


def _put_until_done(member: Member, key: str) -> str:
    def done() -> bool:
        with suppress(NotLeader, StorageFailed):
            put(member.store, **{key: "value"})
            return True
        if not member._thread.is_alive():
            member._thread = threading.Thread(target=member.store.follow_until_elected)
            member._thread.start()
        return False

    wait_until(done, 60, f"{key} could not be written")
    return key


class _KeptStore(MemoryStore):
    """A mirror on a disk, so to speak: closing loses nothing."""

    def close(self) -> None:
        return
