"""The bound on completion times: by hand, over all orders, and below every policy."""

from collections.abc import Callable
from itertools import permutations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.policy.coflows.coflow import Coflow, CoflowFlow, CoflowScheduler
from speedwell.controller.policy.coflows.coflow_comparators import Aalo, FairSharing, Rapier, Sincronia, Tailor, Varys
from speedwell.controller.policy.coflows.coflow_plus import CoflowPlus
from speedwell.controller.policy.coflows.mincof import MinCOF
from speedwell.controller.policy.network.graph import Network
from speedwell.sim import coflow_bound
from speedwell.sim.coflow_bound import least_mean_seconds
from speedwell.sim.coflow_simulation import CoflowSimulation, Enforcement
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import spine_leaf

HOST_BPS = 100e6
POLICIES: list[Callable[[Network], CoflowScheduler]] = [
    CoflowPlus, MinCOF, Varys, Aalo, Sincronia, Tailor, Rapier, FairSharing]


def network(spines: int = 2) -> Network:
    """Two leaves of two hosts; with one spine two hosts share a link of a host's rate."""
    return network_of(spine_leaf(leaves=2, spines=spines, hosts_per_leaf=2, host_bps=HOST_BPS,
                                 oversubscription=2 / spines))


def transfers(name: str, at: float, *flows: tuple[str, str, float]) -> Coflow:
    """Of (from, to, seconds that a host's link takes)."""
    return Coflow(name, tuple(CoflowFlow(f"{name}.{number}", source, destination, seconds * HOST_BPS / 8)
                              for number, (source, destination, seconds) in enumerate(flows)), at)


def test_on_one_link_it_is_what_the_shortest_first_takes() -> None:
    """The short one comes at 1 and takes until 2, the long one until 5."""
    coflows = [transfers("long", 0, ("r0h0", "r1h0", 4)), transfers("short", 1, ("r0h0", "r1h1", 1))]

    assert least_mean_seconds(coflows, network()) == pytest.approx((5 + 1) / 2)


def test_a_coflow_that_holds_up_two_others_counts_on_both_links() -> None:
    """Each of the small ones alone could end after 2 s; the wide one ends after 5, or they wait for it for 3 s."""
    coflows = [transfers("wide", 0, ("r0h0", "r1h0", 3), ("r0h1", "r1h1", 3)),
               transfers("left", 0, ("r0h0", "r1h0", 2)), transfers("right", 0, ("r0h1", "r1h1", 2))]

    assert least_mean_seconds(coflows, network()) == pytest.approx((2 + 2 + 5) / 3)


def test_flows_of_two_hosts_share_what_their_switch_can_send_up() -> None:
    coflows = [transfers("both", 0, ("r0h0", "r1h0", 2), ("r0h1", "r1h1", 2))]

    assert least_mean_seconds(coflows, network(spines=2)) == pytest.approx(2)
    assert least_mean_seconds(coflows, network(spines=1)) == pytest.approx(4)


HOSTS = ["r0h0", "r0h1", "r1h0", "r1h1"]
PAIRS = st.sampled_from([(a, b) for a in HOSTS for b in HOSTS if a != b])
FLOWS = st.lists(st.tuples(PAIRS, st.integers(1, 30)), min_size=1, max_size=4)
COFLOWS = st.lists(st.tuples(st.integers(0, 40), FLOWS), min_size=1, max_size=7).map(lambda drawn: [
    transfers(str(number), at / 10, *((*pair, tenths / 10) for pair, tenths in flows))
    for number, (at, flows) in enumerate(drawn)])


@settings(max_examples=60, deadline=None)
@given(coflows=COFLOWS, spines=st.integers(1, 2), policy=st.sampled_from(POLICIES), largest=st.sampled_from([3, 18]))
def test_no_policy_is_below_it(coflows: list[Coflow], spines: int, policy: Callable[[Network], CoflowScheduler],
                               largest: int) -> None:
    """Decisions are free here, and a moved flow loses nothing: the best that a policy can have."""
    fabric = network(spines)
    enforcement = Enforcement(decision=0.0, report_interval=0.1, sliced=False)
    times = CoflowSimulation(fabric, policy(fabric), enforcement).run(coflows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coflow_bound, "LARGEST_GROUP", largest)
        assert fmean(times.values()) >= least_mean_seconds(coflows, fabric) * (1 - 1e-6)


@settings(max_examples=40, deadline=None)
@given(arrivals=st.lists(st.integers(0, 20), min_size=1, max_size=6).map(sorted), data=st.data())
def test_it_is_the_least_over_all_orders(arrivals: list[int], data: st.DataObject) -> None:
    n = len(arrivals)
    row = st.lists(st.integers(1, 9), min_size=3, max_size=3)
    seconds = np.array(data.draw(st.lists(row, min_size=n, max_size=n)), float)

    def end(members: tuple[int, ...]) -> float:
        done_at = np.zeros(3)
        for c in sorted(members):
            done_at = np.maximum(done_at, arrivals[c]) + seconds[c]
        return float(done_at.max())

    least = min(sum(end(order[: k + 1]) for k in range(n)) for order in permutations(range(n)))
    assert coflow_bound._least_sum_over_sets(np.array(arrivals, float), seconds) == pytest.approx(least)
