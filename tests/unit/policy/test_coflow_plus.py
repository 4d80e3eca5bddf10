"""coflow-plus: order, routes and priorities in one, and reads whose replicas are free."""

import pytest

from speedwell.controller.policy.coflows.coflow import Coflow, CoflowFlow
from speedwell.controller.policy.coflows.coflow_plus import CoflowPlus
from speedwell.controller.policy.errors import (
    DuplicateFlow,
    InvalidRequest,
    NoPath,
    UnknownCoflow,
    UnknownFlow,
    UnknownNode,
)
from tests.unit.policy.networks import join, part
from tests.unit.policy.test_mincof import MBIT, coflow, fabric


def test_on_one_link_the_shortest_goes_first() -> None:
    scheduler = CoflowPlus(fabric(spines=1))
    for name, size in (("long", 9), ("short", 1), ("middle", 4)):
        schedule = scheduler.coflow_arrived(coflow(name, ("h00", "h10", size)), 0)

    assert schedule.order == ("short", "middle", "long")
    assert [schedule.assignments[f"{name}.1"].priority for name in schedule.order] == [0, 1, 2]


def test_reports_change_the_order_a_second_after_the_last_decision() -> None:
    scheduler = CoflowPlus(fabric(spines=1))
    scheduler.coflow_arrived(coflow("A", ("h00", "h10", 5)), 0)
    scheduler.coflow_arrived(coflow("B", ("h01", "h11", 4)), 0)
    scheduler.progress("A.1", 1 * 125_000, 0.9)
    assert scheduler.again(0.9) is None
    later = scheduler.again(1.0)
    assert later is not None and later.order == scheduler.schedule.order == ("A", "B")
    assert scheduler.again(1.9) is None
    scheduler.coflow_gone("A", 2)
    scheduler.coflow_gone("B", 2)
    assert scheduler.again(9) is None, "nothing runs"


def test_flows_are_spread_and_a_coflow_is_moved_only_when_that_pays() -> None:
    network = fabric(spines=2, hosts=4)
    part(network, "l0", "s1")
    scheduler = CoflowPlus(network)
    before = scheduler.coflow_arrived(coflow("A", *((f"h0{n}", f"h1{n}", 4) for n in range(4))), 0)
    join(network, "l0", "s1", MBIT)
    after = scheduler.network_changed(0)
    again = scheduler.coflow_arrived(coflow("B", ("h03", "h10", 0.1)), 0)

    spines = [own.path.nodes[2] for own in after.assignments.values() if own.path]
    assert {own.path.nodes[2] for own in before.assignments.values() if own.path} == {"s0"}
    assert (spines.count("s0"), spines.count("s1")) == (2, 2)
    assert {flow_id: own.path for flow_id, own in again.assignments.items() if own.coflow_id == "A"} == {
        flow_id: own.path for flow_id, own in after.assignments.items()}


def test_a_failed_path_is_left_and_a_flow_without_any_waits() -> None:
    network = fabric(spines=2, hosts=2)
    scheduler = CoflowPlus(network)
    schedule = scheduler.coflow_arrived(coflow("A", ("h00", "h10", 1), ("h00", "h01", 1)), 0)
    spine = schedule.assignments["A.1"].path.nodes[2]       # type: ignore[union-attr]
    part(network, "l0", spine)
    moved = scheduler.network_changed(0)
    assert moved.assignments["A.1"].path.nodes[2] != spine      # type: ignore[union-attr]
    part(network, "l0", moved.assignments["A.1"].path.nodes[2])     # type: ignore[union-attr]
    cut = scheduler.network_changed(0)
    assert cut.assignments["A.1"].path is None
    assert cut.assignments["A.2"].path is not None
    join(network, "l0", spine, MBIT)
    assert scheduler.network_changed(0).assignments["A.1"].path is not None


def test_what_makes_no_sense_is_refused() -> None:
    network = fabric()
    network.add_host("alone")
    scheduler = CoflowPlus(network)
    scheduler.coflow_arrived(coflow("A", ("h00", "h10", 1)), 0)
    with pytest.raises(DuplicateFlow):
        scheduler.coflow_arrived(Coflow("B", (CoflowFlow("A.1", "h00", "h10", 1),), 0), 0)
    with pytest.raises(UnknownNode):
        scheduler.coflow_arrived(coflow("B", ("h00", "nobody", 1)), 0)
    with pytest.raises(InvalidRequest):
        scheduler.coflow_arrived(coflow("B", ("h00", "l1", 1)), 0)
    with pytest.raises(NoPath):
        scheduler.coflow_arrived(coflow("B", ("h00", "alone", 1)), 0)
    with pytest.raises(UnknownFlow):
        scheduler.progress("B.1", 1, 0)
    with pytest.raises(UnknownCoflow):
        scheduler.coflow_gone("B", 0)
    assert list(scheduler.schedule.assignments) == ["A.1"]
    assert scheduler.flow_finished("A.1", 1).order == ()        # type: ignore[union-attr]
