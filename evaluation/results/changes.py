"""Which values of an experiment have left the intervals of an earlier run."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from speedwell.cluster.tables import Table
from speedwell.sim.errors import InvalidSetting

LEAST_CHANGE = 0.01
"""Where the earlier run had too few seeds for an interval, what differs by more has changed."""
ROUNDING = 1e-6
"""Runs that are alike have intervals of no length."""
KEY = ("panel", "point", "method")
NUMBERS = ("_value", "_low", "_high")


def changes_table(compared: Sequence[tuple[str, Path, Path]]) -> Table:
    """For each experiment's name, the earlier table.csv and the new one: what has changed by more than its interval.

    What is in one of the two only is a change. An experiment without both tables is named in the caption. Raises
    InvalidSetting.
    """
    rows, same, without = [], [], []
    for name, earlier, new in compared:
        if not (earlier.exists() and new.exists()):
            without.append(name)
            continue
        changed = [(name, *row) for row in _changes(read_table(earlier), read_table(new))]
        rows += changed
        if not changed:
            same.append(name)
    captions = [f"Within their intervals: {', '.join(same)}."] if same else []
    if without:
        captions.append(f"Nothing to compare with: {', '.join(without)}.")
    return Table("What has changed by more than its interval", ("experiment", "point", "method", "what", "was", "is"),
                 rows, ("was", "is"), "\n".join(captions))


def read_table(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """The rows of a table.csv by panel, point and method. Raises InvalidSetting."""
    try:
        with path.open(newline="") as file:
            table = {tuple(row[name] for name in KEY): row for row in csv.DictReader(file)}
        for row in table.values():
            for name, text in row.items():
                if name.endswith(NUMBERS) and text:
                    float(text)
    except (OSError, ValueError, KeyError, AttributeError, csv.Error):
        raise InvalidSetting(f"{path} is not a table.csv of an experiment") from None
    return table


def _changes(earlier: dict[tuple[str, ...], dict[str, str]],
             new: dict[tuple[str, ...], dict[str, str]]) -> Iterator[tuple[str, ...]]:
    for key in dict.fromkeys((*earlier, *new)):
        place = (" ".join(filter(None, key[:2])), key[2])
        if key not in new or key not in earlier:
            yield (*place, "all", *("there" if key in each else "missing" for each in (earlier, new)))
            continue
        was, now = earlier[key], new[key]
        for name in was:
            if name in now and name.endswith("_value") and not name.endswith("_growth_value") and \
                    _has_left(was, name, now[name]):
                yield (*place, name.removesuffix("_value").replace("_", " "), _text(was, name), _text(now, name))


def _has_left(was: dict[str, str], name: str, value: str) -> bool:
    if not was[name] or not value:
        return was[name] != value
    if math.isclose(float(was[name]), float(value), rel_tol=ROUNDING):
        return False
    if interval := _interval(was, name):
        return not interval[0] <= float(value) <= interval[1]
    return not math.isclose(float(was[name]), float(value), rel_tol=LEAST_CHANGE)


def _interval(row: dict[str, str], name: str) -> tuple[float, float] | None:
    stem = name.removesuffix("_value") if name.endswith("_ratio_value") else name
    low, high = (float(row.get(f"{stem}_{end}") or math.nan) for end in ("low", "high"))
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def _text(row: dict[str, str], name: str) -> str:
    if not row[name]:
        return "none"
    interval = _interval(row, name)
    return f"{float(row[name]):.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")
