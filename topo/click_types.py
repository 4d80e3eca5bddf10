"""Types of command-line values that several commands take."""

from __future__ import annotations

import click


class HostPort(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """HOST:PORT, as a pair. `least_port` 0: one that is to be listened at, 0 for any free port."""

    name = "HOST:PORT"

    def __init__(self, least_port: int = 1) -> None:
        self._least_port = least_port

    def convert(self, value: object, parameter: click.Parameter | None,
                context: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        if not host or not (port.isascii() and port.isdecimal()) or not self._least_port <= int(port) <= 65535:
            self.fail(f"{value!r} is not HOST:PORT", parameter, context)
        return host, int(port)
