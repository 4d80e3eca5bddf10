"""Connections are queued by class on the uplink, and paced, while they live: real TCP, HTB and conntrack."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from speedwell.coflow import Flow
from speedwell.controller.policy.network.traffic_classes import SCHEDULED
from speedwell.host_agent.channel import PRIORITIES, FlowClass
from speedwell.host_agent.marks import Marks
from speedwell.host_agent.uplink import dscp_of, mark_of, socket_priority
from tests.integration.host_agent.hosts import (
    RATE_BPS,
    RECEIVER,
    SENDER,
    Agent,
    Hosts,
    Scheduler,
    agent_on_host,
    inside,
)
from tests.integration.host_agent.traffic import Transfer
from tests.waiting import wait_until

pytestmark = pytest.mark.root
DEADLINE_SECONDS = 20
UNPACED_SHARE = 0.3


Scene = tuple[Hosts, Scheduler, Agent, Transfer, Transfer]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Two connections share the uplink."""
    with agent_on_host(tmp_path) as (hosts, scheduler, agent), \
            closing(Transfer(hosts, 9001)) as one, closing(Transfer(hosts, 9002)) as other:
        wait_until(lambda: min(one.received_bytes, other.received_bytes) > 100_000, DEADLINE_SECONDS, "none sends")
        yield hosts, scheduler, agent, one, other


def share_of(one: Transfer, other: Transfer, at_least_bytes: int = 250_000) -> float:
    """The first's part of the next bytes that both send."""
    before = one.received_bytes, other.received_bytes
    wait_until(lambda: one.received_bytes + other.received_bytes - sum(before) > at_least_bytes, DEADLINE_SECONDS,
               "nothing is sent")
    first, second = one.received_bytes - before[0], other.received_bytes - before[1]
    return first / (first + second)


def test_the_first_class_goes_before_the_sixth_and_they_change_places_in_mid_flow(scene: Scene) -> None:
    _, scheduler, agent, one, other = scene
    scheduler.classify(FlowClass(one.flow, 0), FlowClass(other.flow, 6))
    wait_until(lambda: share_of(one, other) >= 0.9, DEADLINE_SECONDS, agent.log.read_text)
    scheduler.classify(FlowClass(one.flow, 6), FlowClass(other.flow, 0))
    wait_until(lambda: share_of(one, other) <= 0.1, DEADLINE_SECONDS, agent.log.read_text)
    assert agent.metrics()["marks_total"] >= 4
    scheduler.classes.clear()       # that they have none any more got lost
    wait_until(lambda: 0.2 < share_of(one, other) < 0.8, DEADLINE_SECONDS, agent.log.read_text)


def test_a_class_keeps_its_share_of_the_uplink_whoever_goes_before(tmp_path: Path) -> None:
    with agent_on_host(tmp_path, "--shares", "30,50,20") as (hosts, scheduler, agent), \
            closing(Transfer(hosts, 9001)) as scheduled, closing(Transfer(hosts, 9002)) as best_effort:
        wait_until(lambda: min(scheduled.received_bytes, best_effort.received_bytes) > 100_000, DEADLINE_SECONDS,
                   "none sends")
        scheduler.classify(FlowClass(scheduled.flow, PRIORITIES - 1 - SCHEDULED.number))
        wait_until(lambda: 0.55 < share_of(scheduled, best_effort, 2_000_000) < 0.74, DEADLINE_SECONDS,
                   agent.log.read_text)
        scheduler.classify(FlowClass(scheduled.flow, 0))
        wait_until(lambda: 0.68 < share_of(scheduled, best_effort, 2_000_000) < 0.8, DEADLINE_SECONDS,
                   agent.log.read_text)


def test_a_sender_that_may_sets_its_class_itself(scene: Scene) -> None:
    _, _, _, one, other = scene
    one.out.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, socket_priority(0))
    wait_until(lambda: share_of(one, other) >= 0.9, DEADLINE_SECONDS, "its class is of no consequence")


def test_the_dscp_of_strangers_is_cleared_and_that_of_a_class_set(tmp_path: Path) -> None:
    with agent_on_host(tmp_path) as (hosts, scheduler, agent):
        with inside(hosts.receiver):
            into = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with inside(hosts.sender):
            out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with into, out:
            into.bind((RECEIVER, 9003))
            into.settimeout(DEADLINE_SECONDS)
            into.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
            out.bind((SENDER, 9004))
            out.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 5 << 2)

            def dscp(size: int = 1) -> int:
                out.sendto(bytes(size), (RECEIVER, 9003))
                _, [(_, _, tos)], *_ = into.recvmsg(2000, 100)
                return tos[0] >> 2

            assert dscp() == dscp_of(0), "what is small goes first"
            assert {dscp(1000) for _ in range(120)} == {dscp_of(0), 0}
            assert dscp() == 0
            flow = Flow(SENDER, RECEIVER, 9004, 9003, 17)
            for priority in (0, 3, 7):
                scheduler.classify(FlowClass(flow, priority))
                expected = dscp_of(priority)
                wait_until(lambda: dscp() == expected, DEADLINE_SECONDS, agent.log.read_text)   # noqa: B023


def test_a_flow_that_is_named_before_it_begins_gets_its_class(tmp_path: Path) -> None:
    with agent_on_host(tmp_path) as (hosts, scheduler, agent):
        with inside(hosts.sender):
            out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with out:
            out.bind((SENDER, 9004))
            scheduler.classify(FlowClass(Flow(SENDER, RECEIVER, 9004, 9003, 17), 2))
            scheduler.classes.clear()
            before = len(scheduler.reports)
            wait_until(lambda: len(scheduler.reports) > before + 1, DEADLINE_SECONDS, agent.log.read_text)
            turns = agent.metrics()["turns_total"]
            wait_until(lambda: len(scheduler.reports) > before + 4, DEADLINE_SECONDS, agent.log.read_text)
            assert agent.metrics()["turns_total"] - turns < 40, "a second of waiting for it takes processor time"
            assert agent.metrics()["marks_total"] == 0
            out.sendto(b"x", (RECEIVER, 9003))
            wait_until(lambda: agent.metrics()["marks_total"] == 1, DEADLINE_SECONDS, agent.log.read_text)


def test_a_sender_is_paced_and_let_loose_in_mid_flow(scene: Scene) -> None:
    _, scheduler, agent, one, other = scene
    scheduler.classify(FlowClass(one.flow, 7, RATE_BPS // 20))
    wait_until(lambda: share_of(one, other, 1_000_000) < 0.15, DEADLINE_SECONDS, agent.log.read_text)
    scheduler.classify(FlowClass(one.flow, 7))
    wait_until(lambda: share_of(one, other, 1_000_000) > UNPACED_SHARE, DEADLINE_SECONDS, agent.log.read_text)
    assert agent.metrics()["paces_total"] == 2


def test_data_that_goes_to_who_opened_the_connection_has_a_class_too(scene: Scene) -> None:
    hosts, scheduler, agent, one, _ = scene
    with closing(Transfer(hosts, 9003, opened_by_receiver=True)) as answering:
        assert answering.flow.source == SENDER
        scheduler.classify(FlowClass(answering.flow, 1))
        wait_until(lambda: share_of(answering, one) >= 0.85, DEADLINE_SECONDS, agent.log.read_text)


def test_backlogs_are_reported_and_end(scene: Scene) -> None:
    _, scheduler, _, one, other = scene

    def backlog() -> int:
        return sum(each.queued_bytes for each in scheduler.reports[-1].backlogs if each.destination == RECEIVER)

    wait_until(lambda: backlog() > 100_000, DEADLINE_SECONDS, lambda: str(scheduler.reports[-1]))
    sent = [each.sent_bytes for report in scheduler.reports for each in report.backlogs]
    assert sent == sorted(sent) and sent[-1] > 0
    one.close()
    other.close()
    reports = len(scheduler.reports)
    wait_until(lambda: len(scheduler.reports) > reports + 1 and backlog() == 0, DEADLINE_SECONDS,
               lambda: str(scheduler.reports[-1]))


def test_marking_takes_a_fraction_of_what_a_rule_takes(scene: Scene) -> None:
    hosts, _, _, one, _ = scene
    with inside(hosts.sender):
        marks = Marks()
    with closing(marks):
        took = []
        for number in range(200):
            began = time.perf_counter()
            assert marks.set(one.flow, mark_of(number % 8))
            took.append(time.perf_counter() - began)
        began = time.perf_counter()
        hosts.rules()
    assert sorted(took)[100] < (time.perf_counter() - began) / 2
