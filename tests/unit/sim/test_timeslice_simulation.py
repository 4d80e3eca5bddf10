"""The shallow switch: what fills its buffer, what TCP makes of losses, and what timeslices make of both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from speedwell.evaluation.commands.experiment import experiment
from speedwell.evaluation.papers import xco
from speedwell.sim import shallow_switch as port
from speedwell.sim.timeslice_simulation import Conditions, Coordination, Setup, TimesliceSimulation, Traffic

TCP, UDP = Traffic(port.BULK), Traffic(port.UDP)
STRIPES = Setup(traffic=(Traffic(port.STRIPED, part=14),) * 8, frame_bytes=9000)


def run(setup: Setup, policy: str | None = None, seconds: float = 1.0, slice_seconds: float = 0.01, seed: int = 1,
        conditions: Conditions | None = None) -> port.State:
    coordination = Coordination(policy, slice_seconds) if policy else None
    simulation = TimesliceSimulation(setup, conditions or Conditions(), coordination, seconds, seed)
    simulation.run(seconds)
    return simulation.state


def parts_of_the_link(state: port.State) -> np.ndarray:
    return state.flows["good"] / (state.counters[port.CLOCK] * state.per_slot)


def test_one_sender_has_the_link_for_itself() -> None:
    state = run(Setup(traffic=(TCP,)))
    assert parts_of_the_link(state).sum() > 0.95 and state.counters[port.DROPPED] == 0


@pytest.mark.parametrize("policy", [None, "xco", "rate-limits"])
def test_every_frame_is_dropped_served_or_waits(policy: str | None) -> None:
    state = run(Setup(traffic=(TCP,) * 4 + (UDP,)), policy)
    counters = state.counters
    assert counters[port.OFFERED] == counters[port.DROPPED] + counters[port.SERVED] + counters[port.QUEUED]
    assert state.samples[:, 0].max() <= len(state.queue)


def test_what_does_not_back_off_keeps_the_link_full_of_messages_that_do_not_arrive() -> None:
    state = run(Setup(traffic=(UDP, UDP, TCP)))
    assert state.counters[port.SERVED] > 0.98 * state.counters[port.CLOCK]
    assert state.counters[port.DROPPED] > 0.4 * state.counters[port.OFFERED]
    *udp, tcp = parts_of_the_link(state)
    assert tcp < 0.05 < sum(udp) < 0.85


def test_striped_reads_collapse_by_timeouts_and_not_under_slices() -> None:
    collapsed, sliced = run(STRIPES, seconds=2.0), run(STRIPES, "xco", 2.0)
    assert parts_of_the_link(collapsed).sum() < 0.3 and collapsed.flows["timeouts"].sum() > 0
    assert parts_of_the_link(sliced).sum() > 0.6
    assert sliced.counters[port.DROPPED] == sliced.flows["timeouts"].sum() == 0


@pytest.mark.parametrize(("slice_seconds", "has_timeouts"), [(0.01, True), (0.002, False)])
def test_a_cycle_longer_than_tcps_least_timeout_is_a_timeout(slice_seconds: float, has_timeouts: bool) -> None:
    state = run(Setup(traffic=(TCP,) * 30), "xco", 2.0, slice_seconds)
    assert state.counters[port.DROPPED] == 0
    assert (state.flows["timeouts"].sum() > 0) == has_timeouts


@pytest.mark.parametrize("policy", ["xco", "xco-plus", "rate-limits"])
def test_each_of_five_greedy_senders_has_a_fifth(policy: str) -> None:
    state = run(Setup(traffic=(TCP,) * 3 + (UDP,) * 2), policy, 2.0)
    assert parts_of_the_link(state) == pytest.approx([0.2] * 5, abs=0.02)


@pytest.mark.parametrize("policy", ["xco", "xco-plus"])
def test_slices_leave_the_buffer_empty_for_others(policy: str) -> None:
    state = run(Setup(traffic=(UDP,) * 13, uplink_rate=10), policy)
    waits_ms = 1e3 * 12e-6 * state.samples[100:-1, 0] / state.per_slot
    assert np.percentile(waits_ms, 99) < 0.3
    assert parts_of_the_link(state).sum() > 0.95


def test_what_hosts_give_up_goes_to_those_that_need_it() -> None:
    setup = Setup(traffic=(UDP._replace(rate=0.05),) * 3 + (UDP,) * 2, uplink_rate=1)
    kept = TimesliceSimulation(setup, Conditions(), Coordination("xco", conserves=False), 1.0, 1)
    kept.run(1.0)
    assert parts_of_the_link(kept.state).sum() < 0.6 < 0.9 < parts_of_the_link(run(setup, "xco")).sum()


def test_short_connections_end_and_begin_anew() -> None:
    state = run(Setup(traffic=(Traffic(port.SHORT, flows=3, part=20),)))
    assert (state.flows["received"] > 100 * 21).all()


def test_equal_seeds_make_equal_runs_and_others_do_not() -> None:
    first, again, other = (run(STRIPES, seed=seed).counters.tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_every_claim_is_of_something_that_is_run() -> None:
    for name, claims in xco.CLAIMS.items():
        figure = xco.EXPERIMENTS[name]
        assert {(claim.panel, claim.point) for claim in claims} <= {(point.panel, point.name)
                                                                    for point in figure.points}
        assert {method for claim in claims for method in claim.paper} <= {method.name for method in figure.methods}


def test_the_command_prints_the_papers_figures_beside_ours(tmp_path: Path) -> None:
    done = CliRunner().invoke(experiment, ["xco-fairness", "--quick", "--policy", "rate-limits",
                                           "--output", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "paper: about as UDP" in done.output and "rate-limits" in done.output
    assert (tmp_path / "out" / "plot.png").exists()
    refused = CliRunner().invoke(experiment, ["xco-rtt", "--emulate"])
    assert refused.exit_code == 2 and "simulator only" in refused.output
