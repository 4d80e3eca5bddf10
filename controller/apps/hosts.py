"""Where hosts are: learnt on edge ports from ARP and first IP packets, or asked for with ARP."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from ryu.base.app_manager import RyuApp, lookup_service_brick
from ryu.controller import ofp_event
from ryu.controller.handler import MAIN_DISPATCHER, set_ev_cls
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3

from controller import arp, openflow
from controller.errors import UnknownHost
from controller.events import EventHostChanged, EventPortChanged
from controller.network_state import HostLocation, NetworkState, PortKey, PortKind, dpid_hex

PROBE_RETRY_SECONDS = 0.2
PROBE_PAUSE_SECONDS = 1.0
"""How long an address that packets ask for, but nobody answers to, is not asked for again."""
REPLY_DELAY_SECONDS = 0.8
"""How long an answer waits at most for the switches: Linux asks again after a second."""


class Hosts(RyuApp):
    """Learns and finds hosts, and answers the ARP requests that switches cannot. Sends EventHostChanged."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"state": NetworkState}
    _EVENTS = [EventHostChanged]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state: NetworkState = kwargs["state"]
        self._awaited: dict[str, Any] = {}
        self._probed_at: dict[str, float] = {}
        self._askers: dict[str, dict[PortKey, arp.Packet]] = {}
        self._full_ports: set[PortKey] = set()
        self._not_yet: dict[PortKey, dict[str, str]] = defaultdict(dict)
        """Address -> MAC heard at a port that is undetermined yet, or known there before it went down."""

    # --- for others ---

    def locate(self, ip: str, timeout_seconds: float = 1.0) -> HostLocation:
        """Where a host is, asking all edge ports by ARP if nobody knows.

        Blocks the calling green thread for at most `timeout_seconds`. Raises UnknownHost if nobody answers.
        """
        deadline = time.monotonic() + timeout_seconds
        while ip not in self.state.hosts:
            left = deadline - time.monotonic()
            if left <= 0 or not arp.is_host_address(ip):
                self._awaited.pop(ip, None)
                raise UnknownHost(ip)
            self._probe(ip)
            self._awaited.setdefault(ip, hub.Event()).wait(min(PROBE_RETRY_SECONDS, left))
        return self.state.hosts[ip]

    def recovered(self, location: HostLocation) -> None:
        """A switch held entries for this host, from before this controller or its connection began."""
        if location.ip not in self.state.hosts:
            self._heard_at(location.port_key, location.ip, location.mac)

    # --- packets ---

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_arrived(self, event: Any) -> None:
        message = event.msg
        if not self.state.is_current(message.datapath):
            return
        key = dpid_hex(message.datapath.id), message.match["in_port"]
        port = self.state.ports.get(key)
        if port is None or port.kind is PortKind.FABRIC:
            return
        packet = arp.parse(message.data)
        if packet is not None:
            self._arp_arrived(key, packet)
            return
        addresses = arp.parse_ipv4(message.data)
        if addresses is not None:
            mac, source, destination = addresses
            self._heard_at(key, source, mac)
            if message.table_id == openflow.Table.ROUTES and destination not in self.state.hosts:
                self._probe_now_and_then(destination)

    def _arp_arrived(self, key: PortKey, packet: arp.Packet) -> None:
        self._heard_at(key, packet.sender_ip, packet.sender_mac)
        if packet.operation != arp.REQUEST or packet.target_ip == packet.sender_ip:
            return
        target = self.state.hosts.get(packet.target_ip)
        if target is not None:
            if target.port_key != key:
                hub.spawn(self._reply, key, packet, target.mac)
        elif arp.is_host_address(packet.target_ip):
            self._askers.setdefault(packet.target_ip, {})[key] = packet
            self._probe_now_and_then(packet.target_ip)

    def _reply(self, key: PortKey, request: arp.Packet, mac: str) -> None:
        """Tell a host the target's MAC, but not before the packets it will then send find their way."""
        forwarding = lookup_service_brick("Forwarding")
        if forwarding.is_busy:
            forwarding.wait_until_synced(REPLY_DELAY_SECONDS)
        frame = arp.build(arp.Packet(arp.REPLY, mac, request.target_ip, request.sender_mac, request.sender_ip))
        self._send(key[0], [key[1]], frame)

    def _send(self, dpid: str, port_numbers: list[int], frame: bytes) -> None:
        datapath = self.state.datapaths.get(dpid)
        if datapath is not None and port_numbers:
            datapath.send_msg(openflow.packet_out(datapath, port_numbers, frame))

    # --- probing ---

    def _probe(self, ip: str) -> None:
        frame = arp.build(arp.Packet(arp.REQUEST, arp.CONTROLLER_MAC, arp.NO_ADDRESS, arp.NO_MAC, ip))
        for dpid in list(self.state.datapaths):
            self._send(dpid, self.state.edge_ports(dpid), frame)

    def _probe_now_and_then(self, ip: str) -> None:
        now = time.monotonic()
        if now - self._probed_at.get(ip, -PROBE_PAUSE_SECONDS) < PROBE_PAUSE_SECONDS:
            return
        if len(self._probed_at) > 1000:
            self._probed_at = {other: at for other, at in self._probed_at.items() if now - at < PROBE_PAUSE_SECONDS}
            self._askers = {other: askers for other, askers in self._askers.items() if other in self._probed_at}
        self._probed_at[ip] = now
        self._probe(ip)

    # --- learning ---

    def _heard_at(self, key: PortKey, ip: str, mac: str) -> None:
        port = self.state.ports.get(key)
        if not arp.is_host_address(ip) or not arp.is_host_mac(mac) or mac == arp.CONTROLLER_MAC:
            return
        if port is None or not port.up or port.kind is PortKind.UNDETERMINED:
            if len(self._not_yet[key]) < self.state.settings.max_hosts_per_port:
                self._not_yet[key][ip] = mac
        elif port.kind is PortKind.EDGE:
            self._learn(HostLocation(ip, mac, *key))

    def _is_full(self, key: PortKey) -> bool:
        """Whether no more hosts are believed to be at a port; the first time is logged."""
        limit = self.state.settings.max_hosts_per_port
        is_full = sum(host.port_key == key for host in self.state.hosts.values()) >= limit
        if is_full and key not in self._full_ports:
            self._full_ports.add(key)
            self.logger.warning("port %d of %s has %d hosts, further ones are ignored: see max_hosts_per_port",
                                key[1], self.state.name_of(key[0]), limit)
        return is_full

    def _learn(self, location: HostLocation) -> None:
        previous = self.state.hosts.get(location.ip)
        if previous == location:
            return
        if self._is_full(location.port_key):
            return
        self.state.set_host(location)
        switch = self.state.name_of(location.dpid)
        self.logger.info("host %s is at port %d of %s", location.ip, location.port_no, switch)
        waiting = self._awaited.pop(location.ip, None)
        if waiting is not None:
            waiting.set()
        # The event takes its time to arrive; the answers to those who asked must not overtake it.
        lookup_service_brick("Forwarding").plan_anew()
        self.send_event_to_observers(EventHostChanged(location.ip, location, previous))
        for key, request in self._askers.pop(location.ip, {}).items():
            hub.spawn(self._reply, key, request, location.mac)

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
        elif port is None or not port.up or port.kind is PortKind.FABRIC:
            if port is not None and port.kind is PortKind.FABRIC:
                self._not_yet.pop(key, None)
            for host in [host for host in self.state.hosts.values() if host.port_key == key]:
                if port is None or not port.up:
                    self._not_yet[key][host.ip] = host.mac
                self._forget(host)

    def _forget(self, host: HostLocation) -> None:
        self.state.remove_host(host.ip)
        self.logger.info("host %s left port %d of %s", host.ip, host.port_no, self.state.name_of(host.dpid))
        self.send_event_to_observers(EventHostChanged(host.ip, None, host))
