"""Polls the switches' counters (Mayflower, section 3.3.3): ports by itself, what else systems ask for.

Publishes EventMeasured after each round. Nothing is asked twice of a switch that has not answered yet.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ryu.controller.event import EventBase
from ryu.lib import hub

from speedwell.controller.application import Application
from speedwell.controller.counters.measurements import Measurements, StatsRequest, duration_of
from speedwell.controller.counters.metrics import PollerMetrics
from speedwell.controller.errors import ControllerError
from speedwell.controller.rest import RestApplication
from speedwell.controller.services import Services
from speedwell.controller.switches.entries import PORT_ANY
from speedwell.controller.switches.transactions import asked
from speedwell.controller.topology.state import NetworkState

SPREAD = 0.3
"""The part of a poll interval over which the requests of a round are spread."""
ANSWERED_WITHIN = 0.9
"""The part of a poll interval after which a round goes on without the switches that have not answered."""
PATIENCE_INTERVALS = 10
LOST_AFTER_INTERVALS = 10
"""An answer this late is not coming: the switch is asked anew."""


@dataclass(eq=False)
class EventMeasured(EventBase):
    """A round of polls is over: what was read since `began_at`, on the monotonic clock, is new."""

    began_at: float


class _Round:
    """What a round waits for."""

    def __init__(self) -> None:
        self.open = 0
        self.is_complete = True
        self.all_answered = hub.Event()

    def answered(self, is_good: bool) -> None:
        self.open -= 1
        self.is_complete = self.is_complete and is_good
        if self.open == 0:
            self.all_answered.set()


class Poller(Application):
    """Sends the switches the requests in `Measurements`. Sends EventMeasured."""

    _EVENTS = [EventMeasured]

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._state = services.get(NetworkState)
        self._measurements = services.get(Measurements)
        self._metrics = PollerMetrics(services.get(RestApplication).metrics)
        self._interval_seconds = self._state.settings.poll_interval_seconds
        self._unanswered: set[tuple[Any, str]] = set()
        self._begin = 0.0
        self._measurements.add_request(StatsRequest(
            "ports", lambda: self._state.datapaths.keys(),
            lambda datapath: datapath.ofproto_parser.OFPPortStatsRequest(datapath, 0, PORT_ANY), self._ports_counted))

    def start(self) -> None:
        super().start()
        self._begin = time.monotonic()
        self.loops.run("counter polls", self._poll_in_time,
                       patience_seconds=PATIENCE_INTERVALS * self._interval_seconds)

    def _poll_in_time(self) -> None:
        self._begin = max(self._begin + self._interval_seconds, time.monotonic())
        hub.sleep(max(self._begin - time.monotonic(), 0.0))
        self.poll()

    def poll(self) -> None:
        """One round."""
        begin = time.monotonic()
        current = _Round()
        requests = [(request, set(request.switches())) for request in self._measurements.requests]
        switches = sorted(self._state.datapaths.items())
        for dpid, datapath in switches:
            for request, wanted in requests:
                if dpid in wanted:
                    self._ask(request, datapath, dpid, current)
            hub.sleep(SPREAD * self._interval_seconds / len(switches))
        if current.open:
            current.all_answered.wait(
                max(begin + ANSWERED_WITHIN * self._interval_seconds - time.monotonic(), 0.01))
        now = time.monotonic()
        if current.is_complete and not current.open:
            self._measurements.complete_at = now
        self._measurements.keep(self._state.ports.keys())
        self._metrics.round_seconds.observe(now - begin)
        self.send_event_to_observers(EventMeasured(begin))

    def _ask(self, request: StatsRequest, datapath: Any, dpid: str, current: _Round) -> None:
        if (datapath, request.name) in self._unanswered:
            current.is_complete = False
            self._metrics.skipped.inc()
            return
        self._unanswered.add((datapath, request.name))
        current.open += 1
        self.loops.spawn(self._answer, request, datapath, dpid, current)

    def _answer(self, request: StatsRequest, datapath: Any, dpid: str, current: _Round) -> None:
        asked_at, is_good = time.monotonic(), False
        try:
            statistics = asked(self._state, datapath, request.message(datapath),
                               LOST_AFTER_INTERVALS * self._interval_seconds)
            now = time.monotonic()
            self._metrics.answer_seconds.observe(now - asked_at)
            if self._state.is_current(datapath):
                request.handle(dpid, statistics, now)
                is_good = True
        except ControllerError as error:
            self._metrics.lost.inc()
            self.logger.info("%s does not tell its %s: %s", self._state.name_of(dpid), request.name, error)
        finally:
            self._unanswered.discard((datapath, request.name))
            current.answered(is_good)

    def _ports_counted(self, dpid: str, statistics: list[Any], now: float) -> None:
        for stat in statistics:
            if (dpid, stat.port_no) in self._state.ports:
                self._measurements.read_port((dpid, stat.port_no), stat.rx_bytes, stat.tx_bytes, duration_of(stat),
                                             now)
