"""A whole controller on a fabric of fake switches and hosts, in simulated time: everything may come and go.

Messages, probes and ARP take the way they take in life; only sockets and databases are left out.
"""

from __future__ import annotations

import itertools
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from ryu.controller import ofp_event
from ryu.ofproto import ofproto_v1_3

from speedwell.coflow.report import Flow, FlowReport, Report, encode
from speedwell.controller.application import Application, AppManager
from speedwell.controller.coflows.app import Coflows
from speedwell.controller.counters.measurements import Measurements
from speedwell.controller.counters.poller import Poller
from speedwell.controller.errors import ControllerError
from speedwell.controller.loops import Loops
from speedwell.controller.network.app import NetworkReport
from speedwell.controller.policy.reads.selection_request import Replica
from speedwell.controller.reads import app as flowserver
from speedwell.controller.reads.app import Flowserver
from speedwell.controller.reads.book import Read, ReadRequest
from speedwell.controller.rest import RestApplication
from speedwell.controller.services import Services
from speedwell.controller.settings import Settings
from speedwell.controller.switches.entries import PORT_CONTROLLER, FlowEntry
from speedwell.controller.switches.ovsdb import Database
from speedwell.controller.switches.packet_ins import PacketIns
from speedwell.controller.tables.forwarding import Forwarding
from speedwell.controller.topology import arp, capacity_reader
from speedwell.controller.topology.discovery import Discovery
from speedwell.controller.topology.hosts import Hosts
from speedwell.controller.topology.state import NetworkState, PortKey
from speedwell.topo.fabric import Fabric
from tests.unit.controller.fake_switch import FakeNetwork, Packet
from tests.unit.controller.house_switches import DELAY_SECONDS, Connection, TimedSwitch
from tests.unit.controller.simulated_time import SimulatedHub

KEY = b"k" * 32
READ_PORT = 7000
CONNECT_SECONDS = 2.0
"""A switch that lost its controller has reached the next one after this."""


class Life:
    """One life of the controller: its applications, wired as in life."""

    def __init__(self, house: House) -> None:
        house.patch.setattr("ryu.base.app_manager.SERVICE_BRICKS", {})
        self.troubles: list[str] = []
        self.state = NetworkState(house.settings)
        self.packet_ins = PacketIns()
        self.loops = Loops(house.hub.read)
        self.loops.failed = self._failed
        self._threads: list[Any] = []
        spawn, spawn_after = self.loops.spawn, self.loops.spawn_after
        self.loops.spawn = lambda *arguments: self._kept(spawn(*arguments))
        self.loops.spawn_after = lambda *arguments: self._kept(spawn_after(*arguments))
        self.rest = RestApplication()
        self.measurements = Measurements()
        self._answers: dict[Any, Callable[[Any], None]] = {}
        self.state.confirmations.listen_to(self)
        self.services = services = Services(house.settings, self.state, self.packet_ins, self.loops, self.rest,
                                            self.measurements)
        manager = AppManager()
        made = [manager._instantiate(None, each, services)
                for each in (Discovery, Hosts, Poller, Forwarding, Flowserver, Coflows, NetworkReport, *house.others)]
        manager._update_bricks()
        self.apps: dict[str, Any] = manager.applications
        self.coflows, self.flowserver = services.get(Coflows), services.get(Flowserver)
        self.forwarding = services.get(Forwarding)
        self.reads = self.flowserver.reads
        for app in made:
            if app is not self.coflows:
                app.start()
        # Without the socket that its own start opens.
        Application.start(self.coflows)
        self.coflows.forwarding, self.coflows.hosts = self.forwarding, services.get(Hosts)
        self.coflows.start_loops()

    def register_handler(self, event_class: Any, handler: Callable[[Any], None]) -> None:
        """As Ryu's own application for OpenFlow."""
        self._answers[event_class.__name__] = handler

    def answered(self, reply: Any) -> None:
        self._answers[f"Event{type(reply).__name__}"](SimpleNamespace(msg=reply))

    def send(self, event: Any, state: str) -> None:
        """An event of OpenFlow, to the applications that want such."""
        for app in self.apps.values():
            if event.__class__ in app.event_handlers and app.is_active:
                app._send_event(event, state)

    def end(self) -> None:
        self.loops.stop()
        for app in self.apps.values():
            app.is_active = False
            for thread in (*app.threads, *self._threads):
                eventlet.kill(thread)

    def _kept(self, thread: Any) -> Any:
        self._threads = [*(other for other in self._threads if not other.dead), thread]
        return thread

    def _failed(self, name: str, error: BaseException) -> None:
        self.troubles.append(f"{name}: {''.join(traceback.format_exception(error))}")

    def gauges(self) -> dict[str, float]:
        """What `/metrics` says of the present."""
        return {sample.name + repr(sorted(sample.labels.items())): sample.value
                for family in self.rest.metrics.collect()
                if family.type == "gauge" and family.name.startswith("speedwell_") for sample in family.samples}


class House:
    """Switches, hosts, and whoever reads and reports; `life` is the controller that runs now."""

    size_bytes = 50_000_000

    def __init__(self, hub: SimulatedHub, patch: pytest.MonkeyPatch, directory: Path, fabric: Fabric,
                 seed: int, coflow_policy: str = "mincof", others: Sequence[type[Application]] = ()) -> None:
        self.hub, self.patch, self.random, self.others = hub, patch, Random(seed), others
        clock = SimpleNamespace(monotonic=hub.read, time=hub.read, thread_time=lambda: 0.0)
        for name, module in list(sys.modules.items()):
            if name.startswith("speedwell.controller.") and getattr(module, "time", None) is time:
                patch.setattr(module, "time", clock)
        patch.setattr(flowserver, "Random", lambda: Random(seed))
        patch.setattr(capacity_reader, "read_capacities", self._capacities)
        patch.setattr(capacity_reader, "limit_packet_ins", lambda *arguments: False)
        (directory / "key").write_bytes(KEY)
        self.settings = Settings(coflow_key_file=directory / "key", coflow_threshold_bytes=0.0,
                                 coflow_policy=coflow_policy, placement_policy="sinbad-plus",
                                 poll_interval_seconds=2.0, read_idle_timeout_seconds=10)
        self.network = FakeNetwork(fabric)
        self.switches = {dpid: TimedSwitch(dpid, hub.read, partial(self._is_used, dpid))
                         for dpid in self.network.switches}
        self.network.switches.update(self.switches)
        for dpid, switch in self.switches.items():
            switch.is_port_up = lambda number, dpid=dpid: self.is_up(dpid, number)
        self.fabric_links = [(link.a, link.b) for link in fabric.links
                             if link.a in self.network.dpid_of and link.b in self.network.dpid_of]
        self.places: dict[str, str | None] = {host.name: host.name for host in fabric.hosts}
        """Which host is at each of the fabric's places for hosts."""
        self.connections: dict[str, Connection] = {}
        self.off: set[str] = set()
        """Switches that are without power."""
        self.reads: dict[str, Read] = {}
        self.moving: set[tuple[str, int, int]] = set()
        """Connections that carry something."""
        self.orphans: set[tuple[str, int, int]] = set()
        """Connections of reads that a controller placed which is gone: they end when they are through."""
        self.reported: dict[bytes, list[Flow]] = {}
        self._sequence = itertools.count(1)
        self._ports = itertools.count(2000)
        self.failures: list[str] = []
        """What failed in any life of the controller."""
        self.life = Life(self)
        self.connect_all()
        self._going_on = eventlet.spawn(self._go_on)

    # --- what goes on by itself ---

    def _go_on(self) -> None:
        for round_number in itertools.count():
            eventlet.sleep(0.5)
            for coflow_id, flows in list(self.reported.items()):
                self._report(coflow_id, flows, self.size_bytes - round_number)
            for switch in self.switches.values():
                switch.expire()

    def _report(self, coflow_id: bytes, flows: Iterable[Flow], left: int) -> None:
        self.life.coflows.receive(encode(Report(coflow_id, 7, next(self._sequence), round(self.hub.now * 1e6), tuple(
            FlowReport(flow, left) for flow in flows)), KEY))

    def _is_used(self, dpid: str, entry: FlowEntry) -> bool:
        fields, network = dict(entry.match), self.network
        return (fields.get("ipv4_src"), fields.get("tcp_src"), fields.get("tcp_dst")) in self.moving and any(
            host is not None and network.hosts[host].ip == fields["ipv4_src"]
            and network.fabric.edge_switch_of(place).dpid_hex == dpid for place, host in self.places.items())

    def _capacities(self, database: Database, refuse: object) -> dict[int, float]:
        eventlet.sleep(DELAY_SECONDS)
        ports = self.network.fabric.ports(self.network.name_of[database.dpid])
        return {port.number: port.capacity_bps for port in ports}

    def entry_bytes(self, dpid: str, entry: FlowEntry, age_seconds: float) -> int:
        """What an entry has counted."""
        return int(age_seconds * 1e5)

    def port_bytes(self, dpid: str, port_no: int) -> tuple[int, int]:
        """What a port has received and sent."""
        return 0, 0

    # --- ports ---

    def port_numbers(self, dpid: str) -> list[int]:
        return [port.number for port in self.network.fabric.ports(self.network.name_of[dpid])]

    def _peer(self, key: PortKey) -> str:
        return next(port.peer for port in self.network.fabric.ports(self.network.name_of[key[0]])
                    if port.number == key[1])

    def is_up(self, dpid: str, number: int) -> bool:
        peer = self._peer((dpid, number))
        if peer in self.places:
            return self.places[peer] is not None
        other = self.network.dpid_of[peer]
        return self.network.peer(dpid, number) is not None and other not in self.off

    def port_description(self, dpid: str, number: int) -> Any:
        return SimpleNamespace(port_no=number, name=b"eth%d" % number,
                               hw_addr=f"02:00:00:{dpid[-2:]}:00:{number:02x}", config=0, curr_speed=0,
                               state=0 if self.is_up(dpid, number) else ofproto_v1_3.OFPPS_LINK_DOWN)

    def _port_changed(self, dpid: str, number: int) -> None:
        if connection := self.connections.get(dpid):
            connection.tell(ofp_event.EventOFPPortStatus, reason=ofproto_v1_3.OFPPR_MODIFY, ofproto=ofproto_v1_3,
                            desc=self.port_description(dpid, number))

    # --- packets ---

    def left(self, key: PortKey, frame: bytes) -> None:
        """A switch sent a frame of the controller's out of a port."""
        if not self.is_up(*key):
            return
        peer = self._peer(key)
        if peer in self.places:
            question = arp.parse(frame)
            host = self.network.hosts[self.places[peer] or ""]
            if question is not None and question.operation == arp.REQUEST and question.target_ip == host.ip:
                self._say(peer, arp.Packet(arp.REPLY, host.mac, host.ip, question.sender_mac, question.sender_ip))
        elif frame[12:14] == b"\x88\xcc":
            dpid = self.network.dpid_of[peer]
            self._arrive((dpid, self.network.fabric.port_toward(peer, self.network.name_of[key[0]]).number),
                         Packet.of(eth_type=0x88CC), frame)

    def _say(self, place: str, packet: arp.Packet) -> None:
        edge = self.network.fabric.edge_switch_of(place)
        self._arrive((edge.dpid_hex, self.network.fabric.port_toward(edge.name, place).number), Packet.of(
            eth_type=0x0806, eth_src=packet.sender_mac, eth_dst="ff:ff:ff:ff:ff:ff", arp_op=packet.operation,
            arp_sha=packet.sender_mac, arp_spa=packet.sender_ip, arp_tha=packet.target_mac, arp_tpa=packet.target_ip),
            arp.build(packet))

    def _arrive(self, key: PortKey, packet: Packet, frame: bytes) -> None:
        connection = self.connections.get(key[0])
        if connection and key[0] not in self.off and any(
                port == PORT_CONTROLLER for port, _ in self.switches[key[0]].execute(packet, key[1])):
            connection.hand_up(key[1], frame)

    # --- what may happen ---

    def disconnect(self, dpid: str) -> None:
        if connection := self.connections.pop(dpid, None):
            connection.close()

    def connect(self, dpid: str) -> None:
        if dpid not in self.connections and dpid not in self.off:
            self.connections[dpid] = Connection(self, dpid)

    def connect_all(self) -> None:
        for dpid in self.switches:
            eventlet.spawn_after(self.random.uniform(0.05, CONNECT_SECONDS), self.connect, dpid)

    def switch_off(self, dpid: str) -> None:
        self.disconnect(dpid)
        self.off.add(dpid)
        self.switches[dpid].restart()
        self._neighbours_see(dpid)

    def switch_on(self, dpid: str) -> None:
        self.off.discard(dpid)
        self.connect(dpid)
        self._neighbours_see(dpid)

    def _neighbours_see(self, dpid: str) -> None:
        name = self.network.name_of[dpid]
        for port in self.network.fabric.ports(name):
            if port.peer in self.network.dpid_of:
                self._port_changed(self.network.dpid_of[port.peer],
                                   self.network.fabric.port_toward(port.peer, name).number)

    def silence(self, dpid: str, seconds: float) -> None:
        if connection := self.connections.get(dpid):
            connection.silent_until = self.hub.now + seconds

    def set_link(self, a: str, b: str, is_up: bool) -> None:
        (self.network.dead.discard if is_up else self.network.dead.add)(frozenset((a, b)))
        for key in self.network.ends(a, b):
            self._port_changed(*key)

    def set_place(self, place: str, host: str | None) -> None:
        """Another host is at a place, or none is."""
        edge = self.network.fabric.edge_switch_of(place)
        number = self.network.fabric.port_toward(edge.name, place).number
        self.places[place] = host
        self._port_changed(edge.dpid_hex, number)
        if host is not None:
            self.announce(place)

    def announce(self, place: str) -> None:
        """A host asks for itself, as it does when its link comes up."""
        name = self.places[place]
        if name is not None:
            host = self.network.hosts[name]
            self._say(place, arp.Packet(arp.REQUEST, host.mac, host.ip, arp.NO_MAC, host.ip))

    def end(self) -> None:
        self._going_on.kill()
        self._end_life()

    def _end_life(self) -> None:
        self.life.end()
        self.failures += self.life.troubles
        for dpid in list(self.connections):
            self.disconnect(dpid)
        self.reads.clear()
        self.orphans |= {connection for connection in self.moving if connection[1] == READ_PORT}

    def restart_controller(self) -> None:
        self._end_life()
        self.life = Life(self)
        self.connect_all()

    def read(self, client: str, replicas: Iterable[str], parts: int) -> None:
        """A client asks for a read; a controller that cannot place it says so."""
        hosts, ports = self.network.hosts, [next(self._ports) for _ in range(parts)]
        wanted = ReadRequest(hosts[client].ip, ports, [Replica(hosts[name].ip, READ_PORT) for name in replicas],
                             self.size_bytes)
        self.moving |= {(hosts[name].ip, READ_PORT, port) for name in replicas for port in ports}
        life = self.life
        try:
            read = life.flowserver.place(wanted)
        except ControllerError:
            return
        if life is self.life:
            self.reads[read.id] = read

    def end_read(self, read_id: str) -> None:
        read = self.reads.pop(read_id)
        self.moving -= {(part.five_tuple.source, READ_PORT, part.five_tuple.destination_port) for part in read.parts}
        with suppress(ControllerError):     # it was over, or a switch is away: its entry goes by its timeout
            self.life.flowserver.end(read_id)

    def report(self, pairs: Iterable[tuple[str, str]]) -> bytes:
        """A coflow begins; it is reported from now on. Returns its id."""
        hosts = self.network.hosts
        flows = [Flow(hosts[a].ip, hosts[b].ip, next(self._ports), 9000) for a, b in pairs]
        self.moving |= {(flow.source, flow.source_port, 9000) for flow in flows}
        return self.report_flows(flows)

    def report_flows(self, flows: list[Flow]) -> bytes:
        """A coflow of connections that there are begins. Returns its id."""
        self.reported[coflow_id := self.random.randbytes(16)] = flows
        return coflow_id

    def end_coflow(self, coflow_id: bytes, is_told: bool) -> None:
        flows = self.reported.pop(coflow_id)
        self.moving -= {(flow.source, flow.source_port, 9000) for flow in flows}
        if is_told:
            self._report(coflow_id, flows, 0)
