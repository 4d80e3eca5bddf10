"""What options and arguments hold: numbers of bytes, lengths of time, mount points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class MountPoint(click.Path):
    """Unlike click's paths it is not touched: who looks at a mount that hangs, hangs with it."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        return Path(value)


class Size(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """A number of bytes, plain or with a unit: 1048576, 1MiB, 64K."""

    name = "BYTES"
    units = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

    def convert(self, value: str | int, parameter: click.Parameter | None,
                context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        digits = value.strip().rstrip("iBbKkMmGgTt ")
        unit = value.strip()[len(digits):].strip().upper().replace("IB", "").removesuffix("B")
        if not digits.isdigit() or unit not in self.units:
            self.fail(f"{value!r} is not a number of bytes such as 1048576 or 1MiB", parameter, context)
        return int(digits) * self.units[unit]


class Duration(click.ParamType):  # type: ignore[type-arg]  # likewise
    """Seconds, written with a unit: 90s, 30m, 12h, 7d."""

    name = "TIME"
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}

    def convert(self, value: str | int, parameter: click.Parameter | None,
                context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        digits, unit = value.strip()[:-1], value.strip()[-1:]
        if not digits.isdigit() or unit not in self.units:
            self.fail(f"{value!r} is not a time such as 30m, 12h or 7d", parameter, context)
        return int(digits) * self.units[unit]
