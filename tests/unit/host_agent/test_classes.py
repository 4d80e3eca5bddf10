"""Flows are marked and paced when they have a connection, whenever that begins, and as long as they are told."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import speedwell.host_agent.classes
from speedwell.coflow.report import Flow
from speedwell.host_agent.channel import CLASS_LEASE_SECONDS, PRIORITIES, FlowClass
from speedwell.host_agent.classes import Classes
from speedwell.host_agent.connections import SO_MAX_PACING_RATE, UNPACED
from speedwell.host_agent.uplink import mark_of

HERE = "127.0.0.1"
LAST = mark_of(PRIORITIES - 1)


class Kernel:
    """The connections that there are, with their marks; in Marks' and Beginnings' place, which need root."""

    def __init__(self) -> None:
        self.marks: dict[Flow, int] = {}
        self.attempts = 0
        self.is_wanted = False
        self.begun: list[Flow] = []
        self.socket = None

    def set(self, flow: Flow, mark: int) -> bool:
        self.attempts += 1
        if flow in self.marks:
            self.marks[flow] = mark
        return flow in self.marks

    def begin(self, *flows: Flow) -> None:
        self.marks |= dict.fromkeys(flows, 0)
        self.begun += flows if self.is_wanted else ()

    def want(self, is_wanted: bool) -> None:
        self.is_wanted = is_wanted

    def receive(self) -> list[Flow]:
        begun, self.begun = self.begun, []
        return begun


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    for name in ("Marks", "Beginnings"):
        monkeypatch.setattr(speedwell.host_agent.classes, name, lambda: kernel)
    return kernel


@pytest.fixture
def worker() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as worker:
        yield worker


@pytest.fixture
def paced() -> list[int]:
    return []


@pytest.fixture
def classes(kernel: Kernel, worker: ThreadPoolExecutor, paced: list[int]) -> Classes:
    def add(future: Future[int]) -> None:
        paced.append(future.result())

    return Classes(worker, add)


def test_a_flow_without_a_connection_is_tried_once_each_time_it_is_told_and_marked_when_it_begins(
        kernel: Kernel, classes: Classes) -> None:
    flow, other = Flow(HERE, HERE, 1, 2), Flow(HERE, HERE, 3, 4)
    for attempts in (1, 2, 3):
        assert classes.tell([FlowClass(flow, 2)], 0.0) == 0
        assert kernel.attempts == attempts and kernel.is_wanted
    kernel.begin(other)
    assert classes.hear() == 0 and kernel.attempts == 3
    kernel.begin(flow)
    assert classes.hear() == 1 and kernel.marks == {flow: mark_of(2), other: 0} and not kernel.is_wanted


def test_a_flow_that_is_told_no_more_loses_its_class_with_its_lease_also_if_nobody_says_so(
        kernel: Kernel, classes: Classes) -> None:
    kept, lost, missing = (Flow(HERE, HERE, number, 80) for number in range(3))
    kernel.begin(kept, lost)
    assert classes.tell([FlowClass(each, 1) for each in (kept, lost, missing)], 0.0) == 2
    classes.tell([FlowClass(kept, 1)], CLASS_LEASE_SECONDS - 1)
    classes.end_leases(CLASS_LEASE_SECONDS - 0.01)
    assert kernel.marks == {kept: mark_of(1), lost: mark_of(1)}
    classes.end_leases(CLASS_LEASE_SECONDS)
    assert kernel.marks == {kept: mark_of(1), lost: LAST}
    kernel.begin(missing)
    assert classes.hear() == 0 and kernel.marks[missing] == 0
    classes.end_leases(2 * CLASS_LEASE_SECONDS)
    assert kernel.marks[kept] == LAST


def test_a_flow_that_is_told_the_last_class_is_remembered_no_more(kernel: Kernel, classes: Classes) -> None:
    flow = Flow(HERE, HERE, 1, 2)
    classes.tell([FlowClass(flow, 1)], 0.0)
    classes.tell([FlowClass(flow, PRIORITIES - 1)], 1.0)
    assert not kernel.is_wanted
    kernel.begin(flow)
    classes.end_leases(100.0)
    assert classes.hear() == 0 and kernel.marks == {flow: 0}


def pace_of(sender: socket.socket) -> int:
    (rate,) = struct.unpack("=Q", sender.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8))
    return int(rate)


def test_a_sender_is_paced_when_its_connection_begins_and_let_loose_with_its_lease(
        kernel: Kernel, classes: Classes, worker: ThreadPoolExecutor, paced: list[int]) -> None:
    with socket.create_server((HERE, 0)) as listener, socket.socket() as sender:
        sender.bind((HERE, 0))
        flow = Flow(HERE, HERE, sender.getsockname()[1], listener.getsockname()[1])
        classes.tell([FlowClass(flow, PRIORITIES - 1, 8_000_000)], 0.0)
        sender.connect(listener.getsockname())
        kernel.begin(flow)
        classes.hear()
        worker.submit(int).result(20)
        assert pace_of(sender) == 1_000_000 and paced == [1]
        classes.tell([FlowClass(flow, PRIORITIES - 1, 8_000_000)], 1.0)
        classes.end_leases(1.0 + CLASS_LEASE_SECONDS)
        worker.submit(int).result(20)
        assert pace_of(sender) == UNPACED and paced == [1, 1]
