"""The policies' kernels on traces: by hand, and the Facebook trace against another simulator."""

from statistics import fmean

import pytest

from sim.big_switch import run
from sim.coflow_trace import Coflow, CoflowTrace, read_coflows
from sim.errors import InvalidSetting
from tests.unit.sim.reference import reference_file


def test_the_shorter_of_two_coflows_goes_first_and_the_other_takes_what_is_left() -> None:
    trace = CoflowTrace(4, (Coflow(1, 0.0, (0,), ((1, 30e6),)), Coflow(2, 1.0, (0,), ((2, 10e6),))))

    assert run(trace, 10e6, "varys") == pytest.approx({1: 4.0, 2: 1.0})


def test_coflow_plus_gives_a_link_to_the_next_coflow_when_a_decision_finds_that_it_is_done_with() -> None:
    """The first sends 8 s to rack 2 and 2 s to rack 3, each from two racks, so it is done with rack 3 at 2, and the
    second needs 9 s there. Without decisions between it waits until the first ends."""
    trace = CoflowTrace(5, (Coflow(1, 0.0, (0, 1), ((2, 8e6), (3, 2e6))), Coflow(2, 0.0, (4,), ((3, 9e6),))))

    assert run(trace, 1e6, "coflow-plus", 1.0) == pytest.approx({1: 8.0, 2: 11.0})
    assert run(trace, 1e6, "coflow-plus") == pytest.approx({1: 8.0, 2: 17.0})


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="varys"):
        run(CoflowTrace(1, ()), 1e9, "nothing")
    with pytest.raises(InvalidSetting, match="interval"):
        run(CoflowTrace(1, ()), 1e9, "varys", 0)


def test_varys_event_by_event_comes_within_two_percent_of_another_simulator() -> None:
    """Ximulator's average on the Facebook trace, its own version of Varys' code."""
    trace = read_coflows(reference_file("FB2010-1Hr-150-0.txt"))

    assert fmean(run(trace, 1e9, "varys").values()) == pytest.approx(23.185, rel=0.02)


@pytest.mark.full
@pytest.mark.parametrize(("policy", "seconds"), [("varys", 22.6), ("sincronia", 23.9), ("coflow-plus", 21.8)])
def test_deciding_every_second_too_takes_less(policy: str, seconds: float) -> None:
    trace = read_coflows(reference_file("FB2010-1Hr-150-0.txt"))

    assert fmean(run(trace, 1e9, policy, 1.0).values()) < seconds
