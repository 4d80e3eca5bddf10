"""What an agent finds on a host, and what it refuses to begin with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedwell.fs.identity import files
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.roles import DATASERVER, MOUNT, READER
from tests.integration.host_agent.hosts import SENDER, Agent, Hosts, Scheduler, entering
from tests.waiting import wait_until

pytestmark = pytest.mark.root
DEADLINE_SECONDS = 20


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts() as hosts:
        yield hosts


@contextmanager
def running(hosts: Hosts, directory: Path, rate_bps: int | None, *options: str) -> Iterator[Agent]:
    scheduler = Scheduler(hosts.sender)
    agent = Agent(hosts, scheduler, directory, *options, rate_bps=rate_bps)
    try:
        yield agent
    finally:
        agent.end()
        scheduler.stop()


def shape(hosts: Hosts) -> str:
    shown = hosts.qdiscs() + hosts.on(hosts.sender, "tc", "-d", "class", "show", "dev", hosts.uplink)
    return re.sub(r"(refcnt|direct_packets_stat) \d+", "", shown)


def limit(hosts: Hosts) -> None:
    """As emulated hosts are."""
    uplink = hosts.uplink
    for line in (f"qdisc add dev {uplink} root handle 1: htb default 1",
                 f"class add dev {uplink} parent 1: classid 1:1 htb rate 8mbit burst 18000 cburst 18000 quantum 9000",
                 f"qdisc add dev {uplink} parent 1:1 handle 10: pfifo limit 20"):
        hosts.on(hosts.sender, "tc", *line.split())


def test_beyond_loopback_its_metrics_are_for_readers_of_the_installation(hosts: Hosts, tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "identity")
    authority.ensure([(role, role) for role in (DATASERVER, MOUNT, READER)])
    shown = {role: authority.directory / role / files.CERTIFICATE for role in (MOUNT, READER)}

    def ask(*options: str) -> str:
        return hosts.on(hosts.sender, "curl", "-sk", "--max-time", "20", *options, f"https://{SENDER}:9106/metrics")

    with running(hosts, tmp_path, 8_000_000, "--metrics", "0.0.0.0:9106",
                 "--identity", str(authority.directory / DATASERVER)):
        assert "speedwell_agent_held_bytes" in ask("--cert", str(shown[READER]))
        for options in (("--cert", str(shown[MOUNT])), ()):
            assert "speedwell_agent" not in ask(*options)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_limited_uplink_is_divided_and_then_as_it_was(hosts: Hosts, tmp_path: Path, number: signal.Signals) -> None:
    limit(hosts)
    before = shape(hosts)
    with running(hosts, tmp_path, None) as agent:
        assert f"{SENDER} {hosts.uplink} 8000000" in agent.log.read_text()
        assert "1:17" in shape(hosts)
        agent.send_signal(number)
        wait_until(lambda: shape(hosts) == before, DEADLINE_SECONDS, lambda: shape(hosts))


def test_what_an_agent_left_that_died_with_its_guardian_is_taken_over(hosts: Hosts, tmp_path: Path) -> None:
    limit(hosts)
    with running(hosts, tmp_path, None) as agent:
        guardian = agent.guardian()
        os.kill(guardian, signal.SIGSTOP)
        agent.send_signal(signal.SIGKILL)
        os.kill(guardian, signal.SIGKILL)
        agent.process.wait()
    assert "SPEEDWELL" in hosts.rules()
    with running(hosts, tmp_path, None, "--large", "5000") as agent:
        assert f"{SENDER} {hosts.uplink} 8000000" in agent.log.read_text()
        assert hosts.rules().count("-j SPEEDWELL-CLASS") == hosts.rules().count("-j SPEEDWELL-GATE") == 1
    assert "SPEEDWELL" not in hosts.rules()
    assert re.findall(r"class htb (\S+) root.* rate (\S+)", shape(hosts)) == [("1:1", "8Mbit")]
    assert shape(hosts).count("class htb") == 1


def refusal(hosts: Hosts, directory: Path, *options: str, command: tuple[str, ...] = ()) -> str:
    """The one line that an agent says which does not start."""
    key = directory / "another-key"
    key.write_text("k" * 32)
    done = subprocess.run(
        [*entering(hosts.sender), *command, sys.executable, "-m", "speedwell.host_agent.main", "--address", SENDER,
         "--scheduler", "127.0.0.1:1", "--key-file", str(key), *options], capture_output=True, text=True, timeout=30,
        check=False)
    assert done.returncode in (1, 2) and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_one_line_says_why_an_agent_does_not_start(hosts: Hosts, tmp_path: Path) -> None:
    before = shape(hosts), hosts.rules()
    assert "--rate" in refusal(hosts, tmp_path)
    assert "no interface" in refusal(hosts, tmp_path, "--address", "10.99.0.1")
    assert "--metrics: cannot listen" in refusal(hosts, tmp_path, "--rate", "8000000", "--metrics", "192.0.2.1:9105",
                                                 "--insecure=fabric")
    wait_until(lambda: (shape(hosts), hosts.rules()) == before, DEADLINE_SECONDS, hosts.rules)
    assert "iptables is missing" in refusal(hosts, tmp_path, "--rate", "8000000", command=("env", "PATH=/nowhere"))
    assert (shape(hosts), hosts.rules()) == before
    hosts.on(hosts.sender, "tc", "qdisc", "add", "dev", hosts.uplink, "root", "tbf", "rate", "8mbit", "burst", "9000",
             "limit", "90000")
    assert "has a qdisc of its own (tbf" in refusal(hosts, tmp_path, "--rate", "8000000")


def test_a_second_agent_of_a_host_is_refused_and_the_first_goes_on(hosts: Hosts, tmp_path: Path) -> None:
    with running(hosts, tmp_path, 8_000_000) as agent:
        before = shape(hosts), hosts.rules()
        assert "another agent" in refusal(hosts, tmp_path)
        assert (shape(hosts), hosts.rules()) == before and agent.metrics()["registered"] == 1


def test_a_guardian_that_dies_while_nothing_is_held_has_a_successor_too(hosts: Hosts, tmp_path: Path) -> None:
    with running(hosts, tmp_path, 8_000_000) as agent:
        os.kill(agent.guardian(), signal.SIGKILL)
        wait_until(lambda: agent.metrics()["guardian_deaths_total"] == 1, DEADLINE_SECONDS, agent.log.read_text)
        agent.send_signal(signal.SIGKILL)
        wait_until(lambda: "SPEEDWELL" not in hosts.rules(), DEADLINE_SECONDS, hosts.rules)


def test_an_agent_registers_anew_with_a_scheduler_that_comes_back(hosts: Hosts, tmp_path: Path) -> None:
    first = Scheduler(hosts.sender)
    agent = Agent(hosts, first, tmp_path)
    first.stop()
    second = Scheduler(hosts.sender, first.port)
    try:
        wait_until(lambda: second.reports, DEADLINE_SECONDS, agent.log.read_text)
    finally:
        agent.end()
        second.stop()
