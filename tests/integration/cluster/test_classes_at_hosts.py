"""Coflows are served in their order on hosts' own links: by classes that agents set, whatever the programs."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from speedwell.cluster.controller_client import session
from speedwell.cluster.fabric import MACHINE, FabricCluster
from speedwell.cluster.fabric import SECURE_CONTROLLER_URL as CONTROLLER
from speedwell.cluster.fabric_settings import read_settings
from speedwell.coflow.report import Flow
from speedwell.coflow.reporter import Reporter
from speedwell.coflow.settings import KEY_FILE_VARIABLE, scheduler
from speedwell.host_agent.uplink import dscp_of
from speedwell.topo.fabric import spine_leaf
from speedwell.topo.network_namespace import enter
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

FABRIC = spine_leaf(leaves=2, spines=1, hosts_per_leaf=3, host_bps=20e6, oversubscription=1.0)
SECONDS = 60.0
WINDOW_BYTES = 2_000_000
SMALL_BYTES, LARGE_BYTES = 1_000_000_000, 2_000_000_000
ETH_P_ALL = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabricCluster]:
    cluster = FabricCluster(read_settings(fabric=FABRIC, directory=tmp_path_factory.mktemp("classes") / "cluster",
                                          replication=1, coflows="coflow-plus", host_agents="xco-plus"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def acknowledged(cluster: FabricCluster, host: str, port: int) -> int:
    """Of the connections that a host has opened to a port."""
    shown = cluster.emulation.run(host, ["ss", "-tnHi", "dport", "=", f":{port}"]).stdout
    return max(map(int, re.findall(r"bytes_acked:(\d+)", shown)), default=0)


def fallen_at(cluster: FabricCluster, host: str, to_port: int) -> float:
    """When the first packet to a port leaves the host in a class behind the second, by time.time()."""
    enter(cluster.emulation.host_pid(host))
    until = time.monotonic() + SECONDS
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as tap:
        while time.monotonic() < until:
            if select.select([tap], [], [], 0.1)[0]:
                data, (_, _, way, *_) = tap.recvfrom(64)
                if way == socket.PACKET_OUTGOING and data[1] >> 2 < dscp_of(1) and \
                        int.from_bytes(data[22:24], "big") == to_port:
                    return time.time()
    raise TimeoutError(f"nothing to port {to_port} falls behind")


@pytest.mark.parametrize(("place", "pairs"), [
    ("uplink", (("r0h0", "r1h0"), ("r0h0", "r1h1"))),
    ("downlink", (("r0h0", "r1h0"), ("r0h1", "r1h0"))),
    ("rack", (("r0h0", "r0h2"), ("r0h1", "r0h2"))),
])
def test_the_first_coflow_has_nine_tenths_of_a_hosts_link_and_they_change_places(
        cluster: FabricCluster, tmp_path: Path, place: str, pairs: tuple[tuple[str, str], ...]) -> None:
    first_port = {"uplink": 5600, "downlink": 5610, "rack": 5620}[place]
    ports = [first_port, first_port + 1]
    address = scheduler(MACHINE, Path(cluster.environment()[KEY_FILE_VARIABLE]))
    with ExitStack() as stack:
        for (source, target), port in zip(pairs, ports, strict=True):
            server = cluster.emulation.popen(target, ["iperf3", "-s", "-1", "-p", str(port)], tmp_path / f"s{port}")
            stack.callback(server.kill)
            wait_until(lambda target=target, port=port: f":{port}" in cluster.emulation.run(
                target, ["ss", "-ltn"]).stdout, SECONDS, "iperf3 does not listen")
            client = cluster.emulation.popen(source, ["iperf3", "-c", FABRIC.host(target).ip, "-p", str(port),
                                                      "--cport", str(port + 1000), "-t", "600"], tmp_path / f"{port}")
            stack.callback(client.kill)
        reporters = [stack.enter_context(Reporter(address)) for _ in ports]
        (told, *_), _ = [
            reporter.add([(Flow(FABRIC.host(source).ip, FABRIC.host(target).ip, port + 1000, port), size)])
            for reporter, (source, target), port, size in zip(reporters, pairs, ports, (SMALL_BYTES, LARGE_BYTES),
                                                              strict=True)]

        def share() -> float:
            """The first's, of the next bytes that arrive of both."""
            def moved() -> list[int]:
                return [acknowledged(cluster, source, port) for (source, _), port in zip(pairs, ports, strict=True)]

            before = moved()
            now = wait_until(lambda: sum(after := moved()) - sum(before) > WINDOW_BYTES and after, SECONDS,
                             "nothing is sent")
            return (now[0] - before[0]) / (sum(now) - sum(before))

        wait_until(lambda: share() >= 0.9, SECONDS, "the first coflow does not go first")
        shares = [share()]
        with ThreadPoolExecutor(1) as pool:
            fallen: Future[float] = pool.submit(fallen_at, cluster, pairs[0][0], ports[0])
            wait_until(fallen.running, SECONDS, "nobody looks")
            told.moved(0, at_least=2 * LARGE_BYTES)     # now the other has less left
            reporters[0].report()
            began = time.time()
            took = fallen.result(SECONDS) - began
        wait_until(lambda: share() <= 0.1, SECONDS, "they do not change places")
        shares.append(share())
    print(f"\n{place}: {shares[0]:.3f} of the bytes, then {shares[1]:.3f}; new class after {1000 * took:.0f} ms")


def test_what_is_small_goes_first_between_switches_and_what_is_large_does_not(
        cluster: FabricCluster, tmp_path: Path) -> None:
    def sent() -> dict[str, int]:
        """Bytes by class, from the first leaf to the spine."""
        def counted() -> dict[str, int]:
            ports = session(CONTROLLER).get(f"{CONTROLLER}/v1/queues", timeout=30).json()["ports"]
            [queues] = [port["queues"] for port in ports
                        if (port["switch_name"], port["neighbour_name"]) == ("leaf0", "spine0")]
            bytes_of = {queue["name"]: queue["sent_bytes"] for queue in queues}
            return {} if None in bytes_of.values() else bytes_of

        return wait_until(counted, SECONDS, "the queues have not been counted")

    before, count, size, large = sent(), 50, 1000, 4_000_000
    target = FABRIC.host("r1h2").ip
    cluster.emulation.run("r0h1", ["ping", "-q", "-c", str(count), "-i", "0.01", "-s", str(size), target])
    wait_until(lambda: sent()["priority-0"] - before["priority-0"] >= count * size, SECONDS,
               lambda: f"{before} became {sent()}")
    with cluster.emulation.popen("r1h2", ["iperf3", "-s", "-1", "-p", "5640"], tmp_path / "server") as server:
        wait_until(lambda: ":5640" in cluster.emulation.run("r1h2", ["ss", "-ltn"]).stdout, SECONDS, "no iperf3")
        cluster.emulation.run("r0h1", ["iperf3", "-c", target, "-p", "5640", "-n", str(large)])
        server.wait(SECONDS)
    # what iperf3 has not sent when its socket has taken all is not sent any more
    wait_until(lambda: sent()["best-effort"] - before["best-effort"] >= 0.5 * large, SECONDS,
               lambda: f"{before} became {sent()}")
    assert sent()["priority-0"] - before["priority-0"] < 0.1 * large
