"""`up --host-agents`: agents and their scheduler on a fabric come up, are told of, come back, and go."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import host_agents
from cluster.errors import NotRunning
from cluster.fabric import MACHINE, read_settings
from cluster.processes import Processes
from cluster.supervisor import down, up
from tests.integration.cluster.speedwell import Speedwell
from tests.machine_state import left_on_machine
from tests.waiting import wait_until
from topo.emulation.processes import in_namespace
from topo.fabric import spine_leaf

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

FABRIC = spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=20e6)
SECONDS = 90.0
"""How long anything may take where the machine is busy elsewhere."""
NAMES = [f"agent-{name}" for name in (*(host.name for host in FABRIC.hosts), "machine")]


class Installation:
    def __init__(self, folder: Path) -> None:
        self.directory = folder / "cluster"
        self._speedwell = Speedwell(folder / "state")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPEEDWELL_STATE_DIRECTORY", str(folder / "state"))
            self.description = up(read_settings(fabric=FABRIC, directory=self.directory, machine=True,
                                                host_agents="xco-plus"))

    def entering(self, host: str, *command: str) -> list[str]:
        return in_namespace(self.description["hosts"][host]["pid"], command)

    def on(self, host: str, *command: str) -> str:
        return subprocess.run(self.entering(host, *command), check=True, capture_output=True, text=True,
                              timeout=60).stdout

    @contextlib.contextmanager
    def running(self, host: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(self.entering(host, *command), stdout=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def turns(self) -> dict[str, int]:
        """As the scheduler tells them."""
        with contextlib.suppress(NotRunning):
            return host_agents.turns(f"http://{MACHINE}:{host_agents.METRICS_PORT}/metrics")
        return {}

    def states(self) -> dict[str, str]:
        """As `speedwell status` tells them."""
        told: dict[str, Any] = json.loads(self._speedwell.run("status", "--json", "--installation",
                                                              str(self.directory)).stdout)
        return {each["name"]: told["roles"].get(each["address"], "") for each in told["processes"] if each["alive"]}

    def pinned_packets(self, switch: str) -> dict[tuple[str, str], int]:
        """Of pairs that have an entry there."""
        place = f"unix:{self.directory}/switches/{switch}/br0.mgmt"
        entries = subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", place,
                                  "cookie=0x5750000000000000/0xffff000000000000"], check=True, capture_output=True,
                                 text=True, timeout=60).stdout
        found = re.findall(r"n_packets=(\d+).*nw_src=([\d.]+),nw_dst=([\d.]+)", entries)
        return {(source, destination): int(packets) for packets, source, destination in found}

    def wait_until_all_are_free(self) -> None:
        wait_until(lambda: sorted(self.turns().values()) == [0] * len(NAMES), SECONDS, lambda: str(self.turns()))

    def kill(self, name: str) -> None:
        record = Processes(self.directory).find(name)
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)

        def is_ready_again() -> bool:
            now = Processes(self.directory).find(name)
            return now is not None and now.pid != record.pid and bool(now.address)

        wait_until(is_ready_again, SECONDS, f"{name} is not started again")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder, before = tmp_path_factory.mktemp("agents"), left_on_machine()
    try:
        installation = Installation(folder)
        yield installation
    finally:
        with contextlib.suppress(NotRunning):
            down()
    assert left_on_machine() == before
    assert not list(installation.directory.rglob("*.key"))


def test_each_agent_has_a_key_of_its_own_that_only_root_reads(installation: Installation) -> None:
    keys = list(installation.directory.rglob("agent-keys/*.key"))
    assert len(keys) == len(NAMES) + 1
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert len({key.read_text() for key in keys}) == len(keys)


def test_status_shows_agents_their_state_and_the_scheduler(installation: Installation) -> None:
    installation.wait_until_all_are_free()
    states = installation.states()
    assert states[host_agents.SCHEDULER] == f"hears {len(NAMES)} agents"
    assert {name: states[name] for name in NAMES} == dict.fromkeys(NAMES, "free")


def test_senders_to_one_host_get_turns_on_pinned_paths_whatever_dies_meanwhile(installation: Installation) -> None:
    installation.wait_until_all_are_free()
    *senders, receiver = FABRIC.hosts
    across = {(sender.ip, receiver.ip) for sender in senders if sender.rack != receiver.rack}
    sending = []

    def have_all_turns() -> bool:
        turns = installation.turns()
        return all(turns.get(sender.ip) == 1 for sender in senders)

    def are_all_pinned() -> bool:
        return across == {pair for pair, packets in installation.pinned_packets("leaf0").items() if packets > 10}

    with contextlib.ExitStack() as stack:
        for number, sender in enumerate(senders, 5301):
            stack.enter_context(installation.running(receiver.name, "iperf3", "-s", "-p", str(number)))
            wait_until(lambda port=number: f":{port}" in installation.on(receiver.name, "ss", "-ltn"), SECONDS,
                       "iperf3 does not listen")
            sending.append(stack.enter_context(installation.running(
                sender.name, "iperf3", "-c", receiver.ip, "-p", str(number), "-t", "600")))
        for name in ("", host_agents.SCHEDULER, "controller"):
            if name:
                installation.kill(name)
            wait_until(have_all_turns, SECONDS, lambda: str(installation.turns()))
            wait_until(are_all_pinned, SECONDS, lambda: str(installation.pinned_packets("leaf0")))
        assert [each.poll() for each in sending] == [None] * len(senders)
    installation.wait_until_all_are_free()
    wait_until(lambda: not installation.pinned_packets("leaf0"), SECONDS, "pairs stay pinned")


def test_an_agent_that_is_killed_comes_back(installation: Installation) -> None:
    installation.wait_until_all_are_free()
    installation.kill(NAMES[0])
    installation.wait_until_all_are_free()
    assert "SPEEDWELL-GATE" in installation.on(FABRIC.hosts[0].name, "iptables", "-t", "mangle", "-S")
