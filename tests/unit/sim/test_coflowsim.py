"""coflowsim's rules: by hand, and against its results on the Facebook trace."""

from statistics import fmean

import pytest

from sim.coflow_trace import Coflow, CoflowTrace, read_coflows
from sim.coflowsim import POLICIES, run
from sim.errors import InvalidSetting
from tests.unit.sim.reference import reference_file

MB = 8e6


def trace(*coflows: Coflow) -> CoflowTrace:
    return CoflowTrace(4, coflows)


def published(policy: str) -> dict[int, float]:
    rows = [line.split() for line in reference_file(f"percoflow_epoch8_{policy}.txt").read_text().splitlines()]
    return {int(row[0].removeprefix("JOB-")): float(row[5]) / 1e3 for row in rows if len(row) == 6}


@pytest.mark.parametrize(("policy", "seconds"), [
    ("SEBF", (0.8, 0.4)), ("SCF", (0.8, 0.4)), ("FIFO", (0.4, 0.8)), ("FAIR", (0.8, 0.8))])
def test_two_coflows_that_want_one_port_go_in_the_policys_order(policy: str, seconds: tuple[float, float]) -> None:
    """The second has fewer bytes on its busiest port, and its flow is as short."""
    big = Coflow(1, 0.0, (0,), ((1, 50 * MB),))
    small = Coflow(2, 0.0, (0,), ((2, 50 * MB),) if policy in ("FIFO", "FAIR") else ((2, 49 * MB),))
    ended = run(trace(big, small), policy)

    assert (ended[1], ended[2]) == pytest.approx(seconds, abs=0.017)


def test_what_a_rack_receives_is_rounded_up_to_whole_megabytes_of_each_mapper() -> None:
    assert run(trace(Coflow(1, 0.0, (0, 2), ((1, 3 * MB),))), "SEBF")[1] == pytest.approx(4 * 0.008)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="SEBF"):
        run(trace(), "LIFO")


@pytest.mark.parametrize("policy", POLICIES)
def test_the_first_coflows_of_the_facebook_trace_end_as_published(policy: str) -> None:
    whole = read_coflows(reference_file("FB2010-1Hr-150-0.txt"))
    expected = published(policy)
    ended = run(CoflowTrace(whole.racks, whole.coflows[:120]), policy)

    # Nothing that comes later can touch what has ended before.
    until = whole.coflows[120].arrival_seconds
    early = [c for c in whole.coflows[:120] if c.arrival_seconds + max(expected[c.number], ended[c.number]) < until]
    assert len(early) > 80
    for coflow in early:
        assert ended[coflow.number] == pytest.approx(expected[coflow.number], abs=0.001)


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_whole_facebook_trace_has_the_published_average(policy: str) -> None:
    expected = published(policy)
    ended = run(read_coflows(reference_file("FB2010-1Hr-150-0.txt")), policy)

    assert fmean(ended.values()) == pytest.approx(fmean(expected.values()), rel=0.005)
