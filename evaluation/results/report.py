"""Tables and plots of an experiment's results, whatever the experiment.

A result is a JSON object with the run's parameters under `task` (of which `panel`, `point`, `x`, `seed` and the
method's `name` are read here), the measures of the experiment's layout, or the reason under `overloaded`.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from speedwell.cluster.tables import Table
from speedwell.evaluation.results.statistics import Estimate, mean_estimate, ratio_estimate


class Measure(NamedTuple):
    """What is compared: its name in a result, and how it is called in tables and plots."""

    name: str
    label: str


COMPLETION_TIMES = (Measure("mean_seconds", "mean, s"), Measure("p95_seconds", "95th percentile, s"))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How an experiment is shown, and what the paper says of the outcome.

    Ratios are to the method `base` at the same point. For points that have one in `base_points`, there is also a
    ratio to the same method at that point of the same panel. `bounds` names a lower bound of a measure among a
    result's values. `palette` are the names of methods in the order of their colours. `papers` are values that a
    paper gives, by panel, point, method and measure.
    """

    title: str
    x_label: str
    claims: tuple[str, ...]
    claims_of: str = "Paper"
    base: str = "Mayflower"
    measures: tuple[Measure, ...] = COMPLETION_TIMES
    bounds: Mapping[str, str] = field(default_factory=lambda: {
        "mean_seconds": "bound_seconds", "p95_seconds": "p95_bound_seconds"})
    lines: bool = False             # over `x`; else bars in groups by point
    normalised: bool = False        # the bars are the ratios to `base`
    base_points: Mapping[str, str] = field(default_factory=dict)
    palette: tuple[str, ...] = ()
    papers: Mapping[tuple[str, str, str, str], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A method at a point. Without estimates where a run overloaded the network; keys are names of measures."""

    panel: str
    point: str
    x: float
    method: str
    runs: int
    overloaded: int
    values: Mapping[str, Estimate]
    ratios: Mapping[str, Estimate]      # to the base method
    growth: Mapping[str, Estimate]      # to the base point
    bounds: Mapping[str, float]


Key = tuple[str, str, str]      # panel, point, method
Runs = list[dict[str, Any]]


def rows_of(results: Sequence[dict[str, Any]], layout: Layout) -> list[Row]:
    """Summarise runs by panel, point and method, in the order of the results."""
    groups: dict[Key, Runs] = {}
    for result in results:
        task = result["task"]
        groups.setdefault((task.get("panel", ""), task["point"], task["method"]["name"]), []).append(result)
    return [_row(key, groups, layout) for key in groups]


def _row(key: Key, groups: dict[Key, Runs], layout: Layout) -> Row:
    panel, point, method = key
    runs = groups[key]
    overloaded = sum("overloaded" in run for run in runs)
    values: dict[str, Estimate] = {}
    bounds: dict[str, float] = {}
    if not overloaded:
        values = {measure.name: mean_estimate([run[measure.name] for run in runs]).of_positive()
                  for measure in layout.measures}
        bounds = {measure: sum(run[name] for run in runs) / len(runs) for measure, name in layout.bounds.items()}
    base_point = layout.base_points.get(point)
    return Row(panel, point, runs[0]["task"]["x"], method, len(runs), overloaded, values,
               _ratios(runs, groups.get((panel, point, layout.base), []), layout),
               _ratios(runs, groups.get((panel, base_point, method), []), layout) if base_point else {}, bounds)


def _ratios(runs: Runs, base: Runs, layout: Layout) -> dict[str, Estimate]:
    """Over the seeds that both have; none if the network was overloaded in any."""
    if any("overloaded" in run for run in (*runs, *base)):
        return {}
    of_seed = {run["task"]["seed"]: run for run in base}
    pairs = [(run, of_seed[run["task"]["seed"]]) for run in runs if run["task"]["seed"] in of_seed]
    if not pairs:
        return {}
    return {measure.name: ratio_estimate([run[measure.name] for run, _ in pairs],
                                         [other[measure.name] for _, other in pairs]).of_positive()
            for measure in layout.measures}


def tables_of(layout: Layout, rows: Sequence[Row]) -> list[Table]:
    """One for each measure. A column in which nothing stands is left out."""
    return [_table_of(layout, measure, rows) for measure in layout.measures]


def _table_of(layout: Layout, measure: Measure, rows: Sequence[Row]) -> Table:
    names = ("panel", "point", "method", measure.label, f"/ {layout.base}", "/ base point", "lower bound, s",
             "/ lower bound")
    cells = [_cells(measure, row) for row in rows]
    kept = [number for number in range(len(names)) if any(row[number] for row in cells)]
    captions: list[str] = []
    if any(not estimate.has_interval for row in rows for of in (row.values, row.ratios, row.growth)
           if (estimate := of.get(measure.name))):
        captions.append("No interval: there are too few runs, or they differ too much.")
    if layout.claims:
        captions.append(f"{layout.claims_of}: " + "; ".join(layout.claims))
    return Table(f"{layout.title}: {measure.label}", tuple(names[number] for number in kept),
                 [tuple(row[number] for number in kept) for row in cells],
                 tuple(names[number] for number in kept if number > 2), "\n".join(captions))


def _cells(measure: Measure, row: Row) -> tuple[str, ...]:
    if row.overloaded:
        return row.panel, row.point, row.method, f"overloaded in {row.overloaded} of {row.runs} runs", "", "", "", ""
    estimates = (of.get(measure.name) for of in (row.values, row.ratios, row.growth))
    bound = row.bounds.get(measure.name)
    of_bound = ("", "") if not bound else (f"{bound:.2f}", f"{row.values[measure.name].value / bound:.2f}")
    return row.panel, row.point, row.method, *map(text_of, estimates), *of_bound


def write_csv(rows: Sequence[Row], path: Path, layout: Layout) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        kinds = ("value", "ratio", "growth")
        names = [f"{measure.name}_{kind}_{end}".replace("_value_value", "_value")
                 for measure in layout.measures for kind in kinds for end in ("value", "low", "high")]
        writer.writerow(["panel", "point", "x", "method", "runs", "overloaded_runs", *names,
                         *[f"{measure}_bound" for measure in layout.bounds]])
        for row in rows:
            estimates = [of.get(measure.name) for measure in layout.measures
                         for of in (row.values, row.ratios, row.growth)]
            numbers = ["" if math.isnan(number) else number
                       for estimate in estimates for number in (estimate or (math.nan,) * 3)]
            writer.writerow([row.panel, row.point, row.x, row.method, row.runs, row.overloaded, *numbers,
                             *[row.bounds.get(measure, "") for measure in layout.bounds]])


def text_of(estimate: Estimate | None) -> str:
    """A value with its interval, as tables have it."""
    if estimate is None:
        return ""
    if not estimate.has_interval:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"
