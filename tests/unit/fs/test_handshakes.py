"""Handshakes at a listening end: what strangers do ends nobody else's."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import pytest

from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.bundle import Identity, peer_of
from speedwell.fs.identity.roles import NAMESERVER, OPERATOR
from speedwell.fs.rates import REFUSED_BURST
from speedwell.fs.wire.handshakes import Handshakes
from speedwell.fs.wire.tls import TLS
from tests.waiting import wait_until

RESET = struct.pack("ii", 1, 0)


class Door:
    """Hands connections to `Handshakes`; `fails` so many of those that were accepted."""

    def __init__(self, directory: Path) -> None:
        authority = Authority.make(directory)
        self.client = Identity(authority.issue("op", OPERATOR))
        self.accepted: SimpleQueue[TLS] = SimpleQueue()
        self.fails = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.handshakes = Handshakes(Identity(authority.issue("ns", NAMESERVER)), self.accept, b"plain")

    def accept(self, connection: TLS) -> None:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("can't start new thread")
        self.accepted.put(connection)

    def arrive(self, source: str = "127.0.0.1") -> socket.socket:
        client = socket.create_connection(self.listener.getsockname(), 10, (source, 0))
        self.begin()
        return client

    def begin(self) -> None:
        self.handshakes.begin(self.listener.accept()[0])

    def reset_after_a_byte(self) -> None:
        client = socket.create_connection(self.listener.getsockname(), 10)
        client.send(b"\x16")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        self.begin()

    def count(self, why: str) -> float:
        return self.handshakes.refusals.labels(why)._value.get()

    def shake(self) -> str:
        with self.client.wrap_client(self.arrive(), NAMESERVER):
            accepted = self.accepted.get(timeout=10)
            with accepted.socket:
                return str(peer_of(accepted.session))


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    door = Door(tmp_path / "identity")
    yield door
    door.handshakes.stop()
    door.listener.close()


def test_connections_that_are_reset_after_a_byte_keep_nobody_out(door: Door) -> None:
    for _ in range(20):
        door.reset_after_a_byte()
        assert door.shake() == "operator op"


def test_a_connection_that_cannot_be_served_keeps_no_other_out(door: Door) -> None:
    door.fails = 1
    with door.client.wrap_client(door.arrive(), NAMESERVER) as refused:
        assert refused.recv(1) == b""
    assert door.shake() == "operator op"


def test_from_an_address_that_fails_too_often_none_is_looked_at_and_others_are(door: Door) -> None:
    for _ in range(1000):
        with door.arrive("127.0.0.2") as stranger:
            stranger.send(b"GET / HTTP/1.1\r\n\r\n")
    assert door.shake() == "operator op"
    wait_until(lambda: door.count("failed") + door.count("limited") == 1000, 20, "they are not counted")
    assert door.count("limited") > 0
    assert door.count("failed") >= REFUSED_BURST
    wait_until(lambda: is_looked_at(door, "127.0.0.2"), 20, "it is never looked at again")


def is_looked_at(door: Door, source: str) -> bool:
    with door.arrive(source) as client, suppress(ConnectionResetError):
        client.send(b"GET")
        return client.recv(5) == b"plain"
    return False
