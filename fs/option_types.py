"""What options and arguments hold: numbers of bytes, lengths of time, mount points."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import click

from speedwell.fs.addresses import is_host
from speedwell.fs.units import duration, size


class MountPoint(click.Path):
    """Unlike click's paths it is not touched: who looks at a mount that hangs, hangs with it."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        return Path(value)


class Host(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """A host's name or address."""

    name = "HOST"

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> str:
        if not is_host(value):
            self.fail(f"{value!r} is no host's name or address", parameter, context)
        return value


class Network(click.ParamType):  # type: ignore[type-arg]  # likewise
    """A range of IPv4 addresses such as 100.64.0.0/10."""

    name = "NETWORK"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> IPv4Network:
        try:
            return IPv4Network(value)
        except ValueError as error:
            self.fail(f"{value!r} is no IPv4 network such as 100.64.0.0/10: {error}", parameter, context)


class ServerName(click.ParamType):  # type: ignore[type-arg]  # likewise
    """What a dataserver is called."""

    name = "NAME"

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> str:
        if not value or len(value) > 200 or not value.isprintable():
            self.fail(f"{value!r} is not a name of 1 to 200 printable characters", parameter, context)
        return value


class Size(click.ParamType):  # type: ignore[type-arg]  # likewise
    """A number of bytes, plain or with a unit: 1048576, 1MiB, 1.5 GiB, 64K; at least `least`."""

    name = "BYTES"
    example = "1048576 or 1MiB"
    prefixes = " KMGT"
    pattern = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT]?)(?:i?B)?)", re.IGNORECASE)
    most = (1 << 62) - 1

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(self, value: str | int, parameter: click.Parameter | None,
                context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = self.pattern.fullmatch(value.strip())
        count = float(found[1]) * 1024 ** self.prefixes.index(found[2].upper() or " ") if found else -1
        if not found or count != int(count):
            self.fail(f"{value!r} is not a number of bytes such as {self.example}", parameter, context)
        if not self._least <= count <= self.most:
            self.fail(f"{value!r} must be from {self._least} to {size(self.most)}", parameter, context)
        return int(count)


class Rate(Size):
    """Bytes a second, written as a size, with or without `/s`: 8MiB/s."""

    name = "BYTES/S"
    example = "8388608 or 8MiB/s"
    pattern = re.compile(Size.pattern.pattern + r"(?:/s)?", re.IGNORECASE)


class Duration(click.ParamType):  # type: ignore[type-arg]  # likewise
    """Seconds, written with a unit: 90s, 30m, 12h, 7d; at most `most`."""

    name = "TIME"
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}

    def __init__(self, most: int) -> None:
        self._most = most

    def convert(self, value: str | int, parameter: click.Parameter | None,
                context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        digits, unit = value.strip()[:-1], value.strip()[-1:]
        if not digits.isdigit() or unit not in self.units:
            self.fail(f"{value!r} is not a time such as 30m, 12h or 7d", parameter, context)
        seconds = int(digits) * self.units[unit]
        if seconds > self._most:
            self.fail(f"{value!r} must be at most {duration(self._most)}", parameter, context)
        return seconds
