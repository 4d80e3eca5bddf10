"""One HTML page of any results: tables, plots, what the papers say, and what was run."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from speedwell.cluster.tables import Table
from speedwell.evaluation.experiment import named
from speedwell.evaluation.results.report import Layout, rows_of, tables_of
from speedwell.evaluation.results.results_file import read_results
from speedwell.sim.errors import InvalidSetting

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0 }
caption { text-align: left; font-weight: bold; padding: .3rem 0 }
th, td { border: 1px solid #8888; padding: .2rem .6rem; text-align: left; vertical-align: top }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
img { max-width: 100%; background: white } pre { overflow-x: auto }
"""


def write_page(directories: Sequence[Path], path: Path) -> Path:
    """The results in these directories, in this order, as a page that needs no other file. Returns its path.

    Raises InvalidSetting for a directory without results.
    """
    names = [directory.resolve().name for directory in directories]
    sections = [_section(directory, name if names.count(name) == 1 else str(directory))
                for directory, name in zip(directories, names, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Results</title>\n<style>{STYLE}</style>\n<h1>Results</h1>\n<ul>",
        *(f'<li><a href="#{_text(name)}">{_text(name)}</a>: {_text(title)}</li>\n' for name, title, _ in sections),
        "</ul>\n", *(body for *_, body in sections), "</html>\n")), encoding="utf-8")
    return path


def _section(directory: Path, name: str) -> tuple[str, str, str]:
    """Its name, its title and its HTML."""
    try:
        manifest = json.loads((directory / "manifest.json").read_text())
    except (OSError, ValueError):
        raise InvalidSetting(f"{directory}: there are no results of an experiment in it") from None
    results = read_results(directory / "results.jsonl")
    try:
        layout, after = _layout(manifest, results)
        tables = [*tables_of(layout, rows_of(results, layout)), *after] if results else []
    except (KeyError, TypeError, AttributeError):
        raise InvalidSetting(f"{directory}: its manifest.json and results.jsonl are not what this version of "
                             "`speedwell experiment` or `speedwell simulate` leaves") from None
    return name, layout.title, "".join(_parts(directory, name, layout, manifest, tables))


def _layout(manifest: dict[str, Any], results: list[dict[str, Any]]) -> tuple[Layout, list[Table | str]]:
    experiment = named(str(manifest.get("experiment", "")))
    if experiment is None:
        return Layout(**manifest["layout"]), []
    return experiment, list(experiment.beside(manifest["experiment"], results)) \
        if manifest["mode"] == "simulate" else []


def _parts(directory: Path, name: str, layout: Layout, manifest: dict[str, Any],
           tables: list[Table | str]) -> Iterator[str]:
    yield f'<h2 id="{_text(name)}">{_text(name)}</h2>\n<p>{_text(layout.title)}</p>\n'
    if layout.claims:
        yield f"<p>{_text(layout.claims_of)}: {_text('; '.join(layout.claims))}</p>\n"
    plot = directory / "plot.png"
    if plot.exists():
        yield (f'<img alt="{_text(layout.title)}" '
               f'src="data:image/png;base64,{base64.b64encode(plot.read_bytes()).decode()}">\n')
    for shown in tables:
        yield f"<p>{_text(shown)}</p>\n" if isinstance(shown, str) else _table(shown)
    yield (f"<details><summary>What was run</summary><pre>{_text(json.dumps(manifest, indent=2))}</pre></details>\n")


def _table(table: Table) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = (' class="number"' if name in table.numbers else "" for name in table.columns)
        return "".join(f"<{tag}{kind}>{_text(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in table.rows)
    return (f"<table><caption>{_text(table.title)}</caption>\n<tr>{cells('th', table.columns)}</tr>\n{body}</table>\n"
            + "".join(f"<p>{_text(line)}</p>\n" for line in table.caption.splitlines()))


def _text(text: object) -> str:
    return html.escape(str(text))
