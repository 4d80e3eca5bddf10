"""Metadata servers on a real fabric: the switches find them, whoever dies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from speedwell.cluster import identities
from speedwell.fs.identity.authority import Authority
from speedwell.fs.identity.places import VARIABLE
from speedwell.fs.identity.roles import DATASERVER
from speedwell.topo.fabric import three_tier
from tests.integration.controller.northbound import Northbound, northbound
from tests.waiting import wait_until

pytestmark = pytest.mark.root

SETTINGS = """
openflow_host = "10.255.0.1"
rest_host = "10.255.0.1"
probe_interval_seconds = 0.4
echo_interval_seconds = 0.5
echo_misses = 2
"""
RACKS = ("p0r0", "p0r1", "p1r0", "p1r1")
SERVERS, CLIENTS = [f"{rack}h0" for rack in RACKS], [f"{rack}h1" for rack in RACKS]
REQUESTS = """
import sys, time
from speedwell.fs.identity.known import identity_for
from speedwell.fs.metadata_store.client import MetadataClient
first, end, is_check = int(sys.argv[1]), int(sys.argv[2]), sys.argv[4:] == ["check"]
client = MetadataClient(keep=sys.argv[3] == "keep", timeout_seconds=20, identity=identity_for(""))
slowest, right, began_all = 0.0, 0, time.monotonic()
for n in range(first, end):
    began = time.monotonic()
    if is_check:
        right += client.get(b"key %d" % n) == b"%250d" % n
    else:
        client.put(b"key %d" % n, b"%250d" % n)
        right += 1
    slowest = max(slowest, time.monotonic() - began)
print(right, slowest, time.monotonic() - began_all)
"""
PROBE = """
import sys, time
from speedwell.fs.identity.known import identity_for
from speedwell.fs.metadata_store.wire import connect
addresses = sys.argv[1:]
for line in sys.stdin:
    began, answered = time.monotonic(), {}
    while len(answered) < len(addresses) and time.monotonic() - began < 30:
        for address in addresses:
            if address not in answered:
                try:
                    connection = connect((address, 9000), 0.1, identity_for(""))
                    connection.set_timeout(0.2)
                    if connection.call(b"PING") == b"PONG":
                        answered[address] = time.monotonic() - began
                    connection.close()
                except (OSError, EOFError):
                    pass
    print(max(answered.values()) if len(answered) == len(addresses) else 99.0, flush=True)
"""
SEND = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.bind((sys.argv[1], 0))
for _ in range(20):
    sender.sendto(sys.argv[1].encode(), (sys.argv[2], 7777))
"""
LISTEN = """
import socket
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind(("0.0.0.0", 7777))
print("listening", flush=True)
while True:
    print(listener.recvfrom(100)[1][0], flush=True)
"""


class Metadata:
    """A fabric with a metadata server in each rack."""

    def __init__(self, running: Northbound, directory: Path) -> None:
        self.running = running
        self.directory = directory

    def serve(self, host: str) -> subprocess.Popen[bytes]:
        authority = Authority(self.running.directory / identities.FOLDER)
        authority.ensure([(self.running.ip(host), DATASERVER)])
        return self.running.emulation.popen(host, [
            sys.executable, "-m", "speedwell.fs.metadata_store.main", "--store", f"leveldb:{self.directory / host}",
            "--no-fsync", "--controller", self.running.url, "--host", self.running.ip(host),
            "--identity", str(authority.directory / self.running.ip(host))],
            self.directory / f"{host}.log")

    @property
    def as_operator(self) -> dict[str, str]:
        return {VARIABLE: str(identities.of_operator(self.running.directory))}

    def blocks(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.running.get("/v1/metadata/blocks")["blocks"]
        return found

    def wait_until_settled(self, servers: set[str]) -> None:
        wanted = {self.running.ip(host) for host in servers}

        def settled() -> bool:
            blocks = self.blocks()
            return not any(block["moving_to"] for block in blocks) and {block["host"] for block in blocks} == wanted

        wait_until(settled, 180, lambda: f"blocks do not settle: {self.blocks()}", 0.1)

    def start_requests(self, client: str, first: int, end: int, *how: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.directory / f"requests-{client}-{first}-{'-'.join(how)}"
        return self.running.emulation.popen(client, [sys.executable, "-c", REQUESTS, str(first), str(end), *how],
                                            log, self.as_operator), log

    def requests(self, number: int, *how: str) -> float:
        """Sends so many from two clients; fails unless all are answered, and rightly. The slowest one's seconds."""
        half = number // 2
        sent = [self.start_requests(client, half * at, half * (at + 1), *how)
                for at, client in enumerate(CLIENTS[1:3])]
        return max(self.answered(process, log, half) for process, log in sent)

    def answered(self, process: subprocess.Popen[bytes], log: Path, number: int) -> float:
        assert process.wait(1200) == 0, log.read_text()
        right, slowest, _ = log.read_text().splitlines()[-1].split()
        assert int(right) == number
        return float(slowest)

    def packet_ins(self) -> int:
        """Packets other than LLDP that switches handed to the controller, by their own count."""
        lines = [line for switch in self.running.fabric.switches
                 for line in self.running.emulation.ovs_ofctl(switch.name, "dump-flows").splitlines()]
        return sum(int(re.search(r"n_packets=(\d+)", line)[1]) for line in lines      # type: ignore[index]
                   if "CONTROLLER" in line and "dl_type=0x88cc" not in line)

    def hosts(self) -> set[str]:
        return {host["ip"] for host in self.running.get("/v1/hosts")["hosts"]}

    def address(self, server: str) -> str:
        """One of the addresses of a server's keys."""
        return next(str(block["block"]).partition("/")[0] for block in self.blocks()
                    if block["host"] == self.running.ip(server))

    @contextmanager
    def probes(self) -> Iterator[Any]:
        """Yields a function that gives the time until every client has an answer of every server (s)."""
        addresses = [self.address(server) for server in SERVERS]
        started = [subprocess.Popen(["nsenter", f"--net=/proc/{self.running.emulation.host_pid(client)}/ns/net", "--",
                                     sys.executable, "-c", PROBE, *addresses], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True, bufsize=1, env=os.environ | self.as_operator)
                   for client in CLIENTS]

        def longest_seconds() -> float:
            for process in started:
                assert process.stdin is not None
                process.stdin.write("go\n")
            return max(float(process.stdout.readline()) for process in started if process.stdout is not None)

        try:
            longest_seconds()
            yield longest_seconds
        finally:
            for process in started:
                process.kill()
                process.wait()

    def links(self) -> int:
        return len(self.running.get("/v1/links")["links"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metadata]:
    directory = tmp_path_factory.mktemp("metadata")
    fabric = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, aggregations_per_pod=2, cores=2)
    with northbound(fabric, directory, SETTINGS) as running:
        site = Metadata(running, directory)
        running.emulation.announce_hosts()
        wait_until(lambda: len(site.hosts()) == len(fabric.hosts), 20, "the controller does not find all hosts")
        for server in SERVERS:
            site.serve(server)
        site.wait_until_settled(set(SERVERS))
        yield site


@pytest.mark.parametrize("number", [2000, pytest.param(20000, marks=[pytest.mark.full, pytest.mark.timeout(5400)])])
def test_requests_to_as_many_addresses_reach_no_controller_and_teach_it_no_host(site, number):
    hosts = site.hosts()
    for host in site.running.fabric.hosts:
        site.running.emulation.run(host.name, ["ip", "neigh", "flush", "all"])
    before = site.packet_ins()
    site.requests(number, "each")
    site.requests(number, "each", "check")
    assert site.packet_ins() - before <= 10
    assert site.hosts() == hosts


def test_packets_from_a_forged_address_of_a_key_are_not_delivered(site):
    emulation, own = site.running.emulation, site.running.ip("p1r0h1")
    forged, hosts, log = site.address("p0r0h0"), site.hosts(), site.directory / "heard"
    listener = emulation.popen("p1r1h1", [sys.executable, "-c", LISTEN], log)
    wait_until(lambda: "listening" in log.read_text(), 10, "nobody listens")
    emulation.run("p1r0h1", ["ip", "addr", "add", f"{forged}/32", "dev", "lo"])
    try:
        for source in (forged, own):
            assert emulation.run("p1r0h1", [sys.executable, "-c", SEND, source,
                                            site.running.ip("p1r1h1")]).returncode == 0
        wait_until(lambda: own in log.read_text(), 10, "not even packets from the host's own address arrive")
        assert forged not in log.read_text()
        assert site.hosts() == hosts
    finally:
        emulation.run("p1r0h1", ["ip", "addr", "del", f"{forged}/32", "dev", "lo"])
        listener.kill()
        listener.wait()


@pytest.mark.parametrize("number", [1000, pytest.param(20000, marks=[pytest.mark.full, pytest.mark.timeout(5400)])])
def test_with_the_controller_killed_all_is_answered_and_the_next_one_changes_nothing(site, number):
    blocks, tables = site.blocks(), _tables(site)
    site.running.kill_controller()
    site.requests(number, "each")
    site.requests(number, "each", "check")
    site.running.start_controller()
    wait_until(lambda: site.running.get("/v1/metadata/servers")["is_settled"], 20, "the controller does not settle")
    site.requests(1000, "each", "check")
    assert site.blocks() == blocks
    wait_until(lambda: _tables(site) == tables, 20, "the tables are other ones")


def test_the_entries_of_the_papers_tables_stand_beside_ours(site):
    servers = [each["host"] for each in site.running.get("/v1/metadata/servers")["servers"] if each["blocks"]]
    for switch in site.running.fabric.switches:
        if switch.name.startswith("core"):
            found = site.running.get(f"/v1/metadata/tables/{switch.dpid_hex}")
            assert found["servers"] == found["racks"] == found["pods"] == 0 < found["paper"] <= len(servers)


def _tables(site: Metadata) -> dict[str, int]:
    return {switch.name: site.running.get(f"/v1/metadata/tables/{switch.dpid_hex}")["total"]
            for switch in site.running.fabric.switches}


@pytest.mark.parametrize(("number", "bound_seconds"), [(2, 20.0), pytest.param(99, 1.0, marks=pytest.mark.full)])
def test_a_cut_link_between_switches_leaves_every_client_an_answer_of_every_server(site, number, bound_seconds):
    switches = {switch.name for switch in site.running.fabric.switches}
    links = [(link.a, link.b) for link in site.running.fabric.links if {link.a, link.b} <= switches]
    whole, took = site.links(), {}
    with site.probes() as longest_seconds:
        for link in links[::-(-len(links) // number)]:
            site.running.emulation.set_link(*link, up=False)
            took[link] = longest_seconds()
            site.running.emulation.set_link(*link, up=True)
            wait_until(lambda: site.links() == whole, 20, f"the link {link} does not come back")
            assert longest_seconds() < bound_seconds
    print("seconds to an answer after a cut:", took)
    assert max(took.values()) < bound_seconds, took


@pytest.mark.parametrize(("number", "bound_seconds"), [(1, 20.0), pytest.param(99, 1.0, marks=pytest.mark.full)])
def test_a_killed_switch_above_the_racks_leaves_every_client_an_answer_of_every_server(site, number, bound_seconds):
    racks = {site.running.fabric.edge_switch_of(host).name for host in site.running.fabric.hosts}
    above = [switch.name for switch in site.running.fabric.switches if switch.name not in racks]
    whole, took = site.links(), {}
    with site.probes() as longest_seconds:
        for switch in above[:number]:
            site.running.emulation.kill_switch(switch)
            took[switch] = longest_seconds()
            site.running.emulation.start_switch(switch)
            wait_until(lambda: site.links() == whole, 30, f"{switch} does not come back")
            assert longest_seconds() < 20
    print("seconds to an answer after a kill:", took)
    assert max(took.values()) < bound_seconds, took


@pytest.mark.parametrize(("body", "said"), [
    ({"host": "10.9.9.9", "port": 9000}, "no host with the address 10.9.9.9 is known"),
    ({"host": "100.64.0.1", "port": 9000}, "no host with the address 100.64.0.1 is known"),
    ({"host": "10.0.0.1", "port": 9000}, "another metadata server has joined at 10.0.0.1 and is alive"),
    ({"host": "10.0.0.2", "port": 9001}, "port 9001 of 10.0.0.2 is not 9000, where all metadata servers listen"),
    ({"host": "10.0.0.2", "port": 9000, "owned": ["10.0.0.0/8"]}, "10.0.0.0/8 is not within 100.64.0.0/10"),
    ({"host": "10.0.0.2", "port": 9000, "owned": ["nonsense"]}, "owned"),
    ({"host": "10.0.0.2", "port": 70000}, "port"),
])
def test_a_server_that_cannot_join_is_told_why_and_nothing_changes(site, body, said):
    before = site.blocks()
    answer = site.running.ask("POST", "/v1/metadata/servers", {"id": "another", **body})
    assert answer.status_code in (400, 404, 409, 422) and said in answer.text, answer.text
    assert site.blocks() == before


@pytest.mark.parametrize(("body", "said"), [
    ({"host": "10.9.9.9"}, "no host with the address 10.9.9.9 is known"),
    ({"owned": [256]}, "owned"), ({"owned": [*range(256), 1]}, "owned"), ({"epoch": -1}, "epoch"),
    ({"slots": []}, "slots"),
])
def test_an_owner_of_the_namespace_that_says_what_cannot_be_is_refused_and_nothing_changes(site, body, said):
    answer = site.running.ask("PUT", "/v1/metadata/owners", {"host": "10.0.0.1", "epoch": 1, "owned": [1]} | body)
    assert answer.status_code in (400, 404, 409, 422) and said in answer.text, answer.text
    assert site.running.get("/v1/metadata/owners") == {"owners": []}


def test_one_that_is_not_there_cannot_leave_and_an_unknown_switch_has_no_tables(site):
    assert "there is no metadata server at 10.9.9.9" in site.running.ask("DELETE",
                                                                         "/v1/metadata/servers/10.9.9.9").text
    assert site.running.ask("GET", "/v1/metadata/tables/99").status_code == 404


def test_no_put_is_lost_and_no_request_fails_while_servers_join_and_leave(site):
    number, joining = 1500, {"p0r0h1", "p1r1h1"}
    sent = [site.start_requests(client, 100_000 * at, 100_000 * at + number, "keep")
            for at, client in enumerate(CLIENTS, 1)]
    for server in joining:
        site.serve(server)
    site.wait_until_settled({*SERVERS, *joining})
    assert site.running.ask("DELETE", f"/v1/metadata/servers/{site.running.ip('p0r1h0')}").status_code == 204
    site.wait_until_settled({*SERVERS, *joining} - {"p0r1h0"})
    slowest = max(site.answered(*each, number) for each in sent)
    checks = [site.start_requests(client, 100_000 * at, 100_000 * at + number, "keep", "check")
              for at, client in enumerate(reversed(CLIENTS), 1)]
    quiet = max(site.answered(*each, number) for each in checks)
    print("the slowest request while blocks moved:", slowest, "and while none did:", quiet)
    assert slowest < 5.0 + 5 * quiet
