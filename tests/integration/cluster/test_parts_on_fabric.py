"""Reads from two replicas at once on an emulated fabric whose uplinks are half as fast as its hosts."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speedwell.cluster.controller_client import session
from speedwell.cluster.fabric import NAMESERVER, FabricCluster, run_on_host
from speedwell.cluster.fabric import SECURE_CONTROLLER_URL as CONTROLLER
from speedwell.cluster.fabric_settings import read_settings
from speedwell.controller.switches.entries import COOKIE_MASK
from speedwell.controller.switches.layout import COOKIE_FLOWS
from speedwell.topo.fabric import spine_leaf
from tests.waiting import wait_until

pytestmark = pytest.mark.root

UPLINK_BPS = 10e6
FABRIC = spine_leaf(leaves=3, spines=2, hosts_per_leaf=1, host_bps=2 * UPLINK_BPS, oversubscription=1.0)
CLIENT, SERVERS = "r0h0", ("r1h0", "r2h0")
SIZE_BYTES = (6 << 20) + 321


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabricCluster]:
    directory = tmp_path_factory.mktemp("parts")
    cluster = FabricCluster(read_settings(fabric=FABRIC, directory=directory / "cluster", replication=2))
    try:
        cluster.start()
        for host, other in ((CLIENT, SERVERS[0]), SERVERS):
            ping = ["ping", "-c", "1", "-W", "1", FABRIC.host(other).ip]
            wait_until(lambda host=host, ping=ping: cluster.emulation.run(host, ping, 5).returncode == 0, 20,
                       f"{host} does not reach {other}")
        source = directory / "source"
        source.write_bytes(os.urandom(SIZE_BYTES))
        stored = cluster.emulation.run(SERVERS[0], [
            str(Path(sys.executable).parent / "speedwell"), "put", "--nameserver", NAMESERVER, "--replicas",
            ",".join(SERVERS), str(source), "/f"], timeout_seconds=60)
        assert stored.returncode == 0, stored.stderr
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def content(cluster: FabricCluster) -> str:
    return hashlib.sha256((cluster.settings.directory.parent / "source").read_bytes()).hexdigest()


def start_read(cluster: FabricCluster, *more: str) -> "subprocess.Popen[bytes]":
    """A read of the file, on the client's host, on a network that is quiet."""
    wait_until(lambda: all((link["rate_bps"] or 0) < UPLINK_BPS / 100 for link in ask("/v1/links")["links"]), 20,
               "the network does not come to rest")
    return run_on_host(cluster.emulation.host_pid(CLIENT), [
        sys.executable, "-m", "speedwell.evaluation.timed_read", "/f", "--nameserver", NAMESERVER,
        "--controller", CONTROLLER,
        "--local-host", FABRIC.host(CLIENT).ip, "--replica-policy", "mayflower", "--path-policy", "mayflower", *more],
        stdout=subprocess.PIPE)


def result_of(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert result["bytes"] == SIZE_BYTES
    return result


def ask(path: str) -> Any:
    answer = session(CONTROLLER).get(CONTROLLER + path, timeout=30)
    answer.raise_for_status()
    return answer.json()


def entries(cluster: FabricCluster) -> list[str]:
    """What the switches themselves say of their entries of reads."""
    return [line for switch in FABRIC.switches for line in cluster.emulation.ovs_ofctl(
        switch.name, "dump-flows", f"cookie={COOKIE_FLOWS:#x}/{COOKIE_MASK:#x}").splitlines() if "cookie=" in line]


def test_two_replicas_with_bottlenecks_of_their_own_are_faster_than_one(cluster: FabricCluster) -> None:
    one = result_of(start_read(cluster, "--parts", "1"))
    two = result_of(start_read(cluster, "--parts", "2"))
    assert (one["parts"], two["parts"]) == (1, 2)
    assert two["seconds"] < one["seconds"]


def test_parts_are_made_to_end_together_and_each_has_an_entry_until_then(
        cluster: FabricCluster, content: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    process = start_read(cluster, "--copy-to", str(copy))
    flows = wait_until(lambda: ask("/v1/flows")["flows"], 60, "the read is not placed")
    process.send_signal(signal.SIGSTOP)     # until it has been looked at
    assert len(flows) == 2
    wait_until(lambda: len(entries(cluster)) == 2, 10, "the switches do not have an entry for each part")
    process.send_signal(signal.SIGCONT)
    assert {flow["source"] for flow in flows} == {FABRIC.host(name).ip for name in SERVERS}
    assert len({flow["path"][2] for flow in flows}) == 2, "over a spine each"
    sizes = [flow["size_bytes"] for flow in flows]
    assert sum(sizes) == SIZE_BYTES
    assert max(sizes) < 1.1 * min(sizes), "both replicas have a bottleneck of the same rate"
    wait_until(lambda: not ask("/v1/flows")["flows"], 60, "the parts do not end")
    assert result_of(process)["parts"] == 2
    assert hashlib.sha256(copy.read_bytes()).hexdigest() == content
    wait_until(lambda: entries(cluster) == [], 15, "entries of ended reads are still in the switches")
