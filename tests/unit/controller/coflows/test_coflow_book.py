"""What reports, silence, switches and the network make of coflows, with a real scheduler."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from speedwell.coflow.report import Flow, FlowReport
from speedwell.controller.coflows import book as coflow_book
from speedwell.controller.coflows.book import LIE_SLACK_BYTES, CoflowBook
from speedwell.controller.coflows.planning import CoflowPlanner, Rests
from speedwell.controller.policy.coflows.coflow import CoflowScheduler, ServiceClass
from speedwell.controller.policy.coflows.coflow_comparators import Varys
from speedwell.controller.policy.coflows.coflow_plus import CoflowPlus
from speedwell.controller.policy.coflows.mincof import MinCOF
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Network

EXPIRY_SECONDS, STALL_SECONDS = 5.0, 15.0
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2")
MB = 1_000_000
ONE, OTHER = b"1" * 16, b"2" * 16


def network() -> Network:
    net = Network()
    for switch in ("leaf0", "leaf1", "spine0", "spine1"):
        net.add_switch(switch)
    links = [(leaf, spine) for leaf in ("leaf0", "leaf1") for spine in ("spine0", "spine1")]
    for host in HOSTS:
        net.add_host(host)
        links.append((host, "leaf0" if host.startswith("10.0.0") else "leaf1"))
    for a, b in links:
        net.add_link(a, b, 20e6)
        net.add_link(b, a, 20e6)
    return net


class Reported:
    def __init__(self) -> None:
        self.network = network()
        self.start()

    def start(self, policy: Callable[[Network], CoflowScheduler] = MinCOF) -> None:
        """A book and a scheduler that know nothing."""
        self.book = CoflowBook(EXPIRY_SECONDS, STALL_SECONDS)
        self.revision = 0
        self.planner = CoflowPlanner(policy, self.network, lambda assignments, network: dict(assignments))

    def take(self, now: float, coflow: bytes = ONE, **remaining: int) -> bool:
        """Report flows by name (`a` to `d`) with what they have left. Returns whether there is another schedule."""
        self.book.report(coflow, [FlowReport(flow(name), left) for name, left in remaining.items()], now)
        return self.plan(now)

    def plan(self, now: float) -> bool:
        before = self.revision
        while self.book.has_updates:
            self.planner.follow_network()
            self.book.planned(self.planner.plan(self.book.updates(), now))
        self.revision = self.book.revision
        return self.revision != before

    def expire(self, now: float) -> bool:
        for coflow in self.book:
            self.book.expire(coflow, now)
        return self.plan(now)

    def measured(self, name: str, transferred_bytes: int, now: float) -> bool:
        lied = self.book.measured(key(name), transferred_bytes, now)
        return self.plan(now) and lied

    def scheduled(self) -> set[str]:
        names = {key(name): name for name in "abcd"}
        return {names[each] for each in self.book.schedule}


def flow(name: str) -> Flow:
    number = "abcd".index(name)
    return Flow(HOSTS[number % 2], HOSTS[2 + number // 2], 7000 + number, 40000)


def key(name: str) -> FiveTuple:
    each = flow(name)
    return FiveTuple(each.source, each.destination, each.protocol, each.source_port, each.destination_port)


@pytest.fixture
def reported() -> Reported:
    return Reported()


def test_a_reported_coflow_gets_paths_and_rates(reported: Reported) -> None:
    assert reported.take(0, a=10 * MB, d=10 * MB)
    schedule = reported.book.schedule
    assert {schedule[key(name)].service_class for name in "ad"} == {ServiceClass.SCHEDULED}
    assert all(schedule[key(name)].path and schedule[key(name)].rate_bps for name in "ad")
    assert reported.book.order == (ONE,)


def test_progress_changes_no_schedule_and_the_last_flow_ends_the_coflow(reported: Reported) -> None:
    reported.take(0, a=10 * MB, d=10 * MB)
    assert not reported.take(1, a=8 * MB, d=9 * MB)
    assert reported.take(2, a=0)
    assert reported.scheduled() == {"d"} and reported.book.get(ONE).ended == 1
    assert reported.take(3, d=0)
    assert len(reported.book) == 0 and not reported.book.schedule


def test_a_flow_that_was_taken_to_be_almost_over_and_is_not_gets_another_rate(reported: Reported) -> None:
    reported.take(0, a=10 * MB, d=10 * MB)
    reported.take(2, a=5 * MB)
    reported.take(3.8, d=2 * MB)
    reported.take(3.9, OTHER, b=10 * MB)
    before = reported.book.schedule[key("a")].rate_bps
    assert before and before < 4e6
    assert reported.take(4.0, a=4 * MB)
    after = reported.book.schedule[key("a")].rate_bps
    assert after and after > 3 * before
    assert not reported.take(4.5, a=4 * MB - round(0.8 * after * 0.5 / 8)), "a little less than its rate is usual"


def test_a_flow_that_stands_still_makes_a_schedule_a_second_at_most(reported: Reported) -> None:
    reported.take(0, a=10 * MB, d=10 * MB)
    made = [at for at in range(1, 100) if reported.take(at / 10, a=10 * MB)]
    assert made and all(later - earlier >= 10 for earlier, later in itertools.pairwise(made))


def test_reports_of_a_coflow_that_starves_make_no_other_schedule(reported: Reported) -> None:
    reported.take(0, ONE, a=10 * MB, c=10 * MB)
    reported.take(0, OTHER, d=400 * MB)
    assert reported.book.schedule[key("d")].service_class is ServiceClass.STARVED
    assert not any(reported.take(second, OTHER, d=400 * MB - second) for second in range(1, 60))


def test_no_flow_ends_by_its_silence_before_it_is_said_to(reported: Reported) -> None:
    reported.take(0, a=10 * MB, d=10 * MB)
    reported.take(3, a=9 * MB)
    (coflow,) = reported.book
    assert reported.book.expire(coflow, 3.0) == EXPIRY_SECONDS
    reported.expire(EXPIRY_SECONDS)
    assert reported.scheduled() == {"a", "d"}
    reported.take(EXPIRY_SECONDS + 0.1, a=8 * MB)
    assert reported.book.expire(coflow, EXPIRY_SECONDS + 0.1) == 2 * EXPIRY_SECONDS + 0.1
    reported.plan(EXPIRY_SECONDS + 0.1)
    assert reported.scheduled() == {"a"}


def test_flows_that_join_later_or_from_other_senders_are_of_the_same_coflow(reported: Reported) -> None:
    reported.take(0, a=10 * MB)
    assert reported.take(0.1, d=10 * MB)
    assert len(reported.book) == 1 and reported.scheduled() == {"a", "d"}


def test_a_policy_that_wants_it_decides_again_as_reports_come() -> None:
    reported = Reported()
    reported.start(CoflowPlus)
    assert reported.take(0.0, ONE, a=50 * MB) and reported.take(0.0, OTHER, c=40 * MB)
    assert reported.book.order == (OTHER, ONE)
    assert not reported.take(0.5, ONE, a=11 * MB)
    assert reported.take(1.0, ONE, a=10 * MB)
    assert reported.book.order == (ONE, OTHER)


def test_a_silent_coflow_is_forgotten_and_a_heard_one_is_not(reported: Reported) -> None:
    reported.take(0, a=10 * MB)
    reported.take(0, OTHER, d=10 * MB)
    reported.take(4, OTHER, d=9 * MB)
    assert not reported.expire(5.0)
    assert reported.expire(5.1)
    assert [coflow.id for coflow in reported.book] == [OTHER] and reported.scheduled() == {"d"}
    assert reported.take(6, a=5 * MB) and reported.scheduled() == {"a", "d"}


def test_a_flow_that_is_not_reported_any_more_ends_alone(reported: Reported) -> None:
    reported.take(0, a=10 * MB, d=10 * MB)
    reported.take(4, a=9 * MB)
    assert reported.expire(6)
    assert reported.scheduled() == {"a"}


def test_a_flow_that_never_moves_loses_its_place_until_it_does(reported: Reported) -> None:
    for second in range(0, 20):
        reported.take(second, a=10 * MB, d=(100 - second) * MB)
        reported.expire(second)
    assert reported.scheduled() == {"d"}
    assert reported.take(20, a=9 * MB) and reported.scheduled() == {"a", "d"}


def test_a_flow_that_the_schedule_holds_back_keeps_its_place() -> None:
    reported = Reported()
    reported.start(Varys)
    for second in range(40):
        reported.take(second, ONE, a=(100 - second) * MB)
        reported.take(second, OTHER, c=400 * MB)        # from the same host, and longer
        reported.expire(second)
    assert reported.book.schedule[key("c")].rate_bps == 0
    assert reported.scheduled() == {"a", "c"}
    reported.take(40, ONE, a=0)
    assert reported.book.schedule[key("c")].rate_bps == 20e6
    for second in range(41, 60):
        reported.take(second, OTHER, c=400 * MB)        # it could move now
        reported.expire(second)
    assert reported.scheduled() == set()


def test_a_coflow_that_moves_more_than_it_announced_loses_its_schedule_until_it_is_forgotten(
        reported: Reported) -> None:
    reported.take(0, a=10 * MB, b=10 * MB)
    reported.take(0, OTHER, d=10 * MB)
    assert not reported.measured("a", 12 * MB, 1)
    assert not reported.measured("b", 13 * MB, 1)
    assert reported.measured("b", 13 * MB + LIE_SLACK_BYTES + 1, 2)
    assert reported.scheduled() == {"d"} and reported.book.get(ONE).distrusted
    assert not reported.take(3, a=5 * MB, c=5 * MB)
    assert reported.scheduled() == {"d"}
    reported.take(8, OTHER, d=1 * MB)
    reported.expire(8.1)
    assert reported.take(9, a=5 * MB)


def test_a_flow_may_move_what_another_of_its_coflow_announced(reported: Reported) -> None:
    """As the faster of two replicas does in a read from both, whichever ends first."""
    reported.take(0, a=50 * MB, b=50 * MB)
    assert not reported.measured("a", 10 * MB, 1)
    reported.take(2, a=0)
    assert not reported.measured("b", 90 * MB, 3)
    assert reported.scheduled() == {"b"}
    assert reported.measured("b", 130 * MB, 4)


def test_what_grows_was_announced_later(reported: Reported) -> None:
    reported.take(0, a=10 * MB)
    reported.take(1, a=100 * MB)
    assert not reported.measured("a", 90 * MB, 2)


def test_a_flow_belongs_to_the_coflow_that_named_it_last_and_does_not_go_back_and_forth(reported: Reported) -> None:
    reported.take(0, a=10 * MB, d=10 * MB)
    assert reported.take(1, OTHER, a=10 * MB)
    assert set(reported.book.get(ONE).flows) == {key("d")} and set(reported.book.get(OTHER).flows) == {key("a")}
    assert not reported.take(2, a=9 * MB, d=6 * MB)
    assert set(reported.book.get(OTHER).flows) == {key("a")} and reported.scheduled() == {"a", "d"}


def test_a_host_that_is_not_known_keeps_no_other_flow_waiting(reported: Reported) -> None:
    reported.network.remove_node(HOSTS[3])
    assert reported.take(0, a=10 * MB, d=10 * MB)
    assert reported.scheduled() == {"a"} and HOSTS[3] in reported.book.refusals[key("d")]
    reported.network.add_host(HOSTS[3])
    reported.network.add_link(HOSTS[3], "leaf1", 20e6)
    reported.network.add_link("leaf1", HOSTS[3], 20e6)
    assert reported.take(1, a=10 * MB, d=10 * MB)
    assert reported.scheduled() == {"a", "d"} and not reported.book.refusals


def test_a_lost_link_moves_flows_off_it(reported: Reported) -> None:
    reported.take(0, a=10 * MB, d=10 * MB)
    reported.network.remove_link("leaf0", "spine0")
    reported.book.network_changed()
    assert reported.plan(1)
    assert {reported.book.schedule[key(name)].path.nodes[2] for name in "ad"} == {"spine1"}


def test_a_deleted_coflow_has_no_schedule(reported: Reported) -> None:
    reported.take(0, a=10 * MB)
    assert reported.book.remove(ONE, "it was deleted")
    assert not reported.book.schedule and not reported.book.remove(ONE, "again")
    assert not reported.book.remove(OTHER, "never heard of")
    assert reported.plan(1) and not reported.planner.scheduler.schedule.assignments


def test_an_end_without_a_beginning_is_nothing(reported: Reported) -> None:
    assert not reported.take(0, a=0)
    assert len(reported.book) == 0


def test_a_new_book_knows_everything_after_one_report(reported: Reported) -> None:
    reported.take(0, a=10 * MB, d=10 * MB)
    reported.start()
    assert reported.take(7, a=5 * MB, d=6 * MB) and reported.scheduled() == {"a", "d"}


def test_beyond_what_there_is_room_for_the_new_is_turned_away_and_the_known_goes_on(
        reported: Reported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coflow_book, "MAX_COFLOWS", 2)
    monkeypatch.setattr(coflow_book, "MAX_FLOWS", 2)
    assert reported.take(0, a=10 * MB) and reported.take(0, OTHER, d=10 * MB)
    assert not reported.take(0, b"3" * 16, b=10 * MB)
    assert not reported.take(1, a=8 * MB, b=10 * MB)
    assert reported.book.turned_away == 2 and reported.scheduled() == {"a", "d"}
    assert reported.book.get(ONE).flows[key("a")].remaining_bytes == 8 * MB
    reported.take(2, OTHER, d=0)
    assert reported.take(2, b"3" * 16, b=10 * MB) and reported.scheduled() == {"a", "b"}
    assert reported.book.turned_away == 2


def test_what_is_left_of_known_flows_is_told_from_flows_that_come_and_end() -> None:
    def report(name: str, remaining_bytes: int) -> bool:
        site.book.report(ONE, [FlowReport(flow(name), remaining_bytes)], 1.0)
        return site.book.has_only_progress

    site = Reported()
    site.take(0.0, a=20 * MB, b=20 * MB)
    assert report("a", 19 * MB) and report("b", 19 * MB)
    assert not report("c", 20 * MB), "it comes"
    site.plan(1.0)
    assert report("c", 19 * MB)
    assert not report("a", 0), "it ends"
    site.plan(1.0)
    site.book.network_changed()
    assert not report("b", 18 * MB), "nor is the network what it was"


@pytest.mark.parametrize(("plan_seconds", "rest_seconds", "correction_seconds"),
                         [(0.001, 0.004, 0.016), (0.1, 0.4, 1.0), (0.5, 1.0, 1.0)])
def test_after_a_plan_corrections_rest_longer_than_what_is_new(plan_seconds: float, rest_seconds: float,
                                                               correction_seconds: float) -> None:
    rests = Rests()
    assert rests.planned(10.0 - plan_seconds, 10.0) == pytest.approx(rest_seconds)
    assert rests.correct_from == pytest.approx(10.0 + correction_seconds)
