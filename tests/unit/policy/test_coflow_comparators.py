"""What each coflow policy that MinCOF is compared with does, on cases small enough to see."""

import pytest

from speedwell.controller.policy.coflows.coflow import Coflow, CoflowFlow, CoflowScheduler
from speedwell.controller.policy.coflows.coflow_comparators import Aalo, FairSharing, Rapier, Sincronia, Tailor, Varys
from speedwell.controller.policy.network.graph import Network
from tests.unit.policy.networks import join, network_with
from tests.unit.policy.test_mincof import fabric

MBIT = 1e6
BOTH_PORTS = "a-l b-l c-l d-l"


def switch() -> Network:
    return network_with("l", "a b c d", BOTH_PORTS, MBIT)


def coflow(name: str, *flows: tuple[str, str, float], at: float = 0.0) -> Coflow:
    """Sizes in megabits."""
    return Coflow(name, tuple(CoflowFlow(f"{name}.{number}", source, destination, size * 125_000)
                              for number, (source, destination, size) in enumerate(flows, 1)), at)


def rates(scheduler: CoflowScheduler, *coflows: Coflow) -> dict[object, float | None]:
    for each in coflows:
        schedule = scheduler.coflow_arrived(each, 0)
    return {flow_id: own.rate_bps for flow_id, own in schedule.assignments.items()}


def test_varys_serves_the_smallest_bottleneck_and_gives_the_rest_away() -> None:
    small = coflow("small", ("a", "c", 2), ("b", "c", 1))
    large = coflow("large", ("a", "d", 9))

    assert rates(Varys(switch()), large, small) == pytest.approx(
        {"small.1": MBIT * 2 / 3, "small.2": MBIT / 3, "large.1": MBIT / 3})


def test_aalo_puts_coflows_that_have_sent_much_behind_without_knowing_sizes() -> None:
    scheduler = Aalo(switch(), first_limit_bytes=1e6, strict=True)
    scheduler.coflow_arrived(coflow("old", ("a", "c", 80)), 0)
    assert scheduler.coflow_arrived(coflow("b", ("a", "d", 80), at=1), 1).order == ("old", "b")
    scheduler.progress("old.1", 5e6, 5)

    schedule = scheduler.coflow_arrived(coflow("new", ("b", "d", 80), at=5), 5)
    assert schedule.order == ("b", "new", "old")
    assert schedule.assignments["b.1"].rate_bps == pytest.approx(MBIT)


def test_aalos_queues_share_a_port_by_weights_so_that_none_starves() -> None:
    """Ten for the first queue, nine for the second; within one, who came first."""
    scheduler = Aalo(switch(), first_limit_bytes=1e6)
    scheduler.coflow_arrived(coflow("old", ("a", "c", 80), ("b", "d", 80)), 0)
    for flow in ("old.1", "old.2"):
        scheduler.progress(flow, 5e6, 5)
    schedule = scheduler.coflow_arrived(coflow("new", ("a", "d", 80), at=5), 5)

    assert schedule.order == ("new", "old")
    assert {flow_id: own.rate_bps for flow_id, own in schedule.assignments.items()} == pytest.approx(
        {"new.1": MBIT * 10 / 19, "old.1": MBIT * 9 / 19, "old.2": MBIT * 9 / 19})
    second = scheduler.coflow_arrived(coflow("third", ("a", "d", 80), at=6), 6)
    assert second.order == ("new", "third", "old")
    assert second.assignments["third.1"].rate_bps == 0.0
    assert second.assignments["old.1"].rate_bps > 0


def test_sincronia_orders_by_what_delays_the_others_least_and_ranks_the_first_seven() -> None:
    """On the busiest port c the coflow with most there goes last, though another port of it is idle."""
    scheduler = Sincronia(switch())
    for number in range(9):
        schedule = scheduler.coflow_arrived(coflow(f"{number}", ("a" if number % 2 else "b", "c", 9 - number)), 0)

    assert schedule.order == tuple(f"{number}" for number in range(8, -1, -1))
    assert [schedule.assignments[f"{number}.1"].priority for number in range(9)] == [7, 7, 6, 5, 4, 3, 2, 1, 0]
    assert all(own.rate_bps is None for own in schedule.assignments.values())


def test_tailor_moves_the_slowest_flow_alone_and_limits_nobody() -> None:
    network = fabric(spines=2, hosts=4, host_bps=100 * MBIT)
    scheduler = Tailor(network)
    crowd = [coflow(f"{number}", (f"h0{number % 4}", f"h1{number % 4}", 8)) for number in range(8)]
    before: dict[object, object] = {}
    for each in crowd:
        schedule = scheduler.coflow_arrived(each, 0)
        moved = [own for own in schedule.assignments.values() if before.get(own.flow_id, own.path) != own.path]
        assert len({own.coflow_id for own in moved}) == len(moved)
        before = {own.flow_id: own.path for own in schedule.assignments.values()}
        assert all(own.rate_bps is None for own in schedule.assignments.values())
    spines = [own.path.nodes[2] for own in schedule.assignments.values() if own.path]
    assert spines.count("s0") == spines.count("s1") == 4


def test_rapier_routes_and_rates_a_coflow_together() -> None:
    network = fabric(spines=2, hosts=2)
    schedule = Rapier(network).coflow_arrived(coflow("A", ("h00", "h10", 4), ("h01", "h11", 2)), 0)

    paths = {own.path for own in schedule.assignments.values()}
    assert len(paths) == 2
    assert schedule.assignments["A.1"].rate_bps == pytest.approx(MBIT)


def test_fair_sharing_leaves_everything_to_the_network() -> None:
    schedule = FairSharing(switch()).coflow_arrived(coflow("A", ("a", "c", 1)), 0)
    own = schedule.assignments["A.1"]

    assert (own.path, own.rate_bps, own.priority) == (None, None, None)


@pytest.mark.parametrize("policy", [FairSharing, Varys, Aalo, Sincronia, Tailor, Rapier])
def test_every_policy_lives_through_arrivals_ends_and_failures(policy: type[CoflowScheduler]) -> None:
    network = fabric(spines=2, hosts=3)
    scheduler = policy(network)     # type: ignore[call-arg]
    for number in range(6):
        ends = (f"h0{number % 3}", f"h1{(number + 1) % 3}")
        scheduler.coflow_arrived(coflow(f"{number}", (*ends, 5), (*reversed(ends), 2)), number)
    network.remove_link("l0", "s1")
    network.remove_link("s1", "l0")
    schedule = scheduler.network_changed(7)
    used: dict[tuple[str, str], float] = {}
    for own in schedule.assignments.values():
        if own.path is not None:
            assert all(network.has_link(link) for link in own.path.links)
            for link in own.path.links:
                used[link] = used.get(link, 0.0) + (own.rate_bps or 0.0)
    assert all(bps <= network.capacity_bps(link) * (1 + 1e-6) for link, bps in used.items())
    join(network, "l0", "s1", MBIT)
    for number in range(6):
        scheduler.flow_finished(f"{number}.1", 8)
        scheduler.flow_finished(f"{number}.2", 9)
    assert scheduler.schedule.assignments == {}
    assert scheduler.schedule.order == ()
