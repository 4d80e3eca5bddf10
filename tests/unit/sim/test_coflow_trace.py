from pathlib import Path
from statistics import fmean

import pytest

from speedwell.sim.coflow_trace import Coflow, CoflowTrace, read_coflows, run_fair
from speedwell.sim.errors import InvalidWorkload
from tests.unit.sim.reference import reference_file

FACEBOOK = "FB2010-1Hr-150-0.txt"


def test_a_trace_is_read_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("3 2\n1 0 2 1 3 1 2:8.0\n2 1500 1 2 2 1:4 3:0.5\n")

    trace = read_coflows(tmp_path / "trace")

    assert trace == CoflowTrace(3, (Coflow(1, 0.0, (1, 0), ((2, 64e6),)),
                                    Coflow(2, 1.5, (2,), ((1, 32e6), (0, 4e6)))))


@pytest.mark.parametrize(("text", "says"), [
    ("", "line 1"), ("3\n", "line 1"), ("3 1\n1 0 1 1 1 2\n", "line 2"), ("3 1\n1 0 1 4 1 2:1\n", "line 2"),
    ("3 1\n1 0 1 1 1 2:-1\n", "line 2"), ("3 1\n1 0 0 1 2:1\n", "line 2"), ("3 1\n1 0 1 1 2 2:1\n", "line 2"),
    ("3 2\n1 0 1 1 1 2:1\n", "announces 2 coflows"),
])
def test_a_trace_that_is_none_is_refused_with_its_line(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(text)

    with pytest.raises(InvalidWorkload, match=says):
        read_coflows(tmp_path / "trace")


def test_coflows_that_share_a_port_have_half_of_it_each_while_both_run() -> None:
    trace = CoflowTrace(3, (Coflow(1, 0.0, (0,), ((1, 10e6),)), Coflow(2, 0.0, (0,), ((2, 20e6),))))

    assert run_fair(trace, 10e6).completion_seconds == pytest.approx({1: 2.0, 2: 3.0})


def test_the_first_coflows_of_the_facebook_trace_end_when_another_simulator_says() -> None:
    """Those results come in steps of 8 ms, a start and an end each."""
    trace = read_coflows(reference_file(FACEBOOK))
    rows = [line.split() for line in reference_file("percoflow_epoch8_MMF.txt").read_text().splitlines()]
    expected = {int(row[0].removeprefix("JOB-")): float(row[5]) / 1e3 for row in rows if len(row) == 6}

    # Nothing that comes later can touch what has ended before.
    first = trace.coflows[:60]
    run = run_fair(CoflowTrace(trace.racks, first), 1e9)

    until = trace.coflows[60].arrival_seconds
    ended = [coflow for coflow in first if coflow.arrival_seconds + run.completion_seconds[coflow.number] < until]
    assert len(ended) > 30
    for coflow in ended:
        assert run.completion_seconds[coflow.number] == pytest.approx(expected[coflow.number], abs=0.016)


@pytest.mark.full
def test_the_whole_facebook_trace_has_the_published_average() -> None:
    run = run_fair(read_coflows(reference_file(FACEBOOK)), 1e9)

    assert run.flows == 706_397
    assert fmean(run.completion_seconds.values()) == pytest.approx(58.79, rel=1e-3)
