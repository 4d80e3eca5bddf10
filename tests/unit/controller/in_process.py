"""The controller's northbound side in one process, on a small fabric that exists as data only."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import eventlet
from webob import Request, Response

from controller import dividing, read_accounts
from controller.apps import flowserver
from controller.apps.coflows import Coflows
from controller.apps.flowserver import Flowserver
from controller.apps.queues import Queues
from controller.apps.rest_api import RestApi
from controller.errors import ControllerError, UnknownHost
from controller.measurements import Measurements
from controller.network_state import HostLocation, NetworkState, PortInfo, PortKind, SwitchInfo
from controller.policy.five_tuple import FiveTuple
from controller.policy.network import Path
from controller.reads import ReadBook
from controller.rest import RestApplication
from controller.settings import Settings

CAPACITY_BPS = 80e6
EDGES = ("0000000000000001", "0000000000000002")
AGGREGATIONS = ("0000000000000011", "0000000000000012")
HOSTS = {"10.0.0.1": EDGES[0], "10.0.0.2": EDGES[0], "10.0.1.1": EDGES[1], "10.0.1.2": EDGES[1]}


class TablesInMemory:
    """Stands where the forwarding application stands: keeps what would be in the switches."""

    def __init__(self) -> None:
        self.entries: dict[FiveTuple, tuple[Path, int]] = {}
        self.failures: list[ControllerError] = []

    def install_path(self, five_tuple: FiveTuple, path: Path, cookie: int, idle_timeout_seconds: int,
                     traffic_class: int = 0) -> None:
        self._wait_for_barrier()
        self.entries[five_tuple] = path, cookie

    def move_path(self, five_tuple: FiveTuple, path: Path) -> None:
        self._wait_for_barrier()
        self.entries[five_tuple] = path, self.entries[five_tuple][1]

    def remove_path(self, five_tuple: FiveTuple) -> None:
        if self.entries.pop(five_tuple, None) is not None:
            self._wait_for_barrier()

    def _wait_for_barrier(self) -> None:
        eventlet.sleep(0)
        if self.failures:
            raise self.failures.pop(0)


class NothingPlaced:
    """Stands where flows with meters are put into switches."""

    unmetered = 0

    def get(self, five_tuple: FiveTuple) -> None:
        return None


class HostsInMemory:
    """Stands where the host application stands. `appearing` hosts answer after so many seconds, others never."""

    def __init__(self, state: NetworkState) -> None:
        self._state = state
        self.appearing: dict[str, tuple[float, HostLocation]] = {}
        self.asked: list[str] = []

    def locate(self, ip: str, timeout_seconds: float = 1.0) -> HostLocation:
        if ip not in self._state.hosts:
            self.asked.append(ip)
            delay, location = self.appearing.get(ip, (timeout_seconds, None))
            eventlet.sleep(delay)
            if location is None:
                raise UnknownHost(ip)
            self._state.set_host(location)
        return self._state.hosts[ip]


class Datapath:
    def __init__(self, dpid: str) -> None:
        self.id = int(dpid, 16)


class Controller:
    """Two racks of two hosts; every edge switch is joined with both aggregation switches."""

    def __init__(self, **settings: Any) -> None:
        self.state = NetworkState(Settings(**settings))
        self.measurements = Measurements()
        self.reads = ReadBook()
        self.application = RestApplication()
        self._connect_everything()
        contexts = {"state": self.state, "measurements": self.measurements, "reads": self.reads,
                    "rest": self.application}
        self.flowserver = Flowserver(**contexts)
        self.queues = Queues(**contexts)
        if self.state.settings.coflow_key_file is not None:
            self.coflows = Coflows(**contexts)
            self.coflows.forwarding = SimpleNamespace(explicit_paths=[], metered_paths=NothingPlaced())
        self.rest_api = RestApi(**contexts)
        self.tables = self.flowserver.forwarding = TablesInMemory()
        self.hosts = self.flowserver.hosts = HostsInMemory(self.state)

    def _connect_everything(self) -> None:
        for number, dpid in enumerate((*EDGES, *AGGREGATIONS)):
            tier = "edge" if dpid in EDGES else "aggregation"
            self.state.switch_connected(SwitchInfo(dpid, f"{tier}-{number % 2}", f"10.255.0.{number + 2}", True),
                                        Datapath(dpid))
            for port_no in (1, 2, 3, 4):
                kind = PortKind.EDGE if tier == "edge" and port_no <= 2 else PortKind.FABRIC
                mac = f"02:00:00:00:{number:02x}:{port_no:02x}"
                self.state.set_port(dpid, PortInfo(port_no, f"eth{port_no}", mac, True, CAPACITY_BPS, kind))
        for edge_number, edge in enumerate(EDGES):
            for number, aggregation in enumerate(AGGREGATIONS):
                self.state.add_link((edge, number + 3), (aggregation, edge_number + 1))
        for ip, dpid in HOSTS.items():
            port_no = int(ip.rsplit(".", 1)[1])
            self.state.set_host(HostLocation(ip, f"02:00:0a:{port_no:02x}:00:{dpid[-2:]}", dpid, port_no))

    def ask(self, method: str, url: str, body: Any = None, **headers: str) -> Response:
        request = Request.blank(url, method=method)
        if body is not None:
            request.body = body if isinstance(body, bytes) else json.dumps(body).encode()
            request.content_type = headers.get("content_type", "application/json")
        return request.get_response(self.application)


def read_of(**changes: Any) -> dict[str, Any]:
    """The body of a good POST /v1/reads."""
    return {"client": "10.0.1.1", "client_ports": [40000], "replicas": [{"host": "10.0.0.1", "port": 7000}],
            "size_bytes": 10_000_000} | changes


def clocked(monkeypatch: Any) -> list[float]:
    """The flowserver's clock, to be set by hand."""
    now = [1000.0]

    class Clock:
        monotonic = staticmethod(lambda: now[0])

    for module in (flowserver, read_accounts, dividing):
        monkeypatch.setattr(module, "time", Clock)
    return now
