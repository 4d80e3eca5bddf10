"""Two controllers on two machines, network namespaces here: one leads, the other takes over, and no read fails."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from speedwell.cluster import identities
from speedwell.cluster.processes import program
from speedwell.controller.switches.entries import COOKIE_MASK
from speedwell.controller.switches.layout import COOKIE_FLOWS
from speedwell.fs.client.metrics import Metrics
from speedwell.fs.client.read.steering import Steering
from speedwell.fs.controller import Controller
from speedwell.fs.identity.roles import CONTROLLER, MOUNT, SWITCH
from speedwell.fs.proto.speedwell_pb2 import Replica
from speedwell.topo.emulation import Emulation
from speedwell.topo.fabric import spine_leaf
from speedwell.topo.fabric.addresses import MACHINE_ADDRESS, host_management_address
from tests.etcd import EtcdCluster, requires_etcd
from tests.integration.controller.northbound import RECEIVER, SENDER, Stream
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, requires_etcd]

MACHINES = ("r0h1", "r1h1")
"""The hosts whose namespaces are the controllers' machines; the others store and read."""
TAKEOVER_SECONDS = 8.0
"""Until reads of a client are steered again, where other tests keep the cores busy; printed is how long it took."""
HOST_BPS = 40e6
READ = "300,tcp,"
"""How the entries of reads begin."""
PORTS = itertools.count(40000)


class Pair:
    def __init__(self, emulation: Emulation, etcd: str, directory: Path) -> None:
        self.emulation, self.fabric = emulation, emulation.fabric
        self._etcd = etcd
        self.directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.addresses = {host.name: host_management_address(number)
                          for number, host in enumerate(self.fabric.hosts) if host.name in MACHINES}
        self.urls = {name: f"https://{address}:8080" for name, address in self.addresses.items()}
        self.client = self.controller(*self.urls.values())

    def controller(self, *urls: str) -> Controller:
        return Controller(",".join(urls), identities.of_operator(self.directory))

    def start(self, machine: str) -> None:
        address = self.addresses[machine]
        self._processes[machine] = self.emulation.popen(machine, [
            program("speedwell-controller"), "--etcd", self._etcd, "--openflow-host", address,
            "--rest-host", address, "--identity", str(self.directory / identities.FOLDER / CONTROLLER)],
            self.directory / machine)
        wait_until(lambda: self.health(machine), 20, f"no controller answers on {machine}")

    def kill(self, machine: str) -> None:
        self._processes.pop(machine).kill()

    def signal(self, machine: str, number: signal.Signals) -> None:
        os.kill(self._processes[machine].pid, number)

    def begun_anew(self, machine: str) -> int:
        """How often."""
        return (self.directory / machine).read_text().count("begins anew as a standby")

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def ask(self, controller: Controller, method: str, path: str, body: Any = None,
            seconds: float = 0.5) -> tuple[int, Any]:
        connection = controller.connect(seconds)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def health(self, machine: str) -> Any:
        try:
            return self.ask(self.controller(self.urls[machine]), "GET", "/v1/health")[1]
        except OSError:
            return None

    def answered(self, machine: str) -> Any:
        """Its health, also where a busy machine lets it wait."""
        return wait_until(lambda: self.health(machine), 20, f"the controller on {machine} does not answer")

    def leader(self) -> str | None:
        """The machine that leads a whole fabric, while the other one stands by."""
        for machine in MACHINES:
            leading, standby = self.health(machine), self.health(other_of(machine))
            if leading and standby and leading["status"] == "ok" and standby["leader"] == self.urls[machine]:
                return machine
        return None

    def place(self) -> dict[str, Any] | None:
        """A read through the fabric, by whichever controller leads; None if none places it."""
        body = {"client": self.fabric.host("r1h0").ip, "client_ports": [next(PORTS)], "size_bytes": 10_000_000,
                "replicas": [{"host": self.fabric.host("r0h0").ip, "port": 7100}]}
        try:
            status, read = self.ask(self.client, "POST", "/v1/reads", body)
        except OSError:
            return None
        return read if status == 201 else None

    @contextmanager
    def steering(self) -> Iterator[Callable[[], bool]]:
        """A mount's: whether a controller places its read now. If not, it would read from the nearest replica."""
        replica = Replica(host=self.fabric.host("r0h0").ip, port=7100, dataserver_id="r0h0")
        steering = Steering(self.client.url, Metrics(), identity=self.directory / identities.FOLDER / MOUNT)

        def place() -> bool:
            placed = steering.place(self.fabric.host("r1h0").ip, [next(PORTS)], [replica], 0, 10_000_000, "file")
            return placed is not None

        try:
            yield place
        finally:
            steering.close()

    def read_entries(self, switch: str) -> list[str]:
        """The matches of the entries of reads, as the switch has them."""
        listed = self.emulation.ovs_ofctl(switch, "dump-flows", f"cookie={COOKIE_FLOWS:#x}/{COOKIE_MASK:#x}")
        return sorted(line.split("priority=")[1] for line in listed.splitlines() if "priority=" in line)

    def all_entries(self) -> set[tuple[str, str]]:
        """What all switches hold, without counters: the switch, and match and actions."""
        return {(switch.name, line.split("priority=")[1]) for switch in self.fabric.switches
                for line in self.emulation.ovs_ofctl(switch.name, "dump-flows").splitlines() if "priority=" in line}

    def roles(self, switch: str) -> dict[str, str]:
        """The role of each controller at a switch, by its address."""
        listed = self.emulation.ovs_vsctl(switch, "--format=json", "--columns=target,role", "list", "Controller")
        return {target.split(":")[1]: role for target, role in json.loads(listed)["data"]}

    def seconds_until_placed(self) -> float:
        began = time.monotonic()
        wait_until(self.place, 20, "no controller places reads")
        return time.monotonic() - began


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("pair")
    fabric = spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=HOST_BPS, oversubscription=1.0)
    addresses = [host_management_address(number) for number, host in enumerate(fabric.hosts) if host.name in MACHINES]
    identities.prepare(directory, [(CONTROLLER, CONTROLLER), (MOUNT, MOUNT), identities.OPERATORS,
                                   *((switch.dpid_hex, SWITCH) for switch in fabric.switches)], addresses[0])
    with Emulation(fabric, directory=directory / "switches", controller=(addresses[0], 6653),
                   standby=(addresses[1], 6653), identities=directory / identities.FOLDER) as emulation, \
            EtcdCluster(directory, host=MACHINE_ADDRESS) as etcd:
        pair = Pair(emulation, etcd.endpoints[0], directory)
        try:
            for machine in MACHINES:
                pair.start(machine)
            yield pair
        finally:
            pair.stop()


@pytest.fixture
def leader(pair: Pair) -> str:
    """Every test finds both controllers and a fabric that is known."""
    machine = wait_until(pair.leader, 30, lambda: str({each: pair.health(each) for each in MACHINES}))
    pair.seconds_until_placed()
    wanted = {pair.addresses[machine]: "master", pair.addresses[other_of(machine)]: "slave"}
    for switch in pair.fabric.switches:
        # what Open vSwitch's database says of it is up to 5 s old
        wait_until(lambda switch=switch.name: pair.roles(switch) == wanted, 20, f"{switch.name} has other roles")
    return str(machine)


def other_of(machine: str) -> str:
    return MACHINES[1 - MACHINES.index(machine)]


def test_a_standby_answers_health_and_names_the_leader_for_all_else(
        pair: Pair, leader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speedwell.fs.controller.MOST_CONTROLLERS", 1)     # who is told of the leader goes there
    standby = pair.controller(pair.urls[other_of(leader)])
    status, health = pair.ask(standby, "GET", "/v1/health")
    assert (status, health["status"], health["leader"]) == (200, "standby", pair.urls[leader])
    for method, path in (("POST", "/v1/reads"), ("GET", "/v1/network"), ("DELETE", "/v1/reads/1")):
        status, problem = pair.ask(standby, method, path, {})
        assert (status, problem["type"]) == (503, "urn:speedwell:problem:standby")
        assert problem["leader"] == pair.urls[leader]


def test_switches_take_the_leader_for_their_master_and_the_other_for_a_slave(pair: Pair, leader: str) -> None:
    wanted = {pair.addresses[leader]: "master", pair.addresses[other_of(leader)]: "slave"}
    for switch in pair.fabric.switches:
        # what Open vSwitch's database says of it is up to 5 s old
        wait_until(lambda switch=switch.name: pair.roles(switch) == wanted, 20, f"{switch.name} has other roles")


def test_reads_of_a_client_are_steered_again_after_the_leader_was_killed(pair: Pair, leader: str) -> None:
    with pair.steering() as place:
        wait_until(place, 20, "the client's reads are not steered")
        pair.kill(leader)
        began = time.monotonic()
        wait_until(place, 20, "the client's reads are not steered any more")
        seconds = time.monotonic() - began
    print(f"a client's reads are steered again after SIGKILL: {seconds:.2f} s")
    assert seconds < TAKEOVER_SECONDS
    assert pair.answered(other_of(leader))["status"] != "standby"
    pair.start(leader)


def test_a_read_goes_on_with_its_entry_while_the_leader_is_killed_and_others_are_placed(
        pair: Pair, leader: str) -> None:
    source, target = (pair.fabric.host(name).ip for name in ("r0h0", "r1h0"))
    read = wait_until(pair.place, 20, "no controller places reads")
    port, size_bytes = read["parts"][0]["client_port"], int(12 * HOST_BPS / 8)
    logs = pair.directory / f"stream-{port}"
    sender = pair.emulation.popen("r0h0", [sys.executable, "-c", SENDER, source, "7100", str(size_bytes)],
                                  logs / "sender")
    wait_until(lambda: b"listening" in (logs / "sender").read_bytes(), 10, "the sender does not listen")
    receiver = pair.emulation.popen("r1h0", [sys.executable, "-c", RECEIVER, target, str(port), source, "7100"],
                                    logs / "receiver")
    stream = Stream(sender, receiver, logs / "receiver")
    try:
        pair.kill(leader)
        checks = 0
        while not stream.ended():
            pair.place()
            assert any(f"tp_dst={port} " in entry for entry in pair.read_entries("leaf0")), f"gone at check {checks}"
            checks += 1
            time.sleep(0.1)
        assert checks > 5 and stream.received_bytes == size_bytes
        assert pair.answered(other_of(leader))["status"] == "ok"
    finally:
        stream.stop()
        pair.start(leader)


def test_a_leader_that_was_stopped_changes_nothing_when_it_goes_on(pair: Pair, leader: str) -> None:
    begun_anew = pair.begun_anew(leader)
    pair.signal(leader, signal.SIGSTOP)
    try:
        with pair.steering() as place:
            began = time.monotonic()
            wait_until(place, 20, "the client's reads are not steered any more")
            seconds = time.monotonic() - began
        print(f"a client's reads are steered again after SIGSTOP: {seconds:.2f} s")
        assert seconds < TAKEOVER_SECONDS
        wait_until(lambda: pair.answered(other_of(leader))["status"] == "ok", 20, "the new leader does not settle")
        read = wait_until(pair.place, 20, "the new leader places no read")
        before = pair.all_entries()
    finally:
        pair.signal(leader, signal.SIGCONT)
    wait_until(lambda: (pair.health(leader) or {}).get("status") == "standby", 20,
               "the former leader does not stand by")
    assert pair.begun_anew(leader) == begun_anew + 1
    after = pair.all_entries()
    # those of reads that nobody moved bytes for end by themselves
    assert after <= before
    assert {entry for entry in before if not entry[1].startswith(READ)} <= after
    port = f"tp_dst={read['parts'][0]['client_port']} "
    assert any(port in entry for _, entry in after), "the read that the new leader placed is gone"
    assert pair.answered(other_of(leader))["status"] != "standby"


def test_a_leader_that_is_cut_off_stands_down_before_the_other_leads(pair: Pair, leader: str) -> None:
    begun_anew = pair.begun_anew(leader)
    pair.emulation.set_management_link(leader, up=False)
    try:
        seconds = pair.seconds_until_placed()
        print(f"takeover after the machine was cut off: {seconds:.2f} s")
        assert pair.begun_anew(leader) == begun_anew + 1
    finally:
        pair.emulation.set_management_link(leader, up=True)
