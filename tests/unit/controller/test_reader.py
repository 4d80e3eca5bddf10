"""What comes in on a socket that stays registered with the hub between two waits."""

from __future__ import annotations

import time
from collections.abc import Iterator

import eventlet
import pytest
from eventlet.green import socket
from eventlet.hubs import get_hub

from speedwell.controller.reader import Reader

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture(name="ends")
def _ends() -> Iterator[Ends]:
    near, far = socket.socketpair()
    near.settimeout(20.0)
    yield near, far
    near.close()
    far.close()


def is_registered(connection: socket.socket) -> bool:
    return connection.fileno() in get_hub().listeners[get_hub().READ]


def test_what_comes_before_during_and_after_a_wait_is_read_in_order(ends: Ends) -> None:
    near, far = ends
    reader = Reader(near)
    far.sendall(b"before")
    assert reader.recv(100) == b"before"
    eventlet.spawn_after(0.01, far.sendall, b"during")
    assert reader.recv(3) + reader.recv(100) == b"during"
    far.sendall(b"after")
    eventlet.sleep(0.01)
    assert reader.recv(100) == b"after"
    far.close()
    assert reader.recv(100) == b""
    reader.close()


def test_bytes_that_nobody_waits_for_do_not_keep_the_hub_busy(ends: Ends) -> None:
    near, far = ends
    reader = Reader(near)
    far.sendall(b"x")
    reader.recv(1)
    assert is_registered(near)
    far.sendall(b"y")
    while is_registered(near):
        eventlet.sleep(0)
    began_at, spent = time.monotonic(), time.process_time()
    eventlet.sleep(0.2)
    assert time.monotonic() - began_at >= 0.2 > 2 * (time.process_time() - spent)
    assert reader.recv(100) == b"y"
    reader.close()


def test_a_wait_ends_with_the_sockets_timeout_and_can_be_begun_again(
        ends: Ends) -> None:
    near, far = ends
    near.settimeout(0.02)
    reader = Reader(near)
    with pytest.raises(TimeoutError):
        reader.recv(1)
    with pytest.raises(eventlet.Timeout), eventlet.Timeout(0.01):
        near.settimeout(20.0)
        reader.recv(1)
    far.sendall(b"z")
    assert reader.recv(1) == b"z"
    reader.close()


def test_a_closed_reader_leaves_nothing_at_the_hub_for_the_next_socket_of_its_number(
        ends: Ends) -> None:
    near, far = ends
    reader = Reader(near)
    far.sendall(b"x")
    reader.recv(1)
    reader.close()
    assert not is_registered(near)
