"""Reads at a fixed number in flight: a controller's process, switches in another, and clients in this one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import Any

import requests

from speedwell.coflow import Flow, FlowReport, Report, encode
from speedwell.topo.fabric import Fabric

READ_BYTES = 256 << 20
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
START_SECONDS = 90.0
STALL_SECONDS = 30.0
COFLOW_EXPIRY_SECONDS = 60.0
FIRST_REPORTS_SECONDS = 10.0
ALL_REPORTED_SECONDS = 60.0
SETTLE_SECONDS = 5.0
REPLICAS = 64
ID = re.compile(rb'"id": ?"([0-9a-f]+)"')
LENGTH = re.compile(rb"content-length: ?(\d+)", re.IGNORECASE)


class BenchFailed(Exception):
    """The figure cannot be had; the message says why."""


class ControllerUnderTest:
    """`speedwell-controller` of a checkout, with all switches of a fabric connected to it."""

    def __init__(self, checkout: Path, fabric: Fabric, coflows: int, most_flows: int, options: Sequence[str] = (),
                 uneven: bool = False) -> None:
        self._processes = contextlib.ExitStack()
        self._coflows = None
        self._wanted_coflows = coflows
        options = list(options)
        if coflows:
            directory = Path(self._processes.enter_context(tempfile.TemporaryDirectory()))
            self._coflows = Coflows(coflows, [host.ip for host in fabric.hosts], directory)
            options += ["--config", str(self._coflows.config)]
        try:
            self._log = self._processes.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            # Python looks into the working directory first: this is the checkout's controller, not ours.
            main = "speedwell.controller.main" if (checkout / "speedwell").is_dir() else "controller.main"
            self.controller = self._start([sys.executable, "-c", f"from {main} import main; main()",
                                           "--openflow-port", "0", "--rest-port", "0", "--log-level", "warning",
                                           *options], checkout)
            ready = self._line(self.controller)
            addresses = dict(word.split("=") for word in ready.split()[1:])
            self.address = _host_port(addresses["rest"])
            openflow = _host_port(addresses["openflow"])
            switches = Path(__file__).with_name("openflow_switches.py")
            self.switches = self._start([sys.executable, str(switches), openflow[0], str(openflow[1]),
                                         str(most_flows), *(["uneven"] if uneven else [])], checkout)
            assert self.switches.stdin is not None
            self.switches.stdin.write(fabric.to_json().encode())
            self.switches.stdin.close()
            self._line(self.switches)
            if self._coflows:
                self._coflows.begin()
                self._processes.callback(self._coflows.stop)
        except BaseException:
            self.stop()
            raise

    def _start(self, command: list[str], directory: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=self._log, env={**os.environ, "SPEEDWELL_INSECURE": "loopback"})
        self._processes.callback(_end, process)
        return process

    def _line(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], START_SECONDS)[0]:
            raise BenchFailed(f"a process was not ready within {START_SECONDS:g} s: {self.log()}")
        line = process.stdout.readline().decode()
        if not line.startswith("ready"):
            raise BenchFailed(f"a process did not start: {self.log()}")
        return line

    def log(self) -> str:
        """The last of what the processes said."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]

    def stop(self) -> None:
        self._processes.close()

    def live_coflows(self) -> int:
        """How many the controller knows of."""
        if self._coflows is None:
            return 0
        with urllib.request.urlopen("http://{}:{}/metrics".format(*self.address), timeout=STALL_SECONDS) as answer:
            found = re.search(rb"^speedwell_coflows_live (\S+)", answer.read(), re.MULTILINE)
        return int(float(found[1])) if found else 0

    def wait_for_coflows(self) -> int:
        """Wait until the controller knows of all that are reported, or for a minute. Returns how many it knows of."""
        deadline = time.monotonic() + ALL_REPORTED_SECONDS
        while (live := self.live_coflows()) < self._wanted_coflows and time.monotonic() < deadline:
            time.sleep(0.5)
        return live

    def cpu_seconds(self) -> float:
        return _cpu_seconds(self.controller.pid)

    def switches_cpu_seconds(self) -> float:
        return _cpu_seconds(self.switches.pid)

    def find_hosts(self, hosts: Sequence[str], longest_seconds: float) -> None:
        """Have the controller find all hosts, many at once: it looks for the replicas that a read names."""
        url, deadline = "http://{}:{}".format(*self.address), time.monotonic() + longest_seconds
        while requests.get(f"{url}/v1/health", timeout=STALL_SECONDS).json()["hosts"] < len(hosts):
            if time.monotonic() > deadline:
                raise BenchFailed(f"the controller does not find all hosts: {self.log()}")
            for some in (hosts[begin:begin + REPLICAS] for begin in range(0, len(hosts), REPLICAS)):
                answer = requests.post(f"{url}/v1/reads", timeout=STALL_SECONDS, json={
                    "client": some[0], "client_ports": [19_999], "size_bytes": 1,
                    "replicas": [{"host": host, "port": 7100} for host in some[1:]]})
                if answer.status_code == HTTPStatus.CREATED:
                    requests.delete(f"{url}/v1/reads/{answer.json()['id']}", timeout=STALL_SECONDS)

    def resident_mib(self, most: bool = False) -> float:
        status = Path(f"/proc/{self.controller.pid}/status").read_text()
        found = re.search(rf"{'VmHWM' if most else 'VmRSS'}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024


class Coflows:
    """Coflows of one flow each that never end: every one is reported again and again, in a thread."""

    def __init__(self, count: int, hosts: list[str], directory: Path) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._key = os.urandom(16).hex().encode()
        (directory / "key").write_bytes(self._key)
        self.config = directory / "controller.toml"
        self.config.write_text(f'coflow_key_file = "{directory / "key"}"\ncoflow_port = {self._port}\n'
                               f"coflow_expiry_seconds = {COFLOW_EXPIRY_SECONDS}\ncoflow_stall_seconds = 3600.0\n")
        self._hosts = hosts
        self._count = count
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _report(self) -> None:
        sequence, round_seconds = 0, FIRST_REPORTS_SECONDS
        random = Random(self._count)
        flows = [Flow(*random.sample(self._hosts, 2), 1024 + number % 60_000, 9000) for number in range(self._count)]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while True:
                sequence += 1
                for number, flow in enumerate(flows):
                    now_microseconds = time.time_ns() // 1000
                    report = Report(number.to_bytes(16), number + 1, sequence, now_microseconds,
                                    (FlowReport(flow, READ_BYTES - sequence),))
                    sender.sendto(encode(report, self._key), ("127.0.0.1", self._port))
                    if self._stop.wait(round_seconds / self._count):
                        return
                round_seconds = COFLOW_EXPIRY_SECONDS / 3


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


@contextlib.contextmanager
def running(checkout: Path, fabric: Fabric, coflows: int, most_flows: int, options: Sequence[str] = (),
            uneven: bool = False) -> Iterator[ControllerUnderTest]:
    controller = ControllerUnderTest(checkout, fabric, coflows, most_flows, options, uneven)
    try:
        yield controller
    finally:
        controller.stop()


@dataclass
class Load:
    """What a phase with a number of reads in flight gave. Times in seconds."""

    in_flight: int
    wanted_rate: float | None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    post: list[float] = field(default_factory=list)
    delete: list[float] = field(default_factory=list)
    refused: int = 0

    def summary(self) -> dict[str, Any]:
        return {"in_flight": self.in_flight, "wanted_rate": self.wanted_rate, "seconds": self.seconds,
                "reads_per_second": len(self.post) / self.seconds, "refused": self.refused,
                "cpu_ms_per_read": 1000 * self.cpu_seconds / max(len(self.post), 1),
                "controller_cpu": self.cpu_seconds / self.seconds,
                "POST": milliseconds(self.post), "DELETE": milliseconds(self.delete)}


def milliseconds(seconds: list[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {}
    cuts = quantiles(seconds, n=100)
    return {"p50": 1000 * cuts[49], "p90": 1000 * cuts[89], "p99": 1000 * cuts[98], "slowest": 1000 * max(seconds)}


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    is_post: bool = False
    due_at: float = 0.0
    received: bytes = b""


class Clients:
    """Many keep-alive connections over which reads are placed and ended."""

    def __init__(self, controller: ControllerUnderTest, hosts: list[str], connections: int, replicas: int,
                 policies: dict[str, str], seed: int) -> None:
        self._controller = controller
        self._hosts = hosts
        self._replicas = replicas
        self._policies = policies
        self._random = Random(seed)
        self._ports = dict.fromkeys(hosts, 20_000)
        self._host_header = "{}:{}".format(*controller.address)
        self._poll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._idle: deque[_Connection] = deque()
        self.reads: deque[str] = deque()
        """The ids of the reads in flight, oldest first."""
        for _ in range(connections):
            connection = _Connection(socket.create_connection(controller.address))
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[connection.socket.fileno()] = connection
            self._poll.register(connection.socket, select.EPOLLIN)
            self._idle.append(connection)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.socket.close()
        self._poll.close()

    def run(self, in_flight: int, seconds: float, rate: float | None) -> Load:
        """Place reads for so long, and end as many, so that `in_flight` stay.

        `rate` reads begin each second, evenly, and count as late from the moment when each should have begun; None:
        as soon as a connection is free.
        """
        load = Load(in_flight, rate)
        cpu_before, begin = self._controller.cpu_seconds(), time.monotonic()
        self._drive(load, in_flight, rate, begin, begin + seconds)
        load.seconds = time.monotonic() - begin
        load.cpu_seconds = self._controller.cpu_seconds() - cpu_before
        self._drain(load)
        return load

    def fill(self, in_flight: int, longest_seconds: float) -> Load:
        """Place reads until so many are in flight, or the time is over."""
        load = Load(in_flight, None)
        cpu_before, begin = self._controller.cpu_seconds(), time.monotonic()
        while len(self.reads) + self._busy() < in_flight and time.monotonic() - begin < longest_seconds:
            while self._idle and len(self.reads) + self._busy() < in_flight:
                self._post(time.monotonic())
            self._wait(load, 1.0)
        self._drain(load)
        load.seconds = time.monotonic() - begin
        load.cpu_seconds = self._controller.cpu_seconds() - cpu_before
        return load

    def _busy(self) -> int:
        return len(self._connections) - len(self._idle)

    def _drive(self, load: Load, in_flight: int, rate: float | None, begin: float, end: float) -> None:
        started = 0
        while (now := time.monotonic()) < end:
            while self._idle:
                if len(self.reads) > in_flight:
                    self._delete(now)
                elif rate is None:
                    self._post(now)
                elif begin + started / rate <= now:
                    self._post(begin + started / rate)
                    started += 1
                else:
                    break
            next_due = end if rate is None or not self._idle else min(begin + started / rate, end)
            self._wait(load, max(next_due - time.monotonic(), 0.0))

    def _drain(self, load: Load) -> None:
        begin = time.monotonic()
        while self._busy():
            self._wait(load, 1.0)
            if time.monotonic() - begin > STALL_SECONDS:
                raise BenchFailed(f"no answer for {STALL_SECONDS:g} s: {self._controller.log()}")

    def _post(self, due_at: float) -> None:
        client, *replicas = self._random.sample(self._hosts, self._replicas + 1)
        self._ports[client] = self._ports[client] + 1 if self._ports[client] < 65_000 else 20_000
        self._send_post(client, self._ports[client], replicas, due_at)

    def _send_post(self, client: str, port: int, replicas: list[str], due_at: float) -> None:
        body = json.dumps({"client": client, "client_ports": [port], "size_bytes": READ_BYTES, **self._policies,
                           "replicas": [{"host": host, "port": 7100} for host in replicas]})
        self._ask(f"POST /v1/reads HTTP/1.1\r\nHost: {self._host_header}\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n{body}", due_at, is_post=True)

    def _delete(self, now: float) -> None:
        self._ask(f"DELETE /v1/reads/{self.reads.popleft()} HTTP/1.1\r\nHost: {self._host_header}\r\n\r\n", now,
                  is_post=False)

    def _ask(self, request: str, due_at: float, is_post: bool) -> None:
        connection = self._idle.popleft()
        connection.is_post, connection.due_at, connection.received = is_post, due_at, b""
        connection.socket.sendall(request.encode())

    def _wait(self, load: Load, seconds: float) -> None:
        for number, _ in self._poll.poll(seconds):
            connection = self._connections[number]
            data = connection.socket.recv(65536)
            if not data:
                raise BenchFailed(f"the controller closed a connection: {self._controller.log()}")
            connection.received += data
            head, separator, body = connection.received.partition(b"\r\n\r\n")
            length = LENGTH.search(head)
            if not separator or len(body) < (int(length[1]) if length else 0):
                continue
            now = time.monotonic()
            self._idle.append(connection)
            self._answered(load, connection, int(head[9:12]), body, now - connection.due_at)

    def _answered(self, load: Load, connection: _Connection, status: int, body: bytes, seconds: float) -> None:
        if not connection.is_post and status == 204:
            load.delete.append(seconds)
        elif connection.is_post and status == 201:
            load.post.append(seconds)
            found = ID.search(body)
            assert found is not None
            self.reads.append(found[1].decode())
        else:
            load.refused += 1

    def meet_all(self, longest_seconds: float = 60.0) -> None:
        """Let the controller find every host: it asks for those it does not know."""
        deadline = time.monotonic() + longest_seconds
        for number, host in enumerate(self._hosts):
            other = self._hosts[number - 1]
            while True:
                load = Load(0, None)
                self._send_post(host, 19_999, [other], time.monotonic())
                self._drain(load)
                if load.post:
                    break
                if time.monotonic() > deadline:
                    raise BenchFailed(f"the controller does not find {host}: {self._controller.log()}")
                time.sleep(0.1)
        while self.reads:
            self._delete(time.monotonic())
            self._drain(Load(0, None))
