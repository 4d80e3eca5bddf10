"""Coflows: reports in, schedules out to the switches (MinCOF, sections III-C and III-D).

What the scheduler wants and what the switches have are compared all the time, and the difference is sent: a new
schedule, a renewed lifetime, a switch that was away and an attempt that failed are all the same case.
"""

from __future__ import annotations

import itertools
import secrets
import time
from dataclasses import replace
from typing import Any

import eventlet
from eventlet.green import socket
from ryu.base.app_manager import RyuApp, lookup_service_brick
from ryu.controller.handler import set_ev_cls
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3

from coflow.acceptance import Acceptance
from coflow.errors import InvalidReport, InvalidSetting
from coflow.report import MAX_DATAGRAM_BYTES, decode
from coflow.settings import read_key
from controller.coflow_book import CoflowBook, ReportedFlow
from controller.coflow_policies import SCHEDULERS, compile_policy
from controller.confirm import asked
from controller.errors import ControllerError, InvalidSettings, UnknownCoflow
from controller.events import EventHostChanged, EventLinkChanged
from controller.explicit_paths import ExplicitPath
from controller.metered_paths import RETRY_COOKIES, Wanted
from controller.network_state import NetworkState
from controller.openflow import COOKIE_COFLOWS, cookie, flow_stats_request
from controller.policy.coflow import Assignment, TrafficSet
from controller.policy.ecmp import ecmp_path
from controller.policy.five_tuple import FiveTuple
from controller.queues import BEST_EFFORT, SCHEDULED, STARVED, class_of_priority
from controller.rate_floor import floored
from controller.rest import RestApplication
from controller.rest.coflows_api import CoflowsApi
from controller.rest.metrics import CoflowMetrics

TRAFFIC_CLASSES = {TrafficSet.SCHEDULED: SCHEDULED.number, TrafficSet.STARVED: STARVED.number,
                   TrafficSet.BEST_EFFORT: BEST_EFFORT.number}
EXPIRE_INTERVAL_SECONDS = 0.5
RETRY_SECONDS = 1.0
MEASURE_INTERVAL_SECONDS = 2.0
NETWORK_DELAY_SECONDS = 0.05
"""Changes of the network come in showers."""
LOCATE_SECONDS = 1.0
BATCH_DATAGRAMS = 64
"""After so many in a row others have their turn."""


class Coflows(RyuApp):
    """Listens to reports, keeps the schedule and puts it into the switches."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"state": NetworkState, "rest": RestApplication}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: NetworkState = kwargs["state"]
        settings = self._state.settings
        assert settings.coflow_key_file is not None
        try:
            self._key = read_key(settings.coflow_key_file)
        except InvalidSetting as error:
            raise InvalidSettings(str(error)) from None
        self._acceptance = Acceptance()
        compile_policy(settings.coflow_policy)
        scheduler = SCHEDULERS[settings.coflow_policy](self._state.network, settings.coflow_threshold_bytes)
        self.book = CoflowBook(scheduler, settings.coflow_expiry_seconds, settings.coflow_stall_seconds)
        self.metrics = CoflowMetrics(kwargs["rest"].metrics)
        self.metrics.live.set_function(lambda: len(self.book))
        # A restarted controller must not take an entry of its former life for one of its own.
        self._cookies = itertools.count(secrets.randbits(15) << 32)
        self._placed: dict[FiveTuple, tuple[Assignment, ReportedFlow | None]] = {}
        """What the switches have confirmed, and for which flow of the book: a connection may serve several coflows,
        one after the other."""
        self.failures: dict[FiveTuple, str] = {}
        self._wake = hub.Event()
        self._renew_at = 0.0
        self._retry_at = 0.0
        """When flows that failed are tried again; the others do not wait for it."""
        self._network_dirty = False
        self._searching: set[str] = set()
        self._loops: list[Any] = []
        self.address: tuple[str, int] | None = None
        self.forwarding: Any = None
        self.hosts: Any = None
        kwargs["rest"].register(CoflowsApi(self, self._state))

    def start(self) -> None:
        """Raises InvalidSettings if the address cannot be had."""
        address = str(self._state.settings.coflow_host), self._state.settings.coflow_port
        listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            listening.bind(address)
        except OSError as error:
            raise InvalidSettings(
                f"cannot take coflow reports at {address[0]}:{address[1]}: {error.strerror}") from None
        self.address = listening.getsockname()[:2]
        super().start()
        self.forwarding = lookup_service_brick("Forwarding")
        self.hosts = lookup_service_brick("Hosts")
        self.logger.info("coflow reports are taken at udp:%s:%d", *self.address)
        self._loops = [hub.spawn(self._listen, listening)]
        self.start_loops()

    def start_loops(self) -> None:
        """Begin to put schedules into the switches."""
        self._loops += [hub.spawn(loop) for loop in (self._apply_for_ever, self._expire_for_ever,
                                                     self._measure_for_ever)]

    def stop(self) -> None:
        for loop in self._loops:
            hub.kill(loop)
        super().stop()

    # --- reports ---

    def _listen(self, listening: Any) -> None:
        for number in itertools.count(1):
            try:
                datagram, _ = listening.recvfrom(MAX_DATAGRAM_BYTES + 1)
            except OSError as error:
                self.logger.warning("no coflow report: %s", error)
                hub.sleep(RETRY_SECONDS)
                continue
            self.receive(datagram)
            if number % BATCH_DATAGRAMS == 0:
                eventlet.sleep(0)

    def receive(self, datagram: bytes) -> None:
        """Take one datagram in; what is wrong with it is counted."""
        try:
            report = decode(datagram, self._key)
            news = self._acceptance.take(report, time.time())
        except InvalidReport as error:
            self.metrics.reports.labels(error.reason).inc()
            self.logger.debug("a report is refused: %s", error)
            return
        known, turned_away = self.book.get(report.coflow_id), self.book.turned_away
        with self.metrics.decision_seconds.time():
            changed = self.book.take(report.coflow_id, news, time.monotonic())
        self.metrics.reports.labels("taken" if self.book.turned_away == turned_away else "crowded").inc()
        if known is None and self.book.get(report.coflow_id) is not None:
            self.metrics.arrived.inc()
        for each in news:
            for host in (each.flow.source, each.flow.destination):
                if each.remaining_bytes and host not in self._state.hosts and host not in self._searching:
                    self._searching.add(host)
                    hub.spawn(self._search, host)
        if changed:
            self._wake.set()

    def _search(self, host: str) -> None:
        """Find a host that no switch has seen; the next report of its flows then finds a path."""
        try:
            self.hosts.locate(host, LOCATE_SECONDS)
        except ControllerError as error:
            self.logger.info("a coflow's flow has no path: %s", error)
        finally:
            self._searching.discard(host)

    def remove(self, coflow_id: bytes) -> None:
        """Take a coflow's schedule away for good. Raises UnknownCoflow."""
        if self.book.get(coflow_id) is None:
            raise UnknownCoflow(coflow_id.hex())
        self.book.remove(coflow_id, time.monotonic(), "it was deleted")
        self._wake.set()

    # --- schedules ---

    def _apply_for_ever(self) -> None:
        while self.is_active:
            self._wake.wait(timeout=EXPIRE_INTERVAL_SECONDS)
            self._wake.clear()
            try:
                self.apply()
            except Exception:
                self.logger.exception("a schedule was not put into the switches")

    def apply(self) -> None:
        """Make the switches hold what the schedule says now, confirmed."""
        schedule, settings = self.book.schedule, self._state.settings
        if settings.coflow_rates == "hosts":
            schedule = {flow: replace(assignment, rate_bps=None) for flow, assignment in schedule.items()}
        else:
            schedule = floored(schedule, self._state.network, settings.meter_min_rate_bps)
        target = {flow: (assignment, self.book.flow(flow)) for flow, assignment in schedule.items()
                  if (assignment.path, assignment.rate_bps, assignment.priority) != (None, None, None)}
        now = time.monotonic()
        renew, retry = now >= self._renew_at, now >= self._retry_at
        wanted = {flow: placed for flow, placed in target.items() if (retry or flow not in self.failures) and (
            renew or self._placed.get(flow) != placed or self.forwarding.metered_paths.get(flow) is None)}
        unwanted = [flow for flow in (*self._placed, *self.failures) if flow not in target]
        if renew:
            self._renew_at = now + settings.coflow_lifetime_seconds / 3
        if not wanted and not unwanted:
            return
        with self.metrics.placement_seconds.time():
            failures = self.forwarding.metered_paths.apply(
                [each for flow, placed in wanted.items() if (each := self._wanted(flow, *placed))], unwanted)
        for flow in unwanted:
            self._placed.pop(flow, None)
        if failures:
            self._retry_at = time.monotonic() + RETRY_SECONDS
        for flow, placed in wanted.items():
            if flow in failures:
                self.metrics.refused.labels(failures[flow].slug).inc()
                self._placed.pop(flow, None)
            else:
                self._placed[flow] = placed
        for flow, error in failures.items():
            if self.failures.get(flow) != str(error):
                self.logger.warning("a flow of a coflow is not placed: %s", error)
        waiting = {flow: error for flow, error in self.failures.items() if flow in target and flow not in wanted}
        self.failures = waiting | {flow: str(error) for flow, error in failures.items()}

    def _wanted(self, flow: FiveTuple, assignment: Assignment, reported: ReportedFlow | None) -> Wanted | None:
        """The entry of a flow; None if it cannot be reached.

        One with a rate but no path keeps to the default paths below its meter. Those push a label without a traffic
        class, so one with a priority gets the path that ECMP would give it.
        """
        lifetime_seconds = self._state.settings.coflow_lifetime_seconds
        path, traffic_class = assignment.path, TRAFFIC_CLASSES[assignment.traffic_set]
        if path is None:
            paths = self._state.network.shortest_paths(flow.source, flow.destination)
            if not paths:
                return None
            path = ecmp_path(paths, flow)
        if assignment.priority is not None:
            traffic_class = class_of_priority(assignment.priority)
        number = cookie(COOKIE_COFLOWS, next(self._cookies) % RETRY_COOKIES)
        is_default = assignment.path is None and assignment.priority is None
        return Wanted(ExplicitPath(flow, path, number, lifetime_seconds, traffic_class, is_default,
                                   lifetime_seconds=lifetime_seconds), assignment.rate_bps,
                      counts_anew=flow not in self._placed or self._placed[flow][1] is not reported)

    # --- time and the network ---

    def _expire_for_ever(self) -> None:
        while self.is_active:
            hub.sleep(EXPIRE_INTERVAL_SECONDS)
            self._acceptance.forget(time.time())
            if self.book.expire(time.monotonic()):
                self._wake.set()

    @set_ev_cls([EventLinkChanged, EventHostChanged])
    def network_changed(self, event: Any) -> None:
        if not self._network_dirty and len(self.book):
            self._network_dirty = True
            hub.spawn_after(NETWORK_DELAY_SECONDS, self._plan_anew)

    def _plan_anew(self) -> None:
        self._network_dirty = False
        self.book.network_changed(time.monotonic())
        self._wake.set()

    # --- measurements ---

    def _measure_for_ever(self) -> None:
        while self.is_active:
            hub.sleep(MEASURE_INTERVAL_SECONDS)
            paths = map(self.forwarding.metered_paths.get, list(self._placed))
            switches = {path.first_switch for path in paths if path is not None}
            hub.joinall([hub.spawn(self._measure, dpid) for dpid in switches])

    def _measure(self, dpid: str) -> None:
        """What the flows have moved, by the first switch's count."""
        try:
            datapath = self._state.datapath(dpid)
            statistics = asked(self._state, datapath, flow_stats_request(datapath, cookie_prefix=COOKIE_COFLOWS))
        except ControllerError as error:
            self.logger.info("coflows are not measured: %s", error)
            return
        counted = {stat.cookie: stat.byte_count for stat in statistics}
        for flow, (_, reported) in list(self._placed.items()):
            path = self.forwarding.metered_paths.get(flow)
            if reported is not self.book.flow(flow):
                continue        # its entry has counted for an earlier one so far
            if path is not None and path.first_switch == dpid and path.cookie in counted and self.book.measured(
                    flow, counted[path.cookie], time.monotonic()):
                self.metrics.distrusted.inc()
                self.logger.warning("the coflow of a flow from %s to %s moved more than it announced: no schedule",
                                    flow.source, flow.destination)
                self._wake.set()

    @property
    def unmetered(self) -> int:
        return int(self.forwarding.metered_paths.unmetered)
