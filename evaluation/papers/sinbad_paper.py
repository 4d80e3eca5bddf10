"""Sinbad's own figures beside ours: improvements over the default rule, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from speedwell.cluster.tables import Table
from speedwell.evaluation.results.report import text_of
from speedwell.evaluation.results.statistics import Estimate, mean_estimate, ratio_estimate

SAME = 0.05
BINS = ((0, 10, 1.20), (10, 100, 1.31), (100, 1e3, 1.15), (1e3, 1e4, 1.44), (1e4, 1e5, 1.23))
"""Megabytes that a job writes, and figure 7's improvement of its write time (EC2)."""

Runs = Sequence[dict[str, Any]]


class Claim(NamedTuple):
    """What the paper says, and how it is computed of the default's runs and a method's, paired by seed."""

    text: str
    paper: str
    of: Callable[[Runs, Runs], Estimate | None]


def _ratio(measure: str) -> Callable[[Runs, Runs], Estimate]:
    return lambda base, runs: ratio_estimate([run[measure] for run in base], [run[measure] for run in runs])


def _block_ratio(base: Runs, runs: Runs) -> Estimate:
    """Over the pairs of all runs' blocks, as few runs say little."""
    return ratio_estimate([each for run in base for each in run["seconds"]],
                          [each for run in runs for each in run["seconds"]])


def _blocks(test: Callable[[Any], Any]) -> Callable[[Runs, Runs], Estimate]:
    """The part of all blocks for which `test` holds of the time over the default's."""
    return lambda base, runs: mean_estimate([
        float(np.mean(test(np.array(run["seconds"]) / np.array(other["seconds"]))))
        for other, run in zip(base, runs, strict=True)])


def _difference(measure: str) -> Callable[[Runs, Runs], Estimate]:
    return lambda base, runs: mean_estimate([other[measure] - run[measure] for other, run in zip(base, runs,
                                                                                              strict=True)])


def _bin(low: float, high: float) -> Callable[[Runs, Runs], Estimate | None]:
    def improvement(base: Runs, runs: Runs) -> Estimate | None:
        means = []
        for other, run in zip(base, runs, strict=True):
            inside = (np.array(run["job_megabytes"]) >= low) & (np.array(run["job_megabytes"]) < high)
            if inside.any():
                means.append((np.array(other["seconds"])[inside].mean(), np.array(run["seconds"])[inside].mean()))
        return ratio_estimate([a for a, _ in means], [b for _, b in means]) if means else None

    return improvement


def _times(improvement: str, better: str, same: str, slower: str) -> tuple[Claim, ...]:
    return (Claim("block writes, times as fast", improvement, _ratio("mean_seconds")),
            Claim("blocks that improved", better, _blocks(lambda ratio: ratio < 1 - SAME)),
            Claim("the same", same, _blocks(lambda ratio: abs(ratio - 1) <= SAME)),
            Claim("slower", slower, _blocks(lambda ratio: ratio > 1 + SAME)))


def _writers(improvement: str) -> Claim:
    return Claim("writers, times as fast", improvement, _ratio("writer_seconds"))


FABRIC = (*_times("1.3 (EC2)", "", "", ""), Claim("over the pairs of all runs' writes", "1.3 (EC2)", _block_ratio),
          Claim("reads beside them, times as fast", "", _ratio("read_seconds")))
CLAIMS = {
    "sinbad-write": (*_times("1.58 (bound 1.89)", "0.46", "0.47", "0.07"), _writers("1.39"),
                     Claim("at least twice as fast", "0.16", _blocks(lambda ratio: ratio <= 0.5)),
                     *(Claim(f"jobs that write {low:g} to {high:g} MB (figure 7, EC2)", str(paper), _bin(low, high))
                       for low, high, paper in BINS)),
    "sinbad-write --emulate": FABRIC,
    "sinbad-fabric": FABRIC,
    "sinbad-memory": (*_times("1.79", "0.64", "0.29", "0.07"), _writers("1.40")),
    "sinbad-imbalance": (Claim("median Cv lower by, rack to core", "0.35", _difference("cv_up")),
                         Claim("median Cv lower by, core to rack", "0.33", _difference("cv_down"))),
}


def beside_the_paper(name: str, results: Runs, default: str) -> Table | None:
    """A table of the paper's figures and ours; None where the paper has none, or the method `default`, to which the
    others are compared, was not run."""
    by_method: dict[str, dict[int, dict[str, Any]]] = {}
    for result in results:
        by_method.setdefault(result["task"]["method"]["name"], {})[result["task"]["seed"]] = result
    base = by_method.get(default)
    if name not in CLAIMS or not base:
        return None
    methods = [method for method in by_method if method != default]
    rows = []
    for claim in CLAIMS[name]:
        cells = [claim.text, claim.paper]
        for method in methods:
            seeds = sorted(by_method[method].keys() & base.keys())
            cells.append(text_of(claim.of([base[seed] for seed in seeds],
                                          [by_method[method][seed] for seed in seeds])))
        rows.append(tuple(cells))
    return Table(f"{name} beside the paper", (f"over {default}", "paper", *methods), rows, ("paper", *methods))
