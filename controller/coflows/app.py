"""Coflows: reports in, schedules out to the switches (MinCOF, sections III-C and III-D).

What the scheduler wants and what the switches have are compared all the time, and the difference is sent: a new
schedule, a renewed lifetime, a switch that was away and an attempt that failed are all the same case.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

from eventlet import tpool
from ryu.controller.handler import set_ev_cls
from ryu.lib import hub

from speedwell.coflow import host_heartbeat
from speedwell.coflow.errors import InvalidReport, InvalidSetting
from speedwell.coflow.host_heartbeat import HostHeartbeat
from speedwell.coflow.report import MAX_DATAGRAM_BYTES, decode
from speedwell.coflow.settings import read_key
from speedwell.controller.application import Application
from speedwell.controller.coflows.api import CLAIMANT, CoflowsApi
from speedwell.controller.coflows.book import CoflowBook, ReportedFlow
from speedwell.controller.coflows.metrics import CoflowMetrics
from speedwell.controller.coflows.minimum_rates import with_minimum_rates
from speedwell.controller.coflows.planning import Assignments, CoflowPlan, CoflowPlanner, CoflowUpdates, Rests
from speedwell.controller.coflows.policies import compile_policy, make_scheduler
from speedwell.controller.coflows.report_socket import report_socket
from speedwell.controller.coflows.told_times import Hearing
from speedwell.controller.counters.host_heartbeats import EventHostCounted, HostCounted
from speedwell.controller.counters.poller import EventMeasured
from speedwell.controller.errors import ControllerError, InvalidSettings, UnknownCoflow
from speedwell.controller.loops import TURN_SECONDS, in_turns
from speedwell.controller.policy.coflows.coflow import Assignment, ServiceClass
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.network.traffic_classes import (
    BEST_EFFORT,
    SCHEDULED,
    STARVED,
    class_of_priority,
    priority_of_class,
)
from speedwell.controller.rest import RestApplication
from speedwell.controller.services import Services
from speedwell.controller.tables.events import EventFlowsReported
from speedwell.controller.tables.flow_records import Claim, Withdrawal
from speedwell.controller.tables.forwarding import Forwarding
from speedwell.controller.topology.events import EventHostChanged, EventLinkChanged
from speedwell.controller.topology.hosts import Hosts
from speedwell.controller.topology.state import NetworkState

TRAFFIC_CLASSES = {ServiceClass.SCHEDULED: SCHEDULED.number, ServiceClass.STARVED: STARVED.number,
                   ServiceClass.BEST_EFFORT: BEST_EFFORT.number}
EXPIRE_INTERVAL_SECONDS = 0.5
RETRY_SECONDS = 1.0
NETWORK_DELAY_SECONDS = 0.05
"""Changes of the network come in showers."""
LOCATE_SECONDS = 1.0
MAX_SEARCHES = 64
"""Hosts that are searched for at once; the reports that come later lead to the others."""
SHORT_SECONDS = 0.005
"""A decision that took the processor for longer than this is made in another thread the next time."""
FEW_FLOWS = 100
"""Updates of more flows than this are taken in there too."""
LOOP_PATIENCE_SECONDS = 30.0


def traffic_class_of(assignment: Assignment) -> int | None:
    """The class of a flow's packets on links; None where the schedule leaves it to others."""
    if assignment.priority is not None:
        return class_of_priority(assignment.priority)
    return TRAFFIC_CLASSES[assignment.service_class] if assignment.path is not None else None


class Coflows(Application):
    """Listens to reports, keeps the schedule and puts it into the switches. Sends EventFlowsReported and
    EventHostCounted."""

    _EVENTS: list[type] = [EventFlowsReported, EventHostCounted]

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._state = services.get(NetworkState)
        settings = self._state.settings
        assert settings.coflow_key_file is not None
        try:
            self._key = read_key(settings.coflow_key_file)
        except InvalidSetting as error:
            raise InvalidSettings(str(error)) from None
        self._hearing = Hearing(settings.coflow_key_file.with_name(settings.coflow_key_file.name + ".told"))
        self._state.leadership.on_change.append(self._hearing.begin)
        compile_policy(settings.coflow_policy)
        self.book = CoflowBook(settings.coflow_expiry_seconds, settings.coflow_stall_seconds)
        self.planner = CoflowPlanner(
            lambda network: make_scheduler(settings.coflow_policy, network, settings.coflow_threshold_bytes),
            self._state.network, self._enforced)
        self._decision_seconds = 0.0
        self._rests = Rests()
        self._paces_bps: dict[FiveTuple, int] = {}
        rest = services.get(RestApplication)
        self.metrics = CoflowMetrics(rest.metrics)
        self.metrics.live.set_function(lambda: len(self.book))
        self._placed: dict[FiveTuple, tuple[Assignment, ReportedFlow | None]] = {}
        """What the switches have confirmed, oldest first, and for which flow of the book: a connection may serve
        several coflows, one after the other."""
        self.failures: dict[FiveTuple, str] = {}
        self._updated = hub.Event()
        self._schedule_changed = hub.Event()
        self._renewed_at = time.monotonic()
        self._renewals_due = 0.0
        self._retry_at = 0.0
        """When flows that failed are tried again; the others do not wait for it."""
        self._network_dirty = False
        self._expires_from = 0.0
        """No flow can have been silent for too long before."""
        self._away: set[str] = set()
        """Switches that were away, until there is a plan for the network with them."""
        self._searching: set[str] = set()
        self.address: tuple[str, int] | None = None
        rest.register(CoflowsApi(self, self._state))

    def start(self) -> None:
        """Raises InvalidSettings if the address cannot be had."""
        self.forwarding = self.services.get(Forwarding)
        self.hosts = self.services.get(Hosts)
        listening = report_socket(str(self._state.settings.coflow_host), self._state.settings.coflow_port)
        self.address = listening.getsockname()[:2]
        super().start()
        self.logger.info("coflow reports are taken at udp:%s:%d", *self.address)
        self.loops.run("coflow reports", lambda: self._receive_some(listening), patience_seconds=None)
        self.start_loops()

    def start_loops(self) -> None:
        """Begin to put schedules into the switches."""
        self.loops.run("coflow decisions", self._plan_when_due, patience_seconds=LOOP_PATIENCE_SECONDS)
        self.loops.run("coflow schedule", self._apply_when_due, patience_seconds=LOOP_PATIENCE_SECONDS)
        self.loops.run("coflow expiry", self._expire, every_seconds=EXPIRE_INTERVAL_SECONDS,
                       patience_seconds=LOOP_PATIENCE_SECONDS)

    # --- reports ---

    def _receive_some(self, listening: Any) -> None:
        """Take in what comes, until others have to have their turn."""
        began = time.monotonic()
        while time.monotonic() - began < TURN_SECONDS:
            self.receive(listening.recvfrom(MAX_DATAGRAM_BYTES + 1)[0])

    def receive(self, datagram: bytes) -> None:
        """Take one datagram in, a report or a host's heartbeat; what is wrong with it is counted. A standby takes
        none: senders report again soon after it leads."""
        if not self._state.leadership.leads:
            return
        try:
            if host_heartbeat.is_heartbeat(datagram):
                self._tell_heartbeat(host_heartbeat.decode(datagram, self._key))
                return
            report = decode(datagram, self._key)
            updates = self._hearing.reports.accept(report, time.time())
        except InvalidReport as error:
            self.metrics.reports.labels(error.reason).inc()
            self.logger.debug("a report is refused: %s", error)
            return
        known, turned_away = self.book.get(report.coflow_id), self.book.turned_away
        self.book.report(report.coflow_id, updates, time.monotonic())
        self.metrics.reports.labels("taken" if self.book.turned_away == turned_away else "crowded").inc()
        if known is None and self.book.get(report.coflow_id) is not None:
            self.metrics.arrived.inc()
        for each in updates:
            for host in (each.flow.source, each.flow.destination):
                if (each.remaining_bytes and host not in self._state.hosts and host not in self._searching
                        and len(self._searching) < MAX_SEARCHES):
                    self._searching.add(host)
                    self.loops.spawn(self._search, host)
        self._tell_news()

    def _tell_heartbeat(self, beat: HostHeartbeat) -> None:
        self._hearing.require_news(beat.sent_at_microseconds / 1e6)
        self.send_event_to_observers(EventHostCounted(HostCounted(
            beat.host, beat.sender, beat.sent_at_microseconds / 1e6, beat.uptime_microseconds / 1e6,
            beat.received_bytes, beat.sent_bytes)))

    def _tell_news(self) -> None:
        """The scheduler, and whoever knows what the flows are for."""
        if self.book.has_updates:
            self._updated.set()
        if news := self.book.news():
            self.send_event_to_observers(EventFlowsReported(news))

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
        self.book.remove(coflow_id, "it was deleted")
        self._updated.set()

    # --- schedules ---

    def _plan_when_due(self) -> None:
        if not self.book.has_updates:
            self._updated.wait(timeout=EXPIRE_INTERVAL_SECONDS)
            self._updated.clear()
        if time.monotonic() < self._rests.correct_from and self.book.has_only_progress:
            hub.sleep(self._rests.LOOK_SECONDS)
            return
        try:
            self.plan()
        except Exception:
            self.planner.start_over()
            self.book.start_over()
            raise

    def plan(self) -> None:
        """Have the schedule follow what has happened: all of it, if that is little."""
        returned = set(filter(self._state.is_found_out, self._away))
        if returned:
            self.book.network_changed()
        if not self.book.has_updates:
            return
        began = time.monotonic()
        self.planner.follow_network()
        with self.metrics.decision_seconds.time():
            updates = self.book.updates()
            in_thread = len(updates) > FEW_FLOWS or self._decision_seconds > SHORT_SECONDS
            plan = (tpool.execute if in_thread else _here)(self._decide, updates, began)
        self.book.planned(plan)
        if plan.assignments is not None:
            self.forwarding.records.ranks = plan.ranks
        self._order_hosts()
        self._away -= returned
        if plan.assignments is not None or updates.ended:
            self._schedule_changed.set()
        hub.sleep(self._rests.planned(began, time.monotonic()))

    def _order_hosts(self) -> None:
        records = self.forwarding.records
        # hosts keep the class of a flow that they hear nothing of; these go on sending, and have lost theirs
        last = priority_of_class(BEST_EFFORT.number)
        withdrawn = {flow: last for flow in self.book.withdrawn if flow in records.priorities}
        records.order_hosts(
            withdrawn | {flow: priority_of_class(traffic_class) for flow, assignment in self.book.enforced.items()
                         if (traffic_class := self._class_at_hosts(assignment)) is not None},
            {flow: rate_bps for flow, rate_bps in self._paces_bps.items() if self.book.flow(flow) is not None})

    def _class_at_hosts(self, assignment: Assignment) -> int | None:
        """None where it is left to the host."""
        if assignment.priority is None and not self._state.settings.trust_dscp:
            return None     # by its priority a host would serve `starved` before `scheduled`
        return traffic_class_of(assignment)

    def _decide(self, updates: CoflowUpdates, now: float) -> CoflowPlan:
        began = time.thread_time()
        plan = self.planner.plan(updates, now)
        if plan.assignments is not None:
            self._decision_seconds = time.thread_time() - began
            self._paces_bps = self._kept_by_hosts(plan.assignments)
        return plan

    def _kept_by_hosts(self, assignments: Assignments) -> dict[FiveTuple, int]:
        settings = self._state.settings
        if settings.coflow_rates != "hosts":
            return {}
        told = with_minimum_rates(assignments, self.planner.network, settings.meter_min_rate_bps)
        return {flow: math.ceil(each.rate_bps) for flow, each in told.items() if each.rate_bps is not None}

    def _enforced(self, assignments: Assignments, network: Network) -> dict[FiveTuple, Assignment]:
        settings = self._state.settings
        if settings.coflow_rates == "hosts":
            told = {flow: replace(assignment, rate_bps=None) for flow, assignment in assignments.items()}
        else:
            told = with_minimum_rates(assignments, network, settings.meter_min_rate_bps)
        return {flow: assignment for flow, assignment in told.items()
                if (assignment.path, assignment.rate_bps, assignment.priority) != (None, None, None)}

    def _apply_when_due(self) -> None:
        self._schedule_changed.wait(timeout=EXPIRE_INTERVAL_SECONDS)
        self._schedule_changed.clear()
        self.apply()

    def apply(self) -> None:
        """Make the switches hold what the schedule says now, confirmed."""
        now = time.monotonic()
        retry, renewed = now >= self._retry_at, self._to_renew(now)
        target: dict[FiveTuple, tuple[Assignment, ReportedFlow | None]] = {}
        wanted: dict[FiveTuple, tuple[Assignment, ReportedFlow | None]] = {}
        for flow, assignment in in_turns(list(self.book.enforced.items())):
            if flow not in self.book.enforced:
                continue
            placed = target[flow] = assignment, self.book.flow(flow)
            if (retry or flow not in self.failures) and (flow in renewed or self._placed.get(flow) != placed
                                                         or self.forwarding.records.claim_of(flow, CLAIMANT) is None):
                wanted[flow] = placed
        unwanted = [flow for flow in in_turns([*self._placed, *self.failures])
                    if flow not in target and not self._is_kept_by_a_switch_away(flow)]
        if not wanted and not unwanted:
            return
        claims = [self._claim(flow, *placed) for flow, placed in in_turns(wanted.items())]
        with self.metrics.placement_seconds.time():
            failures = self.forwarding.apply(claims, [Withdrawal(flow, CLAIMANT) for flow in unwanted])
        for flow in unwanted:
            self._placed.pop(flow, None)
        if failures:
            self._retry_at = time.monotonic() + RETRY_SECONDS
        for flow, placed in wanted.items():
            self._placed.pop(flow, None)
            if flow in failures:
                self.metrics.refused.labels(failures[flow].slug).inc()
            else:
                self._placed[flow] = placed
        for flow, error in failures.items():
            if self.failures.get(flow) != str(error):
                self.logger.warning("a flow of a coflow is not placed: %s", error)
        waiting = {flow: error for flow, error in self.failures.items() if flow in target and flow not in wanted}
        self.failures = waiting | {flow: str(error) for flow, error in failures.items()}

    def is_confirmed(self, flow: FiveTuple) -> bool:
        """Whether the switches have confirmed what the schedule said of a flow when it was applied last."""
        return flow in self._placed

    def _to_renew(self, now: float) -> set[FiveTuple]:
        """The flows whose lifetime is to be renewed, the same number in every second: each in every third of it."""
        due = self._renewals_due + (now - self._renewed_at) * 3 / self._state.settings.coflow_lifetime_seconds * len(
            self._placed)
        self._renewals_due, number = math.modf(min(due, len(self._placed)))
        self._renewed_at = now
        return set(islice(self._placed, int(number)))

    def _is_kept_by_a_switch_away(self, flow: FiveTuple) -> bool:
        """Whether a flow that is not over has its entry at a switch that lost its connection, or of which no plan
        knows yet that it is back. The switch goes on with it until its lifetime ends; if it is back before, nothing
        needs to change."""
        record = self.forwarding.records.get(flow)
        placement = record.placement if record and CLAIMANT in record.claims else None
        if placement is None or self.book.flow(flow) is None:
            return False
        if not self._state.is_found_out(placement.dpid):
            self._away.add(placement.dpid)
        return placement.dpid in self._away

    def _claim(self, flow: FiveTuple, assignment: Assignment, reported: ReportedFlow | None) -> Claim:
        """What the schedule says of a flow. The rest is left to the others: a rate or a priority without a path goes
        with whatever path the flow has."""
        return Claim(flow, CLAIMANT, reported, assignment.path, traffic_class_of(assignment), assignment.rate_bps,
                     lifetime_seconds=self._state.settings.coflow_lifetime_seconds)

    # --- time and the network ---

    def _expire(self) -> None:
        self._hearing.reports.forget(time.time())
        if time.monotonic() >= self._expires_from:
            self._expires_from = min((self.book.expire(coflow, time.monotonic()) for coflow in in_turns(self.book)),
                                     default=0.0)
        self._tell_news()

    @set_ev_cls([EventLinkChanged, EventHostChanged])
    def network_changed(self, event: Any) -> None:
        if not self._network_dirty and len(self.book):
            self._network_dirty = True
            self.loops.spawn_after(NETWORK_DELAY_SECONDS, self._plan_anew)

    def _plan_anew(self) -> None:
        self._network_dirty = False
        self.book.network_changed()
        self._updated.set()

    # --- measurements ---

    @set_ev_cls(EventMeasured)
    def measured(self, event: EventMeasured) -> None:
        """A round of polls is over: what the flows have moved, by their first switches' count."""
        now = time.monotonic()
        for flow, (_, reported) in in_turns(list(self._placed.items())):
            record = self.forwarding.records.get(flow)
            if record is None or reported is not self.book.flow(flow):
                continue        # its entry has counted for an earlier one so far
            if self.book.measured(flow, record.transferred_bytes(CLAIMANT), now):
                self.metrics.distrusted.inc()
                self.logger.warning("the coflow of a flow from %s to %s moved more than it announced: no schedule",
                                    flow.source, flow.destination)
                self._updated.set()

    @property
    def unmetered(self) -> int:
        return self.forwarding.flow_installer.unmetered


def _here(function: Callable[..., CoflowPlan], *arguments: Any) -> CoflowPlan:
    return function(*arguments)
