"""Hosts that forge addresses and LLDP frames, and connections that claim to be a switch, on a real fabric."""

from __future__ import annotations

import re
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedwell.cluster import identities
from speedwell.controller.topology import arp, lldp
from speedwell.fs.identity.bundle import Identity
from speedwell.fs.identity.roles import CONTROLLER
from speedwell.topo.fabric import spine_leaf
from tests.integration.controller.northbound import MACHINE, OPENFLOW_PORT, Northbound, northbound
from tests.waiting import wait_until

pytestmark = pytest.mark.root

SETTINGS = """
poll_interval_seconds = 0.5
probe_interval_seconds = 0.4
"""
VICTIM, PEER = "r0h0", "r1h0"
FORGERS = ("r0h1", "r1h1")
"""One beside each of the two."""
SENDER = """
import socket, sys, time
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("eth0", 0))
frames, times, pause = sys.argv[3:], int(sys.argv[1]), float(sys.argv[2])
for _ in range(times):
    for frame in frames:
        wire.send(bytes.fromhex(frame))
    time.sleep(pause)
"""
FLOOD = """
import os, socket, sys, time
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind(("eth0", 0))
host = bytes.fromhex(sys.argv[2])
end, sent = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    for _ in range(20):
        mac, ip = b"\\x02" + os.urandom(5), b"\\x0a\\x63" + os.urandom(2)
        wire.send(b"\\xff" * 6 + mac + bytes.fromhex("08060001080006040001") + mac + ip + bytes(6) + os.urandom(4)
                  + bytes(18))
        wire.send(host + mac + bytes.fromhex("08004500002e000000004011") + bytes(2) + ip + b"\\x0a" + os.urandom(3)
                  + bytes(26))
        wire.send(bytes.fromhex("0180c200000e") + mac + bytes.fromhex("88cc") + os.urandom(60))
        sent += 3
    time.sleep(0.01)
print(sent)
"""
RECORDER = """
import socket, sys, time
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88cc))
wire.bind(("eth0", 0x88cc))
while True:
    frame = wire.recv(2048)
    if frame[12:14] == b"\\x88\\xcc":
        print(frame.hex(), flush=True)
"""
RELAY = """
import socket, sys, threading
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88cc))
wire.bind(("eth0", 0x88cc))
tunnel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
tunnel.bind((sys.argv[1], 5999))
def inject():
    while True:
        wire.send(tunnel.recv(2048))
threading.Thread(target=inject, daemon=True).start()
print("relaying", flush=True)
while True:
    frame, address = wire.recvfrom(2048)
    if address[2] != socket.PACKET_OUTGOING:
        tunnel.sendto(frame, (sys.argv[2], 5999))
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Northbound]:
    fabric = spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=40e6, oversubscription=1.0)
    with northbound(fabric, tmp_path_factory.mktemp("identity"), SETTINGS) as running:
        running.meet_all_hosts()
        yield running


def inject(running: Northbound, host: str, *frames: bytes, times: int = 1, pause_seconds: float = 0.0) -> None:
    """Send frames, as they are, from a host's interface."""
    result = running.emulation.run(host, [sys.executable, "-c", SENDER, str(times), str(pause_seconds),
                                          *(frame.hex() for frame in frames)])
    assert result.returncode == 0, result.stderr


def places(running: Northbound) -> dict[str, tuple[str, int]]:
    return {host["ip"]: (host["dpid"], host["port"]) for host in running.get("/v1/hosts")["hosts"]}


def links(running: Northbound) -> set[tuple[str, str]]:
    """Those between switches."""
    switches = {switch.dpid_hex for switch in running.fabric.switches}
    return {(link["source"], link["destination"]) for link in running.get("/v1/links")["links"]
            if switches.issuperset((link["source"], link["destination"]))}


def refused(running: Northbound, what: str, why: str) -> float:
    text = running.ask("GET", "/metrics").text
    found = re.search(rf'speedwell_refused_total{{what="{what}",why="{why}"}} (\S+)', text)
    return float(found[1]) if found else 0.0


def mac(running: Northbound, host: str) -> str:
    return running.fabric.host(host).mac


def ipv4(running: Northbound, source: str, source_mac: str, destination: str) -> bytes:
    """A UDP packet that says it is of host `source`, towards host `destination`."""
    addresses = socket.inet_aton(running.ip(source)) + socket.inet_aton(running.ip(destination))
    header = struct.pack("!BBHHHBBH", 0x45, 0, 36, 0, 0, 64, 17, 0) + addresses
    words = sum(struct.unpack("!10H", header))
    words = (words & 0xFFFF) + (words >> 16)
    header = header[:10] + struct.pack("!H", ~(words + (words >> 16)) & 0xFFFF) + header[12:]
    ethernet = bytes.fromhex((mac(running, destination) + source_mac).replace(":", "")) + b"\x08\x00"
    return ethernet + header + struct.pack("!HHHH", 9, 9, 16, 0) + b"whoever!"


@contextmanager
def answered_pings(running: Northbound, a: str, b: str) -> Iterator[list[str]]:
    """Ping ten times a second meanwhile; the yielded list has the summary afterwards."""
    log = running.directory / f"ping-{time.monotonic()}"
    process = running.emulation.popen(a, ["ping", "-W1", "-i0.1", running.ip(b)], log)
    said: list[str] = []
    try:
        wait_until(lambda: log.read_text().count("icmp_seq") > 5, 10, "the pings get no answers")
        yield said
        process.send_signal(signal.SIGINT)
        process.wait(60)
        said.append(log.read_text())
    finally:
        process.kill()
        process.wait()


def test_a_host_that_forges_another_ones_address_moves_nothing(running: Northbound) -> None:
    before, links_before = places(running), links(running)
    with answered_pings(running, PEER, VICTIM) as said:
        for forger in FORGERS:
            for source_mac in (mac(running, forger), mac(running, VICTIM)):
                inject(running, forger, ipv4(running, VICTIM, source_mac, PEER),
                       arp.build(arp.Packet(arp.REQUEST, source_mac, running.ip(VICTIM), arp.NO_MAC,
                                            running.ip(PEER))),
                       arp.build(arp.Packet(arp.REPLY, source_mac, running.ip(VICTIM), arp.BROADCAST_MAC,
                                            running.ip(VICTIM))), times=20, pause_seconds=0.1)
            assert places(running) == before
    assert links(running) == links_before
    assert refused(running, "host", "spoofed") > 0
    assert " 0% packet loss" in said[0], said[0]


def test_a_forged_or_recorded_lldp_frame_changes_no_link(running: Northbound, tmp_path: Path) -> None:
    before, links_before = places(running), links(running)
    recorder = running.emulation.popen(FORGERS[0], [sys.executable, "-c", RECORDER], tmp_path / "recorded")
    try:
        wait_until(lambda: (tmp_path / "recorded").read_text().count("\n") >= 5, 30, "no probe leaves an edge port")
    finally:
        recorder.kill()
        recorder.wait()
    recorded = [bytes.fromhex(line) for line in (tmp_path / "recorded").read_text().split()]
    leaf, spine = running.fabric.switch("leaf0").dpid_hex, running.fabric.switch("spine0").dpid_hex
    forged = [lldp.sign(lldp.unsigned((dpid, port), "02:00:00:00:00:66"), epoch, b"a guess")
              for dpid, port in ((leaf, 1), (leaf, 3), (spine, 1)) for epoch in (0, 1 << 40)]
    altered = bytearray(recorded[-1])
    altered[40] ^= 1
    with answered_pings(running, PEER, VICTIM) as said:
        for forger in FORGERS:
            inject(running, forger, *forged, bytes(altered), *recorded[:-3], times=5, pause_seconds=0.2)
    assert (places(running), links(running)) == (before, links_before)
    assert refused(running, "lldp", "forged") >= 5
    assert refused(running, "lldp", "replayed") > 0
    assert " 0% packet loss" in said[0], said[0]


def test_two_hosts_that_relay_genuine_probes_get_no_link_while_they_are_known(
        running: Northbound, tmp_path: Path) -> None:
    before, links_before = places(running), links(running)
    relays = [running.emulation.popen(host, [sys.executable, "-c", RELAY, running.ip(host), running.ip(other)],
                                      tmp_path / host)
              for host, other in (FORGERS, FORGERS[::-1])]
    try:
        wait_until(lambda: all("relaying" in (tmp_path / host).read_text() for host in FORGERS), 10, "no relays")
        so_far = refused(running, "lldp", "host")
        wait_until(lambda: refused(running, "lldp", "host") >= so_far + 6, 40, "no relayed probe is refused")
    finally:
        for relay in relays:
            relay.kill()
            relay.wait()
    assert (places(running), links(running)) == (before, links_before)


class Claimant:
    """A connection that says it is some switch, whose key was stolen, and has a host's flow entries end if anybody
    listens."""

    def __init__(self, dpid: str, stolen: Identity) -> None:
        self.dpid = int(dpid, 16)
        self.wire = stolen.wrap_client(socket.create_connection((MACHINE, OPENFLOW_PORT), timeout=15), CONTROLLER)

    def speak(self) -> bool:
        """Shake hands and go on; True once the controller has hung up."""
        self._send(0, 0, b"")
        received = b""
        while True:
            try:
                piece = self.wire.recv(65536)
            except ConnectionError:
                return True
            if not piece:
                return True
            received += piece
            while len(received) >= 8 and len(received) >= (length := int.from_bytes(received[2:4])):
                self._answer(received[1], int.from_bytes(received[4:8]), received[8:length])
                received = received[length:]

    def _answer(self, kind: int, xid: int, body: bytes) -> None:
        if kind == 2:
            self._send(3, xid, body)
        elif kind == 5:
            self._send(6, xid, struct.pack("!QIBBxxII", self.dpid, 256, 254, 0, 0x4F, 0))
        elif kind == 18:
            self._send(19, xid, body[:2] + bytes(6))
        elif kind == 20:
            self._send(21, xid, b"")

    def _send(self, kind: int, xid: int, body: bytes) -> None:
        self.wire.sendall(struct.pack("!BBHI", 4, kind, 8 + len(body), xid) + body)


def test_a_second_connection_with_a_known_datapath_id_is_refused_and_the_switch_stays_managed(
        running: Northbound) -> None:
    leaf = running.fabric.switch("leaf0")
    stolen = Identity(running.directory / identities.FOLDER / leaf.dpid_hex)
    before = running.get(f"/v1/switches/{leaf.dpid_hex}")
    with answered_pings(running, PEER, VICTIM) as said:
        for _ in range(3):
            assert Claimant(leaf.dpid_hex, stolen).speak()
    assert running.get(f"/v1/switches/{leaf.dpid_hex}") == before
    assert refused(running, "connection", "taken") == 3
    read = running.place(VICTIM, PEER, port=45000)
    assert len(running.read_entries("leaf1")) == 1
    running.end(read)
    assert running.all_read_entries() == []
    assert " 0% packet loss" in said[0], said[0]


def test_a_switch_that_comes_back_after_a_crash_is_managed_again(running: Northbound) -> None:
    spine = running.fabric.switch("spine1")
    links_before = links(running)
    running.emulation.kill_switch("spine1")
    wait_until(lambda: not running.get(f"/v1/switches/{spine.dpid_hex}")["connected"], 15, "nobody noticed")
    running.emulation.start_switch("spine1")
    wait_until(lambda: links(running) == links_before, 30, "its links do not come back")


def address(running: Northbound, host: str, command: str, ip: str) -> None:
    result = running.emulation.run(host, ["ip", "address", command, f"{ip}/8", "dev", "eth0"])
    assert result.returncode == 0, result.stderr


def test_an_address_that_really_moves_is_followed(running: Northbound) -> None:
    ip = "10.0.77.1"
    old, new = FORGERS
    address(running, old, "add", ip)
    try:
        assert running.emulation.run(old, ["ping", "-c1", "-W5", "-I", ip, running.ip(VICTIM)]).returncode == 0
        former = wait_until(lambda: places(running).get(ip), 5, "the address is not learnt")
    finally:
        address(running, old, "del", ip)
    address(running, new, "add", ip)
    try:
        inject(running, new, arp.build(arp.Packet(arp.REQUEST, mac(running, new), ip, arp.NO_MAC, ip)))
        wait_until(lambda: places(running)[ip] != former, 5, "the address does not move")
        assert running.emulation.run(PEER, ["ping", "-c1", "-W5", ip]).returncode == 0
    finally:
        address(running, new, "del", ip)


def metric(running: Northbound, name: str) -> float:
    found = re.search(rf"^{name} (\S+)", running.ask("GET", "/metrics").text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def test_a_host_that_floods_is_limited_by_its_switch_and_starves_neither_probes_nor_others(
        running: Northbound, tmp_path: Path) -> None:
    seconds, links_before, ip = 6, links(running), "10.0.77.2"
    port_no = running.fabric.port_toward("leaf0", FORGERS[0]).number
    taken, begin = metric(running, "speedwell_packet_ins_total"), time.monotonic()
    flood = running.emulation.popen(FORGERS[0], [sys.executable, "-c", FLOOD, str(seconds),
                                                 mac(running, PEER).replace(":", "")], tmp_path / "flood")
    try:
        time.sleep(2)
        # Beside the flood, at the same switch: an address that nobody has heard of yet.
        address(running, VICTIM, "add", ip)
        pinged = running.emulation.run(VICTIM, ["ping", "-c3", "-i0.3", "-W2", "-I", ip, running.ip(PEER)])
        assert pinged.returncode == 0, pinged.stdout
        while flood.poll() is None:
            assert links(running) == links_before
            time.sleep(0.5)
    finally:
        flood.kill()
        flood.wait()
        address(running, VICTIM, "del", ip)
    taken, elapsed = metric(running, "speedwell_packet_ins_total") - taken, time.monotonic() - begin
    sent = int((tmp_path / "flood").read_text())
    assert sent > 500 * seconds, f"this machine is too slow to flood: {sent}"
    # Its own meter (100 a second, and as many at once), and below 20 a second for probes and the others' ARP.
    assert taken <= 120 * elapsed + 100, f"{taken:.0f} of {sent} packets were handed up in {elapsed:.1f} s"
    stats = running.emulation.ovs_ofctl("leaf0", "meter-stats")
    dropped = re.search(rf"meter:{0x1FFFF + port_no} .*?0: packet_count:(\d+)", stats, re.DOTALL)
    assert dropped is not None and int(dropped[1]) > 0.5 * sent, stats
    limits = running.emulation.ovs_vsctl("leaf0", "get", "controller", "br0", "controller_rate_limit")
    assert limits.strip() == "1000"
    assert links(running) == links_before
