import math
from random import Random

import pytest

from speedwell.evaluation.experiment import Choices
from speedwell.evaluation.papers.mayflower import EXPERIMENTS
from speedwell.evaluation.results.report import Layout, rows_of
from speedwell.evaluation.results.statistics import mean_estimate, ratio_estimate


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
    task, *_ = EXPERIMENTS["mayflower-fig4"].tasks(Choices(quick=True))
    good = {"task": task.parameters(), "mean_seconds": 2.0, "p95_seconds": 3.0, "bound_seconds": 1.0,
            "p95_bound_seconds": 1.0}

    layout = EXPERIMENTS["mayflower-fig4"]
    (row,) = rows_of([good, {"task": task.parameters(), "overloaded": "reads pile up"}], layout)

    assert (row.runs, row.overloaded, row.values, row.ratios) == (2, 1, {}, {})


def test_ratios_are_to_the_base_method_and_to_the_base_point_of_the_same_seeds() -> None:
    def result(point: str, method: str, seed: int, mean: float) -> dict[str, object]:
        task = {"panel": "", "point": point, "x": 0.0, "method": {"name": method}, "seed": seed}
        return {"task": task, "mean_seconds": mean, "p95_seconds": 1.0, "bound_seconds": 1.0,
                "p95_bound_seconds": 1.0}

    layout = Layout(title="", x_label="", claims=(), base="a", base_points={"16:1": "8:1"})
    results = [result("8:1", "a", seed, 20.0 + seed) for seed in (1, 2, 3)]
    results += [result("8:1", "b", seed, 3 * (20.0 + seed)) for seed in (3, 1, 2)]
    results += [result("16:1", "b", seed, 6 * (20.0 + seed)) for seed in (2, 3, 1)]

    a, b, b16 = rows_of(results, layout)

    assert a.ratios["mean_seconds"] == pytest.approx((1.0, 1.0, 1.0))
    assert b.ratios["mean_seconds"] == pytest.approx((3.0, 3.0, 3.0))
    assert b16.growth["mean_seconds"] == pytest.approx((2.0, 2.0, 2.0))
    assert (b16.ratios, b.growth) == ({}, {})


def test_rounding_leaves_no_ratio_of_like_runs_outside_its_interval() -> None:
    estimate = ratio_estimate(
        [15.961678870625347, 12.815904613628605, 40.99151890032944, 21.481019580687047, 25.978269808591893],
        [15.961678870625347, 12.815904613628614, 40.99151890032944, 21.481019580687047, 25.9782698085919])
    assert estimate.low <= estimate.value <= estimate.high
