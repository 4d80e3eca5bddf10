"""`--watch`: a command whose output changes shows it again and again, until Ctrl-C."""

from __future__ import annotations

import functools
import io
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from typing import Any, TypeVar

import click

from speedwell.fs import command_line, units
from speedwell.fs.command_line import Number

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_SECONDS = 2.0
_TO_THE_TOP, _CLEAR_LINE, _CLEAR_REST, _CLEAR_ALL = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[H\x1b[2J"


def watch_options(function: F) -> F:
    """Adds --watch and --interval. On a terminal each new output takes the place of the last one, elsewhere it comes
    after it. What goes wrong after the first time is shown and does not end it; Ctrl-C does, with exit code 0."""

    @click.option("--watch", "is_watched", is_flag=True, help="Show it again and again, until Ctrl-C.")
    @click.option("--interval", "interval_seconds", type=Number(0.1, 86400), default=DEFAULT_SECONDS,
                  show_default=True, metavar="SECONDS", help="With --watch: between two looks.")
    @functools.wraps(function)
    def with_watch(*arguments: Any, is_watched: bool, interval_seconds: float, **options: Any) -> Any:
        def show() -> Any:
            return function(*arguments, **options)

        if not is_watched:
            return show()
        if options.get("as_json"):
            raise click.UsageError("--watch does not go with --json", click.get_current_context())
        return watch(show, interval_seconds)

    return with_watch  # type: ignore[return-value]


def watch(show: Callable[[], Any], interval_seconds: float) -> int:
    """Have `show` print what it shows again and again, until Ctrl-C; returns the exit code."""
    with suppress(KeyboardInterrupt):
        _watch(show, interval_seconds)
    return command_line.DONE


def _watch(show: Callable[[], Any], interval_seconds: float) -> None:
    first, is_terminal = True, sys.stdout.isatty()
    while True:
        frame = _frame(show, may_fail=not first, with_errors=is_terminal)
        head = f"{units.moment(time.time_ns(), seconds=True)}, every {units.duration(interval_seconds)}\n"
        if is_terminal:
            lines = "".join(f"{line}{_CLEAR_LINE}\n" for line in (head + frame).splitlines())
            click.echo((_CLEAR_ALL if first else _TO_THE_TOP) + lines + _CLEAR_REST, nl=False)
        else:
            click.echo(("" if first else "\n") + head + frame, nl=False)
        sys.stdout.flush()
        first = False
        time.sleep(interval_seconds)


class _Frame(io.TextIOWrapper):
    """What is printed, kept; as wide as standard output."""

    def __init__(self, stream: Any) -> None:
        super().__init__(io.BytesIO(), encoding=stream.encoding, errors="backslashreplace", write_through=True)
        self._is_terminal: bool = stream.isatty()

    def isatty(self) -> bool:
        return self._is_terminal

    def text(self) -> str:
        self.seek(0)
        return self.read()


def _frame(show: Callable[[], Any], *, may_fail: bool, with_errors: bool) -> str:
    frame = _Frame(sys.stdout)
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(frame))
        if with_errors:
            stack.enter_context(redirect_stderr(frame))
        try:
            show()
        except click.exceptions.Exit:
            pass                                # the exit code of one look
        except Exception as error:
            if not may_fail:
                raise
            click.echo(f"speedwell: {command_line.explain(error)}", err=True)
    return frame.text()
