"""Confidence intervals over independent runs."""

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import NamedTuple

# 97.5 % quantiles of Student's t distribution for 1, 2, ... 30 degrees of freedom
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
      2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


class Estimate(NamedTuple):
    """A value with its 95 % confidence interval; the ends are not numbers if there are too few runs."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        """Whether the runs say how far off the value may be: there are enough, and they do not differ too much."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def of_positive(self) -> "Estimate":
        """The same of something that is known not to be negative, as a time or its ratio to another."""
        return Estimate(self.value, max(self.low, 0.0), self.high) if self.has_interval else \
            Estimate(self.value, math.nan, math.nan)


def mean_estimate(values: Sequence[float]) -> Estimate:
    """The mean, by Student's t distribution."""
    mean = fmean(values)
    if len(values) < 2:
        return Estimate(mean, math.nan, math.nan)
    half = _t(len(values)) * math.sqrt(variance(values) / len(values))
    return Estimate(mean, mean - half, mean + half)


def ratio_estimate(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """The ratio of two means of paired runs, by Fieller's theorem (Fieller, 1954).

    The interval is not bounded, and given as infinite, if the denominator could be zero.
    """
    a, b, runs = fmean(numerators), fmean(denominators), len(numerators)
    if runs < 2:
        return Estimate(a / b, math.nan, math.nan)
    covariance = sum((x - a) * (y - b) for x, y in zip(numerators, denominators, strict=True)) / (runs - 1)
    v_a, v_b, v_ab = variance(numerators) / runs, variance(denominators) / runs, covariance / runs
    t_squared = _t(runs) ** 2
    divisor = b * b - t_squared * v_b
    if divisor <= 0:
        return Estimate(a / b, -math.inf, math.inf)
    middle = a * b - t_squared * v_ab
    root = math.sqrt(max(middle**2 - divisor * (a * a - t_squared * v_a), 0.0))
    # of runs that are alike, rounding leaves the value outside
    return Estimate(a / b, min((middle - root) / divisor, a / b), max((middle + root) / divisor, a / b))


def _t(runs: int) -> float:
    return _T[runs - 2] if runs - 2 < len(_T) else 1.96
