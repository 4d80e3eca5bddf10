"""Slices the ports between switches into queues and keeps them so (MinCOF, section III-B)."""

from __future__ import annotations

import time
from typing import Any

from ryu.controller.handler import set_ev_cls

from speedwell.controller.application import Application
from speedwell.controller.counters.measurements import Measurements, StatsRequest
from speedwell.controller.policy.network.traffic_classes import SLICES, QueueClass
from speedwell.controller.queues.api import PortState, QueueCounters, QueuesApi
from speedwell.controller.queues.port_queues import QUEUE_TABLES, SwitchQueues, changes, queues_of
from speedwell.controller.rest import RestApplication
from speedwell.controller.services import Services
from speedwell.controller.switches.ovsdb import Database, DatabaseUnreachable, read_tables, transact
from speedwell.controller.tables.forwarding import Forwarding
from speedwell.controller.topology.events import EventLinkChanged, EventSwitchChanged
from speedwell.controller.topology.state import NetworkState, PortKey

CHANGE_DELAY_SECONDS = 0.2
"""Links of a switch come in a shower; this long they are gathered before its database is asked."""
TICK_SECONDS = 0.1
LOOP_PATIENCE_SECONDS = 10.0


class Queues(Application):
    """Writes queues into the switches' databases. `ports` says how each port between switches stands."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._state = services.get(NetworkState)
        self.classes: tuple[QueueClass, ...] = SLICES[self._state.settings.queues]
        self.ports: dict[PortKey, PortState] = {}
        self.counters: dict[tuple[PortKey, int], QueueCounters] = {}
        """What each queue had sent at the last poll, by port and queue number, of the switches that answer."""
        self._due: dict[str, float] = {}
        services.get(Measurements).add_request(StatsRequest(
            "queues", lambda: {dpid for dpid, _ in self.ports}, _all_queues, self._counted))
        services.get(RestApplication).register(QueuesApi(self, self._state))

    def start(self) -> None:
        self._forwarding = self.services.get(Forwarding)
        super().start()
        if self.classes:
            self.loops.run("port queues", self._slice_what_is_due, every_seconds=TICK_SECONDS,
                           patience_seconds=LOOP_PATIENCE_SECONDS)

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
        self._forget_counters(event.dpid)
        for key in [key for key in self.ports if key[0] == event.dpid]:
            del self.ports[key]

    def _slice_what_is_due(self) -> None:
        now = time.monotonic()
        for dpid in [dpid for dpid, due in self._due.items() if due <= now]:
            self._due[dpid] = now + self._state.settings.ovsdb_interval_seconds
            self.loops.spawn(self._slice, dpid)

    def _slice(self, dpid: str) -> None:
        """Make the queues of a switch as they should be, wherever they are not."""
        info = self._state.switches.get(dpid)
        if info is None or not info.connected:
            return
        database = self._state.database(info)
        try:
            found = queues_of(read_tables(database, QUEUE_TABLES), dpid)
        except (DatabaseUnreachable, KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            self._failed(self._links_of(dpid), str(error))
            return
        # Whoever asks a database waits: the switch, or a link of it, may be gone by now, here and in each step below.
        if dpid not in self._state.datapaths:
            return
        self._note_datapath(dpid, found.is_kernel)
        for key in self._links_of(dpid):
            self._slice_port(database, key, found)
        links = self._links_of(dpid)
        for key in [key for key in self.ports if key[0] == dpid and key not in links]:
            del self.ports[key]

    def _links_of(self, dpid: str) -> list[PortKey]:
        return sorted(key for key in self._state.links if key[0] == dpid)

    def _slice_port(self, database: Database, key: PortKey, found: SwitchQueues) -> None:
        port, known = found.ports.get(key[1]), self._state.ports.get(key)
        if port is None or known is None:
            self._failed([key], "the switch's database has no such port")
            return
        capacity_bps = port.max_bps or known.capacity_bps
        try:
            if operations := changes(port, self.classes, capacity_bps):
                transact(database, operations)
                self.logger.info("port %d of %s is sliced into queues", key[1], self._state.name_of(key[0]))
        except (DatabaseUnreachable, ValueError) as error:
            self._failed([key], str(error))
            return
        if key in self._state.links:
            self.ports[key] = PortState(round(capacity_bps), None)

    def _note_datapath(self, dpid: str, is_kernel: bool) -> None:
        classes = tuple(each.number for each in self.classes if each.number) if is_kernel else ()
        if classes != self._state.set_queue_classes.get(dpid, ()):
            self._state.set_queue_classes[dpid] = classes
            self._forwarding.plan_anew()

    def _failed(self, keys: list[PortKey], problem: str) -> None:
        for key in keys:
            if key not in self._state.links:
                continue
            known = self.ports.get(key)
            if known is None or known.problem != problem:
                self.logger.warning("port %d of %s has no queues: %s", key[1], self._state.name_of(key[0]), problem)
            self.ports[key] = PortState(round(self._state.ports[key].capacity_bps), problem)

    def _counted(self, dpid: str, statistics: list[Any], now: float) -> None:
        self._forget_counters(dpid)
        self.counters.update((((dpid, stat.port_no), stat.queue_id), QueueCounters(
            stat.tx_bytes, stat.tx_packets, stat.tx_errors)) for stat in statistics)

    def _forget_counters(self, dpid: str) -> None:
        self.counters = {key: counted for key, counted in self.counters.items() if key[0][0] != dpid}


def _all_queues(datapath: Any) -> Any:
    ofproto = datapath.ofproto
    return datapath.ofproto_parser.OFPQueueStatsRequest(datapath, 0, ofproto.OFPP_ANY, ofproto.OFPQ_ALL)
