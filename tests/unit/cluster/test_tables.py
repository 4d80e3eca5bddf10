"""Tables on terminals of several widths, and where there is no terminal: nothing is cut."""

import json
import subprocess
import sys
from collections import Counter

import pytest
from rich.cells import cell_len

from speedwell.cluster.tables import visible
from tests.terminal import shown

COLUMNS = ("directory", "used", "path", "state")
NUMBERS = ("used",)
ROWS = [(f"/home/{'x' * 60}/{number}", "120.5 MiB", f"/data/{name}", state)
        for number, (name, state) in enumerate([
            ("a name with spaces " * 8, "DEAD"), ("[bold]markup[/nothing] :smile:", "running"),
            ("line\nbreak\x1b[31mred", ""), ("中文" * 40, "running"), ("\udcff\udcfe", "running"), ("é" * 90, "")])]
PROGRAM = """
import json, sys
from speedwell.cluster.tables import echo_table
echo_table(*json.loads(sys.argv[1]))
"""


def command(rows: list[tuple[str, ...]]) -> list[str]:
    return [sys.executable, "-c", PROGRAM, json.dumps([COLUMNS, rows, NUMBERS])]


def letters(text: str) -> Counter[str]:
    return Counter("".join(text.split()))


def expected(rows: list[tuple[str, ...]]) -> Counter[str]:
    return letters(" ".join(visible(cell) or "-" for row in (COLUMNS, *rows) for cell in row))


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_on_a_terminal_every_letter_is_shown_within_its_width(columns: int) -> None:
    code, text = shown(command(ROWS), columns)
    assert code == 0, text
    assert max(map(cell_len, text.splitlines())) <= columns
    assert letters(text) == expected(ROWS)


def test_where_a_row_has_no_room_it_is_a_block_with_a_line_for_each_column() -> None:
    code, text = shown(command(ROWS), 40)
    assert code == 0, text
    assert max(map(cell_len, text.splitlines())) <= 40
    names = letters(" ".join(COLUMNS))
    assert letters(text) + names == expected(ROWS) + Counter({each: count * len(ROWS)
                                                             for each, count in names.items()})


@pytest.mark.parametrize("width", ["40", "80", "300"])
def test_without_a_terminal_a_row_is_one_line_whatever_the_environment_says(width: str) -> None:
    result = subprocess.run(command(ROWS), capture_output=True, text=True, check=True, timeout=60,
                            env={"COLUMNS": width, "LC_ALL": "C.UTF-8"})
    lines = result.stdout.splitlines()
    assert len(lines) == 1 + len(ROWS)
    assert all(line == line.rstrip() for line in lines)
    for line, row in zip(lines, (COLUMNS, *ROWS), strict=True):
        assert [cell.strip() for cell in line.split("  ") if cell.strip()] == [visible(cell).strip() or "-"
                                                                              for cell in row]


def test_the_columns_of_a_table_begin_at_the_same_place_in_every_line() -> None:
    result = subprocess.run(command([("/a", "1 B", "/x", "s"), ("/bbbb", "10.5 MiB", "/y", "t")]),
                            capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == ("directory      used  path  state\n"
                             "/a              1 B  /x    s\n"
                             "/bbbb      10.5 MiB  /y    t\n")


def test_what_cannot_be_shown_is_escaped() -> None:
    assert visible(b"a\xff\n\x1b[31m\xc3\xa9") == "a\\xff\\n\\x1b[31mé"


def test_names_of_columns_of_numbers_are_folded_before_rows_become_blocks() -> None:
    columns = ("point", "method", "mean, s", "/ Varys + ECMP", "lower bound, s", "/ lower bound")
    rows = [("< 200 MB", "MinCOF, hosts enforce", "3.12 [1.28, 4.96]", "0.98 [0.86, 2.07]", "2.85", "1.09")]
    code, text = shown([sys.executable, "-c", PROGRAM, json.dumps([columns, rows, columns[2:]])], 80)
    assert code == 0, text
    assert max(map(cell_len, text.splitlines())) <= 80
    assert letters(text) == letters(" ".join((*columns, *rows[0])))
    (line,) = [line for line in text.splitlines() if "3.12" in line]
    assert "3.12 [1.28, 4.96]  0.98 [0.86, 2.07]" in line and line.split()[-1] == "1.09"


def test_a_table_without_rows_is_its_head() -> None:
    code, text = shown(command([]), 80)
    assert (code, text.split()) == (0, list(COLUMNS))
