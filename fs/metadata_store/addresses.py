"""From a key to the address that its requests are sent to, and the blocks of addresses that a server owns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network

from speedwell.fs.errors import InvalidArgument

PREFIX = IPv4Network("100.64.0.0/10")
"""Addresses of keys (RFC 6598): no host has one."""
PORT = 9000
GATEWAY_IP, GATEWAY_MAC = "169.254.100.64", "02:53:70:64:00:40"
"""The next hop of a host's route to `PREFIX`. Nobody has it: a switch sends by the address of the key."""


class Key(bytes):
    """A key that is hashed once, whoever asks for its address."""

    @cached_property
    def address(self) -> IPv4Address:
        digest = int.from_bytes(hashlib.sha256(self).digest()[:4])
        return PREFIX[digest >> PREFIX.prefixlen]


def address_of(key: bytes) -> IPv4Address:
    """The address of a key: the first bits of its SHA-256, below `PREFIX` (MetaFlow, section IV-B)."""
    return (key if isinstance(key, Key) else Key(key)).address


def parse_block(text: str, field: str) -> IPv4Network:
    """A block such as 100.64.0.0/12. Raises InvalidArgument, which names `field`."""
    try:
        block = IPv4Network(text)
    except ValueError as error:
        raise InvalidArgument(f"{field}: {text!r} is not a block of addresses: {error}") from None
    if not block.subnet_of(PREFIX):
        raise InvalidArgument(f"{field}: {block} is not within {PREFIX}")
    return block


def block_of(address: IPv4Address, blocks: Iterable[IPv4Network]) -> IPv4Network | None:
    """Which of disjoint blocks an address is in."""
    return next((block for block in blocks if address in block), None)
