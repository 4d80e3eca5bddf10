"""A real controller on an emulated fabric, and clients that ask it and move bytes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import requests

from speedwell.cluster import identities
from speedwell.cluster.processes import Command, Processes, program
from speedwell.controller.switches.entries import COOKIE_MASK
from speedwell.controller.switches.layout import COOKIE_FLOWS
from speedwell.fs.identity.files import AUTHORITY, CERTIFICATE
from speedwell.fs.identity.roles import CONTROLLER, SWITCH
from speedwell.topo.emulation import Emulation
from speedwell.topo.emulation.discovery import wait_for_network
from speedwell.topo.fabric import Fabric
from tests.waiting import wait_until

MACHINE = "10.255.0.1"
OPENFLOW_PORT = 6653
REPLICA_PORT = 7100

SENDER = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
piece = bytes(65536)
print("listening", flush=True)
left, (connection, _) = int(sys.argv[3]), server.accept()
try:
    while left > 0:
        left -= connection.send(piece[:left])
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
except OSError:
    pass
"""
RECEIVER = """
import socket, sys
received, connection = 0, socket.socket()
connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
connection.bind((sys.argv[1], int(sys.argv[2])))
connection.settimeout(60)
connection.connect((sys.argv[3], int(sys.argv[4])))
while piece := connection.recv(1 << 20):
    received += len(piece)
print(received)
"""


@dataclass
class Stream:
    """Bytes on their way from a replica's host to a client's port."""

    sender: subprocess.Popen[bytes]
    receiver: subprocess.Popen[bytes]
    result: Path

    @property
    def received_bytes(self) -> int:
        """How many bytes arrived in all, once the stream has ended."""
        return int(self.result.read_text() or -1)

    def ended(self) -> bool:
        return self.receiver.poll() is not None

    def stop(self) -> None:
        for process in (self.receiver, self.sender):
            process.kill()
            process.wait()


@dataclass
class Northbound:
    fabric: Fabric
    emulation: Emulation
    directory: Path
    settings: str
    url: str = ""
    session: requests.Session = field(default_factory=requests.Session)
    _controller: Processes | None = None
    _streams: int = 0

    def start_controller(self) -> None:
        """Start a controller, and wait until it knows every switch and link."""
        config = self.directory / "controller.toml"
        config.write_text(self.settings)
        self._controller = Processes(self.directory / "controller")
        self._controller.start_together([Command("controller", [
            program("speedwell-controller"), "--config", str(config), "--openflow-host", MACHINE,
            "--openflow-port", str(OPENFLOW_PORT), "--rest-host", MACHINE, "--rest-port", "8080",
            "--identity", str(self.directory / identities.FOLDER / CONTROLLER)])])
        self.url = f"https://{MACHINE}:8080"
        wait_for_network(self.url, self.fabric, self.session)

    def meet_all_hosts(self) -> None:
        """Let the controller find every host: it does not know which ports lead to hosts right after its start."""
        for host in self.fabric.hosts:
            other = next(another for another in self.fabric.hosts if another.rack != host.rack)
            body = self.body(host.name, other.name, port=1)

            def placed(body: dict[str, Any] = body) -> requests.Response | None:
                answer = self.ask("POST", "/v1/reads", body)
                return answer if answer.status_code == 201 else None

            self.end(wait_until(placed, 20, f"the controller does not find {host.name}").json())

    def stop_controller(self) -> None:
        if self._controller is not None:
            self._controller.stop()
            self._controller = None

    def kill_controller(self) -> None:
        """As the kernel would for want of memory: no goodbye to anybody."""
        assert self._controller is not None
        record = self._controller.find("controller")
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)
        self.stop_controller()

    def ip(self, host: str) -> str:
        return self.fabric.host(host).ip

    def ask(self, method: str, path: str, body: Any = None) -> requests.Response:
        return self.session.request(method, self.url + path, json=body, timeout=30)

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def body(self, client: str, /, *replicas: str, port: int, **changes: Any) -> dict[str, Any]:
        return {"client": self.ip(client), "client_ports": [port], "size_bytes": 10_000_000,
                "replicas": [{"host": self.ip(host), "port": REPLICA_PORT} for host in replicas]} | changes

    def place(self, client: str, /, *replicas: str, port: int, **changes: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/v1/reads", self.body(client, *replicas, port=port, **changes))
        assert answer.status_code == 201, answer.text
        return answer.json()

    def end(self, read: dict[str, Any]) -> None:
        assert self.ask("DELETE", f"/v1/reads/{read['id']}").status_code == 204

    def clear(self) -> None:
        """End every program on the hosts, and every read."""
        self.emulation.stop_services()
        for read in self.get("/v1/reads")["reads"]:
            self.end(read)

    def read_entries(self, switch: str) -> list[str]:
        """What a switch itself says of its entries of reads."""
        listed = self.emulation.ovs_ofctl(switch, "dump-flows", f"cookie={COOKIE_FLOWS:#x}/{COOKIE_MASK:#x}")
        return [line.strip() for line in listed.splitlines() if "cookie=" in line]

    def all_read_entries(self) -> list[str]:
        return [entry for switch in self.fabric.switches for entry in self.read_entries(switch.name)]

    def sent_bytes(self, a: str, b: str) -> int:
        """What the switch `a` has sent towards its neighbour `b`, by its own counter."""
        port = self.fabric.port_toward(a, b).number
        listed = self.emulation.ovs_ofctl(a, "dump-ports", str(port))
        found = re.search(r"tx pkts=\d+, bytes=(\d+)", listed)
        assert found is not None, listed
        return int(found[1])

    def stream(self, replica: str, client: str, client_port: int, size_bytes: int) -> Stream:
        """Start to move `size_bytes` over the connection that a read was placed for."""
        self._streams += 1
        logs = self.directory / f"stream-{self._streams}"
        sender = self.emulation.popen(replica, [sys.executable, "-c", SENDER, self.ip(replica), str(REPLICA_PORT),
                                                str(size_bytes)], logs / "sender")
        wait_until(lambda: b"listening" in (logs / "sender").read_bytes(), 10, "the sender does not listen")
        receiver = self.emulation.popen(client, [sys.executable, "-c", RECEIVER, self.ip(client), str(client_port),
                                                 self.ip(replica), str(REPLICA_PORT)], logs / "receiver")
        return Stream(sender, receiver, logs / "receiver")


Running = TypeVar("Running", bound=Northbound)


@contextmanager
def northbound(fabric: Fabric, directory: Path, settings: str, kind: type[Running] = Northbound,
               **emulated: Any) -> Iterator[Running]:
    """A running fabric with a controller that knows all of it; `settings` is the controller's TOML file, `emulated`
    what Emulation takes besides."""
    identities.prepare(directory, [(CONTROLLER, CONTROLLER), identities.OPERATORS,
                                   *((switch.dpid_hex, SWITCH) for switch in fabric.switches)], MACHINE)
    with Emulation(fabric, directory=directory / "switches", controller=(MACHINE, OPENFLOW_PORT),
                   identities=directory / identities.FOLDER, **emulated) as emulation:
        running = kind(fabric, emulation, directory, settings)
        operator = identities.of_operator(directory)
        running.session.cert, running.session.verify = str(operator / CERTIFICATE), str(operator / AUTHORITY)
        running.session.trust_env = False
        try:
            running.start_controller()
            yield running
        finally:
            running.stop_controller()
