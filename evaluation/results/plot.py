"""Plots of an experiment's results: one row of axes for each measure, one column for each panel."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.results.report import Layout, Row
from evaluation.results.statistics import Estimate


def plot(layout: Layout, rows: Sequence[Row], path: Path) -> None:
    """Lines over `x` or groups of bars, as the layout says, with 95 % confidence intervals.

    An overloaded point has no mark: a line ends before it.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys(row.panel for row in rows))
    width = 6.5 if layout.lines else max(7.0, 2.4 * len({row.point for row in rows}))
    canvas, axes = pyplot.subplots(len(layout.measures), len(panels), squeeze=False, sharex="col",
                                   figsize=(width * len(panels), 3.6 * len(layout.measures)))
    for column, panel in enumerate(panels):
        own = [row for row in rows if row.panel == panel]
        for line, measure in enumerate(layout.measures):
            axis = axes[line][column]
            if layout.lines:
                _lines(axis, own, measure.name)
            else:
                _bars(axis, own, measure.name, layout.normalised)
            axis.set_ylabel(f"{measure.label.split(',')[0]} / {layout.base}" if layout.normalised else measure.label)
            axis.set_ylim(bottom=0)
        axes[0][column].set_title(panel)
        axes[-1][column].set_xlabel(layout.x_label)
    axes[0][0].legend(fontsize="small")
    canvas.suptitle(layout.title)
    canvas.tight_layout()
    canvas.savefig(path, dpi=120)
    pyplot.close(canvas)


def _lines(axis: Any, rows: Sequence[Row], name: str) -> None:
    for number, method in enumerate(dict.fromkeys(row.method for row in rows)):
        drawn = [(row.x, row.values[name]) for row in rows if row.method == method and name in row.values]
        axis.errorbar([x for x, _ in drawn], [estimate.value for _, estimate in drawn], label=method, capsize=2,
                      yerr=[_half(estimate) for _, estimate in drawn], marker="osv^D*PXx"[number % 9], markersize=4)
    own = [estimate.value for row in rows if row.method == rows[0].method and (estimate := row.values.get(name))]
    if own:     # what is far above would press all else to the ground
        axis.set_ylim(top=12 * max(own))


def _bars(axis: Any, rows: Sequence[Row], name: str, normalised: bool) -> None:
    points = list(dict.fromkeys(row.point for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    for number, method in enumerate(methods):
        shift = (number - len(methods) / 2) * 0.8 / len(methods)
        drawn = [(points.index(row.point) + shift, estimate) for row in rows if row.method == method
                 and (estimate := (row.ratios if normalised else row.values).get(name))]
        axis.bar([x for x, _ in drawn], [estimate.value for _, estimate in drawn], 0.8 / len(methods), label=method,
                 yerr=[_half(estimate) for _, estimate in drawn], align="edge")
    axis.set_xticks(range(len(points)), points, rotation=30 if len(points) > 4 else 0)


def _half(estimate: Estimate) -> float:
    return 0.0 if math.isnan(estimate.low) else estimate.high - estimate.value
