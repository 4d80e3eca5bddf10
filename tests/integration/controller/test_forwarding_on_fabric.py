"""The controller on a real fabric: discovery, forwarding, and what happens when something dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest

from speedwell.topo.emulation import Emulation
from speedwell.topo.emulation.openvswitch import BRIDGE
from speedwell.topo.fabric import three_tier
from tests.integration.controller.northbound import MACHINE, OPENFLOW_PORT, Northbound
from tests.waiting import wait_until

pytestmark = pytest.mark.root

SETTINGS = """
openflow_host = "10.255.0.1"
rest_host = "10.255.0.1"
probe_interval_seconds = 0.4
echo_interval_seconds = 0.5
echo_misses = 2
"""
PING_INTERVAL_SECONDS = 0.02
FAR = ("p0r0h0", "p1r1h0")
"""Two hosts with all tiers between them."""


class Running(Northbound):
    """A fabric whose controller can be killed at any time."""

    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        config = self.directory / "controller.toml"
        config.write_text(self.settings)
        log = (self.directory / "controller.log").open("a")
        self.process = subprocess.Popen([str(Path(sys.executable).with_name("speedwell-controller")),
                                         "--config", str(config)], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready ")
        self.url = f"http://{MACHINE}:8080"

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None

    def restart(self) -> None:
        self.kill()
        self.start()
        self.wait_for_all_links()

    def links(self) -> set[tuple[str, str]]:
        """Live links between switches, by name."""
        listed = self.get("/v1/network")["links"]
        names = {switch.dpid_hex: switch.name for switch in self.fabric.switches}
        return {(names[link["source"]], names[link["destination"]]) for link in listed
                if link["source"] in names and link["destination"] in names}

    def all_links(self) -> set[tuple[str, str]]:
        switches = {switch.name for switch in self.fabric.switches}
        return {ends for link in self.fabric.links for ends in ((link.a, link.b), (link.b, link.a))
                if switches.issuperset(ends)}

    def hosts(self) -> set[str]:
        return {host["ip"] for host in self.get("/v1/hosts")["hosts"]}

    def pings(self, a: str, b: str, patience_seconds: int = 1) -> bool:
        """Whether one packet is answered."""
        return self.emulation.run(a, ["ping", "-c1", f"-W{patience_seconds}", self.ip(b)]).returncode == 0

    def pairs_without_answer(self) -> list[tuple[str, str]]:
        return [(a.name, b.name) for a, b in permutations(self.fabric.hosts, 2)
                if not self.pings(a.name, b.name, patience_seconds=5)]      # a machine may stand still for seconds

    def wait_for_all_links(self) -> None:
        wait_until(lambda: self.links() == self.all_links(), 20, "the controller does not find all links", 0.1)

    @contextmanager
    def steady_pings(self, a: str, b: str) -> Iterator[Callable[[], float]]:
        """Ping all the time; the yielded function tells the longest time without an answer (s)."""
        log = self.directory / f"ping-{time.monotonic()}"
        process = self.emulation.popen(
            a, ["ping", "-D", "-W1", f"-i{PING_INTERVAL_SECONDS}", self.ip(b)], log)

        def answered() -> list[int]:
            return [int(number) for number in re.findall(r"bytes from .* icmp_seq=(\d+) ", log.read_text())]

        def longest_gap_seconds() -> float:
            before = len(answered())
            wait_until(lambda: len(answered()) > before + 5, 20, "the pings get no answers any more")
            return PING_INTERVAL_SECONDS * (max(b - a for a, b in pairwise([0, *sorted(answered())])) - 1)

        try:
            wait_until(lambda: len(answered()) > 5, 10, "the pings get no answers")
            yield longest_gap_seconds
        finally:
            process.kill()
            process.wait()

    def forwarder_pid(self, switch: str) -> int:
        directory = f"/{switch}/"
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if command[0].endswith("ovs-vswitchd") and any(directory in argument for argument in command):
                return int(entry.name)
        raise AssertionError(f"no ovs-vswitchd runs for {switch}")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    fabric = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, aggregations_per_pod=2, cores=2)
    directory = tmp_path_factory.mktemp("forwarding")
    with Emulation(fabric, directory=directory / "switches", controller=(MACHINE, OPENFLOW_PORT)) as emulation:
        running = Running(fabric, emulation, directory, SETTINGS)
        try:
            running.start()
            running.wait_for_all_links()
            wait_until(lambda: running.pings(*FAR), 10, "the fabric does not forward")
            yield running
        finally:
            running.kill()


@pytest.fixture(autouse=True)
def _whole(running: Running) -> None:
    """Every test finds the fabric whole, and hands it on so."""
    running.wait_for_all_links()


def test_fabric_is_discovered_with_names_and_capacities(running: Running) -> None:
    network = running.get("/v1/network")
    assert {switch["name"] for switch in network["switches"]} == {switch.name for switch in running.fabric.switches}
    dpids = {switch.name: switch.dpid_hex for switch in running.fabric.switches}

    def capacities() -> dict[tuple[str, str], float]:
        return {(link["source"], link["destination"]): link["capacity_bps"]
                for link in running.get("/v1/network")["links"]}

    wanted = {(dpids[a], dpids[b]): capacity for link in running.fabric.links if link.a in dpids and link.b in dpids
              for a, b, capacity in ((link.a, link.b, link.capacity_bps), (link.b, link.a, link.capacity_bps))}
    wait_until(lambda: wanted.items() <= capacities().items(), 10, "the capacities are not those of the fabric")


def test_silent_hosts_reach_each_other_at_the_first_packet(running: Running) -> None:
    assert running.pairs_without_answer() == []
    assert running.hosts() == {host.ip for host in running.fabric.hosts}


def test_no_packet_of_known_hosts_reaches_the_controller(running: Running) -> None:
    a, b = FAR
    assert running.pings(a, b) and running.pings(b, a)

    def packets_in() -> int:
        listed = [running.emulation.ovs_ofctl(switch.name, "dump-flows") for switch in running.fabric.switches]
        return sum(int(count) for text in listed for line in text.splitlines() if "CONTROLLER" in line
                   and "dl_type=0x88cc" not in line for count in re.findall(r"n_packets=(\d+)", line))

    before = packets_in()
    running.emulation.run(a, ["ip", "neigh", "flush", "all"])
    assert running.emulation.run(a, ["ping", "-c20", "-i0.01", running.ip(b)]).returncode == 0
    assert packets_in() == before


@contextmanager
def restarted(running: Running, settings: str) -> Iterator[None]:
    """With another controller on the same fabric, and afterwards with one like the former."""
    former, running.settings = running.settings, settings
    try:
        running.restart()
        yield
    finally:
        running.settings = former
        running.restart()


def test_traffic_goes_round_a_port_that_goes_down_long_before_a_probe_is_missed(running: Running) -> None:
    rare_probes = SETTINGS.replace("probe_interval_seconds = 0.4", "probe_interval_seconds = 60")
    with restarted(running, rare_probes):
        for near, far in (("edge-p0r0", "aggregation-p0-0"), ("aggregation-p1-1", "core0")):
            with running.steady_pings(*FAR) as gap_seconds, running.steady_pings(*reversed(FAR)) as other_gap_seconds:
                running.emulation.set_link(near, far, up=False)
                wait_until(lambda ends=(near, far): not {ends, ends[::-1]} & running.links(), 20,
                           "the link is still in the graph")
                assert max(gap_seconds(), other_gap_seconds()) < 10
                running.emulation.set_link(near, far, up=True)
                running.wait_for_all_links()
                assert max(gap_seconds(), other_gap_seconds()) < 10


def test_link_that_loses_packets_in_silence_goes_out_and_comes_back(running: Running) -> None:
    switch, peer = "core0", "aggregation-p0-0"
    port = running.fabric.port_toward(switch, peer).number
    running.emulation.ovs_ofctl(switch, "add-flow", f"priority=9999,in_port={port},dl_type=0x88cc,actions=drop")
    try:
        wait_until(lambda: not {(switch, peer), (peer, switch)} & running.links(), 10, "the link is still used")
    finally:
        running.emulation.ovs_ofctl(switch, "del-flows", f"in_port={port},dl_type=0x88cc")
    running.wait_for_all_links()


def test_killed_switch_goes_out_and_gets_everything_back_when_it_restarts(running: Running) -> None:
    a, b = FAR
    assert running.pings(a, b)
    read = running.place(b, a, port=41000)
    assert len(running.read_entries("edge-p0r0")) == 1
    with running.steady_pings("p0r1h0", b) as longest_gap_seconds:
        running.emulation.kill_switch("aggregation-p0-0")
        wait_until(lambda: not any("aggregation-p0-0" in link for link in running.links()), 15, "its links are there")
        assert longest_gap_seconds() < 5
    running.emulation.kill_switch("edge-p0r0")
    wait_until(lambda: not any("edge-p0r0" in link for link in running.links()), 15, "its links are there")
    for switch in ("aggregation-p0-0", "edge-p0r0"):
        running.emulation.start_switch(switch)
    running.wait_for_all_links()
    wait_until(lambda: running.pings(a, b), 10, "the restarted switch does not forward")
    wait_until(lambda: len(running.read_entries("edge-p0r0")) == 1, 15, "the read's entry is not back")
    running.end(read)
    for other in running.fabric.hosts:
        assert other.name == a or running.pings(a, other.name)


def test_a_leaf_that_loses_the_controller_is_reached_until_no_port_leads_to_it(running: Running) -> None:
    a, b = FAR
    leaf = running.fabric.edge_switch_of(b).name
    ports = {port.peer: running.fabric.port_toward(port.peer, leaf).number for port in running.fabric.ports(leaf)
             if port.peer.startswith("aggregation")}
    target = running.emulation.ovs_vsctl(leaf, "get-controller", BRIDGE).strip()

    def entries_toward(switch: str) -> int:
        return len(re.findall(rf"mpls_label=.*output:\"?(?:eth)?{ports[switch]}\b",
                              running.emulation.ovs_ofctl(switch, "dump-flows")))

    assert all(map(entries_toward, ports))
    with running.steady_pings(a, b) as longest_gap_seconds:
        running.emulation.ovs_vsctl(leaf, "set-controller", BRIDGE, f"tcp:{MACHINE}:1")
        wait_until(lambda: not any(leaf in link for link in running.links()), 15, "the leaf is not missed")
        time.sleep(3)       # a port that leads to hosts would be known by then
        assert longest_gap_seconds() < 10 and all(map(entries_toward, ports))
    try:
        for neighbour in ports:
            running.emulation.set_link(leaf, neighbour, up=False)
        wait_until(lambda: not any(map(entries_toward, ports)), 15, "ways to a leaf that is cut off are kept")
    finally:
        for neighbour in ports:
            running.emulation.set_link(leaf, neighbour, up=True)
        running.emulation.ovs_vsctl(leaf, "set-controller", BRIDGE, target)
    running.wait_for_all_links()
    wait_until(lambda: running.pings(a, b), 10, "the leaf that came back is not reached")


def test_switch_that_hangs_is_given_up_and_taken_back(running: Running) -> None:
    pid = running.forwarder_pid("core0")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not any("core0" in link for link in running.links()), 9, "links of a hung switch are used")
        wait_until(lambda: running.pings(*FAR), 15, "traffic does not go round the hung switch")
    finally:
        os.kill(pid, signal.SIGCONT)
    running.wait_for_all_links()


def test_silent_host_is_found_and_absent_one_is_not(running: Running) -> None:
    body = running.body(FAR[1], FAR[0], port=41001)
    body["replicas"][0]["host"] = "10.0.0.200"
    assert running.ask("POST", "/v1/reads", body).status_code == 404
    running.emulation.run(FAR[0], ["ip", "addr", "add", "10.0.0.200/8", "dev", "eth0"])
    try:
        answer = running.ask("POST", "/v1/reads", body)
        assert answer.status_code == 201, answer.text
        running.end(answer.json())
    finally:
        running.emulation.run(FAR[0], ["ip", "addr", "del", "10.0.0.200/8", "dev", "eth0"])


def test_host_that_moves_is_reached_at_its_new_place(running: Running) -> None:
    wanderer = "10.0.0.201"

    def place_at(host: str) -> None:
        running.emulation.run(host, ["ip", "addr", "add", f"{wanderer}/8", "dev", "eth0"])
        # a packet from its address is what a host that arrives sends first
        running.emulation.run(host, ["ping", "-c1", "-W1", "-I", wanderer, running.ip("p1r0h0")])

    def edge() -> Any:
        return {host["ip"]: host["dpid"] for host in running.get("/v1/hosts")["hosts"]}.get(wanderer)

    for host in ("p0r0h1", "p1r1h1"):
        place_at(host)
        dpid = running.fabric.edge_switch_of(host).dpid_hex
        wait_until(lambda dpid=dpid: edge() == dpid, 15, f"the controller does not see the host at {host}")
        running.emulation.run("p1r0h0", ["ip", "neigh", "flush", "all"])
        wait_until(lambda: running.emulation.run("p1r0h0", ["ping", "-c1", "-W1", wanderer]).returncode == 0, 5,
                   f"the host is not reached at {host}")
        running.emulation.run(host, ["ip", "addr", "del", f"{wanderer}/8", "dev", "eth0"])


def test_traffic_survives_the_controllers_death_and_restart(running: Running) -> None:
    a, b = FAR
    assert running.pings(a, b)
    known = running.hosts()
    with running.steady_pings(a, b) as longest_gap_seconds:
        running.kill()
        running.emulation.run(a, ["ip", "neigh", "flush", "all"])
        for host in running.fabric.hosts:
            assert host.name == a or running.pings(a, host.name), "a dead controller must not be missed"
        running.start()
        running.wait_for_all_links()
        wait_until(lambda: known <= running.hosts(), 10, "the new controller does not know the hosts")
        read = running.place(b, a, port=41002)
        running.end(read)
        assert longest_gap_seconds() < 0.2
    assert running.pairs_without_answer() == []
