"""The table of locks, and locks as requests: who gets them, who waits, who loses them."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.fs.errors import InvalidArgument, LocksLost, WouldDeadlock
from speedwell.fs.nameserver.locks.lock_table import END_OF_FILE, Lock, LockTable
from speedwell.fs.nameserver.service.service import NameserverService
from speedwell.fs.nameserver.service.settings import Settings
from speedwell.fs.proto import speedwell_pb2 as pb
from speedwell.fs.store import MemoryStore

SIZE = 12
A, B, C = (1, 1), (1, 2), (2, 1)


def lock(owner: tuple[int, int], first: int = 0, last: int = END_OF_FILE, exclusive: bool = True,
         whole: bool = False) -> Lock:
    return Lock(*owner, first, last, exclusive, whole)


@pytest.fixture
def table() -> LockTable:
    return LockTable(MemoryStore())


def test_exclusive_locks_of_two_owners_do_not_overlap(table: LockTable) -> None:
    assert table.acquire(7, lock(A, 0, 9)) is None
    assert table.acquire(7, lock(B, 9, 20)) == lock(A, 0, 9)
    assert table.acquire(7, lock(B, 10, 20)) is None
    assert table.acquire(8, lock(B, 0, 9)) is None


def test_shared_locks_overlap_and_keep_exclusive_ones_out(table: LockTable) -> None:
    assert table.acquire(7, lock(A, exclusive=False)) is None
    assert table.acquire(7, lock(B, exclusive=False)) is None
    assert table.acquire(7, lock(C)) is not None
    assert table.acquire(7, lock(A)) == lock(B, exclusive=False)


def test_locks_of_flock_and_of_fcntl_do_not_meet(table: LockTable) -> None:
    assert table.acquire(7, lock(A, whole=True)) is None
    assert table.acquire(7, lock(B)) is None
    assert table.acquire(7, lock(B, whole=True)) == lock(A, whole=True)


def test_unlocking_the_middle_leaves_both_ends(table: LockTable) -> None:
    table.acquire(7, lock(A, 0, 9))
    assert table.release(7, lock(A, 3, 5))
    assert not table.release(7, lock(A, 3, 5))
    assert table.acquire(7, lock(B, 3, 5)) is None
    assert table.conflict(7, lock(B, 2, 2)) is not None
    assert table.conflict(7, lock(B, 6, 6)) is not None


def test_locks_are_there_after_a_restart_until_their_session_ends() -> None:
    store = MemoryStore()
    table = LockTable(store)
    table.acquire(7, lock(A, 0, 9))
    table.acquire(7, lock(C, 20, 29))
    table = LockTable(store)
    assert set(table.sessions()) == {1, 2}
    assert table.conflict(7, lock(B, 0, 0)) == lock(A, 0, 9)
    assert table.release_session(1)
    assert table.conflict(7, lock(C, 0, 9)) is None
    assert set(LockTable(store).sessions()) == {2}


def test_a_cycle_of_waiters_is_a_deadlock_and_a_chain_is_not(table: LockTable) -> None:
    for inode, owner in ((1, A), (2, B), (3, C)):
        table.acquire(inode, lock(owner))
    assert table.wait(2, lock(A), 0.0)
    assert table.wait(3, lock(B), 0.0)
    assert not table.wait(1, lock(C), 0.5)
    assert table.wait(1, lock(C), 5.0)  # the others have not asked again: they wait no more


operations = st.lists(st.tuples(st.sampled_from(["acquire", "release"]), st.sampled_from([A, B, C]),
                                st.integers(0, SIZE - 1), st.integers(0, SIZE - 1), st.booleans()), max_size=40)


@settings(deadline=None)
@given(operations)
def test_the_table_agrees_with_one_that_keeps_every_byte(steps: list[tuple[str, tuple[int, int], int, int, bool]]
                                                         ) -> None:
    store = MemoryStore()
    table = LockTable(store)
    held: dict[tuple[tuple[int, int], int], bool] = {}
    for action, owner, one, other, exclusive in steps:
        first, last = sorted((one, other))
        wanted = lock(owner, first, last, exclusive)
        places = range(first, last + 1)
        if action == "release":
            table.release(7, wanted)
            for place in places:
                held.pop((owner, place), None)
            continue
        free = not any(who != owner and place in places and (exclusive or theirs)
                       for (who, place), theirs in held.items())
        assert (table.acquire(7, wanted) is None) == free
        if free:
            held.update({(owner, place): exclusive for place in places})
    for each in (table, LockTable(store)):
        for place in range(SIZE):
            for exclusive in (False, True):
                expected = any(where == place and (exclusive or theirs) for (_, where), theirs in held.items())
                assert (each.conflict(7, lock((9, 9), place, place, exclusive)) is not None) == expected


class Service:
    """A nameserver with one file; time is the test's."""

    def __init__(self) -> None:
        self.now_seconds = 1000.0
        self.service = NameserverService(
            MemoryStore(), Settings(session_lease_seconds=5), generator=random.Random(1),
            clock_ns=lambda: int(self.now_seconds * 1e9), clock_seconds=lambda: self.now_seconds)
        self.service.dataservers.heartbeat(pb.HeartbeatRequest(
            server=pb.Replica(dataserver_id="d0", host="h", port=1), capacity_bytes=9, available_bytes=9))
        self.inode = self.service.create(pb.CreateRequest(path=b"/f")).attributes.inode

    def ask(self, session: int, action: "pb.LockRequest.Action.ValueType" = pb.LockRequest.ACQUIRE,
            waits: bool = False) -> bool:
        return self.service.sessions.lock(pb.LockRequest(action=action, session=session, inode=self.inode, owner=1,
                                                last=END_OF_FILE, exclusive=True, waits=waits)).granted


@pytest.fixture
def service() -> Iterator[Service]:
    yield Service()


def test_a_request_that_waits_is_answered_when_the_lock_is_free(service: Service) -> None:
    assert service.ask(1)
    started = threading.Event()

    def wait() -> bool:
        started.set()
        while not service.ask(2, waits=True):
            pass
        return True

    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(wait)
        assert started.wait(10)
        assert not service.ask(3)
        assert service.ask(1, pb.LockRequest.RELEASE)
        assert waiter.result(10)
    assert not service.ask(1)


def test_a_silent_session_loses_its_locks_after_its_lease(service: Service) -> None:
    assert service.ask(1)
    service.now_seconds += 5
    assert not service.ask(2)
    service.now_seconds += 0.1
    assert service.ask(2)


def test_a_request_without_an_action_or_with_a_backward_range_is_refused(service: Service) -> None:
    with pytest.raises(InvalidArgument, match="action"):
        service.ask(1, pb.LockRequest.ACTION_UNSPECIFIED)
    with pytest.raises(InvalidArgument, match="last"):
        service.service.sessions.lock(pb.LockRequest(action=pb.LockRequest.ACQUIRE, session=1, inode=service.inode,
                                            first=5, last=4))


def test_who_would_wait_for_ever_is_told_so(service: Service) -> None:
    other = service.service.create(pb.CreateRequest(path=b"/g")).attributes.inode
    first = service.inode
    assert service.ask(1)
    service.inode = other
    assert service.ask(2)
    assert not service.ask(1, waits=True)
    service.inode = first
    with pytest.raises(WouldDeadlock):
        service.ask(2, waits=True)


class Fenced:
    """What a mount asks for that writes under a lock, and a nameserver that may restart."""

    def __init__(self) -> None:
        self.now_seconds = 1000.0
        self.store = MemoryStore()
        self.start()
        self.service.dataservers.heartbeat(pb.HeartbeatRequest(
            server=pb.Replica(dataserver_id="d0", host="h", port=1), capacity_bytes=9, available_bytes=9))
        self.file = self.service.create(pb.CreateRequest(path=b"/f")).attributes

    def start(self) -> None:
        self.service = NameserverService(
            self.store, Settings(session_lease_seconds=5), generator=random.Random(1),
            clock_ns=lambda: int(self.now_seconds * 1e9), clock_seconds=lambda: self.now_seconds)

    def lock(self, session: int) -> int:
        """The generation in which the session has the lock."""
        reply = self.service.sessions.lock(pb.LockRequest(action=pb.LockRequest.ACQUIRE, session=session, owner=1,
                                                 inode=self.file.inode, last=99, exclusive=True))
        assert reply.granted
        return reply.generation

    def renew(self, session: int) -> int:
        return self.service.sessions.renew_session(pb.RenewSessionRequest(session=session)).generation

    def commit(self, size: int, **fields: int) -> int:
        return self.service.commit(pb.CommitRequest(inode=self.file.inode, file_id=self.file.file_id, size=size,
                                                    **fields)).attributes.size  # type: ignore[arg-type]


def test_what_was_written_under_a_lost_lock_is_neither_committed_nor_published() -> None:
    mount = Fenced()
    generation = mount.lock(1)
    assert mount.renew(1) == generation
    assert mount.commit(5, session=1, generation=generation) == 5
    mount.now_seconds += 6
    assert mount.lock(2)
    for again in (False, True):     # the session that comes back has the same number, and is another one
        if again:
            assert mount.renew(1) != generation
        with pytest.raises(LocksLost, match="lease"):
            mount.commit(9, session=1, generation=generation)
        with pytest.raises(LocksLost):
            mount.service.publish(pb.PublishRequest(
                inode=mount.file.inode, base=mount.file.file_id, base_size=5, size=1, epoch=1,
                file_id="01234567-89ab-cdef-0123-456789abcdef", session=1, generation=generation))
    assert mount.commit(7) == 7     # without a lock


def test_a_nameserver_that_restarts_knows_the_generation_of_who_has_a_lock() -> None:
    mount = Fenced()
    generation = mount.lock(1)
    mount.start()
    assert mount.commit(5, session=1, generation=generation) == 5
    assert mount.renew(1) == generation
