"""Where hosts are: learnt on edge ports from ARP and first IP packets, or asked for with ARP.

A host that is known somewhere moves only once nobody answers there any more (`controller.topology.host_moves`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any, Protocol

from ryu.controller.handler import set_ev_cls
from ryu.lib import hub

from speedwell.controller.application import Application
from speedwell.controller.errors import UnknownHost
from speedwell.controller.loops import Turns
from speedwell.controller.services import Services
from speedwell.controller.switches import openflow
from speedwell.controller.switches.connection import hand_over
from speedwell.controller.switches.entries import dpid_hex
from speedwell.controller.switches.layout import Table
from speedwell.controller.switches.packet_ins import PacketIn, PacketIns
from speedwell.controller.topology import arp
from speedwell.controller.topology.events import EventHostChanged, EventPortChanged
from speedwell.controller.topology.host_moves import HostMoves
from speedwell.controller.topology.host_searches import HostSearches
from speedwell.controller.topology.state import HostLocation, NetworkState, PortKey, PortKind

PROBE_RETRY_SECONDS = 0.2
CLAIM_TICK_SECONDS = 0.05
FULL_PORT_PAUSE_SECONDS = 10.0
"""How often the hosts at a port that has no room for more are asked whether they are still there."""
REPLY_DELAY_SECONDS = 0.8
"""How long an answer waits at most for the switches: Linux asks again after a second."""


class TableKeeper(Protocol):
    """What the host application needs of the one that keeps the switches' tables."""

    @property
    def is_busy(self) -> bool:
        """Whether there are changes that the switches do not carry yet."""

    def wait_until_synced(self, timeout_seconds: float) -> bool:
        """Block the calling green thread until the switches carry what is known now; False if that took too long."""

    @property
    def is_in_force(self) -> bool:
        """Whether every connected switch is known to carry what is planned."""

    def plan_anew(self) -> None:
        """Hosts changed: bring the switches up to date."""


class Hosts(Application):
    """Learns and finds hosts, and answers the ARP requests that switches cannot. Sends EventHostChanged."""

    _EVENTS = [EventHostChanged]

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.state = services.get(NetworkState)
        services.get(PacketIns).on_packet = self.packet_arrived
        self._awaited: dict[str, Any] = {}
        self._searches = HostSearches()
        self._moves = HostMoves()
        self._full_at: dict[PortKey, float] = {}
        self._is_asking = False
        self._turns = Turns()
        self._not_yet: dict[PortKey, dict[str, str]] = defaultdict(dict)
        """Address -> MAC heard at a port that is undetermined yet, or known there before it went down."""

    def start(self) -> None:
        self.tables = self.services.get(TableKeeper)
        super().start()

    # --- for others ---

    def locate(self, ip: str, timeout_seconds: float = 1.0) -> HostLocation:
        """Where a host is, asking all edge ports by ARP if nobody knows.

        Blocks the calling green thread for at most `timeout_seconds`. Raises UnknownHost if nobody answers.
        """
        deadline = time.monotonic() + timeout_seconds
        while ip not in self.state.hosts:
            self._turns.others()        # many may be looked for at once, each at every port
            if ip in self.state.hosts:
                break
            left = deadline - time.monotonic()
            if left <= 0 or not self.state.may_be_host(ip):
                self._awaited.pop(ip, None)
                raise UnknownHost(ip)
            self._probe(ip)
            self._awaited.setdefault(ip, hub.Event()).wait(min(PROBE_RETRY_SECONDS, left))
        return self.state.hosts[ip]

    def recovered(self, location: HostLocation) -> None:
        """A switch held entries for this host, from before this controller or its connection began."""
        self.state.port_recovered(location.port_key)
        if location.ip not in self.state.hosts:
            self._heard_at(location.port_key, location.ip, location.mac, is_packet=False)

    def doubted(self, key: PortKey) -> None:
        """Something speaks against hosts at this port: those that do not answer there any more are forgotten."""
        for host in self.state.hosts_behind(key):
            self._doubt(host, None)

    def forget_switch(self, dpid: str) -> None:
        """A switch that is away is no longer waited for, nor are its hosts."""
        for host in self.state.hosts_at(dpid):
            self._forget(host)
        for key in [key for key in (*self._not_yet, *self._full_at) if key[0] == dpid]:
            self._not_yet.pop(key, None)
            self._full_at.pop(key, None)

    # --- packets ---

    def packet_arrived(self, packet: PacketIn) -> None:
        """Take in a packet other than LLDP that a switch handed up."""
        if not self.state.is_current(packet.datapath):
            return
        key = dpid_hex(packet.datapath.id), packet.in_port
        port = self.state.ports.get(key)
        if port is None:
            return
        if port.kind is PortKind.FABRIC:
            if packet.table_id == Table.DELIVERY:
                self._asked_from_afar(packet.data)
            return
        question = arp.parse(packet.data)
        if question is not None:
            self._arp_arrived(key, question)
            return
        addresses = arp.parse_ipv4(packet.data)
        if addresses is not None:
            mac, source, destination = addresses
            self._heard_at(key, source, mac)
            if packet.table_id == Table.ROUTES and destination not in self.state.hosts:
                self._look_for(destination, key)

    def _arp_arrived(self, key: PortKey, packet: arp.Packet) -> None:
        self._heard_at(key, packet.sender_ip, packet.sender_mac)
        if packet.operation != arp.REQUEST or packet.target_ip == packet.sender_ip:
            return
        target = self.state.hosts.get(packet.target_ip)
        if target is not None:
            if target.port_key != key:
                self.loops.spawn(self._reply, key, packet, target.mac)
        else:
            self._look_for(packet.target_ip, key, packet)

    def _asked_from_afar(self, frame: bytes) -> None:
        """A host asked for an address that is routed to a switch where nobody is known to have it."""
        question = arp.parse(frame)
        asker = self.state.hosts.get(question.sender_ip) if question else None
        if question is not None and question.operation == arp.REQUEST and asker is not None \
                and question.target_ip not in self.state.hosts:
            self._look_for(question.target_ip, asker.port_key, question)

    def _reply(self, key: PortKey, request: arp.Packet, mac: str) -> None:
        """Tell a host the target's MAC, but not before the packets it will then send find their way."""
        if self.tables.is_busy:
            self.tables.wait_until_synced(REPLY_DELAY_SECONDS)
        frame = arp.build(arp.Packet(arp.REPLY, mac, request.target_ip, request.sender_mac, request.sender_ip))
        self._send(key[0], [key[1]], frame)

    def _send(self, dpid: str, port_numbers: list[int], frame: bytes) -> bool:
        """Hand a frame to a switch's connection unless that is backed up: waiting here would delay all others."""
        datapath = self.state.datapaths.get(dpid)
        if datapath is None or not port_numbers:
            return False
        return hand_over(datapath, openflow.packet_out(datapath, port_numbers, frame))

    # --- probing ---

    def _probe(self, ip: str) -> None:
        question = _question(ip)
        for dpid in list(self.state.datapaths):
            self._send(dpid, self.state.edge_ports(dpid), question)

    def _ask(self, dpid: str, port_numbers: list[int], ip: str) -> bool:
        return self._send(dpid, port_numbers, _question(ip))

    def _look_for(self, ip: str, asker: PortKey, request: arp.Packet | None = None) -> None:
        """Ask for a host that packets of a port are for, unless it was just asked for or the port asks too much."""
        if not self.state.may_be_host(ip):
            return
        now = time.monotonic()
        if self._searches.may_search(ip, asker, now, request):
            self._probe(ip)
        elif not self._searches.is_open(ip, now):
            self.state.refusals.count("question", "too-many", now)

    # --- learning ---

    def _heard_at(self, key: PortKey, ip: str, mac: str, is_packet: bool = True) -> None:
        port = self.state.ports.get(key)
        if not self.state.may_be_host(ip) or not arp.is_host_mac(mac) or mac == arp.CONTROLLER_MAC:
            return
        if port is None or not port.up or port.kind is PortKind.UNDETERMINED:
            if len(self._not_yet[key]) < self.state.settings.max_hosts_per_port:
                self._not_yet[key][ip] = mac
        elif port.kind is PortKind.EDGE:
            if is_packet:
                self.state.host_ports.add(key)
            self._learn(HostLocation(ip, mac, *key))

    def _learn(self, location: HostLocation) -> None:
        previous = self.state.hosts.get(location.ip)
        now = time.monotonic()
        if previous == location:
            self._refuse_moves(location, self._moves.heard(location, now), now)
        elif previous is not None:
            self._doubt(previous, location)
        elif len(self.state.hosts_behind(location.port_key)) < self.state.settings.max_hosts_per_port:
            self._place(location)
        else:
            self._port_is_full(location.port_key, now)

    def _port_is_full(self, key: PortKey, now: float) -> None:
        """Ask now and then which of the hosts at a port are still there, so that those that are not make room."""
        if self.state.refusals.count("host", "full-port", now):
            self.logger.warning("port %d of %s has %d hosts, further ones are ignored: see max_hosts_per_port",
                                key[1], self.state.name_of(key[0]), self.state.settings.max_hosts_per_port)
        if now - self._full_at.get(key, -FULL_PORT_PAUSE_SECONDS) >= FULL_PORT_PAUSE_SECONDS:
            self._full_at[key] = now
            self.doubted(key)

    def _place(self, location: HostLocation) -> None:
        """A host is here, and nowhere else."""
        previous = self.state.hosts.get(location.ip)
        self.state.set_host(location)
        self._moves.close(location.ip)
        switch = self.state.name_of(location.dpid)
        self.logger.info("host %s is at port %d of %s", location.ip, location.port_no, switch)
        waiting = self._awaited.pop(location.ip, None)
        if waiting is not None:
            waiting.set()
        # The event takes its time to arrive; the answers to those who asked must not overtake it.
        self.tables.plan_anew()
        self.send_event_to_observers(EventHostChanged(location.ip, location, previous))
        for key, request in self._searches.answered(location.ip).items():
            self.loops.spawn(self._reply, key, request, location.mac)

    # --- hosts that are said to be elsewhere ---

    def _doubt(self, known: HostLocation, claimed: HostLocation | None) -> None:
        self._moves.doubt(known, claimed, time.monotonic())
        if not self._is_asking:
            self._is_asking = True
            self.loops.spawn(self._ask_known_places)

    def _ask_known_places(self) -> None:
        """Ask until no check is open."""
        try:
            while self._moves:
                now = time.monotonic()
                for host in self._moves.to_ask(now):
                    if self._ask(host.dpid, [host.port_no], host.ip):
                        self._moves.asked(host.ip, now)
                for known, claimed in self._moves.silent(now):
                    self._left_silently(known, claimed)
                hub.sleep(CLAIM_TICK_SECONDS)
        finally:
            self._is_asking = False

    def _left_silently(self, known: HostLocation, claimed: HostLocation | None) -> None:
        if self.state.hosts.get(known.ip) != known:
            return
        port = self.state.ports.get(claimed.port_key) if claimed else None
        if claimed is not None and port is not None and port.up and port.kind is PortKind.EDGE:
            self._place(claimed)
        else:
            self._forget(known)

    def _refuse_moves(self, host: HostLocation, number: int, now: float) -> None:
        if number and self.state.refusals.count("host", "spoofed", now, number):
            self.logger.warning("host %s answers at port %d of %s: packets from elsewhere that bear its address are "
                                "not believed", host.ip, host.port_no, self.state.name_of(host.dpid))

    @set_ev_cls(EventPortChanged)
    def port_changed(self, event: EventPortChanged) -> None:
        key = event.dpid, event.port_no
        port = self.state.ports.get(key)
        if event.dpid not in self.state.datapaths:
            return
        if port is not None and port.up and port.kind is PortKind.EDGE:
            for ip, mac in self._not_yet.pop(key, {}).items():
                # It was there before the port was known to lead to hosts, or before it went down: is it still?
                if ip not in self.state.hosts:
                    self._learn(HostLocation(ip, mac, *key))
            for ip in self._searches.asked(time.monotonic()):
                if ip not in self.state.hosts:
                    self._ask(event.dpid, [event.port_no], ip)
        elif port is None or not port.up or port.kind is PortKind.FABRIC:
            if port is not None and port.kind is PortKind.FABRIC:
                self._not_yet.pop(key, None)
            for host in self.state.hosts_behind(key):
                if port is not None and not port.up:
                    self._not_yet[key][host.ip] = host.mac
                self._forget(host)

    def _forget(self, host: HostLocation) -> None:
        self.state.remove_host(host.ip)
        self._moves.close(host.ip)
        self.logger.info("host %s left port %d of %s", host.ip, host.port_no, self.state.name_of(host.dpid))
        self.send_event_to_observers(EventHostChanged(host.ip, None, host))


def _question(ip: str) -> bytes:
    return arp.build(arp.Packet(arp.REQUEST, arp.CONTROLLER_MAC, arp.NO_ADDRESS, arp.NO_MAC, ip))
