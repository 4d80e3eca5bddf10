"""The controller's northbound side in one process, on a small fabric that exists as data only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import eventlet
from webob import Response

from speedwell.controller.coflows.app import Coflows
from speedwell.controller.counters.measurements import Measurements
from speedwell.controller.errors import ControllerError, UnknownHost
from speedwell.controller.loops import Loops
from speedwell.controller.network.app import NetworkReport
from speedwell.controller.placements.app import Placements
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.queues.app import Queues
from speedwell.controller.reads import app as flowserver
from speedwell.controller.reads import read_divisions, scheduler
from speedwell.controller.reads.app import Flowserver
from speedwell.controller.reads.scheduler import CLAIMANT
from speedwell.controller.rest import RestApplication
from speedwell.controller.rest.app import RestApi
from speedwell.controller.rest.http import Request
from speedwell.controller.services import Services
from speedwell.controller.settings import Settings
from speedwell.controller.switches.entries import FlowEntry
from speedwell.controller.switches.packet_ins import PacketIns
from speedwell.controller.tables.flow_records import Claim, Claimant, EntryPlacement, FlowRecord, Withdrawal
from speedwell.controller.tables.forwarding import Forwarding
from speedwell.controller.topology.hosts import Hosts, TableKeeper
from speedwell.controller.topology.state import HostLocation, NetworkState, PortInfo, PortKind, SwitchInfo

CAPACITY_BPS = 80e6
EDGES = ("0000000000000001", "0000000000000002")
AGGREGATIONS = ("0000000000000011", "0000000000000012")
HOSTS = {"10.0.0.1": EDGES[0], "10.0.0.2": EDGES[0], "10.0.1.1": EDGES[1], "10.0.1.2": EDGES[1]}


class RecordsInMemory(dict[FiveTuple, FlowRecord]):
    """Stands where flow records are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.priorities: Mapping[FiveTuple, int] = {}
        self.paces_bps: Mapping[FiveTuple, int] = {}

    def order_hosts(self, priorities: Mapping[FiveTuple, int], paces_bps: Mapping[FiveTuple, int]) -> None:
        self.priorities, self.paces_bps = priorities, paces_bps

    def claim_of(self, five_tuple: FiveTuple, claimant: Claimant) -> Claim | None:
        return self[five_tuple].claims.get(claimant) if five_tuple in self else None


class TablesInMemory:
    """Stands where the forwarding application stands: keeps what would be in the switches."""

    def __init__(self) -> None:
        self.is_in_force = True
        self.records = RecordsInMemory()
        self.flow_installer = SimpleNamespace(unmetered=0)
        self.failures: list[ControllerError] = []

    @property
    def entries(self) -> dict[FiveTuple, tuple[Path | None, object]]:
        """The path of each flow, and which part of a read it is."""
        return {flow: (record.path, record.claims[CLAIMANT].subject) for flow, record in self.records.items()}

    def apply(self, claims: Iterable[Claim] = (),
              withdrawals: Iterable[Withdrawal] = ()) -> dict[FiveTuple, ControllerError]:
        eventlet.sleep(0)
        failures: dict[FiveTuple, ControllerError] = {}
        for claim in claims:
            if self.failures:
                failures[claim.five_tuple] = self.failures.pop(0)
                continue
            record = self.records.setdefault(claim.five_tuple, FlowRecord(claim.five_tuple))
            former, record.claims[claim.claimant] = dict(record.claims), claim
            if record.goes_on(former):
                record.count_on(former)
            else:
                record.count_anew()
            self.divert(claim.five_tuple, claim.path)
        for withdrawal in withdrawals:
            held = self.records.get(withdrawal.five_tuple)
            if held is None:
                continue
            held.withdraw(withdrawal)
            if not held.claims:
                del self.records[withdrawal.five_tuple]
                if self.failures:
                    failures[withdrawal.five_tuple] = self.failures.pop(0)
        return failures

    def divert(self, five_tuple: FiveTuple, path: Path | None) -> None:
        self.records[five_tuple].placement = EntryPlacement("", FlowEntry(0, 0, ()), path)


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
        self.application = RestApplication()
        self._connect_everything()
        self.tables, self.hosts = TablesInMemory(), HostsInMemory(self.state)
        services = Services(self.state, self.measurements, self.application, PacketIns(loops := Loops()), loops)
        services.provide(Forwarding, self.tables)
        services.provide(TableKeeper, self.tables)
        services.provide(Hosts, self.hosts)
        self.flowserver = Flowserver(services)
        self.reads = self.flowserver.reads
        self.placements = Placements(services)
        self.queues = Queues(services)
        if self.state.settings.coflow_key_file is not None:
            self.coflows = Coflows(services)
            self.coflows.forwarding = SimpleNamespace(records=RecordsInMemory(),
                                                      flow_installer=SimpleNamespace(unmetered=0))
        self.rest_api = RestApi(services)
        NetworkReport(services).start()
        self.flowserver.forwarding, self.flowserver.hosts = self.tables, self.hosts
        self.placements.transfers = self.flowserver.transfers

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

    def ask(self, method: str, url: str, body: Any = None, peer: str = "10.255.0.1", **headers: str) -> Response:
        head, unread = f"{method} {url} HTTP/1.1", b""
        if body is not None:
            unread = body if isinstance(body, bytes) else json.dumps(body).encode()
            content_type = headers.get("content_type", "application/json")
            head += f"\r\nContent-Type: {content_type}\r\nContent-Length: {len(unread)}"
        status, fields, content = self.application(Request(head.encode(), unread, NothingMore(peer)))
        return Response(content, status, fields)


class NothingMore:
    """A connection that has given all it had."""

    sender = None

    def __init__(self, peer: str = "10.255.0.1") -> None:
        self.peer = peer

    def receive(self) -> bytes:
        return b""

    def send(self, data: bytes) -> None:
        raise AssertionError(data)


def read_of(**changes: Any) -> dict[str, Any]:
    """The body of a good POST /v1/reads."""
    return {"client": "10.0.1.1", "client_ports": [40000], "replicas": [{"host": "10.0.0.1", "port": 7000}],
            "size_bytes": 10_000_000} | changes


def clocked(monkeypatch: Any) -> list[float]:
    """The flowserver's clock, to be set by hand."""
    now = [1000.0]

    class Clock:
        monotonic = staticmethod(lambda: now[0])

    for module in (flowserver, scheduler, read_divisions):
        monkeypatch.setattr(module, "time", Clock)
    return now
