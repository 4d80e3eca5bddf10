"""A daemon's settings in a TOML file: each option by its name, with underscores (`min_replicas = 2`)."""

import difflib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.types import BoolParamType, FloatParamType, IntParamType

from speedwell.fs.addresses import parse_address, parse_url
from speedwell.fs.controller import OF_INSTALLATION
from speedwell.fs.errors import InvalidArgument, reason

F = TypeVar("F", bound=Callable[..., Any])
ADDRESS, URL = "HOST:PORT", "URL"
ONCE = ("new", "rebuild_from_what_is_there", "accept_empty")
"""For one start, on the command line alone: in a file they would hold for each, also after a disk was lost."""

_KINDS = {BoolParamType: "boolean", IntParamType: "integer", FloatParamType: "number"}


def config_option(function: F) -> F:
    """Adds --config, a file with the settings that the command line does not give."""
    return click.option("--config", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", is_eager=True,
                        expose_value=False, callback=_take,
                        help="TOML file with settings, named as these options with underscores; options come before "
                        "it.")(function)


def settings_of(command: click.Command) -> dict[str, click.Parameter]:
    """What a file may say for a daemon, by key."""
    return {_key(each): each for each in command.params if each.expose_value and _key(each) not in ONCE}


def check(command: click.Command, path: Path) -> dict[str, Any]:
    """The values that a daemon would run with, by parameter. Raises what its command line raises; InvalidArgument."""
    try:
        context = command.make_context(command.name, ["--config", str(path)])
    except click.MissingParameter as error:
        raise InvalidArgument(f"{path}: it lacks {_key(error.param) if error.param else error}") from None
    with context:
        for key, each in settings_of(command).items():
            value = context.params[each.name or ""]
            if value is None or value == each.default:
                continue
            for text in str(value).split(","):
                if str(each.metavar).startswith(ADDRESS):
                    parse_address(text, key, lowest_port=0)
                elif str(each.metavar).startswith(URL) and value != OF_INSTALLATION:
                    parse_url(text)
        return context.params


def schema(command: click.Command) -> dict[str, Any]:
    """What a file may say, as a JSON schema."""
    known = settings_of(command)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": command.name, "type": "object",
            "additionalProperties": False, "required": [key for key, each in known.items() if each.required],
            "properties": {key: _property(each) for key, each in known.items()}}


# ------------------------------------------------------------------ private


def _key(parameter: click.Parameter) -> str:
    longest = max(parameter.opts, key=len)
    return longest.strip("-_").replace("-", "_")


def _property(parameter: click.Parameter) -> dict[str, Any]:
    kind = next((name for kind, name in _KINDS.items() if isinstance(parameter.type, kind)), ["string", "integer"])
    one: dict[str, Any] = {"type": kind}
    if isinstance(parameter.type, click.Choice):
        one = {"enum": list(parameter.type.choices)}
    return {**({"type": "array", "items": one} if parameter.multiple else one),
            "description": getattr(parameter, "help", None) or ""}


def _take(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    known = settings_of(context.command)
    values: dict[str, Any] = {}
    for key, value in _read(path).items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise InvalidArgument(f"{path}: there is no setting {key!r}" + (f", but {near[0]!r}" if near else ""))
        values[str(known[key].name)] = _given(path, key, value, known[key])
    context.default_map = {**(context.default_map or {}), **values}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidArgument(f"cannot read the settings in {path}: {reason(error)}") from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"cannot read the settings in {path}: it is no text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"cannot read the settings in {path}: it is no TOML: {error}") from None


def _given(path: Path, key: str, value: Any, parameter: click.Parameter) -> Any:
    """As the command line would have it: text, which the option's type reads."""
    if parameter.multiple:
        values = value if isinstance(value, list) else [value]
        return [_text(path, key, each, parameter) for each in values]
    return _text(path, key, value, parameter)


def _text(path: Path, key: str, value: Any, parameter: click.Parameter) -> Any:
    is_flag = isinstance(parameter.type, BoolParamType)
    if is_flag != isinstance(value, bool) or not isinstance(value, bool | str | int | float):
        raise InvalidArgument(f"{path}: {key}: {value!r} is not "
                              + ("true or false" if is_flag else "a text or number"))
    if "\0" in str(value):
        raise InvalidArgument(f"{path}: {key}: it has a null character")
    return value if is_flag else str(value)
