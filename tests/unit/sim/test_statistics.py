import math
from random import Random

import pytest

from sim.experiments.mayflower import FIGURES, tasks
from sim.experiments.report import rows_of
from sim.experiments.statistics import mean_estimate, ratio_estimate


def test_the_interval_of_a_mean_is_students() -> None:
    estimate = mean_estimate([1.0, 2.0, 3.0, 4.0, 5.0])

    assert estimate == pytest.approx((3.0, 3.0 - 1.9632, 3.0 + 1.9632), abs=1e-3)


def test_one_run_has_a_value_and_no_interval() -> None:
    assert mean_estimate([2.0]).value == 2.0
    assert math.isnan(ratio_estimate([2.0], [1.0]).low)


def test_fiellers_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    chance = Random(7)
    covered = 0
    for _ in range(2000):
        below = [chance.gauss(10, 1) for _ in range(6)]
        above = [2 * b + chance.gauss(0, 2) for b in below]
        estimate = ratio_estimate(above, below)
        covered += estimate.low <= 2.0 <= estimate.high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


def test_fiellers_interval_is_unbounded_where_the_denominator_may_be_zero() -> None:
    assert ratio_estimate([1.0, 2.0, 3.0], [-5.0, 0.1, 6.0])[1:] == (-math.inf, math.inf)


def test_an_overloaded_run_leaves_its_point_without_estimates() -> None:
    task, *_ = tasks(FIGURES["mayflower-fig4"], quick=True, seed=1)
    good = {"task": task.parameters(), "mean_seconds": 2.0, "p95_seconds": 3.0, "bound_seconds": 1.0}

    (row,) = rows_of([good, {"task": task.parameters(), "overloaded": "reads pile up"}])

    assert (row.runs, row.overloaded, row.mean) == (2, 1, None)
