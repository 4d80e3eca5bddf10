"""Two hosts in network namespaces of their own, the agent of the first, and the scheduler it listens to."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from pyroute2 import netns

from speedwell.coflow.report import Flow
from speedwell.host_agent.channel import BacklogReport, FlowClass, Registration, Turns, agent_key
from speedwell.host_agent.session import SchedulerEnd
from speedwell.topo.emulation import congestion_control
from tests.waiting import wait_until

MASTER = secrets.token_bytes(32)
SENDER, RECEIVER = "10.77.0.1", "10.77.0.2"
SLICE_MICROSECONDS = 500_000
"""The guardian waits for two: an agent that a busy machine does not let run must not pass for a stopped one."""
RATE_BPS = 20_000_000


class Hosts:
    """Joined by one link."""

    def __init__(self) -> None:
        name = f"ag{os.getpid()}-{secrets.token_hex(3)}"
        self.sender, self.receiver = f"{name}a", f"{name}b"
        self.uplink = f"v{secrets.token_hex(4)}"

    def __enter__(self) -> Self:
        algorithm, take_back = congestion_control.choose(None)
        peer = f"{self.uplink}p"
        for each in (self.sender, self.receiver):
            run("ip", "netns", "add", each)
        run("ip", "link", "add", self.uplink, "netns", self.sender, "type", "veth", "peer", "name", peer,
            "netns", self.receiver)
        for host, interface, address in ((self.sender, self.uplink, SENDER), (self.receiver, peer, RECEIVER)):
            self.on(host, "ip", "addr", "add", f"{address}/24", "dev", interface)
            self.on(host, "ip", "link", "set", "lo", "up")
            self.on(host, "ip", "link", "set", interface, "up")
            self.on(host, "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={algorithm}")
        take_back()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 at: TracebackType | None) -> None:
        for each in (self.sender, self.receiver):
            subprocess.run(["ip", "netns", "del", each], check=False)

    @staticmethod
    def on(host: str, *command: str) -> str:
        return run(*entering(host), *command)

    def rules(self) -> str:
        return self.on(self.sender, "iptables", "-t", "mangle", "-S")

    def qdiscs(self) -> str:
        return self.on(self.sender, "tc", "qdisc", "show", "dev", self.uplink)

    def waiting_packets(self) -> int:
        lines = self.on(self.sender, "cat", "/proc/net/netfilter/nfnetlink_queue").splitlines()
        return sum(int(line.split()[2]) for line in lines)


def entering(host: str) -> list[str]:
    """What a command begins with that runs there. `ip netns exec` mounts file systems, which a chroot refuses."""
    return ["nsenter", f"--net=/run/netns/{host}"]


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout


@contextmanager
def inside(host: str) -> Iterator[None]:
    """What this thread opens belongs to a namespace."""
    netns.pushns(host)
    try:
        yield
    finally:
        netns.popns()


class Scheduler:
    """Says what a test tells it to, and is heard of often enough."""

    def __init__(self, host: str, port: int = 0, slice_microseconds: int = SLICE_MICROSECONDS) -> None:
        with inside(host):
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", port))
        self._socket.settimeout(0.1)
        self.port = self._socket.getsockname()[1]
        self.end = SchedulerEnd(MASTER, slice_microseconds)
        self.reports: list[BacklogReport] = []
        self.sent: list[bytes] = []
        self.classes: dict[Flow, FlowClass] = {}
        """That the agent is told each second."""
        self._agent: tuple[str, int] | None = None
        self._is_stopped = self._is_silent = False
        self._saying = threading.Lock()
        """What is numbered first is sent first."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        spoken_at = classified_at = 0.0
        while not self._is_stopped:
            with suppress(TimeoutError):
                self._hear(*self._socket.recvfrom(2000))
            if self.reports and time.monotonic() - spoken_at > 0.2:
                spoken_at = time.monotonic()
                self.direct()
            if self.classes and time.monotonic() - classified_at > 1.0:
                classified_at = time.monotonic()
                self.classify()

    def _hear(self, datagram: bytes, source: tuple[str, int]) -> None:
        message = self.end.take(datagram)
        if isinstance(message, Registration):
            self._agent = source
            if welcome := self.end.welcome(message, secrets.randbits(63) + 1, time.monotonic()):
                self._socket.sendto(welcome, source)
        elif message is not None:
            self.reports.append(message)

    def direct(self, *turns: Turns) -> None:
        with self._saying:
            self._say(self.end.directive(SENDER, turns))

    def classify(self, *flows: FlowClass) -> None:
        """These from now on, and all that were named before again."""
        with self._saying:
            self.classes |= {each.flow: each for each in flows}
            self._say(self.end.flow_classes(SENDER, tuple(self.classes.values())))

    def fall_silent(self) -> None:
        """As one that is killed: not a word more."""
        with self._saying:
            self._is_silent = True

    def _say(self, datagram: bytes) -> None:
        if self._is_silent:
            return
        self.sent.append(datagram)
        self.send(datagram)

    def send(self, datagram: bytes) -> None:
        assert self._agent is not None
        self._socket.sendto(datagram, self._agent)

    def stop(self) -> None:
        self._is_stopped = True
        self._thread.join()
        self._socket.close()


class Agent:
    """The agent's process on the sender, registered."""

    def __init__(self, hosts: Hosts, scheduler: Scheduler, directory: Path, *options: str,
                 rate_bps: int | None = RATE_BPS) -> None:
        key = directory / "key"
        key.write_bytes(agent_key(MASTER, SENDER))
        self._hosts = hosts
        self.log = directory / "log"
        rate = () if rate_bps is None else ("--rate", str(rate_bps))
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*entering(hosts.sender), sys.executable, "-m", "speedwell.host_agent.main", "--address", SENDER,
                 "--scheduler", f"127.0.0.1:{scheduler.port}", "--key-file", str(key), "--metrics",
                 "127.0.0.1:9105", *rate, *options], stdout=log, stderr=log)
        wait_until(lambda: scheduler.reports, 20, self.log.read_text)

    def metrics(self) -> dict[str, float]:
        """By name and labels, without the prefix."""
        text = self._hosts.on(self._hosts.sender, "curl", "-s", "http://127.0.0.1:9105/metrics")
        lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
        return {name.removeprefix("speedwell_agent_"): float(value) for name, value in lines}

    def guardian(self) -> int:
        return int(run("pgrep", "-P", str(self.process.pid), "-f", "speedwell.host_agent.guardian"))

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """For good, whatever state it is in."""
        for number in (signal.SIGCONT, signal.SIGTERM):
            self.process.send_signal(number)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def agent_on_host(directory: Path, *options: str, slice_microseconds: int = SLICE_MICROSECONDS,
                  ) -> Iterator[tuple[Hosts, Scheduler, Agent]]:
    with ExitStack() as stack:
        hosts = stack.enter_context(Hosts())
        scheduler = Scheduler(hosts.sender, slice_microseconds=slice_microseconds)
        stack.callback(scheduler.stop)
        agent = Agent(hosts, scheduler, directory, *options)
        stack.callback(agent.end)
        yield hosts, scheduler, agent
