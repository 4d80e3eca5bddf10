"""Large files on an emulated fabric: they keep off busy racks, what a placement expects becomes flows, and nothing
stays of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speedwell.cluster.controller_client import session
from speedwell.cluster.fabric import NAMESERVER, FabricCluster, run_on_host
from speedwell.cluster.fabric import SECURE_CONTROLLER_URL as CONTROLLER
from speedwell.cluster.fabric_settings import read_settings
from speedwell.evaluation.placement_trial import (
    asked,
    busy_rack,
    counted,
    creates_at_once,
    fabric_of,
    nothing_expected,
    seen_busy,
)
from speedwell.fs.limits import LEAST_ADVISED_BYTES
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

HOST_BPS = 8e6
SEEN_BUSY_SHARE = 0.75     # what a busy machine's floods reach, too
FABRIC = fabric_of(HOST_BPS)
SPEEDWELL = str(Path(sys.executable).with_name("speedwell"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabricCluster]:
    directory = tmp_path_factory.mktemp("placement")
    cluster = FabricCluster(read_settings(fabric=FABRIC, directory=directory / "cluster", coflows="mincof"))
    try:
        cluster.start()
        (directory / "source").write_bytes(os.urandom(LEAST_ADVISED_BYTES))
        yield cluster
    finally:
        cluster.stop()


def ask(path: str) -> Any:
    return session(CONTROLLER).get(f"{CONTROLLER}{path}", timeout=30).json()


def test_fifty_files_at_once_keep_off_a_rack_that_is_busy(cluster: FabricCluster) -> None:
    writers = [FABRIC.hosts[4 + number % 12].ip for number in range(50)]
    with busy_rack(cluster, HOST_BPS) as busy:
        wait_until(lambda: min(seen_busy(cluster, busy, HOST_BPS)) >= SEEN_BUSY_SHARE, 60,
                   lambda: f"of the rack's links only {seen_busy(cluster, busy, HOST_BPS)} is seen to be taken", 0.5)
        found = Counter(destination["host"] for placement in asked(FABRIC.hosts, writers)
                        for destination in placement["destinations"])
    nothing_expected()
    assert found.total() == 150
    assert sum(found[host.ip] for host in busy) <= 0.05 * 150, f"a quarter of all hosts are there: {found}"
    assert max(found.values()) <= 2 * 150 / len(FABRIC.hosts)


def test_each_of_fifty_creates_at_once_is_counted_once(cluster: FabricCluster) -> None:
    before = sum(counted(NAMESERVER).values())
    writers = [FABRIC.hosts[number % 16].ip for number in range(50)]
    found = creates_at_once(NAMESERVER, writers, "/burst", within_seconds=0.1)
    assert found.total() == 150
    wait_until(lambda: sum(counted(NAMESERVER).values()) == before + 50, 10, "some are counted twice, or not")
    nothing_expected()


def test_an_append_to_a_placed_file_is_a_flow_on_each_hop_until_it_has_arrived(cluster: FabricCluster) -> None:
    writer = FABRIC.hosts[0]
    source = cluster.settings.directory.parent / "source"
    before = counted(NAMESERVER).get("controller", 0)
    number = 0

    def put() -> subprocess.Popen[bytes]:
        nonlocal number
        number += 1
        return run_on_host(cluster.emulation.host_pid(writer.name), [
            SPEEDWELL, "put", "--nameserver", NAMESERVER, str(source), f"/flow-{number}"], stdout=subprocess.PIPE,
            env={**os.environ, **cluster.environment()})

    def is_flow_on_each_hop() -> bool:
        putting = put()
        try:
            wait_until(lambda: putting.poll() is not None or found(), 60, "the put neither ends nor is seen")
            return bool(found())
        finally:
            putting.communicate(timeout=60)
            assert putting.returncode == 0

    def found() -> bool:
        flows = {(flow["source"], flow["destination"]) for flow in ask("/v1/flows")["flows"]
                 if flow["size_bytes"] == LEAST_ADVISED_BYTES}
        return any(placement["flows"] == 2 and placement["destinations"][0] == writer.ip and {
            (writer.ip, placement["destinations"][1]), tuple(placement["destinations"][1:])} <= flows
            for placement in ask("/v1/placements")["placements"])

    wait_until(is_flow_on_each_hop, 90, "no put was seen as flows")
    assert counted(NAMESERVER)["controller"] > before
    wait_until(lambda: not ask("/v1/flows")["flows"] and not ask("/v1/placements")["placements"], 60,
               "something is left")
