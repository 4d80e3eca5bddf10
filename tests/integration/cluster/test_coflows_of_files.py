"""Reads and appends of the filesystem are coflows where a scheduler is configured."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speedwell.cluster.controller_client import session
from speedwell.cluster.fabric import NAMESERVER, FabricCluster, run_on_host
from speedwell.cluster.fabric import SECURE_CONTROLLER_URL as CONTROLLER
from speedwell.cluster.fabric_settings import read_settings
from speedwell.cluster.processes import program
from speedwell.topo.fabric import spine_leaf
from tests.waiting import wait_until

pytestmark = pytest.mark.root

LINK_BPS = 20e6
FABRIC = spine_leaf(leaves=3, spines=2, hosts_per_leaf=1, host_bps=2 * LINK_BPS, oversubscription=1.0)
CLIENT, SERVERS = "r0h0", ("r1h0", "r2h0")
SIZE_BYTES = 16 << 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabricCluster]:
    directory = tmp_path_factory.mktemp("coflows")
    (directory / "source").write_bytes(os.urandom(SIZE_BYTES))
    cluster = FabricCluster(read_settings(fabric=FABRIC, directory=directory / "cluster", replication=2,
                                          coflows="mincof"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def start(cluster: FabricCluster, host: str, *command: str) -> subprocess.Popen[bytes]:
    address = FABRIC.host(host).ip
    return run_on_host(cluster.emulation.host_pid(host), [
        program("speedwell"), command[0], "--nameserver", NAMESERVER, "--controller", CONTROLLER, "--local-host",
        address, *command[1:]], env={**os.environ, **cluster.environment(address)}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT)


def ask(path: str) -> Any:
    answer = session(CONTROLLER).get(CONTROLLER + path, timeout=30)
    answer.raise_for_status()
    return answer.json()


def coflows() -> list[dict[str, Any]]:
    found = [session(CONTROLLER).get(f"{CONTROLLER}/v1/coflows/{each['id']}", timeout=30) for each in
             ask("/v1/coflows")["coflows"]]
    return [answer.json() for answer in found if answer.status_code == 200]


def ends(coflow: dict[str, Any]) -> set[tuple[str, str]]:
    names = {host.ip: host.name for host in FABRIC.hosts}
    return {(names[flow["source"]], names[flow["destination"]]) for flow in coflow["members"]}


def wait_for_coflow(wanted: set[tuple[str, str]]) -> dict[str, Any]:
    """The first coflow with exactly these flows, each with an entry and a rate."""
    def found() -> dict[str, Any] | None:
        return next((coflow for coflow in coflows() if ends(coflow) == wanted and all(
            flow["state"] == "placed" and flow["rate_bps"] for flow in coflow["members"])), None)

    return wait_until(found, 20, f"no coflow has the flows {wanted}")


def test_an_append_and_a_read_in_parts_are_one_coflow_each_and_leave_nothing(
        cluster: FabricCluster, tmp_path: Path) -> None:
    source = cluster.settings.directory.parent / "source"
    putting = start(cluster, CLIENT, "put", "--replicas", ",".join(SERVERS), str(source), "/f")
    wait_for_coflow({(CLIENT, SERVERS[0]), SERVERS})
    output, _ = putting.communicate(timeout=60)
    assert putting.returncode == 0, output
    wait_until(lambda: not coflows() and not ask("/v1/meters")["meters"], 15, "something is left of the append")

    copy = tmp_path / "copy"
    getting = start(cluster, CLIENT, "get", "/f", str(copy))
    wait_for_coflow({(server, CLIENT) for server in SERVERS})
    output, _ = getting.communicate(timeout=60)
    assert getting.returncode == 0, output
    assert hashlib.sha256(copy.read_bytes()).digest() == hashlib.sha256(source.read_bytes()).digest()
    wait_until(lambda: not coflows() and not ask("/v1/meters")["meters"], 15, "something is left of the read")
    assert ask("/v1/reads")["reads"] == []
