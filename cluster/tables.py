"""Tables on standard output: the one place that prints them.

On a terminal they are as wide as it is: long texts go on in the next line of their column, and where even that has
no room, a row is a block with a line for each column. Elsewhere a row is one line, however long. Nothing is cut.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from rich.table import Table as RichTable

NONE = "-"
"""What stands in a cell that would be empty, so that the columns of a line can be counted."""
ALARMING = {"DEAD": "red", "FAILED": "red", "NOT MOUNTED": "red", "away": "red"}
LEAST_FOLDED = 12
"""Columns of a terminal: where a text would have less, rows are shown as blocks."""
CAPTION_COLUMNS = 80
_GAP = 2
_UNLIMITED = 1 << 20


class Table(NamedTuple):
    """Rows of texts under the names of their columns, of which `numbers` are aligned at the right."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: tuple[str, ...]
    caption: str = ""

    def show(self) -> None:
        """Print it with its title above and its caption below."""
        click.echo(self.title)
        echo_table(self.columns, self.rows, self.numbers)
        for paragraph in self.caption.splitlines():
            click.echo(textwrap.fill(paragraph, CAPTION_COLUMNS))
        click.echo()

    def markdown(self) -> str:
        """The same for a page of documentation."""
        rule = ["---:" if name in self.numbers else "---" for name in self.columns]
        lines = (f"| {' | '.join(cell or NONE for cell in row)} |" for row in (self.columns, rule, *self.rows))
        return "\n".join((f"**{self.title}**\n", *lines, "", self.caption, ""))


def visible(text: str | bytes) -> str:
    """A text in one line that no terminal obeys: control characters and bytes that are not UTF-8 are escaped."""
    raw = os.fsencode(text) if isinstance(text, str) else text
    decoded = raw.decode(errors="backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in decoded)


def echo_table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> None:
    """Print rows under the names of their columns. Those of `numbers` are aligned at the right and never folded."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.measure import Measurement

    cells = [[visible(cell) or NONE for cell in row] for row in rows]
    widest = [max(map(cell_len, column), default=0) for column in zip(*cells, strict=True)] or [0] * len(columns)
    console = Console(highlight=False, markup=False, emoji=False)
    if not sys.stdout.isatty():
        console = Console(highlight=False, markup=False, emoji=False, width=_UNLIMITED)
    gaps = _GAP * (len(columns) - 1)
    headings = list(columns)
    if sum(map(max, map(cell_len, columns), widest)) + gaps > console.width:
        headings = [_folded(name, width) if name in numbers else name
                    for name, width in zip(columns, widest, strict=True)]
    widths = [max(width, *map(cell_len, heading.split("\n")))
              for heading, width in zip(headings, widest, strict=True)]
    least = gaps + sum(width if name in numbers else min(width, LEAST_FOLDED)
                       for name, width in zip(columns, widths, strict=True))
    with console.capture() as captured:
        if least <= console.width:
            table = _table(columns, headings, cells, numbers)
            console.print(table, width=Measurement.get(console, console.options, table).maximum)
        else:
            for row in cells:
                console.print(_block(columns, row))
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _folded(heading: str, width: int) -> str:
    """The name of a column of numbers, in lines as long as its numbers or its longest word."""
    return textwrap.fill(heading, max(width, *map(len, heading.split())), break_long_words=False)


def _table(columns: Sequence[str], headings: Sequence[str], cells: Sequence[Sequence[str]],
           numbers: Collection[str]) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=None, pad_edge=False)
    for name, heading in zip(columns, headings, strict=True):
        table.add_column(heading, justify="right" if name in numbers else "left", overflow="fold",
                         no_wrap=name in numbers)
    for row in cells:
        table.add_row(*(Text(cell, style=ALARMING.get(cell, "")) for cell in row))
    return table


def _block(columns: Sequence[str], row: Sequence[str]) -> RichTable:
    from rich.table import Table as RichTable

    block = RichTable(box=None, pad_edge=False, show_header=False)
    block.add_column(no_wrap=True)
    block.add_column(overflow="fold")
    for name, cell in zip(columns, row, strict=True):
        block.add_row(name, cell)
    block.add_row()
    return block
