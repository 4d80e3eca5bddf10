"""Which replicas a content needs; a state machine lets servers come and go and carries the plans out."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from speedwell.fs.nameserver.replicas.placement import Candidate
from speedwell.fs.nameserver.replicas.recovery_plan import Plan, State, overfull, plan, targets
from speedwell.fs.nameserver.replicas.replica_set import Configuration, change, without

SERVERS = tuple(range(6))
RACK_OF = {number: f"r{number // 2}" for number in SERVERS}
states = st.fixed_dictionaries({number: st.sampled_from(State) for number in SERVERS})
replica_sets = st.lists(st.sampled_from(SERVERS), unique=True, min_size=1, max_size=6).map(tuple)


def candidate(number: int) -> Candidate:
    return Candidate(number, f"h{number}", RACK_OF[number])


def test_a_server_that_is_only_away_is_waited_for() -> None:
    state = {0: State.ALIVE, 1: State.AWAY, 2: State.ALIVE}
    assert plan((0, 1, 2), 3, state.__getitem__) == Plan()


def test_a_server_that_is_given_up_is_replaced() -> None:
    state = {0: State.ALIVE, 1: State.GONE, 2: State.ALIVE}
    assert plan((0, 1, 2), 3, state.__getitem__) == Plan(missing=1, leaving=(1,))


def test_without_anybody_who_has_it_nothing_can_be_done() -> None:
    assert plan((0, 1), 2, lambda number: State.GONE) == Plan()


def test_where_enough_stay_the_others_just_leave() -> None:
    state = {0: State.ALIVE, 1: State.DRAINING, 2: State.ALIVE}
    assert plan((0, 1, 2), 2, state.__getitem__) == Plan(surplus=(1,))


@given(replica_sets, st.integers(1, 4), states)
def test_a_plan_leaves_as_many_good_replicas_as_are_wanted(replicas: tuple[int, ...], replication: int,
                                                           state: dict[int, State]) -> None:
    wanted = plan(replicas, replication, state.__getitem__)
    staying = [number for number in replicas if state[number] in (State.ALIVE, State.AWAY)]
    assert not set(wanted.leaving + wanted.surplus) & set(staying)
    if any(state[number] in (State.ALIVE, State.DRAINING) for number in replicas):
        assert len(staying) + wanted.missing >= replication


@given(replica_sets)
def test_a_new_replica_may_go_to_the_racks_with_the_fewest(holders: tuple[int, ...]) -> None:
    free = [number for number in SERVERS if number not in holders]
    allowed = targets([candidate(number) for number in free], [candidate(number) for number in holders])
    counts = {RACK_OF[number]: sum(RACK_OF[holder] == RACK_OF[number] for holder in holders) for number in free}
    assert [each.number for each in allowed] == [
        number for number in free if counts[RACK_OF[number]] == min(counts.values())]


@given(st.dictionaries(st.integers(0, 10), st.floats(0, 1), max_size=8))
def test_balancing_moves_from_the_full_to_the_empty_and_ends(used: dict[int, float]) -> None:
    givers, takers = overfull(used, 0.05)
    assert not givers & takers
    if givers and takers:
        assert min(used[number] for number in givers) >= max(used[number] for number in takers)
    if used and max(used.values()) - min(used.values()) <= 0.05:
        assert not givers


class RecoveryMachine(RuleBasedStateMachine):
    """One content. A dead server's replica is gone when it is given up; copies join through the primary."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(1)
        self.now = Configuration(1, (0, 1, 2))
        self.state = dict.fromkeys(SERVERS, State.ALIVE)
        self.holding = {0, 1, 2}

    @rule(server=st.sampled_from(SERVERS), state=st.sampled_from(State))
    def changes(self, server: int, state: State) -> None:
        living = [number for number in self.now.replicas if self.state[number] in (State.ALIVE, State.DRAINING)]
        if state in (State.AWAY, State.GONE) and living == [server]:
            return  # the last copy dying is nothing that recovery can do something about
        self.state[server] = state

    @rule()
    def recover(self) -> None:
        live_first = sorted(self.now.replicas, key=lambda number: self.state[number] in (State.AWAY, State.GONE))
        if tuple(live_first) != self.now.replicas:
            self.now = Configuration(self.now.epoch + 1, tuple(live_first))
        wanted = plan(self.now.replicas, 3, self.state.__getitem__)
        for number in wanted.surplus:
            if number != self.now.primary:
                self.now = without(self.now, number)
        if not wanted.missing:
            return
        allowed = targets([candidate(number) for number in SERVERS
                           if self.state[number] is State.ALIVE and number not in self.now.replicas],
                          [candidate(number) for number in self.now.replicas])
        if allowed:
            chosen = self.generator.choice(allowed)
            self.holding.add(chosen.number)
            self.now = change(self.now, epoch=self.now.epoch, requester=self.now.replicas[0],
                              remove=wanted.leaving[:1], add=[chosen.number])

    @rule()
    def recover_until_nothing_is_left_to_do(self) -> None:
        for _ in range(10):
            self.recover()
        alive = [number for number in SERVERS if self.state[number] is State.ALIVE]
        away = [number for number in self.now.replicas if self.state[number] is State.AWAY]
        good = [number for number in self.now.replicas if self.state[number] is State.ALIVE]
        assert len(good) + len(away) >= min(3, len(alive))

    @invariant()
    def a_living_server_has_it(self) -> None:
        assert set(self.now.replicas) <= self.holding
        assert any(self.state[number] in (State.ALIVE, State.DRAINING) for number in self.now.replicas)


RecoveryMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestRecovery = RecoveryMachine.TestCase
