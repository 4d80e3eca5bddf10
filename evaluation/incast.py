"""Blocks that one host asks of many at once, on an emulated fabric: what arrives, what the last port drops, how long
a ping takes meanwhile, and what leaves senders outside their slices. `scripts/bench-turns` prints it."""

from __future__ import annotations

import json
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from speedwell.cluster.fabric import FabricCluster
from speedwell.cluster.host_agents import KEYS, PORT, key_file
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


def measure(cluster: FabricCluster, senders: int, seconds: float, block_bytes: int = BLOCK_BYTES) -> Outcome:
    """Raises OSError if the hosts do not reach each other."""
    fabric = cluster.settings.fabric
    receiver, pinging, *_ = fabric.hosts
    sending = [host for host in fabric.hosts if host.rack != receiver.rack][:senders]
    incast, ended = _Incast(cluster, receiver, sending, block_bytes), threading.Event()
    alone = quantiles(_pings(cluster, pinging, receiver, min(seconds, ALONE_SECONDS)), n=100)
    with ThreadPoolExecutor(2 * senders + 2) as pool:
        def on(host: Host, work: Callable[..., Any], *arguments: object) -> Future[Any]:
            def enter_and_work() -> Any:
                run_before_all_others()     # what is late is the network then, and not this machine's other work
                enter(cluster.emulation.host_pid(host.name))
                return work(*arguments)

            return pool.submit(enter_and_work)

        watching = [on(host, _watch, cluster, host, receiver, ended) for host in sending]
        serving = [on(host, incast.serve, number) for number, host in enumerate(sending)]
        asking = on(receiver, incast.ask, ended)
        try:
            time.sleep(WARM_UP_SECONDS)
            before, dropped, began = incast.received_bytes, _dropped(cluster, receiver), time.monotonic()
            pings = _pings(cluster, pinging, receiver, seconds)
            took = time.monotonic() - began
            used = 8 * (incast.received_bytes - before) / took / fabric.ports(receiver.name)[0].capacity_bps
            dropped = _dropped(cluster, receiver) - dropped
        finally:
            ended.set()
        for each in (asking, *serving):
            each.result(STALL_SECONDS)
        sent = [each.result(STALL_SECONDS) for each in watching]
    inside, outside = (sum(each[place] for each in sent) for place in (0, 1))
    cuts = quantiles(pings, n=100)
    return Outcome(used, dropped, cuts[49], cuts[98], alone[98], outside / (inside + outside) if inside else None)


class _Incast:
    def __init__(self, cluster: FabricCluster, receiver: Host, senders: Sequence[Host], block_bytes: int) -> None:
        self._senders = senders
        self._block_bytes = block_bytes
        self._listening = threading.Barrier(len(senders) + 1)
        self.received_bytes = 0

    def serve(self, number: int) -> None:
        with socket.create_server((self._senders[number].ip, FIRST_PORT + number)) as listener:
            self._listening.wait(STALL_SECONDS)
            listener.settimeout(STALL_SECONDS)
            connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)    # as storage servers do
        with connection:
            while connection.recv(1):
                connection.sendall(bytes(self._block_bytes))

    def ask(self, ended: threading.Event) -> None:
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
