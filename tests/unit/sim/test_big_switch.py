"""The evaluated policies themselves on traces: by hand, and the Facebook trace against what others publish of it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import fmean

import pytest

from speedwell.controller.policy.coflows.coflow import CoflowScheduler
from speedwell.controller.policy.coflows.coflow_comparators import Aalo, FairSharing, Rapier, Sincronia, Tailor, Varys
from speedwell.controller.policy.coflows.coflow_plus import CoflowPlus
from speedwell.controller.policy.network.graph import Network
from speedwell.sim.big_switch import run
from speedwell.sim.coflow_trace import Coflow, CoflowTrace, read_coflows
from tests.unit.sim.reference import reference_file

Make = Callable[[Network], CoflowScheduler]
XIMULATOR = "percoflow_ximulator_varysImpl.tsv"
DARK, MAX_MIN = "percoflow_epoch8_DARK.txt", "percoflow_epoch8_MMF.txt"
"""coflowsim's Aalo, whose queues do not share by weights but go one before the other, and max-min shares in its steps
of 8 ms."""
STRICT_AALO = partial(Aalo, strict=True)


def published(name: str) -> dict[int, float]:
    """Seconds by coflow."""
    rows = [line.split() for line in reference_file(name).read_text().splitlines()]
    if name == XIMULATOR:
        column = rows[0].index("cct")
        return {int(row[0]): float(row[column]) for row in rows[1:] if row and row[0].isdigit()}
    return {int(row[0].removeprefix("JOB-")): float(row[5]) / 1e3 for row in rows if len(row) == 6}


def first_coflows(number: int) -> CoflowTrace:
    trace = read_coflows(reference_file("FB2010-1Hr-150-0.txt"))
    return replace(trace, coflows=trace.coflows[:number])


def test_the_shorter_of_two_coflows_goes_first_and_the_other_takes_what_is_left() -> None:
    trace = CoflowTrace(4, (Coflow(1, 0.0, (0,), ((1, 30e6),)), Coflow(2, 1.0, (0,), ((2, 10e6),))))

    assert run(trace, 10e6, Varys) == pytest.approx({1: 4.0, 2: 1.0})


@pytest.mark.parametrize("make", [Varys, Rapier])
def test_a_port_goes_to_the_next_coflow_as_soon_as_a_decision_finds_it_free(make: Make) -> None:
    """The first is done with rack 3 at 2 s at the earliest; the second needs 9 s there."""
    trace = CoflowTrace(5, (Coflow(1, 0.0, (0, 1), ((2, 8e6), (3, 2e6))), Coflow(2, 0.0, (4,), ((3, 9e6),))))

    assert run(trace, 1e6, make, often=True) == pytest.approx({1: 8.0, 2: 11.0})


@pytest.mark.parametrize("make", [Sincronia, CoflowPlus])
def test_priorities_need_no_decision_to_let_the_next_coflow_have_a_free_port(make: Make) -> None:
    trace = CoflowTrace(5, (Coflow(1, 0.0, (0, 1), ((2, 8e6), (3, 2e6))), Coflow(2, 0.0, (4,), ((3, 9e6),))))

    assert run(trace, 1e6, make) == pytest.approx({1: 8.0, 2: 11.0})


@pytest.mark.parametrize(("make", "reference", "within"), [
    (Varys, XIMULATOR, 0.01), (STRICT_AALO, DARK, 0.005), (FairSharing, MAX_MIN, 0.001), (Tailor, MAX_MIN, 0.001)])
def test_the_first_coflows_of_the_facebook_trace_take_as_long_as_published(
        make: Make, reference: str, within: float) -> None:
    """All have ended when the next one comes: nothing later touches them. Tailor has no path to choose here."""
    ended, expected = run(first_coflows(60), 1e9, make), published(reference)

    assert fmean(ended.values()) == pytest.approx(fmean(expected[number] for number in ended), rel=within)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("make", "reference", "within"), [(Varys, XIMULATOR, 0.01), (STRICT_AALO, DARK, 0.005)])
def test_the_first_120_coflows_of_the_facebook_trace_take_as_long_as_published(
        make: Make, reference: str, within: float) -> None:
    trace, expected = first_coflows(120), published(reference)
    ended = run(trace, 1e9, make)

    until = first_coflows(121).coflows[-1].arrival_seconds
    early = [coflow.number for coflow in trace.coflows
             if coflow.arrival_seconds + max(ended[coflow.number], expected[coflow.number]) < until]
    assert len(early) > 80
    assert fmean(ended[number] for number in early) == pytest.approx(
        fmean(expected[number] for number in early), rel=within)
