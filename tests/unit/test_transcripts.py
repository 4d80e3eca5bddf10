"""Transcripts say yes only to what they have."""

import os
from pathlib import Path

import pytest

from tests.transcripts import Step, is_as_expected, on_terminal, read_transcript


@pytest.mark.parametrize(("shown", "expected", "fits"), [
    (["port 7000,  3 servers"], ["port {port}, 3 servers"], True),
    (["port seven, 3 servers"], ["port {port}, 3 servers"], False),
    (["one", "two"], ["one"], False),
    (["one"], ["one", "two"], False),
    (["one", "two", "three"], ["one", "...", "three"], True),
    (["one", "three"], ["one", "...", "three"], True),
    (["70.2 GiB free"], ["{size} free"], True),
    (["70.2 free"], ["{size} free"], False),
    (["a.b"], ["axb"], False),
])
def test_what_is_shown_is_compared_line_by_line(shown: list[str], expected: list[str], fits: bool) -> None:
    assert is_as_expected(shown, expected) is fits


def test_a_terminal_shows_what_stands_at_the_end_in_its_width(tmp_path: Path) -> None:
    script = r"printf '10%%\r20%%\rdone\nbar\n\033[1A\033[2K'; tput cols 2> /dev/null || stty size < /dev/tty; exit 3"
    lines, code = on_terminal(["bash", "-c", script], 80, tmp_path, {**os.environ, "TERM": "xterm"}, 20)
    assert (lines[0], lines[1:2], code) == ("done", ["80"], 3)


def test_a_transcript_is_commands_with_their_lines_and_codes(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("# first\n$ true\n$ ls\na\nb\n[2]\n")
    assert read_transcript(tmp_path / "t.txt") == [Step("true"), Step("ls", ["a", "b"], 2)]
