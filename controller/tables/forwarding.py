"""Segment routing: puts single flows on explicit paths, and has every switch's tables kept as planned."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from prometheus_client import Gauge
from ryu.controller import ofp_event
from ryu.controller.handler import MAIN_DISPATCHER, set_ev_cls

from speedwell.controller.application import Application
from speedwell.controller.counters.measurements import Measurements, StatsRequest, duration_of
from speedwell.controller.errors import NoSuchPath
from speedwell.controller.loops import in_turns, pieces
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Link
from speedwell.controller.rest import RestApplication
from speedwell.controller.services import Services
from speedwell.controller.switches import openflow
from speedwell.controller.switches.entries import COOKIE_MASK, LoadLabel, dpid_hex
from speedwell.controller.switches.layout import COOKIE_FLOWS, EXPLICIT_COOKIES
from speedwell.controller.switches.openflow import flow_stats_request
from speedwell.controller.tables.api import EntriesApi
from speedwell.controller.tables.entries import label_key
from speedwell.controller.tables.events import AffectedPath, EventFlowsEnded, EventFlowsMoved, EventPathsChanged
from speedwell.controller.tables.explicit_paths import ExplicitPaths
from speedwell.controller.tables.flow_installer import Failures, FlowInstaller, PlanWhenReady
from speedwell.controller.tables.flow_records import Claim, EntryPlacement, FlowRecord, FlowRecords, Withdrawal
from speedwell.controller.tables.plan import TablePlanner
from speedwell.controller.tables.registry import EntriesOf, OwnedTable
from speedwell.controller.tables.sync import TableSync
from speedwell.controller.topology.events import (
    EventHostChanged,
    EventLinkChanged,
    EventPortChanged,
    EventSwitchChanged,
    EventSwitchForgotten,
)
from speedwell.controller.topology.hosts import Hosts, TableKeeper
from speedwell.controller.topology.state import HostLocation, NetworkState

COUNTED_AT_ONCE = 64
"""So many entries' counters are taken in in one go, a third of a millisecond's work."""


class Forwarding(Application):
    """Installs the entries of single flows, and label entries and default routes by `TableSync`.

    `records` holds the flows that have an entry of their own; systems write their part of one with `apply`. Sends
    EventPathsChanged, EventFlowsMoved and EventFlowsEnded.
    """

    _EVENTS = [EventPathsChanged, EventFlowsMoved, EventFlowsEnded]

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.state = services.get(NetworkState)
        self.planner = TablePlanner(self.state)
        self._paths = ExplicitPaths(self.planner)
        self.records = FlowRecords(self._paths)
        self.flow_installer = FlowInstaller(self.state, self.records, self._begin_placing, self._flows_moved,
                                            self.loops)
        self._tables = TableSync(self.state, self.planner, self.records, self.flow_installer.meters, self, self.loops)
        self._announced_links: frozenset[Link] = frozenset()
        rest = services.get(RestApplication)
        rest.register(EntriesApi(self.state, self.records, self.planner.registry))
        Gauge("speedwell_full_switches", "Switches that have no space for all entries that they should hold.",
              registry=rest.metrics).set_function(lambda: len(self._tables.full_switches()))
        services.get(Measurements).add_request(StatsRequest(
            "flows", self.state.edge_switches, partial(flow_stats_request, cookie_prefix=COOKIE_FLOWS),
            self._counted))
        services.provide(TableKeeper, self)

    def start(self) -> None:
        self._hosts = self.services.get(Hosts)
        super().start()
        self._tables.start()

    # --- single flows: for others ---

    def apply(self, claims: Iterable[Claim] = (), withdrawals: Iterable[Withdrawal] = ()) -> Failures:
        """Write what systems want of flows into their records, and have it confirmed by the flows' first switches.

        Returns what failed, by flow: NoSuchPath if a link of a claimed path is not live, SwitchRefused,
        SwitchTimedOut or SwitchGone. The claims of these flows are as they were; but those whose switch is gone hold,
        and it gets their entries when it is back. Claims that are not there can be withdrawn.
        """
        return self.flow_installer.apply(claims, withdrawals)

    # --- tables of systems ---

    def own_table(self, table: OwnedTable, entries_of: EntriesOf) -> None:
        """Give a system a table of its own; call `plan_systems_tables` whenever `entries_of` would answer otherwise.

        `entries_of` says which entries a switch (datapath id) shall have in it. They are sent, compared and put right
        as all others. Raises TableTaken.
        """
        self.planner.registry.declare(table, entries_of)
        self.planner.fill_all()
        self.plan_anew()

    def plan_systems_tables(self) -> None:
        """The entries of a table that a system owns are other ones: bring the switches up to date. Those that depend
        on hosts, links or groups are asked for by themselves when these change."""
        self.plan_anew()

    # --- waiting until switches are ready ---

    @property
    def is_busy(self) -> bool:
        """Whether there are changes that the switches do not carry yet."""
        return self._tables.is_busy

    def wait_until_synced(self, timeout_seconds: float) -> bool:
        """Block the calling green thread until the switches carry what is known now; False if that took too long."""
        deadline = time.monotonic() + timeout_seconds
        while self.is_busy:
            if not self._tables.wait_for_sync(deadline):
                return False
        return True

    @property
    def is_in_force(self) -> bool:
        """Whether every connected switch is known to carry what is planned: none is full."""
        return (not self.is_busy and not self._tables.full_switches()
                and all(map(self._tables.installed.is_put_right, self.state.datapaths)))

    def plan_anew(self) -> None:
        """Hosts changed: bring the switches up to date. From now until that is done, `is_busy` says so."""
        self._tables.plan_anew()

    def _patience(self) -> float:
        """Until when those who ask now wait for switches that are being brought up to date."""
        return time.monotonic() + self.state.settings.confirm_timeout_seconds

    def _begin_placing(self) -> PlanWhenReady:
        return partial(self._planned_once_ready, self._patience())

    def _planned_once_ready(self, deadline: float, record: FlowRecord, number: int, must_have_path: bool,
                            is_metered: bool) -> EntryPlacement:
        """See `flow_installer.PlanWhenReady`. While switches are being brought up to date, waits until the labels are
        in place.

        A flow with a meter also waits until what its first switch holds is known and put right: it may have other
        meters than the last time, or those of an earlier controller.
        """
        first = ""
        while True:
            try:
                placement = self.records.planned(record, number, must_have_path)
                first = placement.dpid
                if is_metered and first in self.state.datapaths and not self._tables.installed.is_put_right(first):
                    problem = NoSuchPath(f"the tables of {self.state.name_of(first)} are not known yet")
                elif self._tables.installed.holds_group(first, placement.entry) and self._holds_label(placement):
                    return placement
                else:
                    problem = NoSuchPath("the labels of the path are not installed yet")
            except NoSuchPath as error:
                problem = error
            is_pending = self.is_busy or self._tables.is_to_follow(first)
            if not is_pending or not self._tables.wait_for_sync(deadline):
                if not must_have_path and record.placement is not None:
                    return self.records.on_default(record, number)
                raise problem

    def _holds_label(self, placement: EntryPlacement) -> bool:
        """Whether every switch of a path but the first knows the label that the entry gives packets."""
        if placement.path is None:
            return True
        holds = self._tables.installed.holds
        return all(holds(dpid, label_key(action.label)) for action in placement.entry.actions
                   if isinstance(action, LoadLabel) for dpid in placement.path.nodes[2:-1])

    # --- what switches count ---

    def _counted(self, dpid: str, stats: list[Any], now: float) -> None:
        """What a switch says of the entries of single flows. Those of no record are an earlier controller's, whose
        flows may go on: they idle out."""
        for some in in_turns(pieces(stats, COUNTED_AT_ONCE)):
            for stat in some:
                record = self.records.with_cookie(stat.cookie, dpid)
                if record is not None:
                    record.counted(stat.byte_count, stat.packet_count, duration_of(stat), now)

    # --- what happened ---

    @set_ev_cls(EventSwitchChanged)
    def switch_changed(self, event: EventSwitchChanged) -> None:
        self._tables.switch_changed(event.dpid, event.connected)

    @set_ev_cls(EventSwitchForgotten)
    def switch_forgotten(self, event: EventSwitchForgotten) -> None:
        self._tables.switch_forgotten(event.dpid)

    @set_ev_cls(EventLinkChanged)
    def link_changed(self, event: EventLinkChanged) -> None:
        if event.live:
            self._tables.fabric_changed()
        else:
            self._tables.link_gone()

    @set_ev_cls([EventPortChanged])
    def port_changed(self, event: EventPortChanged) -> None:
        self._tables.fabric_changed()

    @set_ev_cls(EventHostChanged)
    def host_changed(self, event: EventHostChanged) -> None:
        self.plan_anew()

    @set_ev_cls(ofp_event.EventOFPFlowRemoved, MAIN_DISPATCHER)
    def entry_removed(self, event: Any) -> None:
        message = event.msg
        if message.cookie & COOKIE_MASK in EXPLICIT_COOKIES:
            ofproto = message.datapath.ofproto
            ended = self.flow_installer.entry_gone(
                dpid_hex(message.datapath.id), message.cookie, partial(openflow.key_of_removed, message),
                is_lifetime_over=message.reason == ofproto.OFPRR_HARD_TIMEOUT)
            if ended:
                self.send_event_to_observers(
                    EventFlowsEnded(tuple(ended), message.reason == ofproto.OFPRR_IDLE_TIMEOUT))

    def _flows_moved(self, flows: Sequence[FiveTuple]) -> None:
        self.send_event_to_observers(EventFlowsMoved(tuple(flows)))

    def host_found(self, host: HostLocation) -> None:
        """See `sync.Listener`."""
        self._hosts.recovered(host)

    def synced(self, affected: tuple[AffectedPath, ...]) -> None:
        """See `sync.Listener`."""
        hosts = self.state.network.hosts
        links = frozenset(link for link in self.state.network.links if hosts.isdisjoint(link))
        lost, gained = self._announced_links - links, links - self._announced_links
        self._announced_links = links
        if lost or gained or affected:
            self.send_event_to_observers(EventPathsChanged(lost, gained, affected))
