"""Plots of an experiment's results: one row of axes for each measure, one column for each panel.

Of more methods than bars can show there is one table of coloured cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from speedwell.evaluation.results.report import Layout, Measure, Row
from speedwell.evaluation.results.statistics import Estimate

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#8C6D1F")
"""Okabe and Ito's, which the colour-blind tell apart; their yellow, which white paper swallows, is darker here."""
MARKERS = "osv^D*PX"
HATCHES = ("", "///", "...", "xxx")
LINES = ("-", "--", ":", "-.")
MOST_BARS = 2 * len(COLOURS)
LIMIT = 4.0
"""Ratios from here on have the deepest colour."""


class Look(NamedTuple):
    """How a method is drawn. Two methods with one colour differ in hatch and line. Lines of neighbours in order
    have other dashes: one that lies on another leaves it to be seen."""

    colour: str
    marker: str
    hatch: str
    line: str


def looks_of(layout: Layout, rows: Sequence[Row]) -> Mapping[str, Look]:
    """By method, the same in all figures whose layouts have the same palette."""
    methods = dict.fromkeys((*layout.palette, *(row.method for row in rows)))
    return {method: Look(COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)],
                         HATCHES[number // len(COLOURS) % len(HATCHES)],
                         LINES[(number + number // len(COLOURS)) % len(LINES)])
            for number, method in enumerate(methods)}


def plot(layout: Layout, rows: Sequence[Row], path: Path) -> None:
    """Lines over `x`, if the layout says so and there are several, or groups of bars, with 95 % confidence intervals.

    An overloaded point has no mark: a line ends before it. What the paper measured is a ring at the method's place.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    if not layout.lines and len({row.method for row in rows}) > MOST_BARS:
        canvas, axis = pyplot.subplots(layout="constrained",
                                       figsize=(3.5 + 0.75 * len(layout.measures), 1.6 + 0.26 * len(rows)))
        _cells(axis, rows, layout)
        canvas.suptitle(layout.title)
        canvas.savefig(path, dpi=120)
        pyplot.close(canvas)
        return
    panels = list(dict.fromkeys(row.panel for row in rows))
    has_lines = layout.lines and len({row.x for row in rows}) > 1
    width = 6.5 if has_lines else max(7.0, 2.4 * len({row.point for row in rows}))
    canvas, axes = pyplot.subplots(len(layout.measures), len(panels), squeeze=False, sharex="col",
                                   layout="constrained",
                                   figsize=(width * len(panels) + 2.6, 3.6 * len(layout.measures)))
    looks = looks_of(layout, rows)
    for column, panel in enumerate(panels):
        own = [row for row in rows if row.panel == panel]
        for line, measure in enumerate(layout.measures):
            axis = axes[line][column]
            (_lines if has_lines else _bars)(axis, own, measure, layout, looks)
            axis.set_ylabel(f"{measure.label.split(',')[0]} / {layout.base}" if layout.normalised else measure.label)
            axis.set_ylim(bottom=0)
        axes[0][column].set_title(panel)
        axes[-1][column].set_xlabel(layout.x_label)
    _legend(canvas, axes)
    canvas.suptitle(layout.title)
    canvas.savefig(path, dpi=120)
    pyplot.close(canvas)


def _cells(axis: Any, rows: Sequence[Row], layout: Layout) -> None:
    """Ratios to the base method: what is above it orange, what is below it violet."""
    ratios = [[row.ratios[measure.name].value if measure.name in row.ratios else math.nan
               for measure in layout.measures] for row in rows]
    depth = math.log(LIMIT)
    axis.imshow([[math.log(ratio) if ratio > 0 else math.nan for ratio in line] for line in ratios],
                cmap="PuOr_r", vmin=-depth, vmax=depth, aspect="auto")
    for line, row in enumerate(ratios):
        for column, ratio in enumerate(row):
            axis.text(column, line, f"{ratio:.2f}" if math.isfinite(ratio) else "overloaded",
                      ha="center", va="center", fontsize="small",
                      color="white" if abs(math.log(ratio or 1)) > 0.7 * depth else "black")
    places = {(row.panel, row.point) for row in rows}
    axis.set_yticks(range(len(rows)), [row.method if len(places) == 1 else ", ".join(
        filter(None, (row.panel, row.point, row.method))) for row in rows])
    axis.set_xticks(range(len(layout.measures)), [measure.label for measure in layout.measures], rotation=35,
                    ha="right", rotation_mode="anchor")
    axis.set_xlabel(f"over {layout.base}")


def _lines(axis: Any, rows: Sequence[Row], measure: Measure, layout: Layout, looks: Mapping[str, Look]) -> None:
    for method in _in_order(rows, looks):
        look = looks[method]
        drawn = [(row.x, row.values[measure.name]) for row in rows
                 if row.method == method and measure.name in row.values]
        axis.errorbar([x for x, _ in drawn], [estimate.value for _, estimate in drawn], label=method, capsize=2,
                      yerr=_ends([estimate for _, estimate in drawn]), color=look.colour, marker=look.marker,
                      linestyle=look.line, markersize=4)
        _paper(axis, [(row.x, layout.papers.get((row.panel, row.point, method, measure.name))) for row in rows
                      if row.method == method], look)
    own = [estimate.value for row in rows if row.method == rows[0].method
           and (estimate := row.values.get(measure.name))]
    if own:     # what is far above would press all else to the ground
        axis.set_ylim(top=min(12 * max(own), axis.get_ylim()[1]) if max(own) > 0 else None)


def _bars(axis: Any, rows: Sequence[Row], measure: Measure, layout: Layout, looks: Mapping[str, Look]) -> None:
    points = list(dict.fromkeys(row.point for row in rows))
    methods = _in_order(rows, looks)
    each = 0.8 / len(methods)
    for number, method in enumerate(methods):
        look, middle = looks[method], (number - len(methods) / 2 + 0.5) * each
        own = [row for row in rows if row.method == method]
        drawn = [(points.index(row.point) + middle, estimate) for row in own
                 if (estimate := (row.ratios if layout.normalised else row.values).get(measure.name))]
        axis.bar([x for x, _ in drawn], [estimate.value for _, estimate in drawn], each, label=method, capsize=2,
                 yerr=_ends([estimate for _, estimate in drawn]), color=look.colour, hatch=look.hatch,
                 edgecolor="white", ecolor="0.3")
        _paper(axis, [(points.index(row.point) + middle,
                       layout.papers.get((row.panel, row.point, method, measure.name))) for row in own], look)
    if len(points) > 1:
        axis.set_xticks(range(len(points)), points, rotation=30 if len(points) > 4 else 0)
    else:       # one group: each bar has its name below it
        places = [(number - len(methods) / 2 + 0.5) * each for number in range(len(methods))]
        axis.set_xticks(places, methods, rotation=35, ha="right", rotation_mode="anchor")


def _paper(axis: Any, values: Sequence[tuple[float, float | None]], look: Look) -> None:
    known = [(x, value) for x, value in values if value is not None]
    if known:
        axis.scatter(*zip(*known, strict=True), s=70, facecolors="none", edgecolors=look.colour, linewidths=2,
                     zorder=5, label="the paper's values")


def _legend(canvas: Any, axes: Any) -> None:
    """Beside the axes, where it hides nothing."""
    found: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if len(found) > 1:
        canvas.legend(found.values(), found.keys(), loc="outside right upper", fontsize="small")


def _in_order(rows: Sequence[Row], looks: Mapping[str, Look]) -> list[str]:
    present = {row.method for row in rows}
    return [method for method in looks if method in present]


def _ends(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Lengths below and above the values; nothing where there is no interval."""
    ends = [(each.value - each.low, each.high - each.value) if each.has_interval else (math.nan, math.nan)
            for each in estimates]
    return [[low for low, _ in ends], [high for _, high in ends]]
