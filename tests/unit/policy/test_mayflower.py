"""Mayflower's selection: the paper's worked example, the update-freeze state, and what flows leave behind."""

import pytest

from speedwell.controller.policy.errors import DuplicateFlow, InvalidMeasurement, NoPath, UnknownLink, UnknownNode
from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.reads.link_load import ReadFlow
from speedwell.controller.policy.reads.mayflower import Mayflower
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest
from tests.unit.policy.networks import network_with, part

MBIT = 1e6
LONG_AFTER = 1e6
NINE_MBIT = SelectionRequest("reader", (Replica("source"),), 9 * MBIT)


def flow_of(mayflower: Mayflower, flow_id: str) -> ReadFlow:
    return next(flow for flow in mayflower.flows() if flow.flow_id == flow_id)


def shares(mayflower: Mayflower) -> dict[str, float]:
    return {flow.flow_id: flow.bandwidth_bps for flow in mayflower.flows()}


class Figure2:
    """The paper's Figure 2: source and reader on two edge switches, two aggregation switches between them.

    10 Mbit/s a link. Existing flows have 6 Mbit left; path 1 carries {6, 2, 2} Mbit/s on its second link and
    {10} on its third, path 2 {4, 2, 2} and {8}. They come from and go to a third edge switch.
    """

    now = LONG_AFTER

    def __init__(self) -> None:
        self.network = network_with(
            "edge1 edge2 edge3 agg1 agg2",
            "source reader here there elsewhere",
            "source-edge1 reader-edge2 edge1-agg1 edge1-agg2 agg1-edge2 agg2-edge2 agg1-edge3 agg2-edge3",
        )
        for host, edge in [("here", "edge1"), ("there", "edge2"), ("elsewhere", "edge3")]:
            self.network.add_link(host, edge, 100 * MBIT)
            self.network.add_link(edge, host, 100 * MBIT)
        self.mayflower = Mayflower(self.network)
        rates_bps: dict[str, float] = {}
        for agg, rates_out, rate_in in [("agg1", (6, 2, 2), 10), ("agg2", (4, 2, 2), 8)]:
            for number, rate in enumerate(rates_out):
                rates_bps[f"{agg} out {number}"] = rate * MBIT
            rates_bps[f"{agg} in"] = rate_in * MBIT
        for flow_id in rates_bps:
            agg, direction, *_ = flow_id.split()
            nodes = ("here", "edge1", agg, "edge3", "elsewhere")
            if direction == "in":
                nodes = ("elsewhere", "edge3", agg, "edge2", "there")
            self.mayflower.flow_added(flow_id, Path(nodes), 6 * MBIT, 0.0)
        for flow_id, rate_bps in rates_bps.items():
            self.mayflower.flow_measured(flow_id, 0, rate_bps, self.now)

    def path(self, agg: str) -> Path:
        return Path(("source", "edge1", agg, "edge2", "reader"))

    def cost(self, agg: str) -> float:
        only = [(NINE_MBIT.replicas[0], self.path(agg))]
        return self.mayflower.select_replica_and_path(NINE_MBIT, self.now, only).cost_seconds


@pytest.fixture
def figure2() -> Figure2:
    return Figure2()


def test_figure_2_the_second_path_is_cheaper(figure2: Figure2) -> None:
    assert figure2.cost("agg1") == pytest.approx(9 / 3 + (6 / 3 - 6 / 6) + (6 / 7 - 6 / 10))
    assert figure2.cost("agg1") == pytest.approx(4.25, abs=0.01)
    assert figure2.cost("agg2") == pytest.approx(3.6, abs=0.01)
    selection = figure2.mayflower.select_replica_and_path(NINE_MBIT, figure2.now)
    assert selection.path == figure2.path("agg2")
    assert selection.estimated_bps == pytest.approx(3 * MBIT)
    assert selection.cost_seconds == figure2.cost("agg2")


def test_figure_2_a_wider_second_link_makes_the_first_path_cheaper(figure2: Figure2) -> None:
    figure2.network.set_capacity(("edge1", "agg1"), 20 * MBIT)
    assert figure2.cost("agg1") == pytest.approx(2.4)
    assert figure2.mayflower.select_replica_and_path(NINE_MBIT, figure2.now).path == figure2.path("agg1")


def test_the_chosen_flow_changes_shares_on_its_path_and_nowhere_else(figure2: Figure2) -> None:
    before = shares(figure2.mayflower)
    figure2.mayflower.flow_added("new", figure2.path("agg2"), 9 * MBIT, figure2.now)
    after = shares(figure2.mayflower)
    changed = {flow_id: after[flow_id] for flow_id in before if after[flow_id] != before[flow_id]}
    assert changed == {"agg2 out 0": pytest.approx(3 * MBIT), "agg2 in": pytest.approx(7 * MBIT)}
    assert after["new"] == pytest.approx(3 * MBIT)


def test_selecting_alone_changes_nothing(figure2: Figure2) -> None:
    before = shares(figure2.mayflower)
    first = figure2.mayflower.select_replica_and_path(NINE_MBIT, figure2.now)
    assert figure2.mayflower.select_replica_and_path(NINE_MBIT, figure2.now) == first
    assert shares(figure2.mayflower) == before


# --- one shared link: x and y send to z ---


@pytest.fixture
def network() -> Network:
    return network_with("s t", "x y z", "x-s y-s s-t t-z")


@pytest.fixture
def mayflower(network: Network) -> Mayflower:
    return Mayflower(network)


X_TO_Z = Path(("x", "s", "t", "z"))
Y_TO_Z = Path(("y", "s", "t", "z"))


def test_flows_on_one_link_share_it_equally(mayflower: Mayflower) -> None:
    estimates = [mayflower.flow_added(str(number), X_TO_Z, 100 * MBIT, 0.0) for number in range(4)]
    assert estimates == pytest.approx([10 * MBIT, 5 * MBIT, 10 / 3 * MBIT, 2.5 * MBIT])
    assert list(shares(mayflower).values()) == pytest.approx([2.5 * MBIT] * 4)


def test_a_changed_share_is_frozen_until_the_flow_should_be_done(mayflower: Mayflower) -> None:
    mayflower.flow_added("old", X_TO_Z, 40 * MBIT, 0.0)
    mayflower.flow_added("new", Y_TO_Z, 40 * MBIT, 1.0)
    # "old" moved 10 Mbit in its first second and has 30 left at 5 Mbit/s: frozen until 7 s.
    assert flow_of(mayflower, "old").frozen_until == pytest.approx(7.0)
    mayflower.flow_measured("old", int(35 * MBIT / 8), 2 * MBIT, 6.9)
    assert shares(mayflower)["old"] == pytest.approx(5 * MBIT)
    assert flow_of(mayflower, "old").remaining_at(6.9) == pytest.approx(5 * MBIT)
    mayflower.flow_measured("old", int(36 * MBIT / 8), 2 * MBIT, 7.1)
    assert shares(mayflower)["old"] == 2 * MBIT
    assert not flow_of(mayflower, "old").frozen
    mayflower.flow_measured("old", int(37 * MBIT / 8), 3 * MBIT, 7.6)
    assert shares(mayflower)["old"] == 3 * MBIT


def test_a_flow_whose_share_did_not_change_is_not_frozen(mayflower: Mayflower) -> None:
    mayflower.flow_added("small", X_TO_Z, 10 * MBIT, 0.0)
    mayflower.flow_measured("small", 0, 2 * MBIT, LONG_AFTER)
    mayflower.flow_added("new", Y_TO_Z, 10 * MBIT, LONG_AFTER)
    assert shares(mayflower) == pytest.approx({"small": 2 * MBIT, "new": 8 * MBIT})
    mayflower.flow_measured("small", 0, 1 * MBIT, LONG_AFTER)
    assert shares(mayflower)["small"] == 1 * MBIT


def test_remaining_size_shrinks_between_polls_and_never_below_nothing(mayflower: Mayflower) -> None:
    mayflower.flow_added("only", X_TO_Z, 20 * MBIT, 0.0)
    flow = flow_of(mayflower, "only")
    assert [flow.remaining_at(now) for now in (0.0, 0.5, 5.0)] == pytest.approx([20 * MBIT, 15 * MBIT, 0.0])
    mayflower.flow_measured("only", int(2 * MBIT / 8), 10 * MBIT, 5.0)
    assert flow.remaining_at(5.0) == 18 * MBIT
    mayflower.flow_measured("only", 10**12, 10 * MBIT, 6.0)
    assert flow.remaining_at(6.0) == 0.0


def test_finished_flows_cost_nothing(mayflower: Mayflower) -> None:
    for number in range(3):
        mayflower.flow_added(str(number), X_TO_Z, 1 * MBIT, 0.0)
    request = SelectionRequest("z", (Replica("y"),), 10 * MBIT)
    selection = mayflower.select_replica_and_path(request, 10.0)
    assert selection.cost_seconds == pytest.approx(10 / 2.5)
    mayflower.flow_added("new", selection.path, 10 * MBIT, 10.0)
    mayflower.flow_measured("0", 10**6, 0.0, 11.0)
    assert shares(mayflower)["0"] == 0.0


def test_a_stalled_flow_neither_counts_nor_breaks_the_arithmetic(mayflower: Mayflower) -> None:
    mayflower.flow_added("stalled", X_TO_Z, 10 * MBIT, 0.0)
    mayflower.flow_measured("stalled", 0, 0.0, LONG_AFTER)
    selection = mayflower.select_replica_and_path(SelectionRequest("z", (Replica("y"),), 10 * MBIT), LONG_AFTER)
    assert (selection.estimated_bps, selection.cost_seconds) == (10 * MBIT, 1.0)


def test_measured_demands_above_the_capacity_leave_a_new_flow_its_share(mayflower: Mayflower) -> None:
    for flow_id, path in [("a", X_TO_Z), ("b", Y_TO_Z)]:
        mayflower.flow_added(flow_id, path, 10 * MBIT, 0.0)
    for flow_id in "ab":
        mayflower.flow_measured(flow_id, 0, 9 * MBIT, LONG_AFTER)
    selection = mayflower.select_replica_and_path(SelectionRequest("z", (Replica("y"),), 10 * MBIT), LONG_AFTER)
    assert selection.estimated_bps == pytest.approx(10 / 3 * MBIT)
    assert selection.cost_seconds == pytest.approx(3 + 2 * (3 - 10 / 9))


def test_an_empty_read_costs_only_what_it_disturbs(mayflower: Mayflower) -> None:
    selection = mayflower.select_replica_and_path(SelectionRequest("z", (Replica("y"),), 0), 0.0)
    assert (selection.estimated_bps, selection.cost_seconds) == (10 * MBIT, 0.0)


# --- flows that end ---


def test_what_a_dropped_flow_leaves_is_divided_among_those_it_shared_links_with(mayflower: Mayflower) -> None:
    for number in range(4):
        mayflower.flow_added(str(number), X_TO_Z, 100 * MBIT, 0.0)
    assert mayflower.flow_dropped("2", 1.0)
    assert shares(mayflower) == pytest.approx(dict.fromkeys("013", 10 / 3 * MBIT))
    flow = flow_of(mayflower, "0")
    assert flow.frozen
    assert flow.frozen_until == pytest.approx(1.0 + flow.remaining_bits / (10 / 3 * MBIT))
    for number in "013":
        mayflower.flow_dropped(number, 1.0)
    assert shares(mayflower) == {}
    assert mayflower.flow_added("next", Y_TO_Z, 1 * MBIT, 1.0) == 10 * MBIT


def test_a_flow_that_is_held_elsewhere_does_not_gain(network: Network, mayflower: Mayflower) -> None:
    network.set_capacity(("x", "s"), 2 * MBIT)
    mayflower.flow_added("held", X_TO_Z, 100 * MBIT, 0.0)
    mayflower.flow_added("free", Y_TO_Z, 100 * MBIT, 0.0)
    mayflower.flow_added("ending", Y_TO_Z, 100 * MBIT, 0.0)
    assert shares(mayflower) == pytest.approx({"held": 2 * MBIT, "free": 4 * MBIT, "ending": 4 * MBIT})
    frozen_until = flow_of(mayflower, "held").frozen_until
    mayflower.flow_dropped("ending", 1.0)
    assert shares(mayflower) == pytest.approx({"held": 2 * MBIT, "free": 8 * MBIT})
    assert flow_of(mayflower, "held").frozen_until == frozen_until


def test_dropping_and_measuring_a_flow_that_is_not_there_changes_nothing(mayflower: Mayflower) -> None:
    mayflower.flow_added("one", X_TO_Z, 10 * MBIT, 0.0)
    assert not mayflower.flow_dropped("other", 0.0)
    mayflower.flow_measured("other", 1, 1.0, LONG_AFTER)
    mayflower.flow_moved("other", Y_TO_Z, 0.0)
    assert shares(mayflower) == {"one": 10 * MBIT}


def test_a_moved_flow_frees_its_old_path_and_takes_its_remaining_bits_along(figure2: Figure2) -> None:
    mayflower = Mayflower(figure2.network)
    mayflower.flow_added("mover", figure2.path("agg1"), 100 * MBIT, 0.0)
    mayflower.flow_added("other", Path(("here", "edge1", "agg1", "edge3", "elsewhere")), 100 * MBIT, 0.0)
    assert shares(mayflower) == pytest.approx({"mover": 5 * MBIT, "other": 5 * MBIT})
    mayflower.flow_moved("mover", figure2.path("agg2"), 2.0)
    assert shares(mayflower) == pytest.approx({"mover": 10 * MBIT, "other": 10 * MBIT})
    assert flow_of(mayflower, "mover").path == figure2.path("agg2")
    assert flow_of(mayflower, "mover").remaining_at(2.0) == pytest.approx(90 * MBIT)
    mayflower.flow_dropped("mover", 3.0)
    assert mayflower.flow_added("third", figure2.path("agg2"), 1 * MBIT, 3.0) == 10 * MBIT


def test_flow_that_was_dropped_keeps_what_it_had_while_its_row_is_anothers(mayflower: Mayflower) -> None:
    mayflower.flow_added("first", X_TO_Z, 1e6, 0.0)
    (flow,) = mayflower.flows()
    mayflower.flow_dropped("first", 0.0)
    mayflower.flow_added("second", Y_TO_Z, 5e6, 1.0)
    assert (flow.flow_id, flow.bandwidth_bps, flow.remaining_bits) == ("first", 10e6, 1e6)


# --- traffic that is not ours ---


def test_traffic_of_others_takes_a_share_but_has_no_cost(mayflower: Mayflower) -> None:
    mayflower.link_measured(("s", "t"), 10 * MBIT, 1.0)
    selection = mayflower.select_replica_and_path(SelectionRequest("z", (Replica("y"),), 10 * MBIT), 1.0)
    assert selection.estimated_bps == pytest.approx(5 * MBIT)
    assert selection.cost_seconds == pytest.approx(2.0)


def test_background_gives_way_before_a_smaller_flow_does(mayflower: Mayflower) -> None:
    mayflower.flow_added("ours", X_TO_Z, 10 * MBIT, 0.0)
    mayflower.flow_measured("ours", 0, 3 * MBIT, LONG_AFTER)
    mayflower.link_measured(("s", "t"), 10 * MBIT, LONG_AFTER)
    assert mayflower.background_bps(("s", "t")) == pytest.approx(7 * MBIT)
    selection = mayflower.select_replica_and_path(SelectionRequest("z", (Replica("y"),), 10 * MBIT), LONG_AFTER)
    assert selection.estimated_bps == pytest.approx(3.5 * MBIT)
    assert selection.cost_seconds == pytest.approx(10 / 3.5)


def test_a_flow_that_was_dropped_since_the_last_poll_is_not_taken_for_background(mayflower: Mayflower) -> None:
    mayflower.flow_added("ours", X_TO_Z, 100 * MBIT, 0.0)
    mayflower.flow_measured("ours", int(100 * MBIT / 8 / 2), 10 * MBIT, 5.0)
    mayflower.link_measured(("s", "t"), 10 * MBIT, 5.0)
    mayflower.flow_dropped("ours", 5.6)
    mayflower.link_measured(("s", "t"), 7 * MBIT, 6.0)
    assert mayflower.background_bps(("s", "t")) == pytest.approx(1 * MBIT)
    mayflower.link_measured(("s", "t"), 7 * MBIT, 7.0)
    assert mayflower.background_bps(("s", "t")) == 7 * MBIT


def test_a_flow_that_no_poll_has_shown_yet_is_not_taken_for_background(mayflower: Mayflower) -> None:
    mayflower.link_measured(("s", "t"), 0.0, 5.0)
    mayflower.flow_added("ours", X_TO_Z, 100 * MBIT, 5.4)
    mayflower.link_measured(("s", "t"), 7 * MBIT, 6.0)
    assert mayflower.background_bps(("s", "t")) == pytest.approx(1 * MBIT)
    mayflower.flow_measured("ours", 10**6, 9 * MBIT, 7.0)
    mayflower.link_measured(("s", "t"), 9.5 * MBIT, 7.0)
    assert mayflower.background_bps(("s", "t")) == pytest.approx(0.5 * MBIT)


def test_what_a_flow_moved_before_its_rate_is_known_is_not_taken_for_background_when_it_takes_another_path(
        mayflower: Mayflower) -> None:
    mayflower.link_measured(("s", "t"), 5 * MBIT, 0.0)
    assert mayflower.flow_added("ours", X_TO_Z, 100 * MBIT, 0.0) == 5 * MBIT
    mayflower.flow_measured("ours", round(9.5 * MBIT / 8), None, 1.0)       # what took the other half has ended
    mayflower.link_measured(("s", "t"), 10 * MBIT, 1.0)
    assert mayflower.background_bps(("s", "t")) == pytest.approx(0.5 * MBIT)
    mayflower.flow_moved("ours", X_TO_Z, 1.0)
    assert shares(mayflower)["ours"] == pytest.approx(9.5 * MBIT)


def test_a_link_may_be_measured_twice_at_one_moment(mayflower: Mayflower) -> None:
    mayflower.flow_added("ours", X_TO_Z, 100 * MBIT, 4.0)
    for _ in range(2):
        mayflower.link_measured(("s", "t"), 12 * MBIT, 5.0)
    assert mayflower.background_bps(("s", "t")) == 2 * MBIT


def test_known_flows_that_explain_a_links_rate_leave_no_background(mayflower: Mayflower) -> None:
    mayflower.flow_added("ours", X_TO_Z, 100 * MBIT, 0.0)
    mayflower.flow_measured("ours", 10**6, 8 * MBIT, 1.0)
    mayflower.link_measured(("s", "t"), 7.9 * MBIT, 1.0)
    assert mayflower.background_bps(("s", "t")) == 0.0


def test_background_that_gave_way_comes_back_as_far_as_it_was_measured(mayflower: Mayflower) -> None:
    mayflower.link_measured(("s", "t"), 7 * MBIT, 1.0)
    assert mayflower.flow_added("one", X_TO_Z, 100 * MBIT, 1.0) == pytest.approx(5 * MBIT)
    assert mayflower.flow_added("two", Y_TO_Z, 100 * MBIT, 1.0) == pytest.approx(10 / 3 * MBIT)
    assert mayflower.background_bps(("s", "t")) == pytest.approx(10 / 3 * MBIT)
    mayflower.flow_dropped("one", 1.0)
    assert mayflower.background_bps(("s", "t")) == pytest.approx(5 * MBIT)
    assert shares(mayflower) == pytest.approx({"two": 5 * MBIT})
    mayflower.flow_dropped("two", 1.0)
    assert mayflower.background_bps(("s", "t")) == pytest.approx(7 * MBIT)


@pytest.mark.parametrize("rate_bps", [-1.0, float("nan"), float("inf")])
def test_a_rate_that_no_link_can_have_is_refused(mayflower: Mayflower, rate_bps: float) -> None:
    mayflower.flow_added("one", X_TO_Z, 10 * MBIT, 0.0)
    with pytest.raises(InvalidMeasurement):
        mayflower.flow_measured("one", 0, rate_bps, LONG_AFTER)
    with pytest.raises(InvalidMeasurement):
        mayflower.link_measured(("s", "t"), rate_bps, LONG_AFTER)
    assert shares(mayflower) == {"one": 10 * MBIT}
    assert mayflower.background_bps(("s", "t")) == 0.0


# --- which replica, which path ---


def test_among_equal_costs_fewer_links_then_the_earlier_replica_and_path_win(figure2: Figure2) -> None:
    mayflower = Mayflower(figure2.network)
    for host in ("source", "here"):
        figure2.network.set_capacity((host, "edge1"), 10 * MBIT)
    far, near = Replica("source"), Replica("there")
    figure2.network.set_capacity(("there", "edge2"), 10 * MBIT)
    assert mayflower.select_replica_and_path(SelectionRequest("reader", (far, near), MBIT), 0.0).replica == near
    for replicas in [(Replica("source"), Replica("here")), (Replica("here"), Replica("source"))]:
        selection = mayflower.select_replica_and_path(SelectionRequest("reader", replicas, MBIT), 0.0)
        assert selection.replica == replicas[0]
        assert selection.path.nodes[2] == "agg1"


def test_a_replica_on_the_client_itself_costs_nothing(figure2: Figure2) -> None:
    replicas = (Replica("source"), Replica("reader"))
    selection = figure2.mayflower.select_replica_and_path(SelectionRequest("reader", replicas, MBIT), figure2.now)
    assert (selection.replica, selection.path) == (replicas[1], Path(("reader",)))
    assert (selection.estimated_bps, selection.cost_seconds) == (float("inf"), 0.0)
    figure2.mayflower.flow_added("local", selection.path, MBIT, figure2.now)
    figure2.mayflower.flow_measured("local", 1, 1.0, figure2.now)
    assert flow_of(figure2.mayflower, "local").remaining_at(figure2.now) == 0.0
    assert figure2.mayflower.flow_dropped("local", figure2.now)


def test_replicas_that_cannot_be_reached_are_passed_over(figure2: Figure2) -> None:
    replicas = (Replica("nowhere"), Replica("elsewhere"), Replica("source"))
    part(figure2.network, "elsewhere", "edge3")
    request = SelectionRequest("reader", replicas, MBIT)
    assert figure2.mayflower.select_replica_and_path(request, figure2.now).replica == replicas[2]
    with pytest.raises(NoPath):
        figure2.mayflower.select_replica_and_path(SelectionRequest("reader", replicas[:2], MBIT), figure2.now)
    with pytest.raises(UnknownNode):
        figure2.mayflower.select_replica_and_path(SelectionRequest("nowhere", replicas, MBIT), figure2.now)


def test_a_path_that_lost_a_link_is_refused_and_nothing_is_recorded(network: Network, mayflower: Mayflower) -> None:
    mayflower.flow_added("one", X_TO_Z, MBIT, 0.0)
    part(network, "s", "t")
    with pytest.raises(UnknownLink):
        mayflower.flow_added("two", Y_TO_Z, MBIT, 0.0)
    with pytest.raises(UnknownLink):
        mayflower.flow_moved("one", Y_TO_Z, 0.0)
    assert shares(mayflower) == {"one": 10 * MBIT}
    assert mayflower.flow_dropped("one", 0.0)


def test_a_flow_identifier_is_used_once(mayflower: Mayflower) -> None:
    mayflower.flow_added("one", X_TO_Z, MBIT, 0.0)
    with pytest.raises(DuplicateFlow):
        mayflower.flow_added("one", Y_TO_Z, MBIT, 0.0)
    assert shares(mayflower) == {"one": 10 * MBIT}
