"""Three hosts send to one through a switch port with a shallow buffer: with the scheduler and agents, and without."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from speedwell.host_agent.channel import agent_key
from speedwell.topo.emulation import congestion_control
from tests.integration.host_agent.hosts import entering, run
from tests.waiting import wait_until

pytestmark = pytest.mark.root

RATE_BPS = 20_000_000
BUFFER_PACKETS = 20
SECONDS = 5
TRIES = 3
MASTER = secrets.token_hex(32)
SENDERS, RECEIVER, SWITCH = ("10.78.0.1", "10.78.0.2", "10.78.0.3"), "10.78.0.9", "10.78.0.254"


class Star:
    """Hosts in namespaces of their own around a bridge, whose port to the receiver is the bottleneck."""

    def __init__(self) -> None:
        self._name = f"ts{os.getpid()}-{secrets.token_hex(2)}"
        self.switch = f"{self._name}s"
        self._hosts = {address: f"{self._name}{number}" for number, address in enumerate((*SENDERS, RECEIVER))}
        self._receivers_port = ""

    def __enter__(self) -> Star:
        algorithm, take_back = congestion_control.choose(None)
        run("ip", "netns", "add", self.switch)
        self.on(self.switch, "ip", "link", "add", "br0", "type", "bridge")
        for address, host in self._hosts.items():
            run("ip", "netns", "add", host)
            name = f"v{secrets.token_hex(4)}"
            run("ip", "link", "add", name, "netns", host, "type", "veth", "peer", "name", f"{name}p", "netns",
                self.switch)
            self.on(self.switch, "ip", "link", "set", f"{name}p", "master", "br0", "up")
            self.on(host, "ip", "addr", "add", f"{address}/24", "dev", name)
            self.on(host, "ip", "link", "set", "lo", "up")
            self.on(host, "ip", "link", "set", name, "gso_max_size", "1600", "up")
            self.on(host, "ethtool", "-K", name, "tso", "off", "gso", "off")
            self.on(host, "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={algorithm}")
            self._receivers_port = f"{name}p"
            port, rate = f"{name}p" if address == RECEIVER else name, f"{RATE_BPS}bit"
            shaped = self.switch if address == RECEIVER else host
            self.on(shaped, "tc", "qdisc", "add", "dev", port, "root", "handle", "1:", "htb", "default", "1")
            self.on(shaped, "tc", "class", "add", "dev", port, "parent", "1:", "classid", "1:1", "htb", "rate", rate,
                    "burst", "3200", "cburst", "3200")
            limit = BUFFER_PACKETS if address == RECEIVER else 200
            self.on(shaped, "tc", "qdisc", "add", "dev", port, "parent", "1:1", "pfifo", "limit", str(limit))
        self.on(self.switch, "ip", "link", "set", "lo", "up")
        self.on(self.switch, "ip", "addr", "add", f"{SWITCH}/24", "dev", "br0")
        self.on(self.switch, "ip", "link", "set", "br0", "up")
        take_back()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self._hosts.values(), self.switch):
            subprocess.run(["ip", "netns", "del", each], check=False)

    @staticmethod
    def on(host: str, *command: str) -> str:
        return run(*entering(host), *command)

    @contextmanager
    def running(self, place: str, *command: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen([*entering(self._hosts.get(place, place)), *command], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)

    def dropped(self) -> int:
        shown = json.loads(self.on(self.switch, "tc", "-s", "-j", "qdisc", "show", "dev", self._receivers_port))
        return sum(each["drops"] for each in shown if each["kind"] == "pfifo")

    def transfer(self) -> tuple[float, int]:
        """All senders at once: the part of the link that programs received, and the packets that the port dropped."""
        before = self.dropped()
        with ExitStack() as stack:
            for number, _ in enumerate(SENDERS):
                stack.enter_context(self.running(RECEIVER, "iperf3", "-s", "-1", "-p", str(5300 + number)))
            wait_until(lambda: self.on(self._hosts[RECEIVER], "ss", "-ltn").count(":530") == len(SENDERS), 10,
                       "iperf3 does not listen")
            clients = [stack.enter_context(self.running(sender, "iperf3", "-c", RECEIVER, "-p", str(5300 + number),
                                                        "-t", str(SECONDS), "-O", "1", "-J"))
                       for number, sender in enumerate(SENDERS)]
            said = [json.loads(client.communicate(timeout=60)[0]) for client in clients]
        received_bps = sum(each["end"]["sum_received"]["bits_per_second"] for each in said)
        return received_bps / RATE_BPS, self.dropped() - before

    def held_hosts(self) -> int:
        """Senders whose flows to the receiver go through a gate."""
        return sum(RECEIVER in self.on(self._hosts[sender], "iptables", "-t", "mangle", "-S") for sender in SENDERS)


@contextmanager
def coordinated(star: Star, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "v1").mkdir(parents=True)
    links = [{"source": a, "destination": b, "capacity_bps": RATE_BPS} for host in (*SENDERS, RECEIVER)
             for a, b in ((host, "0000000000000001"), ("0000000000000001", host))]
    (folder / "v1" / "network").write_text(json.dumps({"links": links}))
    (folder / "master.key").write_text(MASTER)
    python = sys.executable
    with ExitStack() as stack:
        stack.enter_context(star.running(star.switch, python, "-m", "http.server", "8080", "--bind", "127.0.0.1",
                                         "--directory", str(folder)))
        scheduler = stack.enter_context(star.running(
            star.switch, python, "-m", "speedwell.controller.timeslices.main", "--listen", f"{SWITCH}:6657",
            "--key-file", str(folder / "master.key"), *options))
        assert scheduler.stdout is not None and scheduler.stdout.readline().startswith("ready")
        for sender in SENDERS:
            key = folder / f"{sender}.key"
            key.write_bytes(agent_key(MASTER.encode(), sender))
            agent = stack.enter_context(star.running(
                sender, python, "-m", "speedwell.host_agent.main", "--address", sender,
                "--scheduler", f"{SWITCH}:6657", "--key-file", str(key)))
            assert agent.stdout is not None and agent.stdout.readline().startswith("ready")
        yield scheduler


def test_senders_in_turn_fill_the_link_and_lose_nearly_nothing(tmp_path: Path) -> None:
    """A machine that is busy elsewhere holds slices less closely for a while: senders have more than one try."""
    seen = []
    for number in range(TRIES):
        with Star() as star:
            _, dropped = star.transfer()
            with coordinated(star, tmp_path / str(number), "--slice-ms", "20"):
                used_in_turn, dropped_in_turn = star.transfer()
        seen.append((dropped, dropped_in_turn, used_in_turn))
        if dropped > 100 and dropped_in_turn < dropped / 2 and used_in_turn > 0.3:
            return
    pytest.fail(f"packets dropped without turns and in turn, and the part of the link used: {seen}")


def test_a_scheduler_that_is_killed_leaves_everything_flowing(tmp_path: Path) -> None:
    with Star() as star, coordinated(star, tmp_path, "--slice-ms", "20") as scheduler, ThreadPoolExecutor(1) as pool:
        transfer = pool.submit(star.transfer)
        wait_until(lambda: star.held_hosts() == len(SENDERS), 20, "not all senders are held")
        scheduler.kill()
        wait_until(lambda: star.held_hosts() == 0, 20, "somebody is held still")
        used, _ = transfer.result(60)
    assert used > 0.3
