"""How every command and daemon takes its command line, and says what went wrong: in one line.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.
"""

import errno
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import click

from speedwell.fs.errors import SpeedwellError, reason

F = TypeVar("F", bound=Callable[..., Any])
DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
DEBUG_VARIABLE = "SPEEDWELL_DEBUG"


def identity_option(whose: str) -> Callable[[F], F]:
    """Adds --identity, a directory that `speedwell identity issue` has made."""
    return click.option("--identity", metavar="DIR", type=click.Path(path_type=Path),
                        help=f"{whose} key and certificates, from `speedwell identity issue`.")


encryption_option = click.option(
    "--encrypt-data", is_flag=True, help="TLS on the data channel, too, except between a client and a dataserver on "
    "one host. For all nameservers and dataservers of an installation; needs --identity.")


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
        return _own_words(" ".join(error.format_message().split()).rstrip(".,"))    # choices come in many lines
    if isinstance(error, OSError) and error.strerror:
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if name is not None]
        return ": ".join([" -> ".join(str(name) for name in names), reason(error)] if names else [reason(error)])
    if type(error).__module__.startswith("speedwell."):
        if isinstance(error, SpeedwellError) and error.errno == errno.EIO and error.request_id:
            return f"{reason(error)} (request {error.request_id})"
        return reason(error)
    if isinstance(error, ModuleNotFoundError) and (extra := _extra_with(error.name or "")):
        return missing(error.name, extra)
    return (f"unexpected {type(error).__name__}: {reason(error)} "
            f"(set {DEBUG_VARIABLE}=1 to see where it came from)")


def missing(module: str | None, extra: str) -> str:
    """What a user is told of a library that is not there, and that an extra of the package brings."""
    if (Path(__file__).parents[2] / "setup.py").exists():
        return f"this needs {module}: run scripts/setup, or pip install -e '.[{extra}]', in a clone of Speedwell"
    return f"this needs {module}: install the extra {extra}, as with pip install 'FILE.whl[{extra}]'"


def _extra_with(module: str) -> str | None:
    """The extra of the package that brings a library, with the least beside it."""
    try:
        required = metadata.requires("speedwell") or []
    except metadata.PackageNotFoundError:
        return None
    found = [each for line in required if (each := re.match(r"([\w-]+).*extra == ['\"](\w+)['\"]", line))]
    beside = Counter(each[2] for each in found)
    bringing = [each[2] for each in found if each[1] == module.replace("_", "-")]
    return min(bringing, key=beside.__getitem__, default=None)


def _own_words(message: str) -> str:
    """What click says of a number, as a person would."""
    message = re.sub(r"is not a valid integer( range)?", "is not a whole number", message)
    message = re.sub(r"is not a valid float( range)?", "is not a number", message)
    return re.sub(r"is not in the range (\S+)", lambda found: f"must be {_bounds(found[1])}", message)


def _bounds(text: str) -> str:
    """`1<=x<16` in words."""
    found = re.fullmatch(r"(?:([^<=]+)(<=?))?x(?:(<=?|>=?)([^<=>]+))?", text)
    if found is None:
        return f"in {text}"
    low, low_sign, sign, bound = found.groups()
    if low is not None and sign is not None:
        return f"{'from' if low_sign == '<=' else 'above'} {low} {'to' if sign == '<=' else 'and below'} {bound}"
    return f"{ {'<=': 'at most', '<': 'below', '>=': 'at least', '>': 'above'}[sign]} {bound}"


def _fail(name: str, message: str, code: int) -> int:
    click.echo(f"{name}: {message}", err=True)
    return code
