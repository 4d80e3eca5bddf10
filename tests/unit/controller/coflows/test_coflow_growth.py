"""What the book keeps of coflows that have been: nothing; and how it stands with any order of events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.coflow.report import Flow, FlowReport
from speedwell.controller.coflows.book import MAX_LOST, CoflowBook
from speedwell.controller.coflows.planning import CoflowPlanner
from speedwell.controller.coflows.policies import make_scheduler
from speedwell.controller.policy.coflows.coflow import Assignment
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.registry import POLICIES, Kind
from tests.unit.policy.networks import join, network_with

EXPIRY_SECONDS, STALL_SECONDS = 5.0, 15.0
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2")
MB = 1_000_000
MANY = 10_000


def fabric() -> Network:
    return network_with("l0 l1 s0", " ".join(HOSTS), "l0-s0 l1-s0 " + " ".join(
        f"{host}-{'l0' if host < '10.0.1' else 'l1'}" for host in HOSTS), 1e9)


class Told:
    """A book with a planner, told of flows by number: each has a 5-tuple of its own."""

    def __init__(self, policy: str, network: Network) -> None:
        self.network = network
        self.book = CoflowBook(EXPIRY_SECONDS, STALL_SECONDS)
        self.planner = CoflowPlanner(lambda network: make_scheduler(policy, network, 0.0), network,
                                     lambda assignments, network: dict(assignments))

    def take(self, coflow: int, flows: dict[int, int], now: float) -> None:
        self.book.report(coflow.to_bytes(16, "big"),
                         [FlowReport(flow_of(number), left) for number, left in flows.items()], now)
        self.book.news()        # as the application does, to tell those who placed the transfers

    def plan(self, now: float) -> None:
        while self.book.has_updates:
            self.planner.follow_network()
            self.book.planned(self.planner.plan(self.book.updates(), now))

    def priorities(self) -> list[int | None]:
        return sorted(own.priority for own in self.book.enforced.values())  # type: ignore[type-var]

    def expire(self, now: float) -> None:
        for coflow in self.book:
            self.book.expire(coflow, now)
        self.book.news()

    def sizes(self) -> dict[str, int]:
        """Of everything that the book and the planner keep."""
        kept = {f"book.{name}": value for name, value in vars(self.book).items()}
        kept |= {f"planner.{name}": value for name, value in vars(self.planner).items()}
        kept |= {f"scheduler.{name}": value for name, value in vars(self.planner.scheduler).items()}
        return {name: len(value) for name, value in kept.items() if isinstance(value, (dict, set, list, tuple))}


def flow_of(number: int) -> Flow:
    source = HOSTS[number % 4]
    return Flow(source, HOSTS[(number + 1 + number // 4 % 3) % 4], 1 + number % 60000, 7)


def key(number: int) -> FiveTuple:
    flow = flow_of(number)
    return FiveTuple(flow.source, flow.destination, flow.protocol, flow.source_port, flow.destination_port)


@pytest.mark.parametrize("policy", ["mincof", "coflow-plus"])
def test_nothing_is_kept_of_ten_thousand_coflows_that_have_ended(policy: str) -> None:
    told = Told(policy, fabric())
    for number in range(MANY):
        now = number / 100
        told.take(number, {number: 9 * MB}, now)
        if number % 10 == 0:
            told.network.remove_node(HOSTS[0])          # some are refused
            told.book.network_changed()
        if number % 5 == 0:
            told.plan(now)
        if number % 10 == 5:
            told.network.add_host(HOSTS[0])
            join(told.network, HOSTS[0], "l0", 1e9)
            told.book.network_changed()
        if number % 3 == 0:
            told.take(number, {number: 0}, now)         # the others fall silent
        if number % 7 == 0:
            told.book.remove(number.to_bytes(16, "big"), "a lie")
        if number % 50 == 0:
            told.expire(now)
    now = MANY / 100 + EXPIRY_SECONDS + 1
    told.expire(now)
    told.plan(now)
    assert {name: size for name, size in told.sizes().items() if size} == {}


def test_flows_rise_to_a_better_class_only_when_fewer_than_four_coflows_have_one_of_their_own() -> None:
    told = Told("coflow-plus", fabric())
    for number in range(6):
        told.take(number, {4 * number: (number + 1) * 9 * MB}, 0.0)
    told.plan(0.0)
    assert told.priorities() == [0, 1, 2, 3, 4, 5]
    for ended, left in ((0, [1, 2, 3, 4, 5]), (1, [2, 3, 4, 5]), (2, [3, 4, 5]), (3, [4, 5]), (4, [5])):
        told.take(ended, {4 * ended: 0}, 0.1 * ended)
        told.plan(0.1 * ended)
        assert told.priorities() == left


def test_a_coflow_remembers_some_of_ten_thousand_flows_that_it_lost() -> None:
    told = Told("mincof", fabric())
    for number in range(MANY):
        told.take(1, {1: 9 * MB, number + 2: 9 * MB}, 0.0)
        told.take(2, {number + 2: 8 * MB}, 0.0)
        told.take(2, {number + 2: 0}, 0.0)
    told.plan(0.0)
    (coflow,) = told.book
    assert len(coflow.lost) <= MAX_LOST and len(coflow.flows) == 1
    assert max(told.sizes().values()) < 10


ACTIONS = st.lists(st.one_of(
    st.tuples(st.just("report"), st.integers(0, 5), st.sets(st.integers(0, 11), min_size=1, max_size=3)),
    st.tuples(st.just("end"), st.integers(0, 5), st.sets(st.integers(0, 11), min_size=1, max_size=3)),
    st.tuples(st.just("host"), st.sampled_from(HOSTS)), st.tuples(st.just("plan")), st.tuples(st.just("replan")),
    st.tuples(st.just("start over")), st.tuples(st.just("wait"), st.sampled_from([0.5, 2.0, 6.0])),
    st.tuples(st.just("remove"), st.integers(0, 5))), max_size=40)


@pytest.mark.parametrize("policy", POLICIES.names(Kind.COFLOW))
@settings(max_examples=40)
@given(actions=ACTIONS)
def test_whatever_happens_what_is_live_and_reachable_is_scheduled_and_nothing_else(
        policy: str, actions: list[tuple[Any, ...]]) -> None:
    told, now, gone = Told(policy, fabric()), 0.0, set()
    for kind, *arguments in actions:
        now += 0.1
        if kind in ("report", "end"):
            coflow, flows = arguments
            told.take(coflow, dict.fromkeys(flows, 0 if kind == "end" else round((1000 - now) * MB)), now)
        elif kind == "host":
            (host,) = arguments
            if host in gone:
                told.network.add_host(host)
                join(told.network, host, "l0" if host < "10.0.1" else "l1", 1e9)
            else:
                told.network.remove_node(host)
            gone ^= {host}
        elif kind == "plan":
            told.plan(now)
        elif kind == "replan":
            told.book.network_changed()
        elif kind == "start over":
            told.planner.start_over()
            told.book.start_over()
        elif kind == "wait":
            now += arguments[0]
            told.expire(now)
        else:
            told.book.remove(arguments[0].to_bytes(16, "big"), "a lie")
        live = {each for coflow in told.book for each in coflow.flows}
        assert set(told.book.schedule) <= live and set(told.book.refusals) <= live
    told.book.network_changed()
    told.plan(now)
    live = {each: coflow for coflow in told.book for each in coflow.flows}
    assert set(told.planner.scheduler.schedule.assignments) == set(told.book.schedule)
    for each, coflow in live.items():
        reachable = each.source not in gone and each.destination not in gone
        if coflow.distrusted:
            assert each not in told.book.schedule
        elif reachable and not coflow.flows[each].stalled:
            assert each in told.book.schedule and each not in told.book.refusals
            assert is_enforced(told.book.schedule[each]) == (policy != "fair")
        elif not reachable and each in told.book.schedule:
            assert not is_enforced(told.book.schedule[each])


def is_enforced(assignment: Assignment) -> bool:
    return (assignment.path, assignment.rate_bps, assignment.priority) != (None, None, None)
