"""Commands on a terminal of a given width, and transcripts of what they print there."""

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_CONTROLS = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|\n|\r)")
_PATTERNS = {"n": r"\d[\d,]*", "port": r"\d+", "pid": r"\d+", "size": r"[\d.]+ (?:B|KiB|MiB|GiB|TiB)",
             "time": r"\d{4}-\d\d-\d\d \d\d:\d\d", "id": r"[0-9a-f-]{36}", "number": r"-?[\d.]+", "text": r".*"}
"""What may stand in a transcript as {name}, and what it stands for."""


def on_terminal(command: list[str], columns: int, cwd: Path, environment: Mapping[str, str],
                timeout_seconds: float) -> tuple[list[str], int]:
    """Run a command on a terminal; what it has shown at the end, line by line without empty ones, and its exit code.
    Raises TimeoutExpired."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=cwd,
                               env=environment, start_new_session=True)
    os.close(theirs)
    shown, deadline = bytearray(), time.monotonic() + timeout_seconds
    while True:
        has_ended = process.poll() is not None
        if select.select([ours], [], [], 0.1)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:             # nobody has the terminal any more
                break
        elif has_ended:
            break
        elif time.monotonic() > deadline:
            process.kill()
            raise subprocess.TimeoutExpired(command, timeout_seconds, bytes(shown))
    os.close(ours)
    return [line for line in _lines(shown.decode(errors="replace")) if line], process.wait()


def _lines(text: str) -> list[str]:
    """What stands on the terminal at the end, but for trailing blanks: a bar is drawn over itself, and erased."""
    lines, line, is_at_start = [], "", False
    for piece in _CONTROLS.split(text.replace("\r\n", "\n")):
        if piece == "\n":
            lines, line, is_at_start = [*lines, line.rstrip()], "", False
        elif piece == "\r":
            is_at_start = True
        elif piece == "\x1b[1A":
            line = lines.pop() if lines else ""
        elif piece == "\x1b[2K":
            line = ""
        elif piece and not piece.startswith("\x1b"):
            line, is_at_start = piece if is_at_start else line + piece, False
    return [*lines, line.rstrip()]


@dataclass
class Step:
    """A command of a transcript, what it is to show, and its exit code."""

    command: str
    lines: list[str] = field(default_factory=list)
    code: int = 0


def read_transcript(path: Path) -> list[Step]:
    """The steps of a file."""
    return steps_of(path.read_text())


def steps_of_page(page: Path) -> list[Step]:
    """What the `console` blocks of a page show. Each number with a point in it stands for any."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    steps = steps_of("".join(blocks))
    return [Step(step.command, [re.sub(r"(?<![\d.])\d+\.\d+(?![\d.])", "{number}", line) for line in step.lines])
            for step in steps]


def steps_of(text: str) -> list[Step]:
    """`$ COMMAND` begins a step, `[N]` ends one that has that exit code, `...` stands for any lines, `# ` begins a
    comment."""
    steps: list[Step] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append(Step(line[2:]))
        elif match := re.fullmatch(r"\[(\d+)\]", line):
            steps[-1].code = int(match[1])
        elif line.strip() and not line.startswith("# "):
            steps[-1].lines.append(line)
    return steps


def is_as_expected(shown: list[str], expected: list[str]) -> bool:
    """Whether lines are those of a transcript; how wide columns are does not count."""
    pattern = "".join(r"(?:[^\n]*\n)*?" if line.strip() == "..." else _pattern(line) + r"\n" for line in expected)
    return re.fullmatch(pattern, "".join(f"{' '.join(line.split())}\n" for line in shown)) is not None


def _pattern(line: str) -> str:
    words = re.split(r"\{(\w+)\}", " ".join(line.split()))
    return "".join(re.escape(word) if place % 2 == 0 else _PATTERNS[word] for place, word in enumerate(words))
