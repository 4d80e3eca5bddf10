"""Leases, epochs and sets of replicas: at every moment at most one dataserver can have an append acknowledged,
and no acknowledged append is missing on a replica of the set. A state machine tries every order of heartbeats,
appends, crashes, partitions and changes of primary, with clocks that drift within what the lease allows."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from speedwell.fs.dataserver.replication.lease import Lease
from speedwell.fs.errors import NoReplicaAvailable, StaleEpoch
from speedwell.fs.nameserver.replicas.replica_set import Configuration, change, succession, without

SERVERS = (0, 1, 2, 3)
LEASE_SECONDS = 3.0


def test_a_lease_counts_from_the_sending_of_the_heartbeat() -> None:
    now = [100.0]
    lease = Lease(lambda: now[0])
    assert not lease.held
    now[0] = 101.5
    lease.renew(100.0, LEASE_SECONDS)
    assert lease.left_seconds == pytest.approx(0.9)
    now[0] = 102.4
    assert not lease.held


def test_an_answer_that_comes_too_late_gives_no_lease() -> None:
    lease = Lease(lambda: 200.0)
    lease.renew(100.0, LEASE_SECONDS)
    assert (lease.held, lease.term) == (False, 0)


def test_a_lease_that_lapsed_begins_a_new_term() -> None:
    now = [0.0]
    lease = Lease(lambda: now[0])
    for moment in (0.0, 1.0, 2.0):
        now[0] = moment
        lease.renew(moment, LEASE_SECONDS)
    assert lease.term == 1
    now[0] = 10.0
    lease.renew(10.0, LEASE_SECONDS)
    assert lease.term == 2


def test_the_last_replica_never_leaves() -> None:
    with pytest.raises(NoReplicaAvailable):
        change(Configuration(1, (5,)), epoch=1, requester=5, remove=[5], add=[])
    assert without(Configuration(1, (5,)), 5) == Configuration(1, (5,))
    assert without(Configuration(1, (5, 6)), 5) == Configuration(2, (6,))


def test_a_change_that_is_asked_for_again_is_done_once() -> None:
    before = Configuration(4, (1, 2, 3))
    after = change(before, epoch=4, requester=1, remove=[2], add=[9])
    assert after == Configuration(5, (1, 3, 9))
    assert change(after, epoch=4, requester=1, remove=[2], add=[9]) == after
    handed_over = change(before, epoch=4, requester=1, remove=[1], add=[])
    assert change(handed_over, epoch=4, requester=1, remove=[1], add=[]) == handed_over == Configuration(5, (2, 3))
    with pytest.raises(StaleEpoch):
        change(after, epoch=4, requester=1, remove=[3], add=[])


class LeaseMachine(RuleBasedStateMachine):
    """One file, its nameserver and its dataservers. An append goes through the rules of the data channel: the
    primary needs a lease, replicas refuse old epochs, and who does not follow leaves the set first."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.configuration = Configuration(1, (0, 1, 2))
        self.heard = dict.fromkeys(SERVERS, self.now)
        self.leases = {server: self.new_lease() for server in SERVERS}
        self.known = dict.fromkeys(SERVERS, 1)          # newest epoch that each dataserver has on its disk
        self.sets: dict[int, tuple[int, ...]] = {1: (0, 1, 2)}
        self.data: dict[int, list[int]] = {server: [] for server in SERVERS}
        self.acknowledged: list[int] = []
        self.appends = 0

    def new_lease(self) -> Lease:
        return Lease(lambda: self.now)

    def has_lease(self, server: int) -> bool:
        return self.now - self.heard[server] <= LEASE_SECONDS

    @rule(seconds=st.floats(0.05, 4))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(server=st.sampled_from(SERVERS), delay=st.floats(0, 2), answered=st.booleans())
    def heartbeat(self, server: int, delay: float, answered: bool) -> None:
        sent_at = self.now
        self.now += delay
        self.heard[server] = self.now
        if answered:
            self.leases[server].renew(sent_at, LEASE_SECONDS)

    @rule(server=st.sampled_from(SERVERS))
    def restart(self, server: int) -> None:
        self.leases[server] = self.new_lease()

    @rule()
    def nameserver_restarts(self) -> None:
        self.heard = dict.fromkeys(SERVERS, self.now)

    @rule()
    def somebody_wants_to_append(self) -> None:
        self.configuration = succession(self.configuration, self.has_lease)
        self.sets[self.configuration.epoch] = self.configuration.replicas

    @rule(lost=st.sampled_from(SERVERS))
    def a_dataserver_misses_its_copy(self, lost: int) -> None:
        if lost != self.configuration.primary:
            self.configuration = without(self.configuration, lost)
            self.sets[self.configuration.epoch] = self.configuration.replicas

    @rule(epoch=st.integers(0, 3), reached=st.sets(st.sampled_from(SERVERS)), nameserver=st.booleans())
    def append(self, epoch: int, reached: set[int], nameserver: bool) -> None:
        """By a client that knows the set of some recent epoch."""
        epoch = max(1, self.configuration.epoch - epoch)
        primary, *others = self.sets[epoch]
        if not self.leases[primary].held or epoch < self.known[primary]:
            return
        self.appends += 1
        followers = [other for other in others if other in reached]
        if any(self.known[other] > epoch for other in followers):
            return
        longest = max([primary, *followers], key=lambda server: len(self.data[server]))
        level = list(self.data[longest])
        failed = [other for other in others if other not in reached]
        if failed:
            if not nameserver:
                return
            try:
                self.configuration = change(self.configuration, epoch=epoch, requester=primary, remove=failed,
                                            add=[])
            except StaleEpoch:
                return
            epoch = self.configuration.epoch
            self.sets[epoch] = self.configuration.replicas
        for server in (primary, *followers):
            self.data[server] = [*level, self.appends]
            self.known[server] = max(self.known[server], epoch)
        self.acknowledged.append(self.appends)

    @rule(joining=st.sampled_from(SERVERS))
    def join(self, joining: int) -> None:
        """The primary has brought `joining` up to date and has it added."""
        epoch, replicas = self.configuration.epoch, self.configuration.replicas
        primary = replicas[0]
        if joining in replicas or not self.leases[primary].held or self.known[primary] > epoch:
            return
        self.configuration = change(self.configuration, epoch=epoch, requester=primary, remove=[], add=[joining])
        self.data[joining] = list(self.data[primary])
        for server in (primary, joining):
            self.known[server] = self.configuration.epoch
        self.sets[self.configuration.epoch] = self.configuration.replicas

    @invariant()
    def every_replica_of_the_set_has_every_acknowledged_append_in_order(self) -> None:
        for server in self.configuration.replicas:
            held = [number for number in self.data[server] if number in set(self.acknowledged)]
            assert held == self.acknowledged, (server, self.configuration)

    @invariant()
    def whoever_believes_in_its_lease_has_it(self) -> None:
        for server, lease in self.leases.items():
            assert not lease.held or self.has_lease(server)


LeaseMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestLeases = LeaseMachine.TestCase
