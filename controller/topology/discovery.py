"""Which switches, ports and links there are: OpenFlow connections, port status and LLDP probes.

Paced and patient (see `controller.topology.probing`): a port that goes down takes its link out at once, silence
alone only after both switches confirmed that they would have told.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ryu.controller import ofp_event
from ryu.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3 as ofproto

from speedwell.controller.application import Application
from speedwell.controller.errors import ControllerError
from speedwell.controller.policy.network.graph import Link
from speedwell.controller.services import Services
from speedwell.controller.switches import openflow
from speedwell.controller.switches.entries import PORT_MAX, dpid_hex
from speedwell.controller.switches.packet_ins import PacketIn, PacketIns
from speedwell.controller.switches.roles import Roles
from speedwell.controller.switches.transactions import asked, confirmed
from speedwell.controller.topology import lldp, packet_in_limits, packet_in_meters
from speedwell.controller.topology.absent_switches import AbsentSwitches
from speedwell.controller.topology.admission import Admission, listed
from speedwell.controller.topology.capacity_reader import CapacityReader
from speedwell.controller.topology.declared_ports import DeclaredPorts
from speedwell.controller.topology.events import (
    EventLinkChanged,
    EventPortChanged,
    EventSwitchChanged,
    EventSwitchForgotten,
)
from speedwell.controller.topology.hosts import Hosts
from speedwell.controller.topology.probing import Probing
from speedwell.controller.topology.state import NetworkState, PortInfo, PortKey, PortKind, SwitchInfo

TICK_SECONDS = 0.05
CAPACITY_TICK_SECONDS = 0.1
LOOP_PATIENCE_SECONDS = 10.0
CAPACITY_DELAY_SECONDS = 0.3
"""A port that just came may get its capacity written a moment later."""
LISTEN_TIMEOUT_SECONDS = 5.0
LISTEN_RETRY_SECONDS = 1.0
NEW_SWITCH_SECONDS, NEW_SWITCH_INTERVALS = 10.0, 3
"""How long after it began to hand up probes a switch may get links at ports where hosts seemed to be, at least: in
seconds, and in intervals between two probes of a port."""
PROBES_AT_ONCE = 64
"""Handed to one switch's connection by one system call."""
SILENCE_CHECK_SECONDS = 5.0
"""How long both switches of a suspected link may take to confirm that they have nothing more to tell."""

WHY_REFUSED = {
    "forged": "it claims to be a probe and is not signed by this controller",
    "replayed": "it is an old probe",
    "declared": "the setting host_ports names the port",
    "host": "a host is at one of the two ports; it is asked whether it is still there",
    "former-host": "a host has spoken at one of the two ports since it came up; if a cable joins them now, take both "
                   "down and up again",
}


class Discovery(Application):
    """Writes switches, ports and links into the network state.

    Sends EventSwitchChanged, EventSwitchForgotten, EventPortChanged and EventLinkChanged.
    """

    _EVENTS = [EventSwitchChanged, EventSwitchForgotten, EventPortChanged, EventLinkChanged]

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.state = services.get(NetworkState)
        services.get(PacketIns).on_probe = self.probe_arrived
        settings = self.state.settings
        self.probing = Probing(settings.probe_interval_seconds, settings.probes_per_second, settings.probe_misses)
        self._secret = secrets.token_bytes(32)
        self._probes: dict[PortKey, tuple[bytes, bytes]] = {}
        """The message that sends a port's probe up to the frame, and the frame up to its epoch."""
        self._capacities = CapacityReader(self.state, self.loops.spawn, lambda link: self.send_event_to_observers(
            EventLinkChanged(link, live=True)))
        self._listening: dict[str, tuple[Any, float]] = {}
        """The connections of switches that hand up probes, and since when."""
        self._admission = Admission(self.state, self.loops.spawn, self._switch_connected, self._switch_gone)
        self._roles = Roles(self.state.leadership, self.loops, self._admission.shook_hands)
        self._absent_switches = AbsentSwitches(settings.switch_expiry_seconds, listed(settings.datapath_ids))
        self._host_ports = DeclaredPorts(settings.host_ports)
        self._being_checked: set[PortKey] = set()

    def start(self) -> None:
        self._hosts = self.services.get(Hosts)
        super().start()
        self.loops.run("link probes", self._probe, every_seconds=TICK_SECONDS, patience_seconds=LOOP_PATIENCE_SECONDS)
        self.loops.run("port capacities", self._look, every_seconds=CAPACITY_TICK_SECONDS,
                       patience_seconds=LOOP_PATIENCE_SECONDS)

    # --- switches ---

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def switch_state_changed(self, event: Any) -> None:
        datapath = event.datapath
        if event.state == MAIN_DISPATCHER:
            if self._admission.allows(datapath):
                self._roles.shook_hands(datapath)
        elif datapath.id is not None:
            self._roles.ended(datapath)
            self.state.confirmations.connection_ended(datapath)
            # Not if it was refused, or if another one has taken its place.
            if self.state.is_current(datapath):
                self._switch_gone(dpid_hex(datapath.id))

    @set_ev_cls(ofp_event.EventOFPErrorMsg, MAIN_DISPATCHER)
    def error_received(self, event: Any) -> None:
        self._roles.refused(event.msg)

    def _switch_connected(self, datapath: Any) -> None:
        dpid = dpid_hex(datapath.id)
        known = self.state.switches.get(dpid)
        info = SwitchInfo(dpid, known.name if known else dpid, datapath.address[0], connected=True)
        self.state.switch_connected(info, datapath)
        self._absent_switches.returned(dpid)
        self.logger.info("switch %s connected from %s", info.name, info.address)
        for port in list(datapath.ports.values()):
            if self.state.is_current(datapath):
                self._set_port(dpid, port)
        self.loops.spawn(self._listen, datapath, dpid)
        self.loops.spawn(self._ask_name, datapath, dpid)
        self._capacities.due(dpid)
        self.send_event_to_observers(EventSwitchChanged(dpid, connected=True))

    def _listen(self, datapath: Any, dpid: str) -> None:
        """Let the switch hand probes up, and only then send any: what arrived before would be lost."""
        while self.state.is_current(datapath):
            try:
                packet_in_meters.begin(self.state, datapath)
                entry = packet_in_limits.probe_entry(self.state, dpid)
                confirmed(self.state, datapath, [openflow.flow_add(datapath, entry)], LISTEN_TIMEOUT_SECONDS)
            except ControllerError as error:
                self.logger.warning("switch %s does not hand up probes: %s", self.state.name_of(dpid), error)
                hub.sleep(LISTEN_RETRY_SECONDS)
                continue
            self._listening[dpid] = datapath, time.monotonic()
            for key in [key for key, port in self.state.ports.items() if key[0] == dpid and port.up]:
                self._start_probing(key)
            for key in self.state.last_hops_to(dpid):
                self.probing.add_port(key, time.monotonic())
            return

    def _ask_name(self, datapath: Any, dpid: str) -> None:
        try:
            description = asked(self.state, datapath, datapath.ofproto_parser.OFPDescStatsRequest(datapath, 0))[0]
        except ControllerError as error:
            self.logger.info("switch %s does not describe itself: %s", dpid, error)
            return
        name = description.dp_desc.rstrip(b"\0").decode("utf-8", "replace")
        if name and dpid in self.state.switches:
            self.state.set_switch_name(dpid, name)

    def _look(self) -> None:
        self._forget_switches()
        self._capacities.look()

    def _forget_switches(self) -> None:
        """Those that have been away for too long, or are too many, are no longer waited for."""
        for dpid in self._absent_switches.given_up(time.monotonic()):
            self.logger.warning("switch %s is forgotten: it has been away for too long", self.state.name_of(dpid))
            self._hosts.forget_switch(dpid)
            for key in self.state.last_hops_to(dpid):
                self.state.remove_link(key)
                self._find_out(key)
            self.state.forget_switch(dpid)
            self._capacities.forget_switch(dpid)
            self.send_event_to_observers(EventSwitchForgotten(dpid))

    def _switch_gone(self, dpid: str) -> None:
        keys = [key for key in self.state.ports if key[0] == dpid]
        lost = self.state.switch_disconnected(dpid)
        for key in keys:
            self._stop_probing(key)
        self._listening.pop(dpid, None)
        self._absent_switches.left(dpid, time.monotonic())
        self.logger.warning("switch %s disconnected, %d links with it", self.state.name_of(dpid), len(lost))
        self._tell_links(lost, live=False)
        self.send_event_to_observers(EventSwitchChanged(dpid, connected=False))

    # --- ports ---

    @set_ev_cls(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def port_status_changed(self, event: Any) -> None:
        message = event.msg
        if not self.state.is_current(message.datapath):
            return
        dpid = dpid_hex(message.datapath.id)
        if message.reason == message.datapath.ofproto.OFPPR_DELETE:
            self._remove_port((dpid, message.desc.port_no))
        else:
            self._set_port(dpid, message.desc)
            self._capacities.due(dpid, CAPACITY_DELAY_SECONDS)

    def _set_port(self, dpid: str, description: Any) -> None:
        """Take in what OpenFlow says of a port: new, changed, up or down."""
        key = dpid, description.port_no
        if description.port_no > PORT_MAX:
            return
        up = not (description.state & ofproto.OFPPS_LINK_DOWN or description.config & ofproto.OFPPC_PORT_DOWN)
        known = self.state.ports.get(key)
        port = PortInfo(
            description.port_no, description.name.decode("utf-8", "replace"), description.hw_addr, up,
            self._capacities.described(key, description.curr_speed * 1000.0),
            known.kind if known and up else PortKind.UNDETERMINED,
        )
        if up and key in self._host_ports:
            port = replace(port, kind=PortKind.EDGE)
        if port == known:
            return
        lost = self.state.set_port(dpid, port)
        if not up:
            self._stop_probing(key)
            self._tell_links(lost, live=False)
        elif known is None or not known.up or known.hw_addr != port.hw_addr:
            self._start_probing(key)
        self.send_event_to_observers(EventPortChanged(*key))

    def _remove_port(self, key: PortKey) -> None:
        lost = self.state.remove_port(key)
        self._stop_probing(key)
        self._tell_links(lost, live=False)
        self._capacities.forget_port(key)
        self.send_event_to_observers(EventPortChanged(*key))

    def _start_probing(self, key: PortKey) -> None:
        datapath, _ = self._listening.get(key[0], (None, 0.0))
        if key not in self._host_ports and datapath is self.state.datapaths.get(key[0]):
            self._probes[key] = self._packet_out(key, self.state.ports[key].hw_addr)
            self.probing.add_port(key, time.monotonic())

    def _stop_probing(self, key: PortKey) -> None:
        """Forget the port; the one at the other end no longer leads anywhere known, unless to a last hop."""
        other = self.probing.remove_port(key)
        self._probes.pop(key, None)
        if other is not None and not self.state.leads_away(other):
            self._find_out(other)

    def _find_out(self, key: PortKey) -> None:
        """Where a port leads is not known any more."""
        self._set_kind(key, PortKind.UNDETERMINED)
        self.probing.add_port(key, time.monotonic())

    def _set_kind(self, key: PortKey, kind: PortKind) -> None:
        port = self.state.ports.get(key)
        if port is not None and port.kind is not kind:
            self.state.set_port(key[0], replace(port, kind=kind))
            self.send_event_to_observers(EventPortChanged(*key))

    # --- probes and links ---

    def _packet_out(self, key: PortKey, hw_addr: str) -> tuple[bytes, bytes]:
        """What all of a port's probes have in common, made once: at 1,000 ports, making it each time costs."""
        message = openflow.packet_out(self.state.datapath(key[0]), [key[1]], bytes(lldp.FRAME_BYTES))
        message.serialize()
        return bytes(message.buf[:-lldp.FRAME_BYTES]), lldp.unsigned(key, hw_addr)

    def _probe(self) -> None:
        now = time.monotonic()
        due: dict[str, list[PortKey]] = {}
        for key in self.probing.tick(now):
            due.setdefault(key[0], []).append(key)
        for dpid, of_switch in due.items():
            for at in range(0, len(of_switch), PROBES_AT_ONCE):
                keys = of_switch[at:at + PROBES_AT_ONCE]
                left = self._send_probes(dpid, keys)
                for key in keys:
                    (self.probing.sent if key in left else self.probing.not_sent)(key, now)
        for key in self.probing.turned_edge(now, self.state.recovered_ports):
            if not self.state.leads_away(key):
                self.state.remove_link(key)
                self._set_kind(key, PortKind.EDGE)
        for key in [key for key in self.probing.suspects() if key not in self._being_checked]:
            self._being_checked.add(key)
            self.loops.spawn(self._check_silence, key)

    def _send_probes(self, dpid: str, keys: Sequence[PortKey]) -> frozenset[PortKey]:
        """Hand probes of some ports to their switch's connection, all at once, unless that is backed up: waiting here
        would delay all others. Returns those that left."""
        datapath = self.state.datapaths.get(dpid)
        probes = {key: probe for key in keys if (probe := self._probes.get(key))}
        if datapath is None or datapath.is_backed_up or not probes:
            return frozenset()
        has_left = datapath.send(b"".join(
            header + lldp.sign(frame, self.probing.begin_epoch(key), self._secret)
            for key, (header, frame) in probes.items()))
        return frozenset(probes) if has_left else frozenset()

    def probe_arrived(self, packet: PacketIn) -> None:
        """Take in an LLDP frame that a switch handed up."""
        if not self.state.is_current(packet.datapath):
            return
        destination = dpid_hex(packet.datapath.id), packet.in_port
        now = time.monotonic()
        try:
            probe = lldp.read(packet.data, self._secret)
        except lldp.ForeignFrame:
            return
        except lldp.ForgedProbe:
            self._refuse(destination, "forged", now)
            return
        if destination in self._host_ports:
            self._refuse(destination, "declared", now)
            return
        # Until a moment ago, hosts behind a switch that is new may have spoken through this cable.
        ends = probe.source[0], destination[0]
        heard = self.probing.received(
            probe.source, destination, probe.epoch, now, lambda key: bool(self.state.hosts_behind(key)),
            lambda key: key in self.state.host_ports and not any(self._is_new(dpid, now) for dpid in ends))
        if heard.refused:
            self._refuse(destination, heard.refused, now)
        for key in heard.doubtful:
            self._hosts.doubted(key)
        for key in heard.parted:
            self._tell_links(self.state.remove_link(key), live=False)
        for key in heard.loose:
            self._find_out(key)
        for a, b in heard.joined:
            self._join(a, b)

    def _is_new(self, dpid: str, now: float) -> bool:
        """Whether the cables of a switch may not all have been found yet."""
        new_seconds = max(NEW_SWITCH_SECONDS, NEW_SWITCH_INTERVALS * self.probing.current_interval_seconds)
        return now - self._listening.get(dpid, (None, now))[1] < new_seconds

    def _join(self, a: PortKey, b: PortKey) -> None:
        """The state changes in one step; who is told of it may already do something else meanwhile."""
        lost = self.state.remove_link(a) + self.state.remove_link(b)
        self.state.host_ports.difference_update((a, b))
        turned = [key for key in (a, b) if self.state.ports[key].kind is not PortKind.FABRIC]
        for key in turned:
            self.state.set_port(key[0], replace(self.state.ports[key], kind=PortKind.FABRIC))
        live = self.state.add_link(a, b)
        self._tell_links(lost, live=False)
        for key in turned:
            self.send_event_to_observers(EventPortChanged(*key))
        self._tell_links(live, live=True)

    def _refuse(self, key: PortKey, why: str, now: float) -> None:
        if self.state.refusals.count("lldp", why, now):
            self.logger.warning("an LLDP frame at port %d of %s is refused: %s", key[1], self.state.name_of(key[0]),
                                WHY_REFUSED[why])

    def _check_silence(self, key: PortKey) -> None:
        """Take a suspected link out if it stays silent after both switches told all they had to tell.

        Barrier replies come behind the probes that a switch reported, so a controller that is late reads the probes
        first; a switch that does not answer at all is the echo requests' business.
        """
        try:
            other = self.probing.far_end(key)
            for end in (key, other, key, other):
                if end is None:
                    return
                self._send_probes(key[0], [key])
                confirmed(self.state, self.state.datapath(end[0]), [], SILENCE_CHECK_SECONDS)
                hub.sleep(TICK_SECONDS)
            if not self.probing.is_suspect(key) or self.probing.far_end(key) != other:
                return
            self.logger.warning("link at port %d of %s is silent", key[1], self.state.name_of(key[0]))
            self._tell_links(self.state.remove_link(key), live=False)
            for end in filter(None, (key, other)):
                self._find_out(end)
        except ControllerError:
            return
        finally:
            self._being_checked.discard(key)

    def _tell_links(self, links: list[Link], live: bool) -> None:
        for link in links:
            self.logger.info("link %s -> %s %s", *map(self.state.name_of, link), "is live" if live else "is gone")
            self.send_event_to_observers(EventLinkChanged(link, live))
