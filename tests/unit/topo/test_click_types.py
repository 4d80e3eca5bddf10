"""Values that commands take."""

from __future__ import annotations

import click
import pytest

from speedwell.topo.click_types import HostPort


@pytest.mark.parametrize(("text", "least_port", "expected"), [
    ("10.0.0.1:7300", 1, ("10.0.0.1", 7300)),
    ("server:65535", 1, ("server", 65535)),
    ("0.0.0.0:0", 0, ("0.0.0.0", 0)),
])
def test_an_address_is_a_host_and_a_port(text: str, least_port: int, expected: tuple[str, int]) -> None:
    assert HostPort(least_port).convert(text, None, None) == expected
    assert HostPort(least_port).convert(expected, None, None) == expected


@pytest.mark.parametrize("text", [
    "", "server", ":7300", "server:", "server:0", "server:65536", "server:-1", "server:٣"])
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not HOST:PORT"):
        HostPort().convert(text, None, None)
