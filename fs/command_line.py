"""How every command and daemon takes its command line, and says what went wrong: in one line.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.
"""

import errno
import math
import os
import sys
from typing import Any

import click

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
DEBUG_VARIABLE = "SPEEDWELL_DEBUG"
ROOMS = ("cluster", "coflow", "controller", "fs", "fuse_mount", "sim", "topo")


class Interrupted(Exception):
    """Ctrl-C. Click would turn KeyboardInterrupt into an abort with an empty line of its own."""


class Number(click.FloatRange):
    """A range of numbers. Unlike click's, it does not hold what is none."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        number = float(super().convert(value, parameter, context))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", parameter, context)
        return number


def run(command: click.Command, name: str, arguments: list[str] | None = None, *,
        wrong_usage: tuple[type[Exception], ...] = ()) -> int:
    """Run the command line of the program `name` (default: the process's own); returns the exit code.

    Never raises, unless SPEEDWELL_DEBUG is set. Errors of the types `wrong_usage` are wrong usage too.
    """
    try:
        code = command.main(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except (Interrupted, click.Abort, KeyboardInterrupt):
        return _fail(name, "interrupted", INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return WRONG_USAGE
    except click.UsageError as error:
        place = error.ctx.command_path if error.ctx else name
        return _fail(name, f"{explain(error)} (see `{place} --help`)", WRONG_USAGE)
    except BrokenPipeError:
        # Nobody reads our output any more; keep the interpreter from flushing into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        return _fail(name, explain(error), WRONG_USAGE if isinstance(error, wrong_usage) else FAILED)


def explain(error: Exception) -> str:
    """What a user is told of an error. Only errors nobody foresaw mention their type."""
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    if isinstance(error, click.ClickException):
        return " ".join(error.format_message().split()).rstrip(".,")     # choices come in many lines
    if isinstance(error, OSError) and error.strerror:
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if name is not None]
        return ": ".join([" -> ".join(str(name) for name in names), reason(error)] if names else [reason(error)])
    if type(error).__module__.partition(".")[0] in ROOMS:
        return str(error)
    return (f"unexpected {type(error).__name__}: {error} "
            f"(set {DEBUG_VARIABLE}=1 to see where it came from)")


def reason(error: BaseException) -> str:
    """Why something failed, without numbers and names of Python's; never empty."""
    if isinstance(error, TimeoutError):
        return error.strerror or "no answer in time"
    if isinstance(error, OSError) and error.errno:
        # resolvers have error numbers of their own
        return error.strerror or os.strerror(error.errno)
    text = str(error).strip()
    return text or _IN_WORDS.get(type(error).__name__, type(error).__name__)


_IN_WORDS = {"EOFError": "the connection was closed", "ConnectionResetError": os.strerror(errno.ECONNRESET)}


def _fail(name: str, message: str, code: int) -> int:
    click.echo(f"{name}: {message}", err=True)
    return code
