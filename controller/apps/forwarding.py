"""Segment routing: keeps every switch's tables as planned, and puts single flows on explicit paths."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ryu.base.app_manager import RyuApp, lookup_service_brick
from ryu.controller import ofp_event
from ryu.controller.handler import MAIN_DISPATCHER, set_ev_cls
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3

from controller import openflow, reconcile
from controller.confirm import asked, confirmed, confirmed_on_all
from controller.errors import ControllerError, NoSuchPath, SwitchGone, SwitchRefused
from controller.events import (
    AffectedPath,
    EventHostChanged,
    EventLinkChanged,
    EventPathsChanged,
    EventPortChanged,
    EventSwitchChanged,
)
from controller.explicit_paths import ExplicitPath, ExplicitPaths
from controller.metered_paths import EntryOf, MeteredPaths
from controller.network_state import HostLocation, NetworkState, dpid_hex
from controller.openflow import FlowEntry, SelectGroup
from controller.policy.errors import LabelsExhausted
from controller.policy.five_tuple import FiveTuple
from controller.policy.network import Link, Path
from controller.reconcile import Changes, ReadBack
from controller.settling import Settling
from controller.switch_tables import STATIC_ENTRIES, Planner, SwitchTables, known_hosts

COALESCE_SECONDS = 0.02
"""Changes come in showers; this long they are gathered before tables are planned anew."""
URGENT_COALESCE_SECONDS = 0.002
SETTLE_CHECK_SECONDS = 0.1
SYNC_TIMEOUT_SECONDS = 10.0
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 60.0
AUDIT_INTERVAL_SECONDS = 60.0
"""How often the tables of every switch are read and compared with what they should hold."""


class Forwarding(RyuApp):
    """Installs label entries, default routes and explicit paths. Sends EventPathsChanged.

    `explicit_paths` holds the flows that have an entry of their own; one goes when it is removed, or when its entry
    idled out (the switch then also sends OpenFlow's flow-removed message with the cookie).
    """

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"state": NetworkState}
    _EVENTS = [EventPathsChanged]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state: NetworkState = kwargs["state"]
        self.planner = Planner(self.state)
        self.explicit_paths = ExplicitPaths(self.planner)
        self.metered_paths = MeteredPaths(self.state, self.explicit_paths, self._metered_entries)
        self._installed: dict[str, SwitchTables] = {}
        """What each switch holds of the plan, kept up to date with every message sent. Absent: not known."""
        self._sent: dict[str, int] = {}
        """Counts the changes sent to a switch, so that a reading overtaken by one is thrown away."""
        self._found: dict[str, ReadBack] = {}
        """What was read from switches: its explicit entries and meters have to be compared with what should be."""
        self._reading: set[Any] = set()
        self._retry_seconds: dict[str, float] = {}
        self._settling = Settling(self.state)
        self._dirty = hub.Event()
        self._synced = hub.Event()
        self._syncing = False
        self._pruning = False
        self._announced_links: frozenset[Link] = frozenset()
        self._affected: list[AffectedPath] = []
        self._loops: list[Any] = []

    def start(self) -> None:
        super().start()
        self._loops = [hub.spawn(self._sync_loop), hub.spawn(self._audit_loop)]

    def stop(self) -> None:
        for loop in self._loops:
            hub.kill(loop)
        super().stop()

    # --- explicit paths: for others ---

    def install_path(
        self, five_tuple: FiveTuple, path: Path, cookie: int, idle_timeout_seconds: int, traffic_class: int = 0
    ) -> ExplicitPath:
        """Put a flow on a path: one entry at its first switch, confirmed by the switch when this returns.

        `path` runs from host to host (addresses first and last, datapath ids between); `cookie` is made with
        `openflow.cookie(COOKIE_READS, number)`; the entry goes after `idle_timeout_seconds` without a packet;
        `traffic_class` (0 to 7) picks the queue at every port it crosses. Installing a flow anew replaces its entry.
        Raises NoSuchPath if a link of the path is not live, SwitchRefused, SwitchTimedOut or SwitchGone; after any of
        these the flow has no entry of its own.
        """
        wanted = ExplicitPath(five_tuple, path, cookie, idle_timeout_seconds, traffic_class)
        entry = self._entry_once_ready(wanted, self._patience())
        datapath = self.state.datapath(wanted.first_switch)
        self.explicit_paths.add(wanted)
        try:
            self._confirmed(datapath, [openflow.flow_add(datapath, entry)])
        except ControllerError as error:
            self.explicit_paths.discard(wanted)
            if not isinstance(error, SwitchGone):
                datapath.send_msg(openflow.flow_delete(datapath, entry.key))
            raise
        return wanted

    def move_path(self, five_tuple: FiveTuple, path: Path) -> ExplicitPath:
        """Give a flow that `install_path` placed another path: one modify, its counters run on.

        Raises as `install_path`, and NoSuchPath if the flow has no entry (any more). On an error the flow stays as
        it was.
        """
        former = self.explicit_paths.get(five_tuple)
        if former is None:
            raise NoSuchPath(f"{five_tuple} has no entry of its own")
        if path.nodes[1] != former.first_switch:
            moved = self.install_path(five_tuple, path, former.cookie, former.idle_timeout_seconds,
                                      former.traffic_class)
            self._remove_entry(former)
            return moved
        wanted = replace(former, path=path, diverted=False)
        entry = self._entry_once_ready(wanted, self._patience())
        datapath = self.state.datapath(wanted.first_switch)
        self.explicit_paths.add(wanted)
        try:
            self._confirmed(datapath, [openflow.flow_modify(datapath, entry)])
        except ControllerError:
            if self.explicit_paths.get(five_tuple) is wanted:
                self.explicit_paths.add(former)
            raise
        return wanted

    def remove_path(self, five_tuple: FiveTuple) -> None:
        """Take a flow's own entry out, confirmed. Unknown flows and switches that are gone are fine.

        Raises SwitchRefused or SwitchTimedOut; the entry then goes by its idle timeout.
        """
        former = self.explicit_paths.get(five_tuple)
        if former is not None:
            self.explicit_paths.discard(former)
            self._remove_entry(former)

    def _remove_entry(self, path: ExplicitPath) -> None:
        datapath = self.state.datapaths.get(path.first_switch)
        if datapath is None:
            return
        try:
            self._confirmed(datapath, [openflow.flow_delete(datapath, path.key)])
        except SwitchGone:
            return

    @property
    def is_busy(self) -> bool:
        """Whether there are changes that the switches do not carry yet."""
        return self._dirty.is_set() or self._syncing

    def wait_until_synced(self, timeout_seconds: float) -> bool:
        """Block the calling green thread until the switches carry what is known now; False if that took too long."""
        deadline = time.monotonic() + timeout_seconds
        while self.is_busy:
            if not self._wait_for_sync(deadline):
                return False
        return True

    def _patience(self) -> float:
        """Until when those who ask now wait for switches that are being brought up to date."""
        return time.monotonic() + self.state.settings.confirm_timeout_seconds

    def _metered_entries(self) -> EntryOf:
        return partial(self._entry_once_ready, deadline=self._patience(), is_metered=True)

    def _entry_once_ready(self, wanted: ExplicitPath, deadline: float, is_metered: bool = False) -> FlowEntry:
        """The entry for a path. While switches are being brought up to date, waits until its labels are in place.

        One with a meter also waits until what its first switch holds is known and put right: it may have other meters
        than the last time, or those of an earlier controller.
        """
        while True:
            try:
                entry = self.explicit_paths.entry(wanted)
                first = wanted.first_switch
                if is_metered and first in self.state.datapaths and not self._is_put_right(first):
                    problem = NoSuchPath(f"the tables of {self.state.name_of(first)} are not known yet")
                elif self._labels_installed(wanted.path):
                    return entry
                else:
                    problem = NoSuchPath("the labels of the path are not installed yet")
            except NoSuchPath as error:
                problem = error
            if not self.is_busy or not self._wait_for_sync(deadline):
                raise problem

    def _is_put_right(self, dpid: str) -> bool:
        return dpid in self._installed and dpid not in self._found

    def _wait_for_sync(self, deadline: float) -> bool:
        """Wait until the switches were brought up to date once more; False if that took too long."""
        return bool(self._synced.wait(max(deadline - time.monotonic(), 0.0)))

    def _labels_installed(self, path: Path) -> bool:
        switches = Path(path.nodes[1:-1])
        if len(switches.nodes) == 1:
            return True
        key = self.planner.label_key(self.planner.label_of(switches))
        return all(dpid in self._installed and key in self._installed[dpid].flows for dpid in switches.nodes[1:])

    def _confirmed(self, datapath: Any, messages: list[Any]) -> None:
        confirmed(self.state, datapath, messages, self.state.settings.confirm_timeout_seconds)

    @set_ev_cls(ofp_event.EventOFPFlowRemoved, MAIN_DISPATCHER)
    def entry_removed(self, event: Any) -> None:
        message = event.msg
        if message.cookie & openflow.COOKIE_MASK in openflow.EXPLICIT_COOKIES:
            dpid = dpid_hex(message.datapath.id)
            gone = self.explicit_paths.entry_gone(message.cookie, dpid)
            self.metered_paths.entries_gone(gone)
            if not gone:
                self.metered_paths.left_entry_gone(dpid, openflow.key_of_removed(message))

    # --- what happened ---

    @set_ev_cls(EventSwitchChanged)
    def switch_changed(self, event: EventSwitchChanged) -> None:
        self._installed.pop(event.dpid, None)
        self._found.pop(event.dpid, None)
        self._retry_seconds.pop(event.dpid, None)
        self._something_changed()
        if event.connected:
            hub.spawn(self._read_back, event.dpid)

    @set_ev_cls(EventLinkChanged)
    def link_changed(self, event: EventLinkChanged) -> None:
        self._something_changed()
        if not event.live and not self._pruning:
            self._pruning = True
            hub.spawn_after(URGENT_COALESCE_SECONDS, self._prune)

    @set_ev_cls([EventPortChanged])
    def port_changed(self, event: EventPortChanged) -> None:
        self._something_changed()

    @set_ev_cls(EventHostChanged)
    def host_changed(self, event: EventHostChanged) -> None:
        self.plan_anew()

    def plan_anew(self) -> None:
        """Hosts changed: bring the switches up to date. From now until that is done, `is_busy` says so."""
        self._dirty.set()

    def _something_changed(self) -> None:
        self._settling.changed(time.monotonic())
        self._dirty.set()

    # --- links that go ---

    def _prune(self) -> None:
        """At once: no group leads over a link that went, and flows that had it in their path take the default."""
        self._pruning = False
        messages: dict[Any, list[Any]] = {}
        for dpid, installed in self._installed.items():
            datapath = self.state.datapaths.get(dpid)
            if datapath is None:
                continue
            live = self.planner.groups(dpid)
            for group_id, group in list(installed.groups.items()):
                remaining = live[group_id].buckets if group_id in live else ()
                kept = tuple(bucket for bucket in group.buckets if bucket in remaining)
                if kept and len(kept) < len(group.buckets):
                    installed.groups[group_id] = SelectGroup(group_id, kept)
                    messages.setdefault(datapath, []).append(
                        openflow.group_modify(datapath, installed.groups[group_id]))
                    self._count_change(dpid)
        for path, entry in self.explicit_paths.divert_dead():
            self._affected.append(AffectedPath(path.five_tuple, path.path, path.cookie))
            self._add_modify(messages, path, entry)
        self._note_failures(confirmed_on_all(self.state, messages, SYNC_TIMEOUT_SECONDS))
        self._dirty.set()

    # --- bringing switches up to date ---

    def _sync_loop(self) -> None:
        while self.is_active:
            self._dirty.wait()
            hub.sleep(COALESCE_SECONDS)
            if not self._settling.is_over(time.monotonic()):
                hub.sleep(SETTLE_CHECK_SECONDS)
                continue
            self._dirty.clear()
            self._syncing = True
            try:
                self._sync()
            except LabelsExhausted as error:
                self.logger.error("no paths are given out: %s", error)
            finally:
                self._syncing = False
            if not self._dirty.is_set():
                self._announce()
            # Everybody waits for the next one from now on.
            done, self._synced = self._synced, hub.Event()
            done.set()

    def _sync(self) -> None:
        """Plan all switches anew and send what differs. All switches take each step before any takes the next."""
        if not self.planner.labels.labels:
            self.planner.adopt_labels(self._installed)
        self.planner.assign_labels()
        todo = {}
        for dpid in list(self._installed):
            if dpid in self.state.datapaths:
                change = reconcile.changes(self._installed[dpid], self.planner.tables(dpid))
                if change:
                    todo[dpid] = change
            # With many hosts a plan takes its time; echo replies must not wait for all of them.
            hub.sleep(0)
        self._take_step(todo, reconcile.arrival_messages, reconcile.apply_arrivals)
        self._take_step(todo, reconcile.departure_messages, reconcile.apply_departures)
        messages: dict[Any, list[Any]] = {}
        for path, entry in self.explicit_paths.refreshed():
            self._add_modify(messages, path, entry)
        self._note_failures(confirmed_on_all(self.state, messages, SYNC_TIMEOUT_SECONDS))
        self._take_step(todo, reconcile.closing_messages, reconcile.apply_closing)
        for dpid in list(self._found):
            self._check_explicit(dpid)

    def _take_step(self, todo: Mapping[str, Changes], make: Callable[[Any, Changes], list[Any]],
                   note: Callable[[SwitchTables, Changes], None]) -> None:
        messages = {}
        for dpid, change in todo.items():
            datapath = self.state.datapaths.get(dpid)
            if datapath is None or dpid not in self._installed:
                continue
            if batch := make(datapath, change):
                messages[datapath] = batch
                # What is sent counts as there: a change that is sent meanwhile must build on it.
                note(self._installed[dpid], change)
                self._count_change(dpid)
        self._note_failures(confirmed_on_all(self.state, messages, SYNC_TIMEOUT_SECONDS))

    def _add_modify(self, messages: dict[Any, list[Any]], path: ExplicitPath, entry: FlowEntry) -> None:
        datapath = self.state.datapaths.get(path.first_switch)
        if datapath is not None:
            messages.setdefault(datapath, []).append(openflow.flow_modify(datapath, entry))

    def _note_failures(self, failures: Mapping[Any, ControllerError]) -> None:
        for datapath, error in failures.items():
            dpid = dpid_hex(datapath.id)
            if self.state.datapaths.get(dpid) is datapath and not isinstance(error, SwitchGone):
                self._installed.pop(dpid, None)
                self._retry_later(dpid, error)

    def _retry_later(self, dpid: str, error: ControllerError) -> None:
        """A switch is not as it should be, and it is not known how it is. Ever rarer, so as not to fill the log."""
        delay_seconds = self._retry_seconds.get(dpid, FIRST_RETRY_SECONDS)
        self._retry_seconds[dpid] = min(2 * delay_seconds, LAST_RETRY_SECONDS)
        self.logger.error("%s; the tables of %s are read and compared again in %g s",
                          error, self.state.name_of(dpid), delay_seconds)
        hub.spawn_after(delay_seconds, self._read_back, dpid)

    def _count_change(self, dpid: str) -> None:
        self._sent[dpid] = self._sent.get(dpid, 0) + 1

    def _announce(self) -> None:
        hosts = self.state.network.hosts
        links = frozenset(link for link in self.state.network.links if hosts.isdisjoint(link))
        lost, gained = self._announced_links - links, links - self._announced_links
        affected, self._affected = tuple(self._affected), []
        self._announced_links = links
        if lost or gained or affected:
            self.send_event_to_observers(EventPathsChanged(lost, gained, affected))

    # --- what switches hold ---

    def _read_back(self, dpid: str) -> None:
        """Find out what a switch holds: it may have restarted, or served an earlier controller."""
        datapath = self.state.datapaths.get(dpid)
        if datapath is None or datapath in self._reading:
            return
        self._reading.add(datapath)
        try:
            # Probes are of no use before the switch hands them up.
            confirmed(self.state, datapath, [openflow.flow_add(datapath, entry) for entry in STATIC_ENTRIES],
                      SYNC_TIMEOUT_SECONDS)
            found = self._read(datapath)
        except ControllerError as error:
            self._retry_later(dpid, error)
            return
        finally:
            self._reading.discard(datapath)
        if self.state.datapaths.get(dpid) is not datapath:
            return
        self._installed[dpid] = found.tables
        self._found[dpid] = found
        self.metered_paths.found(dpid, found)
        self._settling.found(dpid, found.tables)
        for port_no, mac, ip in known_hosts(found.tables):
            lookup_service_brick("Hosts").recovered(HostLocation(ip, mac, dpid, port_no))
        self._dirty.set()

    def _read(self, datapath: Any) -> ReadBack:
        """Everything that a switch holds. Meters first: one whose entry goes meanwhile is then seen to be idle."""
        parser = datapath.ofproto_parser
        try:
            [features] = asked(self.state, datapath, parser.OFPMeterFeaturesStatsRequest(datapath, 0),
                               SYNC_TIMEOUT_SECONDS)
            max_meters = features.max_meter
            meters = asked(self.state, datapath,
                           parser.OFPMeterConfigStatsRequest(datapath, 0, datapath.ofproto.OFPM_ALL),
                           SYNC_TIMEOUT_SECONDS)
        except SwitchRefused:
            max_meters, meters = 0, []     # a switch may have no meters at all
        flows = asked(self.state, datapath, openflow.flow_stats_request(datapath), SYNC_TIMEOUT_SECONDS)
        groups = asked(self.state, datapath, parser.OFPGroupDescStatsRequest(datapath, 0), SYNC_TIMEOUT_SECONDS)
        found = reconcile.sort_read_back(map(openflow.decode_flow, flows), map(openflow.decode_group, groups),
                                         map(openflow.decode_meter, meters))
        return replace(found, max_meters=max_meters)

    def _check_explicit(self, dpid: str) -> None:
        """Put back what a switch lost of explicit paths and meters, and take out what would send packets astray."""
        found, datapath = self._found.get(dpid), self.state.datapaths.get(dpid)
        if found is not None and datapath is not None:
            missing, astray = self.explicit_paths.compare(dpid, found.explicit)
            messages = self.metered_paths.missing_meters(dpid, datapath, found)
            messages += [openflow.flow_delete(datapath, key) for key in astray]
            messages += [openflow.flow_add(datapath, entry) for entry in missing]
            failures = confirmed_on_all(self.state, {datapath: messages}, SYNC_TIMEOUT_SECONDS)
            self._note_failures(failures)
            if not failures:
                self.metered_paths.restored(dpid)
        if self._found.get(dpid) is found:      # not if the switch was read once more meanwhile
            self._found.pop(dpid, None)

    def _audit_loop(self) -> None:
        """Compare what switches hold with what was sent, one after the other, all of them in one interval."""
        while self.is_active:
            for dpid in sorted(self._installed):
                hub.sleep(AUDIT_INTERVAL_SECONDS / max(len(self._installed), 1))
                self._audit(dpid)
            if not self._installed:
                hub.sleep(AUDIT_INTERVAL_SECONDS / 10)

    def _audit(self, dpid: str) -> None:
        datapath, before = self.state.datapaths.get(dpid), self._sent.get(dpid)
        if datapath is None or dpid not in self._installed or self.is_busy:
            return
        try:
            found = self._read(datapath)
        except ControllerError as error:
            self.logger.warning("cannot read the tables of %s: %s", self.state.name_of(dpid), error)
            return
        if self._sent.get(dpid) != before or self.state.datapaths.get(dpid) is not datapath:
            return
        if dpid in self._installed and found.tables != self._installed[dpid]:
            self.logger.warning("the tables of %s are not as planned; they are put right", self.state.name_of(dpid))
            self._installed[dpid] = found.tables
            self._dirty.set()
        self.metered_paths.found(dpid, found)
