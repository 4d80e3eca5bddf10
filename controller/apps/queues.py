"""Slices the ports between switches into queues and keeps them so (MinCOF, section III-B)."""

from __future__ import annotations

import time
from typing import Any

from ryu.base.app_manager import RyuApp, lookup_service_brick
from ryu.controller.handler import set_ev_cls
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3

from controller.confirm import asked
from controller.errors import ControllerError
from controller.events import EventLinkChanged, EventSwitchChanged
from controller.network_state import NetworkState, PortKey
from controller.ovsdb import DatabaseUnreachable, read_tables, transact
from controller.queues import QUEUE_TABLES, SLICES, QueueClass, SwitchQueues, changes, queues_of
from controller.rest import RestApplication
from controller.rest.queues_api import PortState, QueueCounters, QueuesApi

CHANGE_DELAY_SECONDS = 0.2
"""Links of a switch come in a shower; this long they are gathered before its database is asked."""
TICK_SECONDS = 0.1
STATISTICS_TIMEOUT_SECONDS = 2.0


class Queues(RyuApp):
    """Writes queues into the switches' databases. `ports` says how each port between switches stands."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"state": NetworkState, "rest": RestApplication}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: NetworkState = kwargs["state"]
        self.classes: tuple[QueueClass, ...] = SLICES[self._state.settings.queues]
        self.ports: dict[PortKey, PortState] = {}
        self._due: dict[str, float] = {}
        self._loop: Any = None
        kwargs["rest"].register(QueuesApi(self, self._state))

    def start(self) -> None:
        super().start()
        if self.classes:
            self._loop = hub.spawn(self._slice_for_ever)

    def stop(self) -> None:
        if self._loop is not None:
            hub.kill(self._loop)
        super().stop()

    @set_ev_cls(EventLinkChanged)
    def link_changed(self, event: EventLinkChanged) -> None:
        if event.live:
            self._due[event.link[0]] = time.monotonic() + CHANGE_DELAY_SECONDS

    @set_ev_cls(EventSwitchChanged)
    def switch_changed(self, event: EventSwitchChanged) -> None:
        if event.connected:
            self._due[event.dpid] = time.monotonic() + CHANGE_DELAY_SECONDS
            return
        self._due.pop(event.dpid, None)
        for key in [key for key in self.ports if key[0] == event.dpid]:
            del self.ports[key]

    def _slice_for_ever(self) -> None:
        while self.is_active:
            now = time.monotonic()
            for dpid in [dpid for dpid, due in self._due.items() if due <= now]:
                self._due[dpid] = now + self._state.settings.ovsdb_interval_seconds
                hub.spawn(self._slice, dpid)
            hub.sleep(TICK_SECONDS)

    def _slice(self, dpid: str) -> None:
        """Make the queues of a switch as they should be, wherever they are not."""
        info = self._state.switches[dpid]
        database = info.address, self._state.settings.ovsdb_port
        links = sorted(key for key in self._state.links if key[0] == dpid)
        try:
            found = queues_of(read_tables(*database, QUEUE_TABLES), dpid)
        except (DatabaseUnreachable, KeyError, ValueError, TypeError) as error:
            self._failed(links, str(error))
            return
        self._note_datapath(dpid, found.is_kernel)
        for key in links:
            self._slice_port(database, key, found)
        for key in [key for key in self.ports if key[0] == dpid and key not in links]:
            del self.ports[key]

    def _slice_port(self, database: tuple[str, int], key: PortKey, found: SwitchQueues) -> None:
        port = found.ports.get(key[1])
        if port is None:
            self._failed([key], "the switch's database has no such port")
            return
        capacity_bps = port.max_bps or self._state.ports[key].capacity_bps
        try:
            if operations := changes(port, self.classes, capacity_bps):
                transact(*database, operations)
                self.logger.info("port %d of %s is sliced into queues", key[1], self._state.name_of(key[0]))
        except (DatabaseUnreachable, ValueError) as error:
            self._failed([key], str(error))
            return
        self.ports[key] = PortState(round(capacity_bps), None)

    def _note_datapath(self, dpid: str, is_kernel: bool) -> None:
        classes = tuple(each.number for each in self.classes if each.number) if is_kernel else ()
        if classes != self._state.set_queue_classes.get(dpid, ()):
            self._state.set_queue_classes[dpid] = classes
            lookup_service_brick("Forwarding").plan_anew()

    def _failed(self, keys: list[PortKey], problem: str) -> None:
        for key in keys:
            known = self.ports.get(key)
            if known is None or known.problem != problem:
                self.logger.warning("port %d of %s has no queues: %s", key[1], self._state.name_of(key[0]), problem)
            self.ports[key] = PortState(round(self._state.ports[key].capacity_bps), problem)

    def counters(self) -> dict[tuple[PortKey, int], QueueCounters]:
        """What each queue has sent, by port and queue number, of the switches that answer."""
        counters: dict[tuple[PortKey, int], QueueCounters] = {}
        threads = [hub.spawn(self._count, dpid, counters) for dpid in {key[0] for key in self.ports}]
        hub.joinall(threads)
        return counters

    def _count(self, dpid: str, counters: dict[tuple[PortKey, int], QueueCounters]) -> None:
        try:
            datapath = self._state.datapath(dpid)
            ofproto = datapath.ofproto
            request = datapath.ofproto_parser.OFPQueueStatsRequest(datapath, 0, ofproto.OFPP_ANY, ofproto.OFPQ_ALL)
            for stat in asked(self._state, datapath, request, STATISTICS_TIMEOUT_SECONDS):
                counters[(dpid, stat.port_no), stat.queue_id] = QueueCounters(
                    stat.tx_bytes, stat.tx_packets, stat.tx_errors)
        except ControllerError as error:
            self.logger.info("%s does not tell what its queues sent: %s", self._state.name_of(dpid), error)
