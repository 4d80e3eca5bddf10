"""Forged heartbeats that a host of an emulated fabric sends to the controller: each is counted, none changes where
files are placed."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from speedwell.cluster.controller_client import session
from speedwell.cluster.fabric import SECURE_CONTROLLER_URL as CONTROLLER
from speedwell.cluster.fabric import FabricCluster, run_on_host
from speedwell.cluster.fabric_settings import read_settings
from speedwell.coflow.host_heartbeat import HostHeartbeat, encode
from speedwell.coflow.settings import ADDRESS_VARIABLE, KEY_FILE_VARIABLE, scheduler
from speedwell.topo.fabric import three_tier
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.full, pytest.mark.timeout(240)]

HOST_BPS = 8e6
SEND = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.sendto(bytes.fromhex(sys.argv[3]), (sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabricCluster]:
    cluster = FabricCluster(read_settings(
        fabric=three_tier(pods=1, racks_per_pod=2, hosts_per_rack=2, aggregations_per_pod=1, cores=1,
                          host_bps=HOST_BPS),
        directory=tmp_path_factory.mktemp("forged") / "cluster", coflows="mincof",
        placement_measurements="heartbeats"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def counted() -> dict[str, float]:
    """What came of heartbeats, and of datagrams that are none of ours."""
    text = session(CONTROLLER).get(f"{CONTROLLER}/metrics", timeout=10).text
    found = re.findall(r'^speedwell_(?:host_heartbeats|coflow_reports)_total\{outcome="([^"]+)"\} (\S+)', text, re.M)
    return {outcome: float(number) for outcome, number in found}


def left_bps(writer: str, host: str) -> float:
    answer = session(CONTROLLER).post(f"{CONTROLLER}/v1/placements", timeout=10, json={
        "files": [{"writer": writer, "size_bytes": 0, "replicas": 1}], "candidates": [{"host": host}]})
    [placement] = answer.json()["placements"]
    [destination] = placement["destinations"]
    return float(destination["residual_bps"])


def test_forged_heartbeats_change_nothing_and_each_is_counted(cluster: FabricCluster) -> None:
    attacker, victim = cluster.settings.fabric.hosts[0], cluster.settings.fabric.hosts[-1]
    controller = scheduler(cluster.environment()[ADDRESS_VARIABLE], Path(cluster.environment()[KEY_FILE_VARIABLE]))
    key = controller.key
    wait_until(lambda: counted().get("taken", 0) >= 12, 60, "the hosts' own heartbeats do not arrive", 0.5)
    wait_until(lambda: left_bps(attacker.ip, victim.ip) > 0.9 * HOST_BPS, 30, "the host is not idle", 0.5)

    now = round(time.time() * 1e6)
    honest = HostHeartbeat(victim.ip, 77, now, 10_000_000, 1000, 1000)
    busy = dataclasses.replace(honest, uptime_microseconds=11_000_000, received_bytes=round(HOST_BPS / 8))
    signed = encode(busy, key)
    attackers = Path(cluster.environment(attacker.ip)[KEY_FILE_VARIABLE]).read_bytes().strip()
    assert attackers != key
    hour = 3_600_000_000

    def send_until_counted(outcome: str, datagram: bytes) -> None:
        """Again and again, as datagrams may be lost."""
        def is_counted() -> bool:
            process = run_on_host(cluster.emulation.host_pid(attacker.name), [
                sys.executable, "-c", SEND, controller.host, str(controller.port), datagram.hex()])
            assert process.wait(60) == 0
            return counted().get(outcome, 0) > before

        before = counted().get(outcome, 0)
        wait_until(is_counted, 60, lambda: f"{outcome} is not counted: {counted()}", 0.5)

    send_until_counted("late", encode(honest, key))     # the first of a sender tells of no rate, then it is replayed
    for outcome, datagram in (
            ("absurd", encode(dataclasses.replace(busy, received_bytes=(1 << 64) - 1), key)),
            ("unknown-host", encode(dataclasses.replace(busy, host="10.99.0.1"), key)),
            ("stale", encode(dataclasses.replace(busy, sent_at_microseconds=now - hour), key)),
            ("stale", encode(dataclasses.replace(busy, sent_at_microseconds=now + hour), key)),
            ("unauthentic", encode(busy, bytes(len(key)))), ("unauthentic", encode(busy, attackers)),
            ("unauthentic", signed[:-1] + bytes([signed[-1] ^ 1]))):
        send_until_counted(outcome, datagram)
        assert left_bps(attacker.ip, victim.ip) > 0.9 * HOST_BPS, f"{outcome} changed where files go"
