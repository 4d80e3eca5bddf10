"""Which switches, ports and links there are: OpenFlow connections, port status and LLDP probes.

Paced and patient (see `controller.probing`): a port that goes down takes its link out at once, silence alone only
after both switches confirmed that they would have told.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Any

from ryu.base.app_manager import RyuApp
from ryu.controller import ofp_event
from ryu.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3

from controller import lldp, openflow
from controller.confirm import asked, confirmed
from controller.errors import ControllerError
from controller.events import EventLinkChanged, EventPortChanged, EventSwitchChanged
from controller.network_state import NetworkState, PortInfo, PortKey, PortKind, SwitchInfo, dpid_hex
from controller.ovsdb import DatabaseUnreachable, read_capacities
from controller.policy.network import Link
from controller.probing import Probing
from controller.switch_tables import LLDP_ENTRY

TICK_SECONDS = 0.05
CAPACITY_DELAY_SECONDS = 0.3
"""A port that just came may get its capacity written a moment later."""
LISTEN_TIMEOUT_SECONDS = 5.0
LISTEN_RETRY_SECONDS = 1.0
SILENCE_CHECK_SECONDS = 5.0
"""How long both switches of a suspected link may take to confirm that they have nothing more to tell."""


class Discovery(RyuApp):
    """Writes switches, ports and links into the network state.

    Sends EventSwitchChanged, EventPortChanged and EventLinkChanged.
    """

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"state": NetworkState}
    _EVENTS = [EventSwitchChanged, EventPortChanged, EventLinkChanged]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state: NetworkState = kwargs["state"]
        settings = self.state.settings
        self.probing = Probing(settings.probe_interval_seconds, settings.probes_per_second, settings.probe_misses)
        self._token = secrets.token_bytes(8)
        self._probes: dict[PortKey, bytes] = {}
        self._capacities: dict[PortKey, float] = {}
        self._listening: dict[str, Any] = {}
        """The connections of switches that hand up probes."""
        self._being_checked: set[PortKey] = set()
        self._capacities_due: dict[str, float] = {}
        self._loops: list[Any] = []

    def start(self) -> None:
        super().start()
        self._loops = [hub.spawn(self._probe_loop), hub.spawn(self._capacity_loop)]

    def stop(self) -> None:
        for loop in self._loops:
            hub.kill(loop)
        super().stop()

    # --- switches ---

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def switch_state_changed(self, event: Any) -> None:
        datapath = event.datapath
        if event.state == MAIN_DISPATCHER:
            self._switch_connected(datapath)
        elif datapath.id is not None:
            self.state.confirmations.connection_ended(datapath)
            # A switch that reconnected faster than its old connection died is alive.
            if self.state.is_current(datapath):
                self._switch_gone(dpid_hex(datapath.id))

    def _switch_connected(self, datapath: Any) -> None:
        dpid = dpid_hex(datapath.id)
        if dpid in self.state.datapaths:
            self.state.confirmations.connection_ended(self.state.datapaths[dpid])
            self._switch_gone(dpid)
        known = self.state.switches.get(dpid)
        info = SwitchInfo(dpid, known.name if known else dpid, datapath.address[0], connected=True)
        self.state.switch_connected(info, datapath)
        self.logger.info("switch %s connected from %s", info.name, info.address)
        for port in list(datapath.ports.values()):
            self._set_port(dpid, port)
        hub.spawn(self._listen, datapath, dpid)
        hub.spawn(self._ask_name, datapath, dpid)
        self._capacities_due[dpid] = time.monotonic()
        self.send_event_to_observers(EventSwitchChanged(dpid, connected=True))

    def _listen(self, datapath: Any, dpid: str) -> None:
        """Let the switch hand probes up, and only then send any: what arrived before would be lost."""
        while self.state.is_current(datapath):
            try:
                confirmed(self.state, datapath, [openflow.flow_add(datapath, LLDP_ENTRY)], LISTEN_TIMEOUT_SECONDS)
            except ControllerError as error:
                self.logger.warning("switch %s does not hand up probes: %s", self.state.name_of(dpid), error)
                hub.sleep(LISTEN_RETRY_SECONDS)
                continue
            self._listening[dpid] = datapath
            for key in [key for key, port in self.state.ports.items() if key[0] == dpid and port.up]:
                self._start_probing(key)
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

    def _switch_gone(self, dpid: str) -> None:
        for key in [key for key in self.state.ports if key[0] == dpid]:
            self._stop_probing(key)
        self._listening.pop(dpid, None)
        lost = self.state.switch_disconnected(dpid)
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
            self._capacities_due[dpid] = time.monotonic() + CAPACITY_DELAY_SECONDS

    def _set_port(self, dpid: str, description: Any) -> None:
        """Take in what OpenFlow says of a port: new, changed, up or down."""
        key = dpid, description.port_no
        if description.port_no > openflow.PORT_MAX:
            return
        ofproto = ofproto_v1_3
        up = not (description.state & ofproto.OFPPS_LINK_DOWN or description.config & ofproto.OFPPC_PORT_DOWN)
        known = self.state.ports.get(key)
        port = PortInfo(
            description.port_no, description.name.decode("utf-8", "replace"), description.hw_addr, up,
            self._capacities.get(key) or description.curr_speed * 1000.0 or self.state.settings.default_capacity_bps,
            known.kind if known and up else PortKind.UNDETERMINED,
        )
        if port == known:
            return
        self.state.set_port(dpid, port)
        if not up:
            self._stop_probing(key)
            self._tell_links(self.state.remove_link(key), live=False)
        elif known is None or not known.up or known.hw_addr != port.hw_addr:
            self._start_probing(key)
        self.send_event_to_observers(EventPortChanged(*key))

    def _remove_port(self, key: PortKey) -> None:
        self._stop_probing(key)
        self._tell_links(self.state.remove_link(key), live=False)
        self.state.remove_port(key)
        self._capacities.pop(key, None)
        self.send_event_to_observers(EventPortChanged(*key))

    def _start_probing(self, key: PortKey) -> None:
        if self._listening.get(key[0]) is self.state.datapaths.get(key[0]):
            self._probes[key] = self._packet_out(key, self.state.ports[key].hw_addr)
            self.probing.add_port(key, time.monotonic())

    def _stop_probing(self, key: PortKey) -> None:
        """Forget the port; the one at the other end no longer leads anywhere known."""
        other = self.probing.remove_port(key)
        self._probes.pop(key, None)
        if other is not None:
            self._set_kind(other, PortKind.UNDETERMINED)
            self.probing.add_port(other, time.monotonic())

    def _set_kind(self, key: PortKey, kind: PortKind) -> None:
        port = self.state.ports.get(key)
        if port is not None and port.kind is not kind:
            self.state.set_port(key[0], replace(port, kind=kind))
            self.send_event_to_observers(EventPortChanged(*key))

    # --- probes and links ---

    def _packet_out(self, key: PortKey, hw_addr: str) -> bytes:
        """The whole message that sends a port's probe, made once: at 1,000 ports, making it each time costs."""
        message = openflow.packet_out(self.state.datapath(key[0]), [key[1]], lldp.probe(key, hw_addr, self._token))
        message.serialize()
        return bytes(message.buf)

    def _probe_loop(self) -> None:
        while self.is_active:
            now = time.monotonic()
            for key in self.probing.tick(now):
                if self._send_probe(key):
                    self.probing.sent(key, now)
                else:
                    self.probing.not_sent(key, now)
            for key in self.probing.turned_edge(now):
                self._set_kind(key, PortKind.EDGE)
            for key in self.probing.suspects():
                if key not in self._being_checked:
                    self._being_checked.add(key)
                    hub.spawn(self._check_silence, key)
            hub.sleep(TICK_SECONDS)

    def _send_probe(self, key: PortKey) -> bool:
        """Hand a probe to the switch's connection unless that is backed up: waiting here would delay all others."""
        datapath, probe = self.state.datapaths.get(key[0]), self._probes.get(key)
        if datapath is None or probe is None or datapath.send_q is None or datapath.send_q.full():
            return False
        return bool(datapath.send(probe))

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_arrived(self, event: Any) -> None:
        message = event.msg
        if message.data[12:14] != lldp.ETHERTYPE:
            return
        source = lldp.source_of(message.data, self._token)
        if source is None or not self.state.is_current(message.datapath):
            return
        heard = self.probing.received(source, (dpid_hex(message.datapath.id), message.match["in_port"]),
                                      time.monotonic())
        for key in heard.parted:
            self._tell_links(self.state.remove_link(key), live=False)
        for a, b in heard.joined:
            for key in (a, b):
                self._tell_links(self.state.remove_link(key), live=False)
                self._set_kind(key, PortKind.FABRIC)
            self._tell_links(self.state.add_link(a, b), live=True)

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
                self._send_probe(key)
                confirmed(self.state, self.state.datapath(end[0]), [], SILENCE_CHECK_SECONDS)
                hub.sleep(TICK_SECONDS)
            if not self.probing.is_suspect(key) or self.probing.far_end(key) != other:
                return
            self.logger.warning("link at port %d of %s is silent", key[1], self.state.name_of(key[0]))
            self._tell_links(self.state.remove_link(key), live=False)
            self.probing.begin_anew(key, time.monotonic())
            for end in (key, other):
                if end is not None:
                    self._set_kind(end, PortKind.UNDETERMINED)
        except ControllerError:
            return
        finally:
            self._being_checked.discard(key)

    def _tell_links(self, links: list[Link], live: bool) -> None:
        for link in links:
            self.logger.info("link %s -> %s %s", *map(self.state.name_of, link), "is live" if live else "is gone")
            self.send_event_to_observers(EventLinkChanged(link, live))

    # --- capacities ---

    def _capacity_loop(self) -> None:
        while self.is_active:
            now = time.monotonic()
            for dpid in [dpid for dpid, due in self._capacities_due.items() if due <= now]:
                self._capacities_due[dpid] = now + self.state.settings.ovsdb_interval_seconds
                hub.spawn(self._read_capacities, dpid)
            hub.sleep(0.1)

    def _read_capacities(self, dpid: str) -> None:
        info = self.state.switches[dpid]
        if not info.connected:
            self._capacities_due.pop(dpid, None)
            return
        try:
            found = read_capacities(info.address, self.state.settings.ovsdb_port, dpid)
        except DatabaseUnreachable as error:
            self.logger.debug("switch %s: %s", info.name, error)
            return
        for port_no, capacity_bps in found.items():
            key = dpid, port_no
            self._capacities[key] = capacity_bps
            port = self.state.ports.get(key)
            if port is None or port.capacity_bps == capacity_bps:
                continue
            self.state.set_port(dpid, replace(port, capacity_bps=capacity_bps))
            peer = self.state.links.get(key)
            if peer is not None:
                self.send_event_to_observers(EventLinkChanged((dpid, peer[0]), live=True))
