"""Senders that keep to their turns by themselves: both ends, over the socket that they have."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from speedwell.fs.wire.turns import LEAST_BYTES, MOST_STEP_BYTES, STEP_SECONDS, WANT, OwnTurns, own_turns
from speedwell.host_agent.channel import Slice, Turns
from speedwell.host_agent.gate import Gate
from speedwell.host_agent.own_senders import LEASE_SECONDS, OwnSenders

HOST, BPS = "127.0.0.1", 400_000
COUNT = 10**9


class Host:
    """A host's agent, and one connection to itself."""

    def __init__(self) -> None:
        self.agent = OwnSenders(secrets.token_hex(4))
        self.listener = socket.create_server((HOST, 0))
        self.gate: Gate | None = None
        self.news: list[bool] = []

    def sender(self, count: int = COUNT) -> OwnTurns:
        connection = socket.create_connection(self.listener.getsockname())
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        agent.connect(self.agent.socket.getsockname())
        agent.bind("")
        return OwnTurns(agent, connection, count)

    def hear(self) -> None:
        for destination, is_new in self.agent.hear(time.monotonic()):
            assert destination == HOST
            self.news.append(is_new)
            self.agent.tell(destination, self.gate)

    def direct(self, lease: int, *slices: Slice) -> None:
        self.gate = self.gate or Gate(BPS)
        self.gate.direct(Turns(HOST, lease, slices), time.monotonic())
        self.agent.tell(HOST, self.gate)


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    with closing(host.agent), host.listener:
        yield host


def test_nobody_waits_without_an_agent_or_with_little_to_send(host: Host) -> None:
    with socket.create_connection(host.listener.getsockname()) as connection:
        assert own_turns(connection, LEAST_BYTES) is None
        with closing(OwnSenders(HOST)):
            assert own_turns(connection, LEAST_BYTES - 1) is None


def test_who_is_free_goes_at_once_in_steps_that_grow_while_they_take_no_time(host: Host) -> None:
    with host.sender() as sender:
        host.hear()
        assert 0 < sender.wait(COUNT) <= MOST_STEP_BYTES and sender.wait(7) == 7
        now = time.monotonic() + 60
        steps = [sender._free_bytes(now + number * STEP_SECONDS / 4) for number in range(12)]
        assert steps == sorted(steps) and steps[0] < steps[-1] == MOST_STEP_BYTES
        assert sender._free_bytes(now + 6 * STEP_SECONDS) == MOST_STEP_BYTES // 2


def test_no_more_waits_in_the_socket_than_a_step_while_turns_are_kept(host: Host) -> None:
    def unsent_bytes() -> int:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)

    host.direct(60_000_000, Slice(0, 20_000_000, 1 << 29))
    with host.sender() as sender:
        connection = sender._connection
        host.hear()
        step = sender.wait(COUNT)
        assert step == unsent_bytes() == int((1 << 29) / 8 * STEP_SECONDS)
        assert sender.wait(7) == 7 and unsent_bytes() == step
    assert unsent_bytes() == 0


def test_a_sender_waits_for_its_slice_and_takes_no_more_than_fits(host: Host) -> None:
    host.direct(60_000_000, Slice(200_000, 20_000_000, 1 << 40))
    began = time.monotonic()
    with host.sender() as sender:
        host.hear()
        assert sender.wait(COUNT) == MOST_STEP_BYTES and time.monotonic() - began >= 0.19
    with host.sender() as sender:
        host.hear()
        host.direct(60_000_000, Slice(0, 2_000_000))
        assert sender.wait(COUNT) <= 100_000


def test_those_who_send_to_one_destination_share_its_slices(host: Host) -> None:
    with host.sender() as one, host.sender() as other:
        host.hear()
        host.direct(60_000_000, Slice(0, 2_000_000))
        assert max(one.wait(COUNT), other.wait(COUNT)) <= 50_000


def test_what_an_agent_said_that_is_gone_runs_out(host: Host) -> None:
    host.direct(300_000)
    began = time.monotonic()
    with host.sender() as sender:
        host.hear()
        host.agent.close()
        assert sender.wait(COUNT) and time.monotonic() - began < 5


def test_the_agent_knows_what_is_wanted_until_it_is_sent_or_the_sender_is_silent(host: Host) -> None:
    with host.sender(1000), host.sender(500):
        host.hear()
        now = time.monotonic()
        assert host.news == [True, True] and host.agent.wanted_bytes(now) == {HOST: 1500}
        assert not host.agent.wanted_bytes(now + LEASE_SECONDS)
    with host.sender(1000):
        host.hear()
        assert host.agent.wanted_bytes(time.monotonic()) == {HOST: 1000}
    host.hear()
    assert not host.agent.wanted_bytes(time.monotonic())


def test_what_is_no_wish_is_passed_over(host: Host) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.connect(host.agent.socket.getsockname())
        for datagram in (b"", b"x", bytes(WANT.size - 1), bytes(WANT.size + 1), b"x" * 500):
            stranger.send(datagram)
        host.hear()
    assert not host.news


def test_a_new_directive_wakes_a_sender_that_waits(host: Host) -> None:
    host.direct(60_000_000)
    with host.sender() as sender:
        host.hear()
        got: list[int] = []
        waiting = threading.Thread(target=lambda: got.append(sender.wait(COUNT)))
        waiting.start()
        time.sleep(0.05)
        assert not got
        host.direct(0)
        waiting.join(10)
    assert len(got) == 1 and got[0]
