"""A read that is held back by turns goes on being a read: it is not taken for one that stands still."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from speedwell.cluster import host_agents
from speedwell.cluster.controller_client import session
from speedwell.cluster.fabric import NAMESERVER, FabricCluster, run_on_host
from speedwell.cluster.fabric import SECURE_CONTROLLER_URL as CONTROLLER
from speedwell.cluster.fabric_settings import read_settings
from speedwell.cluster.local_commands import LOOPBACK
from speedwell.cluster.processes import program
from speedwell.topo.fabric import spine_leaf
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.full, pytest.mark.timeout(400)]

FABRIC = spine_leaf(leaves=2, spines=2, hosts_per_leaf=3, host_bps=20e6, oversubscription=1.0)
CLIENT, SERVER, OTHERS = "r0h0", "r1h0", ("r1h1", "r1h2")
SIZE_BYTES = 45 << 20
LEAST_SECONDS, SECONDS = 40.0, 60.0
METRICS = f"http://{LOOPBACK}:{host_agents.METRICS_PORT}/metrics"


def test_a_coflow_read_of_40_seconds_in_turns_is_never_idle_and_counted_as_by_the_switches(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(os.urandom(SIZE_BYTES))
    cluster = FabricCluster(read_settings(fabric=FABRIC, directory=tmp_path / "cluster", replication=1,
                                          coflows="mincof", host_agents="xco", poll_interval_seconds=1.0))
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start()

        def speedwell(*words: str) -> subprocess.Popen[bytes]:
            address = FABRIC.host(CLIENT).ip
            return run_on_host(cluster.emulation.host_pid(CLIENT), [
                program("speedwell"), words[0], "--nameserver", NAMESERVER, "--controller", CONTROLLER,
                "--local-host", address, *words[1:]], env={**os.environ, **cluster.environment(address)},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        putting = speedwell("put", "--replicas", SERVER, str(source), "/f")
        output, _ = putting.communicate(timeout=120)
        assert putting.returncode == 0, output
        for port, other in enumerate(OTHERS, 5700):
            stack.callback(cluster.emulation.popen(CLIENT, ["iperf3", "-s", "-1", "-p", str(port)],
                                                   tmp_path / f"s{port}").kill)
            wait_until(lambda port=port: f":{port}" in cluster.emulation.run(CLIENT, ["ss", "-ltn"]).stdout, SECONDS,
                       "iperf3 does not listen")
            stack.callback(cluster.emulation.popen(other, [
                "iperf3", "-c", FABRIC.host(CLIENT).ip, "-p", str(port), "-t", "600"], tmp_path / f"c{port}").kill)
        others = {FABRIC.host(other).ip for other in OTHERS}
        wait_until(lambda: others <= {agent for agent, turns in host_agents.turns(METRICS).items() if turns}, SECONDS,
                   "nobody has turns")

        def read() -> dict[str, Any] | None:
            """The part that is under way, with its read's id."""
            answer = session(CONTROLLER).get(f"{CONTROLLER}/v1/reads", timeout=30)
            answer.raise_for_status()
            return next(({**part, "read": each["id"]} for each in answer.json()["reads"]
                         for part in each["parts"] if not part["ended"]), None)

        def by_switch(port: int) -> int:
            leaf = FABRIC.edge_switch_of(FABRIC.host(SERVER)).name
            counts = re.findall(r"n_bytes=(\d+).*?tp_dst=(\d+)", cluster.emulation.ovs_ofctl(leaf, "dump-flows"))
            return sum(int(count) for count, to in counts if int(to) == port)

        began, getting = time.monotonic(), speedwell("get", "/f", str(copy))
        seen, counts, coordinated = set(), [], 0
        first = wait_until(read, SECONDS, "the read is not placed")
        while getting.poll() is None:
            now = read()
            if now is None:
                break
            seen.add((now["read"], now["client_port"]))
            counts.append((now["transferred_bytes"], by_switch(now["client_port"])))
            coordinated += bool(host_agents.turns(METRICS).get(FABRIC.host(SERVER).ip))
            time.sleep(1.0)
        output, _ = getting.communicate(timeout=120)
        took = time.monotonic() - began
    assert getting.returncode == 0, output
    assert hashlib.sha256(copy.read_bytes()).digest() == hashlib.sha256(source.read_bytes()).digest()
    assert took > LEAST_SECONDS and coordinated > LEAST_SECONDS / 4
    assert seen == {(first["read"], first["client_port"])}, "it was ended, and placed anew"
    (begin, begin_by_switch), *_, (end, end_by_switch) = counts     # each told bytes are a poll old
    assert end_by_switch - begin_by_switch > SIZE_BYTES / 2, counts
    assert 0.9 < (end - begin) / (end_by_switch - begin_by_switch) < 1.1, counts
