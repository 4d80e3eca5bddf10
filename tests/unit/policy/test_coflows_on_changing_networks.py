"""Hosts, links and switches that vanish while coflows use them, under every coflow policy."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.coflows.policies import make_scheduler
from speedwell.controller.policy.coflows.coflow import Assignment, Coflow, CoflowFlow, CoflowScheduler, Schedule
from speedwell.controller.policy.errors import NoPath, PolicyError, UnknownNode
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.registry import POLICIES, Kind
from tests.unit.policy.networks import join, network_with, part

HOSTS = "h00 h01 h10 h11"
MB = 1_000_000
EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES.names(Kind.COFLOW))


def fabric(spines: int = 1) -> Network:
    """Two leaves of two hosts."""
    names = [f"s{number}" for number in range(spines)]
    links = [f"l{leaf}-{spine}" for leaf in (0, 1) for spine in names]
    links += [f"{host}-l{host[1]}" for host in HOSTS.split()]
    return network_with(" ".join(["l0", "l1", *names]), HOSTS, " ".join(links))


def coflow(name: str, *flows: tuple[str, str, int], arrived_at: float = 0.0) -> Coflow:
    return Coflow(name, tuple(CoflowFlow(f"{name}.{number}", source, destination, megabytes * MB)
                              for number, (source, destination, megabytes) in enumerate(flows)), arrived_at)


def is_enforced(assignment: Assignment) -> bool:
    return (assignment.path, assignment.rate_bps, assignment.priority) != (None, None, None)


def put_back(network: Network, host: str) -> None:
    network.add_host(host)
    join(network, host, f"l{host[1]}")


EVENTS = {
    "an unrelated coflow comes": lambda scheduler, now: scheduler.coflow_arrived(
        coflow("C", ("h01", "h00", 7), arrived_at=now), now),
    "an unrelated coflow ends": lambda scheduler, now: scheduler.flow_finished("B.0", now),
    "an unrelated coflow is given up": lambda scheduler, now: scheduler.coflow_gone("B", now),
    "its own report comes": lambda scheduler, now: scheduler.progress("A.0", 1 * MB, now),
    "its own flow is late": lambda scheduler, now: scheduler.correct("A.0", now + 1000),
    "it is time again": lambda scheduler, now: scheduler.again(now + 10),
    "its own flow ends": lambda scheduler, now: scheduler.flow_finished("A.0", now),
    "it is given up": lambda scheduler, now: scheduler.coflow_gone("A", now),
    "the network is looked at": lambda scheduler, now: scheduler.network_changed(now),
}


@EVERY_POLICY
@pytest.mark.parametrize("event", EVENTS)
def test_whatever_happens_first_after_a_host_has_vanished_is_answered(policy: str, event: str) -> None:
    network = fabric(spines=2)
    scheduler = make_scheduler(policy, network, 0.0)
    scheduler.coflow_arrived(coflow("A", ("h00", "h10", 20), ("h01", "h11", 10)), 0)
    scheduler.coflow_arrived(coflow("B", ("h01", "h00", 5)), 1)
    network.remove_node("h10")

    EVENTS[event](scheduler, 2)
    schedule = scheduler.network_changed(3)

    assert is_enforced(schedule.assignments["B.0"]) if "B.0" in schedule.assignments and policy != "fair" else True
    if "A.0" in schedule.assignments:
        assert not is_enforced(schedule.assignments["A.0"])


@EVERY_POLICY
def test_flows_that_cannot_be_reached_take_nothing_from_others_and_are_served_again_when_they_can(
        policy: str) -> None:
    network = fabric()
    scheduler, alone = make_scheduler(policy, network, 0.0), make_scheduler(policy, network, 0.0)
    before = scheduler.coflow_arrived(coflow("A", ("h00", "h10", 20)), 0)
    before = scheduler.coflow_arrived(coflow("B", ("h00", "h11", 30), arrived_at=1), 0)
    network.remove_node("h10")
    cut = scheduler.network_changed(0)
    only = alone.coflow_arrived(coflow("B", ("h00", "h11", 30), arrived_at=1), 0)
    assert cut.assignments["B.0"] == only.assignments["B.0"]
    assert cut.order == only.order == ("B",)

    put_back(network, "h10")
    assert_same(scheduler.network_changed(0), before)


@EVERY_POLICY
def test_a_flow_leaves_its_detour_when_a_shorter_path_is_back(policy: str) -> None:
    network = network_with("l0 l1 l2 s0 s1", HOSTS, "l0-s0 l2-s0 l2-s1 l1-s1 " + " ".join(
        f"{host}-l{host[1]}" for host in HOSTS.split()))
    scheduler = make_scheduler(policy, network, 0.0)
    detour = scheduler.coflow_arrived(coflow("A", ("h00", "h10", 20)), 0).assignments["A.0"].path
    assert detour is None or len(detour.links) == 6

    join(network, "l1", "s0")

    path = scheduler.network_changed(1).assignments["A.0"].path
    assert path == (None if detour is None else network.shortest_paths("h00", "h10")[0])


@EVERY_POLICY
def test_a_coflow_that_is_refused_is_not_kept(policy: str) -> None:
    network = fabric()
    scheduler = make_scheduler(policy, network, 0.0)
    scheduler.coflow_arrived(coflow("A", ("h00", "h10", 20)), 0)
    network.remove_node("h11")
    part(network, "l0", "s0")
    for refused, error in ((("h00", "h11", 1), UnknownNode), (("h00", "h10", 1), NoPath)):
        with pytest.raises(error):
            scheduler.coflow_arrived(coflow("B", ("h01", "h00", 5), refused), 1)
        assert set(scheduler.network_changed(1).assignments) == {"A.0"}
    assert set(scheduler.coflow_arrived(coflow("B", ("h01", "h00", 5)), 2).assignments) == {"A.0", "B.0"}


@EVERY_POLICY
def test_what_is_told_together_leads_to_one_decision_at_its_end(policy: str) -> None:
    scheduler, other = make_scheduler(policy, fabric(), 0.0), make_scheduler(policy, fabric(), 0.0)
    with scheduler.together(1) as decided:
        for number, source in enumerate(("h00", "h01", "h11")):
            assert scheduler.coflow_arrived(coflow(f"C{number}", (source, "h10", 10 + number)), 1).assignments == {}
        scheduler.flow_finished("C0.0", 1)
        assert decided.schedule is None
    for number, source in enumerate(("h00", "h01", "h11")):
        other.coflow_arrived(coflow(f"C{number}", (source, "h10", 10 + number)), 1)
    assert decided.schedule is not None
    assert_same(decided.schedule, other.coflow_gone("C0", 1))
    with scheduler.together(2) as decided:
        scheduler.progress("C1.0", 10 * MB, 2)
    assert decided.schedule is None


class Story:
    """What a scheduler is told at random; hosts, links and switches come and go beside it."""

    def __init__(self, policy: str, spines: int) -> None:
        self.policy, self.spines = policy, spines
        self.network = fabric(spines)
        self.scheduler = make_scheduler(policy, self.network, 0.0)
        self.now = 0.0
        self.told: list[Coflow] = []
        self.left: dict[Hashable, float] = {}
        self.faults: dict[str, Any] = {}

    def arrive(self, ends: list[tuple[int, int]]) -> None:
        hosts, name = HOSTS.split(), f"C{len(self.told)}"
        new = coflow(name, *((hosts[source], hosts[destination], 3 + 10 * len(self.told) + number)
                             for number, (source, destination) in enumerate(ends)), arrived_at=self.now)
        try:
            self.scheduler.coflow_arrived(new, self.now)
        except PolicyError:
            assert not {flow.flow_id for flow in new.flows} & set(self.scheduler.schedule.assignments)
            return
        self.told.append(new)
        self.left |= {flow.flow_id: flow.remaining_bytes for flow in new.flows}

    def fault(self, name: str) -> None:
        """A host, link or switch goes, or comes back."""
        if name in self.faults:
            del self.faults[name]
        elif name in HOSTS or name.startswith("s"):
            self.faults[name] = True
            if name in self.network:
                self.network.remove_node(name)
        else:
            self.faults[name] = True
        self.mend()

    def mend(self) -> None:
        """Have what no fault keeps away."""
        whole = fabric(self.spines)
        for node in [*whole.switches, *whole.hosts]:
            if node not in self.faults and node not in self.network:
                (self.network.add_host if whole.is_host(node) else self.network.add_switch)(node)
        for source, destination in sorted(whole.links):
            both = source in self.network and destination in self.network
            if f"{source}-{destination}" in self.faults:
                if both and self.network.has_link((source, destination)):
                    self.network.remove_link(source, destination)
            elif both and not self.network.has_link((source, destination)):
                self.network.add_link(source, destination, whole.capacity_bps((source, destination)))

    def step(self, action: tuple[Any, ...]) -> None:
        self.now += 0.25
        kind, *arguments = action
        flows, live = sorted(self.left, key=str), self.scheduler
        if kind == "arrive":
            self.arrive(*arguments)
        elif kind == "fault":
            self.fault(*arguments)
        elif kind == "replan":
            live.network_changed(self.now)
        elif kind == "again":
            live.again(self.now)
        elif flows:
            flow = flows[arguments[0] % len(flows)]
            if kind == "progress":
                self.left[flow] *= 0.75
                live.progress(flow, self.left[flow], self.now)
                live.correct(flow, self.now)
            elif kind == "end":
                del self.left[flow]
                live.flow_finished(flow, self.now)
            else:
                gone = str(flow).split(".")[0]
                live.coflow_gone(gone, self.now)
                self.left = {other: left for other, left in self.left.items() if str(other).split(".")[0] != gone}
        assert set(live.schedule.assignments) == set(self.left)

    def settled(self, scheduler: CoflowScheduler) -> Schedule:
        for flow, left in self.left.items():
            scheduler.progress(flow, left, self.now)
        return scheduler.network_changed(self.now)

    def fresh(self) -> CoflowScheduler:
        """A scheduler that was told of the live coflows alone, on a network on which nothing ever happened."""
        scheduler = make_scheduler(self.policy, self.network, 0.0)
        live = [each for each in self.told if any(flow.flow_id in self.left for flow in each.flows)]
        for each in live:
            scheduler.coflow_arrived(each, each.arrived_at)
        for each in live:
            for flow in each.flows:
                if flow.flow_id not in self.left:
                    scheduler.flow_finished(flow.flow_id, self.now)
        return scheduler


ENDS = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(lambda ends: ends[0] != ends[1])
NUMBER = st.integers(0, 99)
FAULTS = st.sampled_from([*HOSTS.split(), "s0", "l0-s0", "s0-l0", "l1-s0", "l1-h10"])
ACTIONS = st.lists(st.one_of(
    st.tuples(st.just("arrive"), st.lists(ENDS, min_size=1, max_size=3)), st.tuples(st.just("fault"), FAULTS),
    st.tuples(st.just("replan")), st.tuples(st.just("again")), st.tuples(st.just("progress"), NUMBER),
    st.tuples(st.just("end"), NUMBER), st.tuples(st.just("gone"), NUMBER)), max_size=25)


@EVERY_POLICY
@settings(max_examples=60)
@given(actions=ACTIONS)
def test_after_any_story_the_schedule_is_that_of_a_scheduler_that_starts_anew(
        policy: str, actions: list[tuple[Any, ...]]) -> None:
    story = Story(policy, spines=1)
    for action in actions:
        story.step(action)
    faults, story.faults = story.faults, {}
    story.mend()
    healed, fresh = story.settled(story.scheduler), story.fresh()
    assert_same(healed, story.settled(fresh))
    for fault in faults:
        story.fault(fault)
    assert_same(story.settled(story.scheduler), story.settled(fresh))


@EVERY_POLICY
@settings(max_examples=60)
@given(actions=ACTIONS)
def test_under_any_story_every_path_is_there_and_no_reachable_flow_is_left_out(
        policy: str, actions: list[tuple[Any, ...]]) -> None:
    story = Story(policy, spines=2)
    for action in actions:
        story.step(action)
    network, schedule = story.network, story.settled(story.scheduler)
    for each in story.told:
        for flow in each.flows:
            assignment = schedule.assignments.get(flow.flow_id)
            if assignment is None:
                continue
            reachable = (flow.source in network and flow.destination in network
                         and network.distance(flow.source, flow.destination) is not None)
            assert is_enforced(assignment) == (reachable and policy != "fair")
            if assignment.path is not None:
                assert (assignment.path.nodes[0], assignment.path.nodes[-1]) == (flow.source, flow.destination)
                assert all(network.has_link(link) for link in assignment.path.links)


def assert_same(schedule: Schedule, expected: Schedule) -> None:
    assert schedule.order == expected.order
    assert schedule.assignments.keys() == expected.assignments.keys()
    for flow_id, own in schedule.assignments.items():
        other = expected.assignments[flow_id]
        assert own.path == other.path, flow_id
        assert (own.service_class, own.priority) == (other.service_class, other.priority), flow_id
        assert own.rate_bps == (other.rate_bps and pytest.approx(other.rate_bps, rel=1e-6)), flow_id
