"""Senders are paced when they have a connection, whenever that begins: real TCP."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from speedwell.coflow.report import Flow
from speedwell.host_agent.connections import SO_MAX_PACING_RATE, UNPACED
from speedwell.host_agent.paces import Paces
from tests.waiting import wait_until

HERE = "127.0.0.1"
ATTEMPTS = 1000


@pytest.fixture
def failures() -> list[Future[object]]:
    return []


@pytest.fixture
def paces(failures: list[Future[object]]) -> Iterator[Paces]:
    with ThreadPoolExecutor(1) as worker:
        yield Paces(worker, ATTEMPTS, failures.append)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A sender that has a port and no connection, and who listens."""
    with socket.create_server((HERE, 0)) as listener, socket.socket() as sender:
        sender.bind((HERE, 0))
        yield sender, listener


def pace_of(sender: socket.socket) -> int:
    (rate,) = struct.unpack("=Q", sender.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8))
    return int(rate)


def test_a_flow_that_is_named_before_it_begins_is_paced_when_it_does(
        paces: Paces, pair: tuple[socket.socket, socket.socket]) -> None:
    sender, listener = pair
    paces.ask(Flow(HERE, HERE, sender.getsockname()[1], listener.getsockname()[1]), 8_000_000)
    for _ in range(3):
        assert paces.attempt() == 0
    sender.connect(listener.getsockname())
    wait_until(paces.attempt, 20, "it is not paced")
    assert pace_of(sender) == 1_000_000 and not paces.is_waiting


def test_a_pace_is_set_once_and_taken_back(paces: Paces, pair: tuple[socket.socket, socket.socket]) -> None:
    sender, listener = pair
    sender.connect(listener.getsockname())
    flow = Flow(HERE, HERE, sender.getsockname()[1], listener.getsockname()[1])
    for rate_bps, expected in ((8_000_000, 1_000_000), (0, UNPACED)):
        paces.ask(flow, rate_bps)
        wait_until(paces.attempt, 20, "it is not paced")
        assert pace_of(sender) == expected
        paces.ask(flow, rate_bps)
        assert not paces.is_waiting


def test_what_is_asked_during_an_attempt_holds(
        paces: Paces, pair: tuple[socket.socket, socket.socket]) -> None:
    sender, listener = pair
    sender.connect(listener.getsockname())
    flow = Flow(HERE, HERE, sender.getsockname()[1], listener.getsockname()[1])
    paces.ask(flow, 8_000_000)
    paces.attempt()
    paces.ask(flow, 16_000_000)
    wait_until(lambda: paces.attempt() + 1 and not paces.is_waiting, 20, "it is not paced")
    assert pace_of(sender) == 2_000_000


def test_a_flow_that_never_begins_is_given_up(failures: list[Future[object]]) -> None:
    with ThreadPoolExecutor(1) as worker:
        paces = Paces(worker, 2, failures.append)
        paces.ask(Flow(HERE, HERE, 1, 1), 8_000_000)
        wait_until(lambda: paces.attempt() or not paces.is_waiting, 20, "it is tried for ever")
    assert len(failures) == 2
