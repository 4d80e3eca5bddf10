"""What an agent does with what it hears and finds; the kernel's part is recorded, and goes wrong when told to."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from math import inf
from types import SimpleNamespace

import pytest

import speedwell.host_agent.agent
from speedwell.coflow.report import Flow
from speedwell.coflow.settings import SchedulerAddress
from speedwell.host_agent.agent import GIVE_UP_SECONDS, LOOK_SECONDS, Agent
from speedwell.host_agent.channel import MAX_BACKLOGS, BacklogReport, Registration, Slice, Turns, agent_key
from speedwell.host_agent.connections import Connection
from speedwell.host_agent.errors import KernelRefused
from speedwell.host_agent.packet_queues import Packet
from speedwell.host_agent.session import SchedulerEnd
from tests.waiting import wait_until

US, THERE = "127.0.0.1", "10.0.1.1"
MASTER = b"m" * 32
HELD = Turns(THERE, 10_000_000)


class Kernel:
    """Queues of packets, in PacketQueues' place."""

    def __init__(self) -> None:
        self.socket, self._other_end = socket.socketpair()
        self.socket.setblocking(False)
        self.bound: set[int] = set()
        self.waiting: list[Packet] = []
        self._unread: list[Packet] = []

    def bind(self, queue: int, in_frames: bool = True) -> None:
        self.bound.add(queue)

    def unbind(self, queue: int) -> None:
        self.bound.remove(queue)

    def arrive(self, packet: Packet) -> None:
        self.waiting.append(packet)
        self._unread.append(packet)
        self._other_end.send(b"x")

    def receive(self) -> list[Packet]:
        with suppress(BlockingIOError):
            self.socket.recv(100)
        packets, self._unread = self._unread, []
        return packets

    def accept(self, queue: int, number: int) -> None:
        self.waiting = [each for each in self.waiting if each.queue != queue or each.number > number]

    def accept_all(self) -> None:
        self.waiting, self._unread = [], []

    def close(self) -> None:
        self.socket.close()
        self._other_end.close()


class Guardian:
    """Writes down what it is told."""

    deaths = 0

    def __init__(self, *_: object) -> None:
        self.beats: list[tuple[float, float]] = []

    def beat(self, silence_seconds: float) -> None:
        self.beats.append((time.monotonic(), silence_seconds))

    def look(self) -> None: ...

    def end(self) -> None: ...


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with closing(Kernel()) as kernel:
        yield kernel


@pytest.fixture
def agent(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Its uplink carries 20 Mbit/s; nobody answers its registrations."""
    monkeypatch.setattr(speedwell.host_agent.agent, "PacketQueues", lambda: kernel)
    monkeypatch.setattr(speedwell.host_agent.agent, "Guardian", Guardian)
    monkeypatch.setattr(speedwell.host_agent.agent, "gate_rule", lambda *_: None)
    uplink = SimpleNamespace(rate_bps=20_000_000, interface="lo", make=lambda: None)
    agent = Agent(US, SchedulerAddress(US, 9, agent_key(MASTER, US)), uplink, 1000)     # type: ignore[arg-type]
    yield agent
    agent.stop()
    agent.run()


def test_what_waits_when_the_loop_was_silent_for_long_is_let_go_and_not_only_forgotten(
        agent: Agent, kernel: Kernel) -> None:
    agent._direct(HELD, time.monotonic())
    kernel.arrive(Packet(max(kernel.bound), 1, 1000))
    turned_at = agent._turn(time.monotonic())
    assert agent.held_bytes == 1000 and kernel.waiting
    agent._turn(turned_at - 60)
    assert agent.held_bytes == 0 and not kernel.waiting


@pytest.mark.parametrize(("slice_seconds", "beats_every", "may_be_silent"), [
    (0.01, 0.01, 0.02), (0.255, 0.2, 0.51), (3.0, 0.2, 0.51)])
def test_the_guardian_hears_of_a_living_agent_well_before_it_would_act(
        agent: Agent, slice_seconds: float, beats_every: float, may_be_silent: float) -> None:
    agent._end.slice_microseconds = round(slice_seconds * 1e6)
    now = time.monotonic()
    agent._direct(HELD, now)
    agent._beaten_at, agent._looked_at = now, now + 100
    assert agent._due(now) <= now + beats_every
    agent._beaten_at = now - beats_every
    agent._turn(now)
    assert agent._guardian.beats[-1][1] == pytest.approx(may_be_silent)     # type: ignore[attr-defined]


def test_who_waits_for_acknowledgements_alone_gives_its_slice_up_and_who_has_more_to_send_does_a_little_later(
        agent: Agent, kernel: Kernel, told: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    def queued_at(at: float, unsent_bytes: int) -> int:
        connection = Connection(Flow(US, THERE, 1000, 80), b"cookie", 7, 2000, 5000, 0, unsent_bytes)
        monkeypatch.setattr(speedwell.host_agent.agent, "connections", lambda _: iter([connection]))
        agent._heard_at, agent._signed_at, agent._counted_at_bytes = at, -inf, -inf
        agent._look(at)
        return agent._told[THERE].queued_bytes

    now = time.monotonic()
    assert queued_at(now, 0) == 2000, "no turns"
    agent._direct(Turns(THERE, 30_000_000, (Slice(0, 10_000_000),)), now)
    kernel.arrive(Packet(max(kernel.bound), 1, 10_000))
    agent._hold(now)
    assert queued_at(now, 0) == 10_000
    agent._release(now)
    gone_at = now + 8 * 10_000 / 20e6
    assert [queued_at(gone_at + later, 0) for later in (-0.001, 0.001)] == [2000, 0]
    assert [queued_at(gone_at + later, 1) for later in (0.001, 0.004)] == [2000, 0]
    agent._direct(Turns(THERE, 30_000_000), now)
    assert queued_at(gone_at + 0.004, 1) == 0, "nothing waits for its turn"


def test_an_agent_whose_slice_is_idle_looks_soon_whether_it_can_give_it_up(agent: Agent, kernel: Kernel) -> None:
    agent._end.slice_microseconds = 255_000     # else a pause of this machine lets all go
    now = time.monotonic()
    agent._direct(Turns(THERE, 30_000_000, (Slice(0, 10_000_000),)), now)
    agent._beaten_at = agent._looked_at = now
    assert agent._look_due(now) == pytest.approx(now + LOOK_SECONDS)
    kernel.arrive(Packet(max(kernel.bound), 1, 1000))
    agent._turn(now)
    assert not kernel.waiting
    agent._looked_at = time.monotonic()
    assert agent._look_due(agent._looked_at) == pytest.approx(agent._looked_at + GIVE_UP_SECONDS, abs=0.002)


def test_a_packet_that_has_to_wait_where_no_slice_was_given_is_told_at_once_and_one_that_is_free_is_not(
        agent: Agent, kernel: Kernel) -> None:
    now = time.monotonic()
    for number, (lease, has_to_wait) in enumerate(((0, False), (10_000_000, True)), 1):
        agent._direct(HELD, now)
        agent._direct(Turns(THERE, lease), now)
        agent._looked_at = before = now + 3600
        kernel.arrive(Packet(max(kernel.bound), number, 1000))
        agent._turn(time.monotonic())
        assert (agent._looked_at != before, agent.held_bytes) == (has_to_wait, 1000 * has_to_wait)


def test_what_is_late_is_counted_from_the_turn_before_at_the_earliest(agent: Agent) -> None:
    agent._looked_at = -inf
    begin = time.monotonic()
    agent._turn(begin)
    assert 0 <= agent.late_seconds <= time.monotonic() - begin


def test_a_rule_that_does_not_go_keeps_its_queue_and_is_tried_again(
        agent: Agent, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, refusals = [], [KernelRefused("busy")]

    def rule(destination: str, queue: int, is_wanted: bool) -> None:
        asked.append((queue, is_wanted))
        if not is_wanted and refusals:
            raise refusals.pop()

    def tidied(now: float) -> None:
        wait_until(lambda: agent._doors[THERE].change.done(), 10, "no rule is changed")
        agent._tidy(now)

    monkeypatch.setattr(speedwell.host_agent.agent, "gate_rule", rule)
    now = time.monotonic()
    agent._direct(HELD, now)
    queue = max(kernel.bound)
    tidied(now + 13)
    tidied(now + 13.1)
    assert agent.destinations == 1 and queue in kernel.bound and queue not in agent._free_queues
    wait_until(lambda: agent.counts["failures"] == 1, 10, "the failure is not counted")
    tidied(now + 16)
    tidied(now + 16.1)
    assert agent.destinations == 0 and queue not in kernel.bound and queue in agent._free_queues
    assert asked == [(queue, True), (queue, False), (queue, False)]


@pytest.fixture
def told(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, int]]]:
    """What a scheduler was told: the bytes sent to each destination, by report."""
    told: list[dict[str, int]] = []
    scheduler = SchedulerEnd(MASTER, 10_000)

    def send(datagram: bytes) -> None:
        message = scheduler.take(datagram)
        assert isinstance(message, BacklogReport)
        told.append({each.destination: each.sent_bytes for each in message.backlogs})

    registration = scheduler.take(agent._end.register(bytes(16)))
    assert isinstance(registration, Registration)
    welcome = scheduler.welcome(registration, 7, 0.0)
    assert welcome is not None and agent._end.take(welcome)
    monkeypatch.setattr(agent, "_send", send)
    yield told


def test_a_destination_is_told_when_it_changes_and_then_no_more(
        agent: Agent, told: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    sent_bytes: list[int] = []
    monkeypatch.setattr(agent._counters, "sent_bytes", lambda: sent_bytes[-1])

    def sent(*counts: int) -> dict[str, int]:
        now = [Connection(Flow(US, f"10.0.{number}.1", 1000 + number, 80), number.to_bytes(8), number, 0, count, 0)
               for number, count in enumerate(counts)]
        monkeypatch.setattr(speedwell.host_agent.agent, "connections", lambda _: iter(now))
        sent_bytes.append(sum(counts))
        agent._heard_at = at = agent._signed_at + 1 if told else 1000.0
        agent._look(at)
        return told[-1]

    assert sent(5000, 6000) == {"10.0.0.1": 5000, "10.0.1.1": 6000}
    assert sent(5000, 7000) == {"10.0.1.1": 7000}
    assert [sent(5000, 7000) for _ in range(3)] == [{}] * 3
    assert sent() == {}
    assert not agent._backlogs(1000.0)
    many = [2000] * (MAX_BACKLOGS + 3)
    assert len(sent(*many)) == MAX_BACKLOGS and len(sent(*many)) == 3 and sent(*many) == {}


def test_a_sign_of_life_asks_the_kernel_nothing_where_nothing_has_moved_since_the_count_before(
        agent: Agent, told: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    sent_bytes, now, counts = [0], 1000.0, []

    def count(_: object) -> Iterator[Connection]:
        counts.append(now)
        return iter(())

    monkeypatch.setattr(agent._counters, "sent_bytes", lambda: sent_bytes[0])
    monkeypatch.setattr(speedwell.host_agent.agent, "connections", count)
    for _ in range(10):
        agent._heard_at = now = now + 1
        agent._look(now)
    assert len(told) == 10 and len(counts) == 1
    sent_bytes[0] = 1
    agent._look(now + 0.01)
    assert len(counts) == 1, "one packet is worth no count before the next sign of life"
    agent._heard_at = now = now + 1
    agent._look(now)
    assert len(counts) == 2
    sent_bytes[0] = 1001
    agent._look(now + 0.01)
    assert len(counts) == 2
    agent._look(now + LOOK_SECONDS)
    assert len(counts) == 3
