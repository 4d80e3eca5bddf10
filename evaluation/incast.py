"""What one host asks of many at once, on an emulated fabric: what arrives, what the last port drops, how long a ping
takes meanwhile, and what leaves senders outside their slices. `scripts/bench-turns` prints it."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from typing import Any, Protocol

from speedwell.cluster.errors import ClusterError
from speedwell.cluster.fabric import NAMESERVER, SECURE_CONTROLLER_URL, FabricCluster
from speedwell.cluster.host_agents import KEYS, PORT, key_file
from speedwell.cluster.processes import program
from speedwell.host_agent.channel import Directive, Turns, decode
from speedwell.host_agent.errors import InvalidDatagram
from speedwell.host_agent.realtime import run_before_all_others
from speedwell.host_agent.uplink import ACK_BYTES
from speedwell.topo.emulation.management import NODE_INTERFACE
from speedwell.topo.fabric import Fabric, Host, spine_leaf
from speedwell.topo.network_namespace import enter

FIRST_PORT = 5400
BLOCK_BYTES = 128 << 10
PING_SECONDS = 0.02
WARM_UP_SECONDS = 2.0
ALONE_SECONDS = 10.0
STALL_SECONDS = 20.0
SO_RCVBUFFORCE, SO_TIMESTAMPNS, ETH_P_ALL, ETH_P_IP, UDP = 33, 35, 3, 0x0800, 17


@dataclass(frozen=True)
class Outcome:
    """`used` is the part of the receiver's link that programs got; pings are in ms, `alone` before anybody sends;
    `outside` is the part of what was sent in turns that left outside its slice, None where nobody had turns."""

    used: float
    dropped_packets: int
    ping_median_ms: float
    ping_p99_ms: float
    alone_p99_ms: float
    outside: float | None


def fabric_of(senders: int, host_bps: float) -> Fabric:
    """The receiver and the one that pings in one rack, the senders in others; only the receiver's link is narrow."""
    per_rack = max(2, -(-senders // 3))
    return spine_leaf(leaves=1 + -(-senders // per_rack), spines=2, hosts_per_leaf=per_rack, host_bps=host_bps,
                      oversubscription=1.0)


def measure(cluster: FabricCluster, senders: int, seconds: float, load: str = "blocks",
            block_bytes: int = BLOCK_BYTES) -> Outcome:
    """With a load of `LOADS`. Raises OSError if the hosts do not reach each other, ClusterError if a file cannot be
    stored."""
    fabric = cluster.settings.fabric
    receiver, pinging, *_ = fabric.hosts
    sending = [host for host in fabric.hosts if host.rack != receiver.rack][:senders]
    asked, ended = LOADS[load](cluster, receiver, sending, block_bytes), threading.Event()
    alone = quantiles(_pings(cluster, pinging, receiver, min(seconds, ALONE_SECONDS)), n=100)
    with ThreadPoolExecutor(2 * senders + 2) as pool:
        def on(host: Host, work: Callable[..., Any], *arguments: object) -> Future[Any]:
            def enter_and_work() -> Any:
                run_before_all_others()     # what is late is the network then, and not this machine's other work
                enter(cluster.emulation.host_pid(host.name))
                return work(*arguments)

            return pool.submit(enter_and_work)

        watching = [on(host, _watch, cluster, host, receiver, ended) for host in sending]
        working = asked.start(on, ended)
        try:
            asked.wait()
            before, dropped, began = asked.received_bytes, _dropped(cluster, receiver), time.monotonic()
            pings = _pings(cluster, pinging, receiver, seconds)
            took = time.monotonic() - began
            used = 8 * (asked.received_bytes - before) / took / _receiver_bps(cluster)
            dropped = _dropped(cluster, receiver) - dropped
        finally:
            ended.set()
        for each in working:
            each.result(STALL_SECONDS)
        sent = [each.result(STALL_SECONDS) for each in watching]
    inside, outside = (sum(each[place] for each in sent) for place in (0, 1))
    cuts = quantiles(pings, n=100)
    return Outcome(used, dropped, cuts[49], cuts[98], alone[98], outside / (inside + outside) if inside else None)


class _Load(Protocol):
    """Asked of the senders until `ended`; `received_bytes` grows meanwhile."""

    received_bytes: int

    def start(self, on: Callable[..., Future[Any]], ended: threading.Event) -> list[Future[Any]]:
        """`on` has a host do something."""

    def wait(self) -> None:
        """Until there is something to measure. Raises OSError, ClusterError."""


class _Blocks:
    """From a server on each host."""

    def __init__(self, cluster: FabricCluster, receiver: Host, senders: Sequence[Host], block_bytes: int) -> None:
        self._receiver, self._senders = receiver, senders
        self._block_bytes = block_bytes
        self._listening = threading.Barrier(len(senders) + 1)
        self.received_bytes = 0

    def start(self, on: Callable[..., Future[Any]], ended: threading.Event) -> list[Future[Any]]:
        serving = [on(host, self._serve, number) for number, host in enumerate(self._senders)]
        return [on(self._receiver, self._ask, ended), *serving]

    def wait(self) -> None:
        time.sleep(WARM_UP_SECONDS)

    def _serve(self, number: int) -> None:
        with socket.create_server((self._senders[number].ip, FIRST_PORT + number)) as listener:
            self._listening.wait(STALL_SECONDS)
            listener.settimeout(STALL_SECONDS)
            connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)    # as storage servers do
        with connection:
            while connection.recv(1):
                connection.sendall(bytes(self._block_bytes))

    def _ask(self, ended: threading.Event) -> None:
        """A block of each; the next ones when all are there."""
        self._listening.wait(STALL_SECONDS)
        connections = [socket.create_connection((host.ip, FIRST_PORT + number), STALL_SECONDS)
                       for number, host in enumerate(self._senders)]
        while not ended.is_set():
            left = dict.fromkeys(connections, self._block_bytes)
            for connection in connections:
                connection.send(b"x")
            while left:
                for connection in select.select(list(left), [], [], STALL_SECONDS)[0]:
                    got = len(connection.recv(1 << 18))
                    self.received_bytes += got
                    left[connection] -= got
                    if left[connection] <= 0:
                        del left[connection]
        for connection in connections:
            connection.close()


class _Files:
    """Read through the client library: one of each dataserver at once, or one in parts that all of them have."""

    def __init__(self, paths_of: Callable[[Sequence[str]], Mapping[str, Sequence[str]]], cluster: FabricCluster,
                 receiver: Host, senders: Sequence[Host], block_bytes: int) -> None:
        """`paths_of` says which dataservers have which file."""
        self._cluster, self._receiver = cluster, receiver
        self._holders = paths_of([host.name for host in senders])
        self.received_bytes = 0
        source = cluster.settings.directory.parent / "source"
        source.write_bytes(os.urandom(block_bytes))
        for path, holders in self._holders.items():
            stored = cluster.emulation.run(holders[0], [
                program("speedwell"), "put", "--nameserver", NAMESERVER, "--replicas", ",".join(holders), str(source),
                path], timeout_seconds=STALL_SECONDS + 8 * block_bytes * len(holders) / _receiver_bps(cluster))
            if stored.returncode:
                raise ClusterError(f"{path} cannot be stored: {stored.stderr}")

    def start(self, on: Callable[..., Future[Any]], ended: threading.Event) -> list[Future[Any]]:
        return [on(self._receiver, self._read, ended)]

    def wait(self) -> None:
        until = time.monotonic() + STALL_SECONDS
        while not self.received_bytes:
            if time.monotonic() > until:
                raise ClusterError("nothing is read")
            time.sleep(PING_SECONDS)
        time.sleep(WARM_UP_SECONDS)

    def _read(self, ended: threading.Event) -> None:
        """Raises ClusterError."""
        parts = max(map(len, self._holders.values()))
        with subprocess.Popen([
                sys.executable, "-m", "speedwell.evaluation.repeated_reads", "--nameserver", NAMESERVER,
                "--controller", SECURE_CONTROLLER_URL, "--local-host", self._receiver.ip, "--parts", str(parts),
                *self._holders], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reading:
            assert reading.stdin and reading.stdout
            for line in reading.stdout:
                self.received_bytes = json.loads(line)["bytes"]
                if ended.is_set():
                    break
            reading.stdin.close()
            reading.stdout.read()
        if reading.returncode:
            raise ClusterError("files could not be read: what was said of it is above")


def _of_each(senders: Sequence[str]) -> dict[str, Sequence[str]]:
    return {f"/of-{name}": [name] for name in senders}


def _of_all(senders: Sequence[str]) -> dict[str, Sequence[str]]:
    return {"/of-all": senders}


LOADS: dict[str, Callable[..., _Load]] = {"blocks": _Blocks, "files": partial(_Files, _of_each),
                                          "parts": partial(_Files, _of_all)}
"""Blocks of servers of their own, files of each dataserver, a file in parts of all dataservers."""


def _receiver_bps(cluster: FabricCluster) -> float:
    fabric = cluster.settings.fabric
    return fabric.ports(fabric.hosts[0].name)[0].capacity_bps


def _pings(cluster: FabricCluster, source: Host, destination: Host, seconds: float) -> list[float]:
    command = ["chrt", "--fifo", "1", "ping", "-i", str(PING_SECONDS), "-w", str(round(seconds)), destination.ip]
    said = cluster.emulation.run(source.name, command, seconds + STALL_SECONDS).stdout
    return [float(each) for each in re.findall(r"time=([\d.]+) ms", said)]


def _dropped(cluster: FabricCluster, receiver: Host) -> int:
    """By the queues of the port that leads to a host."""
    switch = cluster.settings.fabric.edge_switch_of(receiver)
    port = cluster.emulation.network[switch.name].connectionsTo(cluster.emulation.network[receiver.name])[0][0]
    shown = cluster.emulation.network[switch.name].popen(["tc", "-s", "-j", "qdisc", "show", "dev", port.name])
    return sum(each["drops"] for each in json.loads(shown.communicate()[0]) if each.get("root"))


def _watch(cluster: FabricCluster, host: Host, receiver: Host, ended: threading.Event) -> tuple[int, int]:
    """The bytes that left a host toward the receiver inside and outside of the slices that its agent was told."""
    key = (key_file(cluster.settings.directory / KEYS, host.ip).read_bytes().strip()
           if cluster.settings.host_agents else b"")
    spans: list[tuple[float, float]] = []
    until, sent = 0.0, [0, 0]
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        tap.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        while not ended.is_set():
            if not select.select([tap], [], [], 0.1)[0]:
                continue
            data, extra, _, (interface, kind, way, *_) = tap.recvmsg(2048, 128)
            if kind != ETH_P_IP:
                continue
            at = sum(part * unit for part, unit in zip(struct.unpack("qq", extra[0][2]), (1, 1e-9), strict=True))
            size, protocol = struct.unpack_from("!2xH5xB", data)
            head = 4 * (data[0] & 0x0F)
            if interface == NODE_INTERFACE and way == socket.PACKET_HOST and key and protocol == UDP and \
                    struct.unpack_from("!H", data, head)[0] == PORT:
                for turns in _turns(data[head + 8:size], key):
                    if turns.destination == receiver.ip:
                        until = at + turns.lease_microseconds / 1e6
                        spans = [(at + each.start_microseconds / 1e6,
                                  at + (each.start_microseconds + each.duration_microseconds) / 1e6)
                                 for each in turns.slices]
            elif way == socket.PACKET_OUTGOING and data[16:20] == socket.inet_aton(receiver.ip) and \
                    size > ACK_BYTES and at < until:
                sent[not any(begin <= at <= end for begin, end in spans)] += size
    return sent[0], sent[1]


def _turns(datagram: bytes, key: bytes) -> tuple[Turns, ...]:
    try:
        message = decode(datagram, key)
    except InvalidDatagram:
        return ()
    return message.turns if isinstance(message, Directive) else ()
