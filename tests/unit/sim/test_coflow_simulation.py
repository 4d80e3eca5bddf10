"""Coflows on a simulated fabric: queues, meters, re-routing, and the bound that nothing may beat."""

from random import Random
from statistics import fmean

import numpy as np
import pytest

from speedwell.controller.policy.coflows.coflow import Coflow, CoflowFlow, CoflowScheduler
from speedwell.controller.policy.coflows.coflow_comparators import FairSharing, Rapier, Sincronia, Tailor, Varys
from speedwell.controller.policy.coflows.mincof import MinCOF
from speedwell.sim.coflow_bound import least_mean_seconds
from speedwell.sim.coflow_simulation import CoflowSimulation, Enforcement
from speedwell.sim.coflow_workload import CoflowWorkload, generate
from speedwell.sim.errors import InvalidSetting, InvalidWorkload
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import spine_leaf


def one_flow(name: str, source: str, destination: str, megabits: float, at: float = 0.0) -> Coflow:
    return Coflow(name, (CoflowFlow(f"{name}.1", source, destination, megabits * 125_000),), at)


def test_a_scheduled_coflow_is_held_up_by_a_background_one_no_further_than_their_queues_say() -> None:
    """One uplink of 100 Mbit/s; half of it is the scheduled coflow's even against ten others."""
    network = network_of(spine_leaf(leaves=2, spines=1, hosts_per_leaf=12, host_bps=100e6, oversubscription=12))
    own = one_flow("own", "r0h0", "r1h0", 100)
    others = [one_flow(f"{number}", f"r0h{number}", f"r1h{number}", 1000) for number in range(1, 11)]
    hidden = frozenset(other.id for other in others)
    times = CoflowSimulation(network, MinCOF(network, threshold_bytes=0)).run([own, *others], hidden)
    unsliced = CoflowSimulation(network, FairSharing(network), Enforcement(sliced=False)).run([own, *others], hidden)

    assert times["own"] == pytest.approx(100 / 62.5, rel=0.02)      # 5 parts of 5 and 3
    assert unsliced["own"] == pytest.approx(11, rel=0.02)


def test_two_coflows_with_a_path_each_take_what_they_take_alone() -> None:
    network = network_of(spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=100e6, oversubscription=1.0))
    coflows = [one_flow(f"{number}", f"r0h{number}", f"r1h{number}", 400) for number in range(2)]
    free = CoflowSimulation(network, MinCOF(network), Enforcement(sliced=False))
    times = free.run(coflows)

    assert times["0"] == pytest.approx(4, rel=0.03)
    assert all(seconds >= 4 for seconds in times.values())


@pytest.mark.parametrize("policy", [FairSharing, Varys, Tailor, Rapier, Sincronia, MinCOF])
def test_no_policy_beats_the_bound_and_equal_runs_give_equal_times(policy: type[CoflowScheduler]) -> None:
    fabric = spine_leaf(leaves=4, spines=4, hosts_per_leaf=4, host_bps=100e6, oversubscription=1.0)
    results = []
    for _ in range(2):
        network = network_of(fabric)
        coflows = generate(CoflowWorkload(coflows=12), network, Random(3))
        scheduler = policy(network)     # type: ignore[call-arg]
        results.append(CoflowSimulation(network, scheduler).run(coflows))
    assert results[0] == results[1]
    assert fmean(results[0].values()) >= least_mean_seconds(coflows, network)


def test_the_workload_is_the_papers() -> None:
    network = network_of(spine_leaf(leaves=4, spines=4, hosts_per_leaf=4, host_bps=100e6, oversubscription=1.0))
    coflows = generate(CoflowWorkload(coflows=2000), network, Random(1))
    intervals = np.diff([0.0, *(coflow.arrived_at for coflow in coflows)])
    transfers = [len({str(flow.flow_id).rsplit(".", 1)[0] for flow in coflow.flows}) for coflow in coflows]

    assert intervals.mean() == pytest.approx(6.91, rel=0.1)
    assert np.median(intervals) == pytest.approx(3.06, rel=0.15)
    assert intervals.std() == pytest.approx(9.76, rel=0.1)
    assert (min(transfers), max(transfers)) == (3, 12)
    assert np.mean(transfers) == pytest.approx(7.5, rel=0.05)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidSetting):
        Enforcement(meter_part=0)
    with pytest.raises(InvalidWorkload, match="transfers"):
        CoflowWorkload(transfers=(4, 3))
    with pytest.raises(InvalidWorkload, match="coflows"):
        CoflowWorkload(coflows=0)
