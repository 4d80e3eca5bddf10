"""XCo's Algorithm 1 with the paper's own examples, rate limits, and what xco-plus promises on any fabric."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.policy.errors import InvalidNetwork, UnknownNode
from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.timeslices.rate_limits import RateLimits
from speedwell.controller.policy.timeslices.timeslice_policy import Directives, Pair, TimeslicePolicy
from speedwell.controller.policy.timeslices.xco import XCo
from speedwell.controller.policy.timeslices.xco_plus import AGED_SLICES, XCoPlus
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import Fabric, fat_tree, spine_leaf, three_tier
from tests.unit.policy.networks import join, network_with

GIGABIT, SLICE = 1e9, 0.01
Make = Callable[[Network], TimeslicePolicy]
EVERY: tuple[Make, ...] = (XCo, XCoPlus, RateLimits)


def many_to_one(senders: int) -> Network:
    """Figure 1(a)."""
    hosts = [f"S{number:02}" for number in range(1, senders + 1)]
    return network_with("sw", " ".join([*hosts, "R1"]), " ".join(f"{host}-sw" for host in [*hosts, "R1"]), GIGABIT)


def across_an_uplink(pairs: int, uplink_bps: float) -> Network:
    """Figures 1(b) and 5."""
    numbers = [f"{number:02}" for number in range(1, pairs + 1)]
    network = network_with("a b", " ".join([*(f"S{n}" for n in numbers), *(f"R{n}" for n in numbers)]),
                           " ".join([*(f"S{n}-a" for n in numbers), *(f"R{n}-b" for n in numbers)]), GIGABIT)
    join(network, "a", "b", uplink_bps)
    return network


class Hosts:
    """What hosts know: the directives that they were given. Nobody else may send."""

    def __init__(self, network: Network, policy: TimeslicePolicy) -> None:
        self.network, self.policy = network, policy
        self.now = 0.0
        self.allowed: dict[str, dict[str, float]] = {}

    def hear(self, directives: Directives) -> None:
        self.allowed |= directives

    def report(self, backlog: Mapping[str, Collection[str]]) -> None:
        for source, destinations in backlog.items():
            self.hear(self.policy.backlogged(source, destinations, self.now))

    def pass_slice(self) -> None:
        self.now = self.policy.next_end
        self.hear(self.policy.slice_ended(self.now))

    @property
    def sending(self) -> dict[Pair, float]:
        return {(source, destination): bps for source, to in self.allowed.items() for destination, bps in to.items()}

    def used_bps(self) -> dict[tuple[str, str], float]:
        used: dict[tuple[str, str], float] = defaultdict(float)
        for pair, bps in self.sending.items():
            for link in self.policy.paths.of(pair):
                used[link] += bps
        return used

    def assert_no_link_has_more_than_it_carries(self) -> None:
        for link, bps in self.used_bps().items():
            assert bps <= self.network.capacity_bps(link) * (1 + 1e-6), (link, self.sending)


# --------------------------------------------------------------- the paper's examples


def senders_by_slice(hosts: Hosts, slices: int) -> list[list[str]]:
    rows = []
    for _ in range(slices):
        rows.append(sorted(source for source, _ in hosts.sending))
        hosts.pass_slice()
    return rows


def test_figure_9a_one_sender_at_a_time_each_in_its_turn() -> None:
    network = many_to_one(5)
    hosts = Hosts(network, XCo(network, SLICE))
    hosts.report({f"S{n:02}": ["R1"] for n in range(1, 6)})
    assert senders_by_slice(hosts, 10) == [[f"S{n:02}"] for n in (1, 2, 3, 4, 5)] * 2


@pytest.mark.parametrize("make", [XCo, XCoPlus])
def test_figure_9b_ten_of_thirteen_senders_in_each_slice_and_all_as_often(make: Make) -> None:
    network = across_an_uplink(13, 10 * GIGABIT)
    hosts = Hosts(network, make(network))
    hosts.report({f"S{n:02}": [f"R{n:02}"] for n in range(1, 14)})
    rows = senders_by_slice(hosts, 14)
    assert all(len(row) == 10 for row in rows)
    assert rows[0] == [f"S{n:02}" for n in range(1, 11)]
    assert {"S11", "S12", "S13"} <= {*rows[1], *rows[2]}
    assert {sum(f"S{n:02}" in row for row in rows[1:]) for n in range(1, 14)} == {10}


@pytest.mark.parametrize("others", [0, 1, 2, 3, 4])
def test_figure_17_the_migration_of_256_mb_takes_longer_by_its_own_time_for_each_other_sender(others: int) -> None:
    network = many_to_one(1 + others)
    hosts = Hosts(network, XCo(network, SLICE))
    hosts.report({f"S{n:02}": ["R1"] for n in range(1, others + 2)})
    left_bits = 8 * 256e6
    while left_bits > 0:
        left_bits -= hosts.sending.get(("S01", "R1"), 0.0) * SLICE
        hosts.pass_slice()
    assert hosts.now == pytest.approx(2.05 * (others + 1), abs=SLICE * (others + 1))


def test_a_slice_that_is_given_up_goes_to_the_next_at_once() -> None:
    network = many_to_one(3)
    hosts = Hosts(network, XCo(network, SLICE))
    hosts.report({f"S{n:02}": ["R1"] for n in (1, 2, 3)})
    hosts.hear(hosts.policy.given_up("S01", "R1", 0.002))
    assert hosts.allowed["S01"] == {} and set(hosts.sending) == {("S02", "R1")}
    assert hosts.policy.next_end == pytest.approx(0.012)
    hosts.hear(hosts.policy.given_up("S03", "R1", 0.003))
    hosts.pass_slice()
    assert set(hosts.sending) == {("S02", "R1")}, "nobody else has a backlog"


# --------------------------------------------------------------- Algorithm 1, line by line


def test_a_node_is_not_pre_empted_before_its_slice_is_over_unless_nothing_protects_it() -> None:
    def after_two_reports(protection_seconds: float | None) -> str:
        network = network_with("sw", "a b x y", "a-sw b-sw x-sw y-sw", GIGABIT)
        hosts = Hosts(network, XCo(network, SLICE, protection_seconds))
        hosts.report({"a": ["x"]})
        hosts.report({"a": ["x", "y"]})
        hosts.now = 0.005
        hosts.report({"b": ["x"]})
        return next(iter(hosts.allowed["a"]))

    assert after_two_reports(None) == "x"
    assert after_two_reports(0.0) == "y", "lines 41 to 45: stopped in favour of the destination that waited longer"


def test_links_that_a_pre_empted_node_frees_are_given_on() -> None:
    network = network_with("sw", "a b x y", "a-sw b-sw x-sw y-sw", GIGABIT)
    hosts = Hosts(network, XCo(network, SLICE, 0.0))
    hosts.report({"a": ["x"]})
    hosts.report({"a": ["x", "y"]})
    hosts.report({"b": ["x"]})
    assert set(hosts.sending) == {("a", "y"), ("b", "x")}


def test_one_destination_at_a_time_in_turn() -> None:
    network = network_with("sw", "a x y", "a-sw x-sw y-sw", GIGABIT)
    hosts = Hosts(network, XCo(network, SLICE))
    hosts.report({"a": ["x", "y"]})
    served = []
    for _ in range(4):
        served += hosts.sending
        hosts.pass_slice()
    assert served == [("a", "x"), ("a", "y")] * 2


def test_a_sender_before_a_slower_link_is_told_its_rate_and_not_kept_out_for_ever() -> None:
    network = many_to_one(2)
    network.set_capacity(("sw", "R1"), GIGABIT / 10)
    hosts = Hosts(network, XCo(network, SLICE))
    hosts.report({"S01": ["R1"], "S02": ["R1"]})
    assert hosts.sending == {("S01", "R1"): GIGABIT / 10}
    hosts.pass_slice()
    assert hosts.sending == {("S02", "R1"): GIGABIT / 10}


def test_a_report_without_the_destination_that_is_served_gives_it_up() -> None:
    network = many_to_one(2)
    hosts = Hosts(network, XCo(network, SLICE))
    hosts.report({"S01": ["R1"], "S02": ["R1"]})
    hosts.report({"S01": []})
    assert set(hosts.sending) == {("S02", "R1")}


@pytest.mark.parametrize("make", EVERY)
def test_who_leaves_makes_room(make: Make) -> None:
    network = many_to_one(2)
    hosts = Hosts(network, make(network))
    hosts.report({"S01": ["R1"], "S02": ["R1"]})
    hosts.hear(hosts.policy.left("S01", 0.001))
    assert hosts.allowed["S02"] == {"R1": GIGABIT}


@pytest.mark.parametrize("make", EVERY)
def test_a_report_that_cannot_be_is_refused_and_changes_nothing(make: Make) -> None:
    network = network_with("sw lone", "a b c", "a-sw b-sw c-lone", GIGABIT)
    hosts = Hosts(network, make(network))
    hosts.report({"a": ["b"]})
    for destinations, error in ((["b", "nobody"], UnknownNode), (["b", "c"], InvalidNetwork),
                                (["a"], InvalidNetwork)):
        with pytest.raises(error):
            hosts.policy.backlogged("a", destinations, 0.0)
    hosts.hear(hosts.policy.slice_ended(1.0))
    assert hosts.sending == {("a", "b"): GIGABIT}


def test_a_path_that_somebody_else_chose_is_kept_until_it_breaks() -> None:
    network = network_of(spine_leaf(leaves=2, spines=2, hosts_per_leaf=1, host_bps=GIGABIT, oversubscription=1))
    (a, b), policy = sorted(network.hosts), XCoPlus(network)
    for path in network.shortest_paths(a, b):
        policy.paths.pin((a, b), path)
        assert Path((a, *(end for _, end in policy.paths.of((a, b))))) == path
    network.remove_link(*path.links[1])
    assert policy.paths.of((a, b)) != path.links


# --------------------------------------------------------------- rate limits


@pytest.mark.parametrize("senders", [1, 5, 64])
def test_rate_limits_are_exactly_capacity_over_senders(senders: int) -> None:
    network = many_to_one(senders)
    hosts = Hosts(network, RateLimits(network))
    hosts.report({f"S{n:02}": ["R1"] for n in range(1, senders + 1)})
    assert set(hosts.sending.values()) == {GIGABIT / senders} and len(hosts.sending) == senders


def test_figure_1b_limits_each_of_thirteen_senders_to_ten_thirteenths_of_its_link() -> None:
    network = across_an_uplink(13, 10 * GIGABIT)
    hosts = Hosts(network, RateLimits(network))
    hosts.report({f"S{n:02}": [f"R{n:02}"] for n in range(1, 14)})
    assert set(hosts.sending.values()) == {10 * GIGABIT / 13}


# --------------------------------------------------------------- any fabric, any events

FABRICS = (three_tier(), three_tier(hosts_per_rack=2, host_bps=7e6), fat_tree(4),
           spine_leaf(leaves=3, spines=2, hosts_per_leaf=3, host_bps=GIGABIT, oversubscription=3))
EVENTS = st.lists(st.tuples(st.sampled_from(("report", "give up", "leave", "end", "end")), st.integers(0, 10**6),
                            st.sets(st.integers(0, 15), max_size=5)), min_size=5, max_size=40)


@pytest.mark.parametrize("make", EVERY)
@given(fabric=st.sampled_from(FABRICS), events=EVENTS)
@settings(max_examples=60, deadline=None)
def test_no_link_is_ever_given_more_than_it_carries(make: Make, fabric: Fabric,
                                                    events: list[tuple[str, int, set[int]]]) -> None:
    network = network_of(fabric)
    names = sorted(network.hosts)
    hosts = Hosts(network, make(network))
    for event, which, others in events:
        source = names[which % len(names)]
        hosts.now += 0.0007
        if event == "report":
            hosts.report({source: [name for name in (names[other % len(names)] for other in others)
                                   if name != source]})
        elif event == "leave":
            hosts.hear(hosts.policy.left(source, hosts.now))
            hosts.allowed.pop(source, None)
        elif event == "end" and hosts.policy.next_end < 1e9:
            hosts.now = max(hosts.now, hosts.policy.next_end)
            hosts.hear(hosts.policy.slice_ended(hosts.now))
        elif event == "give up" and hosts.sending:
            hosts.hear(hosts.policy.given_up(*sorted(hosts.sending)[which % len(hosts.sending)], hosts.now))
        hosts.assert_no_link_has_more_than_it_carries()


@given(fabric=st.sampled_from(FABRICS), pairs=st.sets(st.tuples(st.integers(0, 15), st.integers(0, 15)), min_size=1,
                                                      max_size=40), ranked=st.booleans(), rng=st.randoms())
@settings(max_examples=60, deadline=None)
def test_xco_plus_serves_every_pair_within_as_many_slices_as_pairs_share_its_links(
        fabric: Fabric, pairs: set[tuple[int, int]], ranked: bool, rng: Random) -> None:
    """And not much later where coflows' order is kept."""
    network = network_of(fabric)
    names = sorted(network.hosts)
    backlog: defaultdict[str, set[str]] = defaultdict(set)
    for a, b in pairs:
        if a % len(names) != b % len(names):
            backlog[names[a % len(names)]].add(names[b % len(names)])
    policy = XCoPlus(network)
    hosts = Hosts(network, policy)
    hosts.report(backlog)
    waiting = [(source, to) for source, all_to in backlog.items() for to in all_to]
    links = {pair: set(policy.paths.of(pair)) for pair in waiting}
    bound = {pair: 1 + ranked * AGED_SLICES + sum(bool(links[pair] & links[other]) for other in waiting)
             for pair in waiting}
    policy.ranks = {pair: rng.randrange(3) for pair in waiting if rng.random() < 0.7} if ranked else {}
    served = dict.fromkeys(waiting, 0)
    for number in range(1, 120 if waiting else 0):
        hosts.pass_slice()
        served |= dict.fromkeys(hosts.sending, number)
        assert all(number - served[pair] <= bound[pair] for pair in waiting)


def test_all_pairs_across_pods_fill_the_core_and_none_waits_longer_than_2n_slices() -> None:
    network = network_of(three_tier())
    pods = [[host for host in sorted(network.hosts) if host.startswith(pod)] for pod in ("p0", "p1")]
    pairs = [*product(*pods), *product(*reversed(pods))]
    hosts = Hosts(network, XCoPlus(network))
    hosts.report({source: pods[1 - int(source in pods[1])] for pod in pods for source in pod})
    core = [link for link in network.links if any(end.startswith("core") for end in link)]
    served, used_bps, slices = dict.fromkeys(pairs, 0), 0.0, 200
    longest = 0
    for number in range(1, slices + 1):
        hosts.pass_slice()
        hosts.assert_no_link_has_more_than_it_carries()
        for pair in hosts.sending:
            longest = max(longest, number - served[pair])
            served[pair] = number
        used = hosts.used_bps()
        used_bps += sum(used.get(link, 0.0) for link in core)
    longest = max(longest, slices - min(served.values()))
    assert used_bps >= 0.9 * slices * sum(map(network.capacity_bps, core))
    assert longest <= 2 * len(network.hosts), longest
