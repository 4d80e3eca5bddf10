"""Polls the switches' counters and turns them into rates (Mayflower, section 3.3.3).

Port counters come from every switch, flow counters from the edge switches only: there the reads' entries are.
Publishes EventMeasured after each round. Nothing is asked twice of a switch that has not answered yet.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ryu.base.app_manager import RyuApp
from ryu.controller import ofp_event
from ryu.controller.event import EventBase
from ryu.controller.handler import MAIN_DISPATCHER, set_ev_cls
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3

from controller.measurements import Measurements
from controller.network_state import NetworkState, PortKey, dpid_hex
from controller.openflow import COOKIE_MASK, COOKIE_READS
from controller.rest import RestApplication
from controller.rest.metrics import MonitorMetrics

SPREAD = 0.3
"""The part of a poll interval over which the requests of a round are spread."""
ANSWERED_WITHIN = 0.9
"""The part of a poll interval after which a round goes on without the switches that have not answered."""
LOST_AFTER_INTERVALS = 10
"""An answer this late is not coming: the switch is asked anew."""


class EventMeasured(EventBase):
    """A round of polls is over: `Measurements` has new counters of these ports and flows.

    `ports` are (dpid, port number), `flows` maps cookies to the switch that holds the entry. `complete` says that
    every connected switch answered.
    """

    def __init__(self, ports: set[PortKey], flows: dict[int, str], complete: bool) -> None:
        super().__init__()
        self.ports = ports
        self.flows = flows
        self.complete = complete


@dataclass
class _Round:
    """What a round has heard so far."""

    awaited: set[tuple[str, str]] = field(default_factory=set)
    ports: set[PortKey] = field(default_factory=set)
    flows: dict[int, str] = field(default_factory=dict)
    missed: bool = False


@dataclass(frozen=True)
class _Request:
    """A question to a switch that it has not answered. A later connection of it will not answer it either."""

    datapath: Any
    xid: int
    sent_at: float


class Monitor(RyuApp):
    """Writes `Measurements`. Sends EventMeasured."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"state": NetworkState, "measurements": Measurements, "rest": RestApplication}
    _EVENTS = [EventMeasured]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: NetworkState = kwargs["state"]
        self._measurements: Measurements = kwargs["measurements"]
        self._metrics = MonitorMetrics(kwargs["rest"].metrics)
        self._interval_seconds = self._state.settings.poll_interval_seconds
        self._unanswered: dict[tuple[str, str], _Request] = {}
        self._round = _Round()
        self._all_answered = hub.Event()
        self._poller: Any = None

    def start(self) -> None:
        super().start()
        self._poller = hub.spawn(self._poll_for_ever)

    def stop(self) -> None:
        if self._poller is not None:
            hub.kill(self._poller)
        super().stop()

    def _poll_for_ever(self) -> None:
        begin = time.monotonic()
        while self.is_active:
            begin = max(begin + self._interval_seconds, time.monotonic())
            hub.sleep(max(begin - time.monotonic(), 0.0))
            try:
                self._poll()
            except Exception:
                self.logger.exception("a round of polls failed")

    def _poll(self) -> None:
        begin = time.monotonic()
        self._forget_lost_requests(begin)
        self._round = current = _Round()
        self._all_answered = hub.Event()
        switches = sorted(self._state.datapaths.items())
        for dpid, datapath in switches:
            self._ask(dpid, datapath, "ports")
            if dpid in self._state.edge_switches():
                self._ask(dpid, datapath, "flows")
            hub.sleep(SPREAD * self._interval_seconds / len(switches))
        left_seconds = begin + ANSWERED_WITHIN * self._interval_seconds - time.monotonic()
        if current.awaited:
            self._all_answered.wait(max(left_seconds, 0.01))
        self._finish(current, begin)

    def _ask(self, dpid: str, datapath: Any, what: str) -> None:
        if (dpid, what) in self._unanswered:
            self._round.missed = True
            self._metrics.skipped.inc()
            return
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        if what == "ports":
            request = parser.OFPPortStatsRequest(datapath, 0, ofproto.OFPP_ANY)
        else:
            request = parser.OFPFlowStatsRequest(datapath, 0, ofproto.OFPTT_ALL, ofproto.OFPP_ANY, ofproto.OFPG_ANY,
                                                 COOKIE_READS, COOKIE_MASK)
        datapath.set_xid(request)
        self._unanswered[dpid, what] = _Request(datapath, request.xid, time.monotonic())
        self._round.awaited.add((dpid, what))
        datapath.send_msg(request)

    def _forget_lost_requests(self, now: float) -> None:
        for key, request in list(self._unanswered.items()):
            late = now - request.sent_at > LOST_AFTER_INTERVALS * self._interval_seconds
            if late or not self._state.is_current(request.datapath):
                del self._unanswered[key]
                self._metrics.lost.inc()

    def _finish(self, current: _Round, begin: float) -> None:
        now = time.monotonic()
        complete = not current.awaited and not current.missed
        if complete:
            self._measurements.complete_at = now
            self._measurements.keep(current.ports, current.flows)
        self._metrics.round_seconds.observe(now - begin)
        self.send_event_to_observers(EventMeasured(current.ports, current.flows, complete))

    @set_ev_cls(ofp_event.EventOFPPortStatsReply, MAIN_DISPATCHER)
    def _ports_counted(self, event: Any) -> None:
        message = event.msg
        dpid = dpid_hex(message.datapath.id)
        if not self._is_awaited(dpid, "ports", message):
            return
        for stat in message.body:
            if (dpid, stat.port_no) in self._state.ports:
                self._measurements.read_port((dpid, stat.port_no), stat.rx_bytes, stat.tx_bytes, _duration(stat))
                self._round.ports.add((dpid, stat.port_no))
        self._answered(dpid, "ports", message)

    @set_ev_cls(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def _flows_counted(self, event: Any) -> None:
        message = event.msg
        dpid = dpid_hex(message.datapath.id)
        if not self._is_awaited(dpid, "flows", message):
            return
        for stat in message.body:
            self._measurements.read_flow(stat.cookie, stat.byte_count, stat.packet_count, _duration(stat))
            self._round.flows[stat.cookie] = dpid
        self._answered(dpid, "flows", message)

    def _is_awaited(self, dpid: str, what: str, message: Any) -> bool:
        request = self._unanswered.get((dpid, what))
        return request is not None and request.datapath is message.datapath and request.xid == message.xid

    def _answered(self, dpid: str, what: str, message: Any) -> None:
        if message.flags & message.datapath.ofproto.OFPMPF_REPLY_MORE:
            return
        request = self._unanswered.pop((dpid, what))
        self._metrics.answer_seconds.observe(time.monotonic() - request.sent_at)
        self._round.awaited.discard((dpid, what))
        if not self._round.awaited:
            self._all_answered.set()


def _duration(stat: Any) -> float:
    return float(stat.duration_sec + stat.duration_nsec / 1e9)
