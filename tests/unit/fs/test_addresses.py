"""Addresses: host and port apart, anything else refused by the field's name."""

import pytest

from speedwell.fs.addresses import parse_address
from speedwell.fs.errors import InvalidArgument


@pytest.mark.parametrize(("text", "expected"), [
    ("127.0.0.1:9000", ("127.0.0.1", 9000)),
    ("host.example:1", ("host.example", 1)),
    ("[::1]:65535", ("::1", 65535)),
])
def test_an_address_is_a_host_and_a_port(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text, "--listen") == expected


@pytest.mark.parametrize("text", ["", "host", ":9000", "host:", "host:0", "host:65536", "host:-1", "host:٣", "[]:1",
                                  "::1:5", "[::1:5", "[host]:5", "a b:5", "http://host:5"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--listen: .* is not HOST:PORT"):
        parse_address(text, "--listen")


def test_port_0_is_any_free_one_where_that_makes_sense() -> None:
    assert parse_address("host:0", "--listen", lowest_port=0) == ("host", 0)
