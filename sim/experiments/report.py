"""Tables and plots of an experiment's results."""

import csv
import math
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from sim.experiments.mayflower import MAYFLOWER, Figure
from sim.experiments.statistics import Estimate, mean_estimate, ratio_estimate


class Row(NamedTuple):
    """A method at a point; estimates are None where a run overloaded the network. Ratios are to Mayflower."""

    point: str
    x: float
    method: str
    runs: int
    overloaded: int
    mean: Estimate | None
    p95: Estimate | None
    mean_ratio: Estimate | None
    p95_ratio: Estimate | None
    bound_seconds: float | None


def rows_of(results: list[dict[str, Any]]) -> list[Row]:
    """Summarise runs by point and method, in the order of the results."""
    groups: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for result in results:
        task = result["task"]
        groups.setdefault((task["point"], task["x"], task["method"]["name"]), []).append(result)
    rows = []
    for (point, x, method), runs in groups.items():
        overloaded = sum("overloaded" in run for run in runs)
        base = groups.get((point, x, MAYFLOWER.name), [])
        if overloaded:
            rows.append(Row(point, x, method, len(runs), overloaded, None, None, None, None, None))
            continue
        comparable = not any("overloaded" in run for run in base)
        estimates = [mean_estimate([run[name] for run in runs]) for name in ("mean_seconds", "p95_seconds")]
        ratios = [ratio_estimate([run[name] for run in runs], [run[name] for run in base]) if comparable else None
                  for name in ("mean_seconds", "p95_seconds")]
        bound = sum(run["bound_seconds"] for run in runs) / len(runs)
        rows.append(Row(point, x, method, len(runs), 0, estimates[0], estimates[1], ratios[0], ratios[1], bound))
    return rows


def table_of(figure: Figure, rows: list[Row]) -> Table:
    table = Table(title=figure.title, caption="Paper: " + "; ".join(figure.claims), caption_justify="left")
    for column in ("point", "method", "mean s", "/ Mayflower", "p95 s", "/ Mayflower", "no policy below, s"):
        table.add_column(column)
    for row in rows:
        if row.mean is None:
            table.add_row(row.point, row.method, f"overloaded in {row.overloaded} of {row.runs} runs")
        else:
            table.add_row(row.point, row.method, _text(row.mean), _text(row.mean_ratio), _text(row.p95),
                          _text(row.p95_ratio), f"{row.bound_seconds:.2f}")
    return table


def write_csv(rows: list[Row], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = [f"{name}_{end}" for name in ("mean_seconds", "p95_seconds", "mean_ratio", "p95_ratio")
                 for end in ("value", "low", "high")]
        writer.writerow(["point", "x", "method", "runs", "overloaded_runs", *names, "bound_seconds"])
        for row in rows:
            estimates = [row.mean, row.p95, row.mean_ratio, row.p95_ratio]
            values = [value for estimate in estimates for value in (estimate or ("", "", ""))]
            writer.writerow([row.point, row.x, row.method, row.runs, row.overloaded, *values, row.bound_seconds])


def plot(figure: Figure, rows: list[Row], path: Path) -> None:
    """Bars by point and method: the mean above, the 95th percentile below. An overloaded run has no bar."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    points = list(dict.fromkeys(row.point for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    canvas, axes = pyplot.subplots(2, 1, figsize=(max(7, 2 * len(points)), 8), sharex=True)
    for axis, name, label in zip(axes, ("mean", "p95"), ("mean, s", "95th percentile, s"), strict=True):
        for number, method in enumerate(methods):
            drawn = [(points.index(row.point) + (number - len(methods) / 2) * 0.8 / len(methods), getattr(row, name))
                     for row in rows if row.method == method and row.mean is not None]
            heights = [estimate.value for _, estimate in drawn]
            errors = [0.0 if math.isnan(estimate.low) else estimate.high - estimate.value for _, estimate in drawn]
            axis.bar([x for x, _ in drawn], heights, 0.8 / len(methods), yerr=errors, label=method, align="edge")
        axis.set_ylabel(label)
    axes[0].set_title(figure.title)
    axes[0].legend(fontsize="small")
    axes[1].set_xticks(range(len(points)), points, rotation=30 if len(points) > 4 else 0)
    axes[1].set_xlabel(figure.x_label)
    canvas.tight_layout()
    canvas.savefig(path, dpi=120)
    pyplot.close(canvas)


def _text(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"
