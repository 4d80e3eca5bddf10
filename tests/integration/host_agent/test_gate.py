"""Large flows wait for their turn, and for nothing else: real packets, real NFQUEUE, the agent's real death."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from speedwell.host_agent.channel import Slice, Turns
from tests.integration.host_agent.hosts import RECEIVER, SENDER, Agent, Hosts, Scheduler, agent_on_host
from tests.integration.host_agent.traffic import Datagrams
from tests.waiting import wait_until

pytestmark = pytest.mark.root
SECONDS = 1_000_000
DEADLINE_SECONDS = 20
PACKETS = 50
EARLY_SECONDS = 6
"""Well before the lease of ten seconds is over, on any machine."""
Held = tuple[Hosts, Scheduler, Agent]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    """Everything to the receiver waits, for ten seconds."""
    with agent_on_host(tmp_path, "--large", "1") as (hosts, scheduler, agent):
        hold(hosts, scheduler, 10 * SECONDS)
        yield hosts, scheduler, agent


def hold(hosts: Hosts, scheduler: Scheduler, lease_microseconds: int) -> None:
    scheduler.direct(Turns(RECEIVER, lease_microseconds))
    wait_until(lambda: RECEIVER in hosts.rules(), DEADLINE_SECONDS, hosts.rules)


@pytest.fixture
def datagrams(held: Held) -> Iterator[Datagrams]:
    """Fifty wait at the gate."""
    hosts, _, agent = held
    with closing(Datagrams(hosts)) as datagrams:
        datagrams.send(PACKETS)
        wait_until(lambda: hosts.waiting_packets() == PACKETS, DEADLINE_SECONDS, agent.log.read_text)
        assert not datagrams.arrived(1)()
        yield datagrams


def all_arrive(datagrams: Datagrams, count: int) -> None:
    wait_until(datagrams.arrived(count), DEADLINE_SECONDS, lambda: f"{len(datagrams.received)} arrived",
               interval_seconds=0.001)
    assert datagrams.received == list(range(count))


def test_an_agent_that_is_killed_loses_nothing_and_leaves_nothing(held: Held, datagrams: Datagrams) -> None:
    hosts, _, agent = held
    killed_at = time.monotonic()
    agent.send_signal(signal.SIGKILL)
    all_arrive(datagrams, PACKETS)
    assert datagrams.received_at[-1] - killed_at < EARLY_SECONDS
    datagrams.send(10)
    all_arrive(datagrams, PACKETS + 10)
    wait_until(lambda: "SPEEDWELL" not in hosts.rules() and "noqueue" in hosts.qdiscs(), DEADLINE_SECONDS,
               lambda: hosts.rules() + hosts.qdiscs())


def test_an_agent_that_stands_still_holds_nothing_until_it_goes_on(held: Held, datagrams: Datagrams) -> None:
    hosts, scheduler, agent = held
    stopped_at = time.monotonic()
    agent.send_signal(signal.SIGSTOP)
    all_arrive(datagrams, PACKETS)
    assert datagrams.received_at[-1] - stopped_at < EARLY_SECONDS
    datagrams.send(PACKETS)
    all_arrive(datagrams, 2 * PACKETS)
    agent.send_signal(signal.SIGCONT)
    reports = len(scheduler.reports)
    wait_until(lambda: len(scheduler.reports) > reports, DEADLINE_SECONDS, agent.log.read_text)
    scheduler.direct(Turns(RECEIVER, 10 * SECONDS))
    datagrams.send(PACKETS)
    wait_until(lambda: hosts.waiting_packets() == PACKETS, DEADLINE_SECONDS, agent.log.read_text)
    scheduler.direct(Turns(RECEIVER, 0))
    all_arrive(datagrams, 3 * PACKETS)


def test_an_agent_that_is_killed_while_it_stands_still_leaves_nothing(held: Held, datagrams: Datagrams) -> None:
    hosts, _, agent = held
    agent.send_signal(signal.SIGSTOP)
    agent.send_signal(signal.SIGKILL)
    all_arrive(datagrams, PACKETS)
    wait_until(lambda: "SPEEDWELL" not in hosts.rules(), DEADLINE_SECONDS, hosts.rules)


def test_a_guardian_that_is_killed_has_a_successor(held: Held, datagrams: Datagrams) -> None:
    _, _, agent = held
    os.kill(agent.guardian(), signal.SIGKILL)
    wait_until(lambda: agent.metrics()["guardian_deaths_total"] == 1, DEADLINE_SECONDS, agent.log.read_text)
    assert not datagrams.arrived(1)()
    agent.send_signal(signal.SIGKILL)
    all_arrive(datagrams, PACKETS)


def test_a_guardian_whose_successor_takes_longer_than_two_slices_costs_no_packet(tmp_path: Path) -> None:
    with agent_on_host(tmp_path, "--large", "1", slice_microseconds=10_000) as (hosts, scheduler, agent), \
            closing(Datagrams(hosts)) as datagrams:
        hold(hosts, scheduler, 10 * SECONDS)
        datagrams.send(PACKETS)
        os.kill(agent.guardian(), signal.SIGKILL)
        wait_until(lambda: agent.metrics()["guardian_deaths_total"] == 1, DEADLINE_SECONDS, agent.log.read_text)
        scheduler.direct(Turns(RECEIVER, 0))
        all_arrive(datagrams, PACKETS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_agent_that_is_ended_lets_go_and_takes_all_it_made_away(
        held: Held, datagrams: Datagrams, number: signal.Signals) -> None:
    hosts, _, agent = held
    agent.send_signal(number)
    assert agent.process.wait(DEADLINE_SECONDS) == 0
    all_arrive(datagrams, PACKETS)
    assert "SPEEDWELL" not in hosts.rules() and "noqueue" in hosts.qdiscs()


def test_an_agent_takes_all_away_itself_if_its_guardian_stands_still(held: Held, datagrams: Datagrams) -> None:
    hosts, _, agent = held
    os.kill(agent.guardian(), signal.SIGSTOP)
    agent.send_signal(signal.SIGTERM)
    assert agent.process.wait(DEADLINE_SECONDS) == 0
    all_arrive(datagrams, PACKETS)
    assert "SPEEDWELL" not in hosts.rules() and "noqueue" in hosts.qdiscs()


def test_what_waits_goes_in_its_slice_and_not_before(held: Held, datagrams: Datagrams) -> None:
    _, scheduler, _ = held
    directed_at = time.monotonic()
    scheduler.direct(Turns(RECEIVER, 10 * SECONDS, (Slice(300_000, 5 * SECONDS),)))
    all_arrive(datagrams, PACKETS)
    assert datagrams.received_at[0] - directed_at >= 0.3


def test_a_slice_with_a_rate_spreads_what_waits(held: Held, datagrams: Datagrams) -> None:
    _, scheduler, _ = held
    scheduler.direct(Turns(RECEIVER, 10 * SECONDS, (Slice(0, 9 * SECONDS, 800_000),)))
    all_arrive(datagrams, PACKETS)
    took = datagrams.received_at[-1] - datagrams.received_at[0]
    assert took >= (PACKETS - 2) * 1028 * 8 / 800_000, "50 kB at 100 kB a second"


def test_a_lease_that_nobody_renews_runs_out(tmp_path: Path) -> None:
    with agent_on_host(tmp_path, "--large", "1") as (hosts, scheduler, _), closing(Datagrams(hosts)) as datagrams:
        hold(hosts, scheduler, 2 * SECONDS)
        directed_at = time.monotonic()
        scheduler.direct(Turns(RECEIVER, 2 * SECONDS))
        scheduler.stop()
        datagrams.send(PACKETS)
        all_arrive(datagrams, PACKETS)
        assert datagrams.received_at[0] - directed_at >= 2


def test_packets_that_wait_when_the_scheduler_dies_go_when_their_lease_is_over(
        tmp_path: Path) -> None:
    slice_microseconds = 200_000
    with agent_on_host(tmp_path, "--large", "1", slice_microseconds=slice_microseconds) as (
            hosts, scheduler, agent), closing(Datagrams(hosts)) as datagrams:
        hold(hosts, scheduler, 10 * SECONDS)
        datagrams.send(PACKETS)
        wait_until(lambda: hosts.waiting_packets() == PACKETS, DEADLINE_SECONDS, agent.log.read_text)
        scheduler.direct(Turns(RECEIVER, 3 * slice_microseconds))
        scheduler.fall_silent()
        died_at = time.monotonic()
        all_arrive(datagrams, PACKETS)
        assert 0.5 < datagrams.received_at[0] - died_at < EARLY_SECONDS
        datagrams.send(10)
        all_arrive(datagrams, PACKETS + 10)


def test_small_flows_and_other_destinations_pass(tmp_path: Path) -> None:
    with agent_on_host(tmp_path) as (hosts, scheduler, agent), closing(Datagrams(hosts)) as datagrams:
        hold(hosts, scheduler, 10 * SECONDS)
        datagrams.send(40)
        all_arrive(datagrams, 40)
        assert agent.metrics()["packets_total"] == 0
        datagrams.send(80)
        wait_until(hosts.waiting_packets, DEADLINE_SECONDS, "the flow is large by now, and does not wait")
        assert "1 received" in hosts.on(hosts.sender, "ping", "-c", "1", "-W", "5", RECEIVER)


def test_connections_of_the_first_class_never_wait(tmp_path: Path) -> None:
    with agent_on_host(tmp_path, "--large", "1") as (hosts, scheduler, _), closing(Datagrams(hosts)) as datagrams:
        hosts.on(hosts.sender, "iptables", "-t", "mangle", "-A", "OUTPUT", "-p", "udp", "-m", "multiport",
                 "--ports", "9000", "-j", "CONNMARK", "--set-xmark", "0x1000000/0xf000000")
        hold(hosts, scheduler, 10 * SECONDS)
        sent_at = time.monotonic()
        datagrams.send(PACKETS)
        all_arrive(datagrams, PACKETS)
        assert datagrams.received_at[-1] - sent_at < EARLY_SECONDS


def test_a_rule_goes_when_nobody_needs_it(tmp_path: Path) -> None:
    with agent_on_host(tmp_path, "--large", "1") as (hosts, scheduler, agent):
        hold(hosts, scheduler, SECONDS // 10)
        wait_until(lambda: RECEIVER not in hosts.rules(), DEADLINE_SECONDS, hosts.rules)
        wait_until(lambda: agent.metrics()["destinations"] == 0, DEADLINE_SECONDS, agent.log.read_text)


def test_what_is_replayed_altered_or_foreign_is_refused_and_counted(held: Held) -> None:
    _, scheduler, agent = held
    directive = scheduler.sent[-1]
    refused = {reason: agent.metrics().get(f'refused_total{{reason="{reason}"}}', 0.0)
               for reason in ("replayed", "unauthentic", "foreign", "malformed")}
    assert not any(refused.values())
    scheduler.send(directive)
    scheduler.send(directive[:30] + bytes([directive[30] ^ 1]) + directive[31:])
    scheduler.send(b"anything")
    wait_until(lambda: agent.metrics().get('refused_total{reason="malformed"}'), DEADLINE_SECONDS, "not counted")
    metrics = agent.metrics()
    assert [metrics[f'refused_total{{reason="{reason}"}}'] for reason in ("replayed", "unauthentic")] == [1, 1]
    assert SENDER == "10.77.0.1" and metrics["registered"] == 1
