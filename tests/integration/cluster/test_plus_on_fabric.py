"""mayflower-plus on an emulated fabric: reads wait for their turn, and survive what dies under them."""

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

HOST_BPS = 20e6
FABRIC = spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=HOST_BPS, oversubscription=1.0)
CLIENTS, SERVERS = ("r1h0", "r1h1"), ("r0h0", "r0h1")
SIZE_BYTES = (8 << 20) + 321


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabricCluster]:
    directory = tmp_path_factory.mktemp("plus")
    cluster = FabricCluster(read_settings(fabric=FABRIC, directory=directory / "cluster", replication=2,
                                          replica_policy="mayflower-plus", mounts={CLIENTS[0]: directory / "mount"}))
    try:
        cluster.start()
        (directory / "source").write_bytes(os.urandom(SIZE_BYTES))
        for name, hosts in (("/one", SERVERS[:1]), ("/other", SERVERS[1:]), ("/two", SERVERS)):
            stored = cluster.emulation.run(SERVERS[0], [
                str(Path(sys.executable).parent / "speedwell"), "put", "--nameserver", NAMESERVER, "--replicas",
                ",".join(hosts), str(directory / "source"), name], timeout_seconds=60)
            assert stored.returncode == 0, stored.stderr
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def content(cluster: FabricCluster) -> str:
    return hashlib.sha256((cluster.settings.directory.parent / "source").read_bytes()).hexdigest()


def start_read(cluster: FabricCluster, client: str, path: str, copy: Path,
               policy: str = "mayflower-plus") -> "subprocess.Popen[bytes]":
    return run_on_host(cluster.emulation.host_pid(client), [
        sys.executable, "-m", "speedwell.evaluation.timed_read", path, "--nameserver", NAMESERVER,
        "--controller", CONTROLLER,
        "--local-host", FABRIC.host(client).ip, "--replica-policy", policy, "--path-policy", "mayflower",
        "--copy-to", str(copy)], stdout=subprocess.PIPE)


def start_two(cluster: FabricCluster, path: str, copies: list[Path],
              policy: str = "mayflower-plus") -> "list[subprocess.Popen[bytes]]":
    """Reads of one file by both clients; the first stands still until the controller knows the other too."""
    first = start_read(cluster, CLIENTS[0], path, copies[0], policy)
    wait_until(lambda: ask("/v1/flows")["flows"], 60, "the read is not placed")
    first.send_signal(signal.SIGSTOP)
    second = start_read(cluster, CLIENTS[1], path, copies[1], policy)
    wait_until(lambda: len(ask("/v1/reads")["reads"]) == 2, 60, "two are not asked for")
    first.send_signal(signal.SIGCONT)
    return [first, second]


def assert_read(process: "subprocess.Popen[bytes]", copy: Path, content: str) -> None:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert result["bytes"] == SIZE_BYTES
    assert hashlib.sha256(copy.read_bytes()).hexdigest() == content


def ask(path: str) -> Any:
    answer = session(CONTROLLER).get(CONTROLLER + path, timeout=30)
    answer.raise_for_status()
    return answer.json()


def rest(cluster: FabricCluster) -> None:
    """Wait until nothing of a read is left, in the controller and in the switches."""
    wait_until(lambda: ask("/v1/reads")["reads"] == [] and entries(cluster) == [], 10, "something is left")
    wait_until(lambda: all((link["rate_bps"] or 0) < HOST_BPS / 100 for link in ask("/v1/links")["links"]), 20,
               "the network does not come to rest")


def entries(cluster: FabricCluster) -> list[str]:
    return [line for switch in FABRIC.switches for line in cluster.emulation.ovs_ofctl(
        switch.name, "dump-flows", f"cookie={COOKIE_FLOWS:#x}/{COOKIE_MASK:#x}").splitlines() if "cookie=" in line]


def test_of_two_reads_one_waits_until_the_other_has_all_its_bytes_and_without_turns_they_share(
        cluster: FabricCluster, content: str, tmp_path: Path) -> None:
    """Both want the one replica, whose link is as fast as theirs."""
    for policy in ("mayflower", "mayflower-plus"):
        rest(cluster)
        copies = [tmp_path / client for client in CLIENTS]
        reads = start_two(cluster, "/one", copies, policy)
        number = [len(read["parts"]) for read in ask("/v1/reads")["reads"]]
        if policy == "mayflower-plus":
            assert sorted(number) == [0, 1], "one of them waits"
            assert len(entries(cluster)) == 1
        else:
            assert number == [1, 1]
        share = False
        while all(read.poll() is None for read in reads):
            share |= len([part for read in ask("/v1/reads")["reads"] for part in read["parts"]
                          if part["transferred_bytes"] > 0 and part["remaining_bytes"] > SIZE_BYTES / 4]) == 2
        for read, copy in zip(reads, copies, strict=True):
            assert_read(read, copy, content)
            copy.unlink()
        assert share is (policy == "mayflower")
    rest(cluster)


def test_the_mount_waits_for_its_turn_where_the_policy_is_the_controllers_default(
        cluster: FabricCluster, content: str, tmp_path: Path) -> None:
    rest(cluster)
    copy = tmp_path / "copy"
    before = waited()
    first = start_read(cluster, CLIENTS[1], "/one", copy)
    wait_until(lambda: ask("/v1/flows")["flows"], 10, "the read is not placed")
    mounted = subprocess.run(["sha256sum", cluster.settings.directory.parent / "mount" / "one"], capture_output=True,
                             check=True, timeout=60)
    assert mounted.stdout.split()[0].decode() == content
    assert_read(first, copy, content)
    assert waited() == before + 1
    rest(cluster)


def waited() -> int:
    lines = session(CONTROLLER).get(CONTROLLER + "/metrics", timeout=30).text.splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith("speedwell_reads_waited_total"))


def test_a_read_whose_replica_dies_is_finished_from_the_other(
        cluster: FabricCluster, content: str, tmp_path: Path) -> None:
    rest(cluster)
    copy = tmp_path / "copy"
    read = start_read(cluster, CLIENTS[0], "/two", copy)
    (flow,) = wait_until(lambda: ask("/v1/flows")["flows"], 10, "the read is not placed")
    wait_until(lambda: copy.exists() and copy.stat().st_size > 1 << 20, 10, "nothing comes")
    victim = next(host for host in SERVERS if FABRIC.host(host).ip == flow["source"])
    kill(cluster, f"dataserver-{victim}")
    assert_read(read, copy, content)
    rest(cluster)


def test_reads_are_finished_without_the_controller_also_the_one_that_waits(
        cluster: FabricCluster, content: str, tmp_path: Path) -> None:
    rest(cluster)
    copies = [tmp_path / client for client in CLIENTS]
    path = "/one" if cluster.processes.find(f"dataserver-{SERVERS[0]}") in cluster.processes.running() else "/other"
    reads = start_two(cluster, path, copies)
    wait_until(lambda: sorted(len(read["parts"]) for read in ask("/v1/reads")["reads"]) == [0, 1], 10, "none waits")
    wait_until(lambda: any(copy.exists() and copy.stat().st_size > 1 << 20 for copy in copies), 10, "nothing comes")
    kill(cluster, "controller")
    for read, copy in zip(reads, copies, strict=True):
        assert_read(read, copy, content)


def kill(cluster: FabricCluster, name: str) -> None:
    daemon = cluster.processes.find(name)
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGKILL)
