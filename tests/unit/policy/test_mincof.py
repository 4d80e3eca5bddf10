"""Algorithm 1 of MinCOF, the worked examples of its Fig. 2, and what must hold of every schedule."""

import math
from collections.abc import Mapping
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.policy.coflows.coflow import Coflow, CoflowFlow, Schedule, ServiceClass
from speedwell.controller.policy.coflows.mincof import MinCOF
from speedwell.controller.policy.errors import (
    DuplicateFlow,
    InvalidRequest,
    NoPath,
    UnknownCoflow,
    UnknownFlow,
    UnknownNode,
)
from speedwell.controller.policy.network.graph import Link, Network
from tests.unit.policy.networks import join, network_with, part

MBIT = 1e6
UNIT = 125_000.0        # bytes: what a path carries in a unit of time, a second at 1 Mbit/s


def fabric(leaves: int = 2, spines: int = 2, hosts: int = 2, host_bps: float = MBIT, uplink_bps: float = MBIT,
           ) -> Network:
    """Hosts `h<leaf><number>`; the hosts' own links may be wider than those between switches."""
    network = Network()
    for spine in range(spines):
        network.add_switch(f"s{spine}")
    for leaf in range(leaves):
        network.add_switch(f"l{leaf}")
        for spine in range(spines):
            join(network, f"l{leaf}", f"s{spine}", uplink_bps)
        for host in range(hosts):
            network.add_host(f"h{leaf}{host}")
            join(network, f"h{leaf}{host}", f"l{leaf}", host_bps)
    return network


def mincof(network: Network, **settings: float) -> MinCOF:
    return MinCOF(network, **({"threshold_bytes": 0, "scheduled_share": 1.0} | settings))


def coflow(name: str, *flows: tuple[str, str, float], at: float = 0.0) -> Coflow:
    """Flows as (source, destination, size in units); they are called NAME.1, NAME.2 and so on."""
    return Coflow(name, tuple(CoflowFlow(f"{name}.{number}", source, destination, size * UNIT)
                              for number, (source, destination, size) in enumerate(flows, 1)), at)


def run(scheduler: MinCOF, schedule: Schedule, sizes: Mapping[str, float], network: Network | None = None,
        ) -> dict[str, float]:
    """When each flow ends, in units of time, if the rates of the schedules are kept to. Starved flows get what the
    scheduled ones leave of their paths in `network`, one after the other, and report it; without, they get none."""
    left = {name: size * UNIT * 8 for name, size in sizes.items()}
    ends: dict[str, float] = {}
    now = 0.0
    while left:
        rates = {name: schedule.assignments[name].rate_bps or 0.0 for name in left}
        if network is not None:
            fill(rates, schedule, network)
        step = min(left[name] / rate for name, rate in rates.items() if rate > 0)
        now += step
        left = {name: bits - rates[name] * step for name, bits in left.items()}
        for name in [name for name, bits in left.items() if bits < 1]:
            del left[name]
            ends[name] = now
            for other, bits in left.items():
                scheduler.progress(other, bits / 8, now)
            schedule = scheduler.flow_finished(name, now) or schedule
    return ends


def fill(rates: dict[str, float], schedule: Schedule, network: Network) -> None:
    used: dict[Link, float] = {}
    for scheduled in (True, False):
        for name, rate in rates.items():
            own = schedule.assignments[name]
            if (rate > 0) is not scheduled or own.path is None:
                continue
            if not scheduled:
                rate = rates[name] = min(network.capacity_bps(link) - used.get(link, 0.0) for link in own.path.links)
            for link in own.path.links:
                used[link] = used.get(link, 0.0) + rate


# --- Fig. 2 ---

def test_rate_limits_let_the_shorter_of_two_flows_on_a_path_go_first() -> None:
    """Fig. 2 (a) and (d): sizes 1 and 2; fair sharing ends at 2 and 3, the best schedule at 1 and 3."""
    scheduler = mincof(fabric(spines=1))
    scheduler.coflow_arrived(coflow("F2", ("h00", "h10", 2)), 0)
    schedule = scheduler.coflow_arrived(coflow("F1", ("h01", "h11", 1)), 0)

    assert schedule.order == ("F1", "F2")
    assert run(scheduler, schedule, {"F1.1": 1, "F2.1": 2}) == pytest.approx({"F1.1": 1, "F2.1": 3})


def test_flows_of_a_coflow_are_scheduled_as_one() -> None:
    """Fig. 2 (b) and (e): two independent paths, C1 of 1 and 1, C2 of 2 and 1: C1 ends at 1, C2 at 3."""
    scheduler = mincof(network_with("l", "a b c d", "a-l b-l c-l d-l", MBIT))
    scheduler.coflow_arrived(coflow("C2", ("a", "c", 2), ("b", "d", 1)), 0)
    schedule = scheduler.coflow_arrived(coflow("C1", ("a", "c", 1), ("b", "d", 1)), 0)

    assert schedule.order == ("C1", "C2")
    assert {schedule.assignments[f"C2.{n}"].service_class for n in (1, 2)} == {ServiceClass.STARVED}
    ends = run(scheduler, schedule, {"C1.1": 1, "C1.2": 1, "C2.1": 2, "C2.2": 1})
    assert ends == pytest.approx({"C1.1": 1, "C1.2": 1, "C2.1": 3, "C2.2": 3})


def test_the_flows_of_a_coflow_are_routed_as_one() -> None:
    """Fig. 2 (c) and (f): two alternative paths, C1 of 3 and 1, C2 of 2 and 3. The best: C1 at 3, C2 at 5, which it
    takes that starved flows have what is left. With nothing for them C2 ends at 6."""
    for with_the_rest, second in ((True, 5), (False, 6)):
        network = fabric(hosts=4, host_bps=10 * MBIT)
        scheduler = mincof(network)
        scheduler.coflow_arrived(coflow("C1", ("h00", "h10", 3), ("h01", "h11", 1)), 0)
        schedule = scheduler.coflow_arrived(coflow("C2", ("h02", "h12", 2), ("h03", "h13", 3)), 0)

        for name in ("C1", "C2"):
            assert len({schedule.assignments[f"{name}.{number}"].path.nodes[2] for number in (1, 2)}) == 2  # type: ignore[union-attr]
        ends = run(scheduler, schedule, {"C1.1": 3, "C1.2": 1, "C2.1": 2, "C2.2": 3},
                   network if with_the_rest else None)
        assert [max(ends[f"{name}.{n}"] for n in (1, 2)) for name in ("C1", "C2")] == pytest.approx([3, second])


# --- single decisions ---

def test_new_flows_take_the_paths_with_most_left() -> None:
    scheduler = mincof(fabric(spines=3, hosts=4))
    first = scheduler.coflow_arrived(coflow("A", ("h00", "h10", 9)), 0)
    second = scheduler.coflow_arrived(coflow("B", ("h01", "h11", 10), ("h02", "h12", 10)), 0)

    spines = [second.assignments[name].path.nodes[2] for name in ("A.1", "B.1", "B.2")]     # type: ignore[union-attr]
    assert first.assignments["A.1"].path == second.assignments["A.1"].path
    assert sorted(spines) == ["s0", "s1", "s2"]


def test_the_first_coflow_is_moved_to_where_it_ends_earlier() -> None:
    network = fabric(hosts=2)
    part(network, "l0", "s1")
    scheduler = mincof(network)
    crowded = scheduler.coflow_arrived(coflow("A", ("h00", "h10", 900), ("h01", "h11", 900)), 0)
    join(network, "l0", "s1", MBIT)
    balanced = scheduler.network_changed(1)

    assert {crowded.assignments[f"A.{n}"].rate_bps for n in (1, 2)} == {MBIT / 2}
    assert len({balanced.assignments[f"A.{n}"].path for n in (1, 2)}) == 2
    assert balanced.assignments["A.1"].rate_bps == pytest.approx(MBIT)


def test_a_coflow_that_is_about_to_end_is_not_moved_as_that_costs_more_than_it_brings() -> None:
    network = fabric(hosts=2, host_bps=1000 * MBIT, uplink_bps=1000 * MBIT)
    part(network, "l0", "s1")
    scheduler = mincof(network)
    crowded = scheduler.coflow_arrived(coflow("A", ("h00", "h10", 0.1), ("h01", "h11", 0.1)), 0)
    join(network, "l0", "s1", 1000 * MBIT)

    now = scheduler.network_changed(0)
    assert {flow_id: own.path for flow_id, own in now.assignments.items()} == {
        flow_id: own.path for flow_id, own in crowded.assignments.items()}


def test_small_coflows_are_left_to_the_default_path_and_queue() -> None:
    scheduler = MinCOF(fabric(), threshold_bytes=2.5e6)
    small = coflow("small", ("h00", "h10", 20), ("h00", "h11", 20))
    schedule = scheduler.coflow_arrived(small, 0)

    assert {(own.path, own.rate_bps, own.service_class) for own in schedule.assignments.values()} == {
        (None, None, ServiceClass.BEST_EFFORT)}
    assert schedule.order == ()


def test_a_coflow_that_other_senders_add_flows_to_grows_beyond_the_threshold() -> None:
    scheduler = MinCOF(fabric(), threshold_bytes=2.5e6)
    scheduler.coflow_arrived(coflow("A", ("h00", "h10", 1)), 0)
    schedule = scheduler.coflow_arrived(Coflow("A", (CoflowFlow("more", "h01", "h11", 3e6),), 0.1), 0.1)

    assert schedule.order == ("A",)
    assert all(own.path is not None and own.rate_bps for own in schedule.assignments.values())


def test_within_a_leaf_nothing_but_the_hosts_own_links_counts() -> None:
    scheduler = mincof(fabric(), scheduled_share=0.5)
    schedule = scheduler.coflow_arrived(coflow("A", ("h00", "h01", 1)), 0)

    assert schedule.assignments["A.1"].path.nodes == ("h00", "l0", "h01")      # type: ignore[union-attr]
    assert schedule.assignments["A.1"].rate_bps == pytest.approx(MBIT)


def test_a_lone_coflow_gets_more_than_its_queues_share_of_a_link() -> None:
    scheduler = mincof(fabric(), scheduled_share=0.5)
    schedule = scheduler.coflow_arrived(coflow("A", ("h00", "h10", 1)), 0)

    assert schedule.assignments["A.1"].rate_bps == pytest.approx(MBIT)


def test_nothing_is_decided_until_the_last_flow_of_a_coflow_ends() -> None:
    scheduler = mincof(fabric())
    scheduler.coflow_arrived(coflow("A", ("h00", "h10", 1), ("h01", "h11", 2)), 0)
    before = scheduler.coflow_arrived(coflow("B", ("h00", "h10", 4)), 0)

    assert scheduler.flow_finished("A.2", 1) is None
    assert scheduler.schedule.assignments["B.1"] == before.assignments["B.1"]
    after = scheduler.flow_finished("A.1", 2)
    assert after is not None
    assert after.assignments["B.1"].service_class is ServiceClass.SCHEDULED
    assert after.order == ("B",)


def test_reports_change_the_next_order() -> None:
    scheduler = mincof(fabric(spines=1))
    scheduler.coflow_arrived(coflow("A", ("h00", "h10", 10)), 0)
    scheduler.progress("A.1", 1 * UNIT, 0)
    assert scheduler.coflow_arrived(coflow("B", ("h01", "h11", 5)), 0).order == ("A", "B")
    scheduler.progress("A.1", 8 * UNIT, 0)

    assert scheduler.coflow_arrived(coflow("C", ("h01", "h11", 9)), 0).order == ("B", "A", "C")


def test_a_coflow_that_is_given_up_leaves_its_bandwidth() -> None:
    scheduler = mincof(fabric(spines=1))
    scheduler.coflow_arrived(coflow("A", ("h00", "h10", 1)), 0)
    scheduler.coflow_arrived(coflow("B", ("h01", "h11", 2)), 0)

    schedule = scheduler.coflow_gone("A", 1)

    assert list(schedule.assignments) == ["B.1"]
    assert schedule.assignments["B.1"].rate_bps == pytest.approx(MBIT)


def test_flows_leave_a_path_that_is_gone_and_wait_where_there_is_none() -> None:
    network = fabric()
    scheduler = mincof(network)
    before = scheduler.coflow_arrived(coflow("A", ("h00", "h10", 1), ("h01", "h00", 1)), 0)
    spine = before.assignments["A.1"].path.nodes[2]       # type: ignore[union-attr]
    part(network, "l0", spine)
    after = scheduler.network_changed(0)
    assert after.assignments["A.1"].path.nodes[2] != spine      # type: ignore[union-attr]

    part(network, "l0", after.assignments["A.1"].path.nodes[2])     # type: ignore[union-attr]
    cut = scheduler.network_changed(0)
    assert (cut.assignments["A.1"].path, cut.assignments["A.1"].service_class) == (None, ServiceClass.BEST_EFFORT)
    assert cut.assignments["A.2"].rate_bps == pytest.approx(MBIT)

    join(network, "l0", spine, MBIT)
    assert scheduler.network_changed(0).assignments["A.1"].path is not None


def test_what_cannot_be_scheduled_is_refused_and_changes_nothing() -> None:
    network = fabric()
    network.add_host("alone")
    scheduler = mincof(network)
    held = scheduler.coflow_arrived(coflow("A", ("h00", "h10", 1)), 0)

    with pytest.raises(DuplicateFlow):
        scheduler.coflow_arrived(Coflow("B", tuple(CoflowFlow(name, "h00", "h10", 1) for name in ("b", "A.1")), 0), 0)
    with pytest.raises(UnknownNode):
        scheduler.coflow_arrived(coflow("B", ("h00", "nobody", 1)), 0)
    with pytest.raises(NoPath):
        scheduler.coflow_arrived(coflow("B", ("h00", "alone", 1)), 0)
    with pytest.raises(InvalidRequest):
        scheduler.coflow_arrived(coflow("B", ("h00", "l1", 1)), 0)
    with pytest.raises(InvalidRequest):
        scheduler.progress("A.1", math.nan, 0)
    with pytest.raises(UnknownFlow):
        scheduler.flow_finished("B.1", 0)
    with pytest.raises(UnknownCoflow):
        scheduler.coflow_gone("B", 0)
    assert scheduler.schedule == held


# --- what holds always ---

HOSTS = [f"h{leaf}{number}" for leaf in range(3) for number in range(3)]
PAIRS = st.sampled_from([pair for ends in combinations(HOSTS, 2) for pair in (ends, ends[::-1])])
FLOWS = st.lists(st.tuples(PAIRS, st.floats(0.01, 50)), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(arriving=st.lists(FLOWS, min_size=1, max_size=7), share=st.sampled_from([0.5, 1.0]),
       uplink=st.sampled_from([0.25, 1.0, 4.0]))
def test_every_schedule_keeps_to_the_links_and_wastes_nothing(
        arriving: list[list[tuple[tuple[str, str], float]]], share: float, uplink: float) -> None:
    network = fabric(leaves=3, spines=2, hosts=3, uplink_bps=uplink * MBIT)
    scheduler = mincof(network, scheduled_share=share)
    sizes: dict[str, float] = {}
    for number, flows in enumerate(arriving):
        new = coflow(f"c{number}", *((*ends, size) for ends, size in flows))
        schedule = scheduler.coflow_arrived(new, 0)
        sizes |= {str(flow.flow_id): flow.remaining_bytes * 8 for flow in new.flows}
        used: dict[Link, float] = {}
        for own in schedule.of(ServiceClass.SCHEDULED):
            assert own.path is not None
            assert own.rate_bps is not None
            for link in own.path.links:
                used[link] = used.get(link, 0.0) + own.rate_bps
        full = {link for link, bps in used.items() if bps >= network.capacity_bps(link) * (1 - 1e-6)}
        assert all(bps <= network.capacity_bps(link) * (1 + 1e-6) for link, bps in used.items())

        seconds = {}
        for name in schedule.order:
            mine = [own for own in schedule.assignments.values() if own.coflow_id == name]
            assert len({own.service_class for own in mine}) == 1
            if mine[0].service_class is ServiceClass.SCHEDULED:
                ends = [sizes[str(own.flow_id)] / own.rate_bps for own in mine if own.rate_bps]
                assert max(ends) == pytest.approx(min(ends)), "all flows of a coflow end together"
                assert any(link in full for own in mine if own.path for link in own.path.links), "something is left"
                seconds[name] = ends[0]
            else:
                assert all(own.rate_bps is None for own in mine)
        assert schedule.order[0] in seconds, "the shortest is always scheduled"
        assert len(schedule.assignments) == len(sizes)
