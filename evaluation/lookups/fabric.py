"""An emulated fabric for experiments with metadata servers: switches, the controller, and servers of one method at a
time on the first hosts of each rack, clients on the last ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from speedwell.cluster.errors import ClusterError
from speedwell.cluster.fabric import FabricCluster
from speedwell.cluster.fabric_settings import read_settings
from speedwell.cluster.machine import busy_seconds
from speedwell.controller.policy.metadata.blocks import SPACE
from speedwell.controller.policy.metadata.btree import grown, tree_of
from speedwell.evaluation.lookups.load import Load, Outcome
from speedwell.evaluation.lookups.server import METAFLOW, STEERED, Role
from speedwell.sim.fabric_network import network_of
from speedwell.topo.emulation.discovery import wait_for_hosts, wait_for_network
from speedwell.topo.emulation.processes import cpu_seconds
from speedwell.topo.fabric import Fabric, three_tier
from speedwell.topo.waiting import wait_for

RACKS, SERVERS_PER_RACK, CLIENTS_PER_RACK = 4, 4, 2
MOST_SERVERS = RACKS * SERVERS_PER_RACK
SETTLE_SECONDS, START_SECONDS = 60.0, 60.0
BEGIN_SECONDS = 2.0
"""For clients to start."""
NUMBER, DELIVERIES = 25, 27
"""The tables of keys (docs/reference/switch-tables.md)."""


def fabric_of(host_bps: float) -> Fabric:
    """Raises InvalidFabric."""
    return three_tier(pods=2, racks_per_pod=RACKS // 2, hosts_per_rack=SERVERS_PER_RACK + CLIENTS_PER_RACK,
                      aggregations_per_pod=2, cores=2, host_bps=host_bps)


class LookupFabric(FabricCluster):
    """Without nameserver and dataservers."""

    def start(self, progress: Callable[[str], None] = lambda message: None) -> None:
        """Raises ClusterError, EmulationError; call `stop` then."""
        fabric, self.serving, self.roles = self.settings.fabric, list[subprocess.Popen[bytes]](), list[Role]()
        progress(f"building {fabric.name}")
        self.emulation.start()
        racks = [[host for host in fabric.hosts if host.rack == rack]
                 for rack in dict.fromkeys(host.rack for host in fabric.hosts)]
        self.server_hosts = [rack[turn] for turn in range(SERVERS_PER_RACK) for rack in racks]
        self.client_hosts = [rack[SERVERS_PER_RACK + turn] for turn in range(CLIENTS_PER_RACK) for rack in racks]
        self._restart_controller()

    def serve(self, method: str, servers: int, ratio: float = 1.0, units_per_second: float = 0.0) -> None:
        """Start so many servers in place of those that run, and wait until every key has one. A look-up takes a
        unit of their processor's time, a record `ratio`. Raises ClusterError."""
        self.end_servers()
        if method in STEERED:
            self._restart_controller()
        hosts = self.server_hosts[:servers]
        blocks = self._blocks_of_tree([host.ip for host in hosts]) if method == METAFLOW else {}
        directory = Path(tempfile.mkdtemp(dir=self.settings.directory))
        logs = []
        for number, host in enumerate(hosts):
            role = Role(method, number, tuple(each.ip for each in hosts), tuple(blocks.get(host.ip, ())),
                        f"leveldb:{directory / host.name}", self.controller, units_per_second, 1.0, ratio)
            logs.append(directory / f"{host.name}.log")
            self.roles.append(role)
            self.serving.append(self._run(host.name, "server", asdict(role), logs[-1]))
        if not wait_for(lambda: all("ready" in log.read_text() for log in logs), START_SECONDS):
            raise ClusterError(f"metadata servers do not start: {[log.read_text()[-300:] for log in logs]}")
        if method in STEERED and not wait_for(lambda: self._is_settled([host.ip for host in hosts]), SETTLE_SECONDS):
            raise ClusterError(f"blocks of keys do not settle: {self.get('/v1/metadata/blocks')}")

    def end_servers(self) -> None:
        for process in self.serving:
            process.kill()
            process.wait()
        self.serving.clear()
        self.roles.clear()
        for host in self.server_hosts:
            self.emulation.run(host.name, ["sh", "-c", "iptables -w -t nat -F PREROUTING; for block in $(ip -4 route "
                                           "show table local type local | grep -o '100\\.[0-9./]*'); do "
                                           "ip route del local $block table local; done"])

    def ask(self, load: Callable[[int, float], Load], clients: int | None = None) -> list[Outcome]:
        """What the loads come to, of which each client host gets one by its number and the time to begin. Raises
        ClusterError."""
        hosts, begin = self.client_hosts[:clients], time.monotonic() + BEGIN_SECONDS + len(self.client_hosts) / 4
        logs = [self.settings.directory / f"load-{host.name}-{begin}" for host in hosts]
        loads = [load(number, begin) for number in range(len(hosts))]
        running = [self._run(host.name, "load", asdict(each), log)
                   for host, each, log in zip(hosts, loads, logs, strict=True)]
        outcomes = []
        for process, log, each in zip(running, logs, loads, strict=True):
            process.wait(each.seconds + 600)
            lines = log.read_text().splitlines()
            if process.returncode or not lines:
                raise ClusterError(f"clients end with {process.returncode}: {log.read_text()[-500:]}")
            outcomes.append(Outcome(**json.loads(lines[-1])))
        if failures := [failure for outcome in outcomes for failure in outcome.failures]:
            raise ClusterError(f"{len(failures)} requests failed, such as: {failures[0]}")
        return outcomes

    @property
    def serving_ips(self) -> tuple[str, ...]:
        """The addresses of the servers that run."""
        return self.roles[0].hosts

    def start_storage(self, servers: int) -> tuple[str, ...]:
        """Start a storage server on each host for servers that has none of these metadata servers; their
        addresses."""
        hosts, logs = self.server_hosts[servers:], []
        for host in hosts:
            directory = Path(tempfile.mkdtemp(dir=self.settings.directory))
            logs.append(directory / "log")
            self.serving.append(self.emulation.popen(host.name, [
                sys.executable, "-m", "speedwell.evaluation.lookups.load", "storage", str(directory)], logs[-1]))
        if not wait_for(lambda: all("ready" in log.read_text() for log in logs), START_SECONDS):
            raise ClusterError(f"storage servers do not start: {logs[0].read_text()}")
        return tuple(host.ip for host in hosts)

    @contextmanager
    def background(self, load: Load) -> Iterator[None]:
        """A load that goes on beside others, from the last client host."""
        log = self.settings.directory / f"background-{time.monotonic()}"
        begun = replace(load, begin=time.monotonic() + 1.0)
        process = self._run(self.client_hosts[-1].name, "load", asdict(begun), log)
        try:
            yield
            if process.poll() is not None:
                raise ClusterError(f"the background's clients end: {log.read_text()[-500:]}")
        finally:
            process.kill()
            process.wait()

    def server_cpu_seconds(self) -> float:
        """Of all servers' processes, user and system."""
        return sum(cpu_seconds(process.pid) for process in self.serving)

    def machine_busy_seconds(self) -> float:
        return busy_seconds()

    def entries(self) -> dict[str, dict[str, int]]:
        """By switch, what its tables for keys hold as the switch itself says, and what MetaFlow's would."""
        found = {}
        for switch in self.settings.fabric.switches:
            told = self.get(f"/v1/metadata/tables/{switch.dpid_hex}")
            held = sum(len(re.findall(r"priority=(?!201,)\d+,ip,nw_dst=100\.", self.emulation.ovs_ofctl(
                switch.name, "dump-flows", f"table={number}"))) for number in (NUMBER, DELIVERIES))
            if held != told["servers"] + told["racks"] + told["pods"]:
                raise ClusterError(f"{switch.name} holds {held} prefixes of keys, the controller says {told}")
            found[switch.name] = {"ours": held, "paper": told["paper"]}
        return found

    def get(self, path: str) -> Any:
        answer = self.session().get(self.controller + path, timeout=30)
        answer.raise_for_status()
        return answer.json()

    def _restart_controller(self) -> None:
        self.processes.stop(names=["controller"])
        self._start([self._controller()])
        wait_for_network(self.controller, self.network, self.session())
        self.emulation.announce_hosts()
        wait_for_hosts(self.controller, self.network, self.session(), lambda message: None)

    def _is_settled(self, hosts: Sequence[str]) -> bool:
        blocks = self.get("/v1/metadata/blocks")["blocks"]
        return {block["host"] for block in blocks} == set(hosts) and not any(block["moving_to"] for block in blocks)

    def _blocks_of_tree(self, hosts: Sequence[str]) -> Mapping[str, list[str]]:
        network = network_of(self.settings.fabric)
        names = {host.name: host.ip for host in self.settings.fabric.hosts}
        tree = grown(tree_of(network, [name for name, ip in names.items() if ip in hosts], SPACE), len(hosts))
        found: dict[str, list[str]] = {}
        for block in tree.blocks:
            found.setdefault(names[block.server], []).append(str(IPv4Network(block.prefix)))
        return found

    def _run(self, host: str, program: str, given: Mapping[str, object], log: Path) -> subprocess.Popen[bytes]:
        settings = log.with_suffix(".json")
        settings.write_text(json.dumps(given))
        return self.emulation.popen(host, [sys.executable, "-m", f"speedwell.evaluation.lookups.{program}",
                                           str(settings)], log)


@contextmanager
def running(say: Callable[[str], None], host_bps: float) -> Iterator[LookupFabric]:
    """Raises ClusterError, EmulationError."""
    with tempfile.TemporaryDirectory(prefix="speedwell-lookups-") as name:
        cluster = LookupFabric(read_settings(fabric=fabric_of(host_bps), directory=Path(name), identity=False))
        try:
            cluster.start(say)
            yield cluster
        finally:
            cluster.stop()
