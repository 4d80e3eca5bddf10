"""What an identity costs: rounds with and without one in turns, and the ratio of each pair."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import click

from speedwell.cluster.tables import echo_table
from speedwell.evaluation.results.statistics import mean_estimate, ratio_estimate

KEPT_THROUGHPUT, KEPT_METADATA = 0.97, 0.90
"""At least so much of it is to be left with an identity."""


class Pairs(NamedTuple):
    """One figure of all rounds, in the order in which they ran. `least` is what was wanted of the ratio."""

    name: str
    secure: Sequence[float]
    plain: Sequence[float]
    least: float | None = None
    less_is_better: bool = False

    @property
    def kept(self) -> str:
        """The ratio of the means with its 95 % interval, and what comes of the goal."""
        kept = ratio_estimate(self.plain, self.secure) if self.less_is_better else ratio_estimate(
            self.secure, self.plain)
        kept = kept.of_positive()
        if not math.isfinite(kept.low):
            return f"{kept.value:.3f} [rounds too few or too different]"
        verdict = "" if self.least is None else (
            "reached" if kept.low >= self.least else "missed" if kept.high < self.least else "undecided")
        return " ".join([f"{kept.value:.3f} [{kept.low:.3f}, {kept.high:.3f}]",
                         *([f"of {self.least:g}: {verdict}"] if verdict else [])])

    @property
    def later(self) -> str:
        """The difference, with its 95 % interval."""
        later = mean_estimate([secure - plain for secure, plain in zip(self.secure, self.plain, strict=True)])
        return f"{later.value:+.3f} [{later.low:+.3f}, {later.high:+.3f}]"


def show(pairs: Sequence[Pairs]) -> None:
    """A table on standard output."""
    click.echo(f"with an identity and without in turns, {len(pairs[0].secure)} times; kept: the ratio of what is "
               "done in a time, with its 95 % interval")
    echo_table(("measure", "identity", "without", "kept"),
               [(pair.name, _figure(pair.secure), _figure(pair.plain), pair.kept) for pair in pairs],
               ("identity", "without"))


def _figure(values: Sequence[float]) -> str:
    mean = sum(values) / len(values)
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.3g}"
