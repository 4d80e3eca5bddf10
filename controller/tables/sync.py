"""Bringing every switch's tables up to date: planned anew after something changed, and what differs is sent.

What switches hold is known by `installed_tables`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from eventlet.semaphore import Semaphore
from ryu.lib import hub

from speedwell.controller.errors import SwitchGone
from speedwell.controller.loops import Loops, Trouble, Turns
from speedwell.controller.switches import openflow
from speedwell.controller.switches.entries import dpid_hex
from speedwell.controller.switches.transactions import confirmed_on_all
from speedwell.controller.tables import reconcile
from speedwell.controller.tables.convergence import RETURN_PATIENCE_SECONDS, Convergence
from speedwell.controller.tables.entries import (
    DirtyEntries,
    SwitchTables,
    groups_reached,
    known_hosts,
    ports_to_switches,
)
from speedwell.controller.tables.events import AffectedPath
from speedwell.controller.tables.flow_records import FlowRecord, FlowRecords
from speedwell.controller.tables.full_tables import FullTables, is_table_full
from speedwell.controller.tables.installed_tables import InstalledTables
from speedwell.controller.tables.plan import TablePlanner
from speedwell.controller.tables.read_back import ReadBack
from speedwell.controller.tables.reconcile import TableChanges
from speedwell.controller.tables.switch_meters import SwitchMeters
from speedwell.controller.topology import packet_in_meters
from speedwell.controller.topology.state import HostLocation, NetworkState

COALESCE_SECONDS = 0.02
"""Changes come in showers; this long they are gathered before tables are planned anew."""
URGENT_COALESCE_SECONDS = 0.002
SETTLE_CHECK_SECONDS = 0.1
SYNC_TIMEOUT_SECONDS = 10.0
AUDIT_INTERVAL_SECONDS = 60.0
"""How often the tables of every switch are read and compared with what they should hold."""
IDLE_SECONDS = 10.0
"""After so long without a change the loop comes round all the same."""
SYNC_PATIENCE_SECONDS, AUDIT_PATIENCE_SECONDS = 60.0, 600.0

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who is told what comes of it."""

    def host_found(self, host: HostLocation) -> None:
        """A switch holds entries for this host from before."""

    def synced(self, affected: tuple[AffectedPath, ...]) -> None:
        """The switches carry everything that is known. `affected` lost a link of their path since the last call."""


class TableSync:
    """Keeps the tables of every switch as planned, and what single flows need beside the plan.

    Tell it whatever changes; `is_busy` and the waits say how far it is, `installed` what is there.
    """

    def __init__(self, state: NetworkState, planner: TablePlanner, records: FlowRecords, meters: SwitchMeters,
                 listener: Listener, loops: Loops) -> None:
        self._state = state
        self._planner = planner
        self._records = records
        self._meters = meters
        self._listener = listener
        self._loops = loops
        self.installed = InstalledTables(state, planner, meters, self._was_read, loops)
        self._convergence = Convergence(state)
        self._due = hub.Event()
        self._synced = hub.Event()
        self._syncing = False
        self._pruning = False
        self._full = FullTables(state)
        self._planning = Semaphore(1)
        self._is_planned = False
        self._groups_to_recheck: set[str] = set()
        """Switches with groups that nothing but single flows needed any more when last looked at."""
        self._dirty_entries: dict[str, DirtyEntries | None] = {}
        """What of each switch's tables is to be compared with the plan; None: all of it."""
        self._relabelled_pairs: set[tuple[str, str]] = set()
        self._affected: list[AffectedPath] = []
        self._forgotten: set[str] = set()
        """Switches that are no longer waited for, of which the plan still knows."""

    def start(self) -> None:
        self._loops.watch(self.full_switches)
        self._loops.run("table sync", self._sync_when_due, patience_seconds=SYNC_PATIENCE_SECONDS)
        self._loops.run("table audit", self._audit_all, patience_seconds=AUDIT_PATIENCE_SECONDS)

    # --- what happened ---

    def switch_changed(self, dpid: str, connected: bool) -> None:
        """A switch came or went: what it holds is to be found out."""
        self.installed.forget(dpid)
        self._convergence.left(dpid)
        self._full.has_space(dpid)
        self.fabric_changed()
        if connected:
            self._loops.spawn(self.installed.read, dpid)

    def switch_forgotten(self, dpid: str) -> None:
        """A switch is no longer waited for: with the next plan nothing is left of it."""
        self._forgotten.add(dpid)
        self._meters.forget(dpid)
        self._due.set()

    def link_gone(self) -> None:
        """A link went, maybe one of several."""
        self.fabric_changed()
        if not self._pruning:
            self._pruning = True
            self._loops.spawn_after(URGENT_COALESCE_SECONDS, self._prune)

    def fabric_changed(self) -> None:
        """Something of the fabric is not as it was."""
        self._convergence.changed(time.monotonic())
        self._due.set()

    def plan_anew(self) -> None:
        """Something else that plans depend on has changed, like hosts. From now on, `is_busy`."""
        self._due.set()

    # --- how far it is ---

    @property
    def is_busy(self) -> bool:
        """Whether there are changes that the switches do not carry yet."""
        return self._due.is_set() or self._syncing

    def is_to_follow(self, dpid: str) -> bool:
        """Whether a switch is brought up to date once it is known what it holds and where its ports lead."""
        return self.installed.is_being_read(dpid) or self._is_returning(dpid)

    def _is_returning(self, dpid: str) -> bool:
        return self._convergence.is_returning(dpid, time.monotonic())

    def wait_for_sync(self, deadline: float) -> bool:
        """Wait until the switches were brought up to date once more; False if that is not before `deadline`, on
        time's monotonic clock."""
        return bool(self._synced.wait(max(deadline - time.monotonic(), 0.0)))

    # --- planning ---

    def _plan(self) -> None:
        """Follow the state, and note what is to be compared."""
        with self._planning:
            if not self._is_planned:
                self._planner.begin(self.installed.tables)
                self._dirty_entries.update(dict.fromkeys(self.installed))
            self._is_planned = False    # whatever goes wrong, the next plan begins anew
            self._forget_switches()
            for _ in self._planner.update():
                hub.sleep(0)            # echo replies must not wait for all of it
            self._is_planned = True
            if self._planner.labels_exhausted:
                log.error("no labels are left: no paths are given out to %s",
                          ", ".join(sorted(map(self._state.name_of, self._planner.labels_exhausted))))
            self._relabelled_pairs |= self._planner.pop_relabelled()
            for dpid, dirty in self._planner.pop_dirty().items():
                known = self._dirty_entries.setdefault(dpid, DirtyEntries())
                if known is not None:
                    known.flows |= dirty.flows
                    known.groups |= dirty.groups

    def _forget_switches(self) -> None:
        for dpid in self._forgotten - self._state.datapaths.keys():
            self._planner.forget(dpid)
            self._dirty_entries.pop(dpid, None)
            self._groups_to_recheck.discard(dpid)
        self._forgotten.clear()

    # --- links that go ---

    def _prune(self) -> None:
        """At once: nothing leads over a link that went, and flows that had it in their path take the default."""
        self._pruning = False
        if self._convergence.is_reached(time.monotonic()):
            self._plan()
        changes = {dpid: self._changes(dpid, dirty)
                   for dpid, dirty in self._dirty_entries.items() if dpid in self.installed and dirty is not None}
        is_anything_to_arrive = any(change.arrivals for change in changes.values())
        messages: dict[Any, list[Any]] = {}
        for dpid, change in changes.items():
            first = reconcile.urgent(change, is_anything_to_arrive)
            datapath = self._state.datapaths.get(dpid)
            if datapath is not None and first:
                messages[datapath] = reconcile.departure_messages(datapath, first)
                reconcile.apply_departures(self.installed.tables[dpid], first)
                self.installed.was_sent(dpid)
        diverted = self._records.divert_dead()
        self._affected += [AffectedPath(record.five_tuple, path) for record, path in diverted]
        self._add_modifies(messages, [record for record, _ in diverted])
        self._send(messages)
        self._due.set()

    # --- bringing switches up to date ---

    def _sync_when_due(self) -> None:
        if not self._due.wait(IDLE_SECONDS):
            return
        hub.sleep(COALESCE_SECONDS)
        if not self._convergence.is_reached(time.monotonic()):
            hub.sleep(SETTLE_CHECK_SECONDS)
            return
        self._due.clear()
        self._syncing = True
        try:
            self._sync()
        except BaseException:
            self._due.set()
            raise
        finally:
            self._syncing = False
        if not self._due.is_set():
            affected, self._affected = tuple(self._affected), []
            self._listener.synced(affected)
        # Everybody waits for the next one from now on.
        self._synced.set()
        self._synced = hub.Event()

    def _sync(self) -> None:
        """Plan all switches anew and send what differs. All switches take each step before any takes the next."""
        packet_in_meters.add_missing(self._state, list(self.installed))
        self._plan()
        moved, self._relabelled_pairs = self._relabelled_pairs, set()
        todo, tried, turns = {}, set[str](), Turns()
        for dpid in list(self._dirty_entries):
            if dpid in self.installed:
                self._planner.tables(dpid)      # the first time that is a turn's work of its own
                turns.others()
            if dpid in self._state.datapaths and dpid in self.installed and not self._is_returning(dpid):
                dirty = self._dirty_entries.pop(dpid)
                change = self._changes(dpid, dirty)
                if dpid in self._full.waiting:
                    change = reconcile.without_additions(change, self.installed.tables[dpid])
                elif dpid in self._full:
                    tried.add(dpid)
                if change.stale_groups:
                    self._keep_groups_in_use(dpid, change)
                if change:
                    todo[dpid] = change
            turns.others()
        self._send_step(todo, reconcile.arrival_messages, reconcile.apply_arrivals)
        self._send_step(todo, reconcile.departure_messages, reconcile.apply_departures)
        messages: dict[Any, list[Any]] = {}
        refreshed, relabelled = self._records.refreshed(), self._records.relabelled(moved)
        self._affected += [AffectedPath(record.five_tuple, path) for record, path in relabelled if not record.path]
        self._add_modifies(messages, [*refreshed, *(record for record, _ in relabelled)])
        self._send(messages)
        self._send_step(todo, reconcile.sender_messages, reconcile.apply_senders)
        self._send_step(todo, reconcile.closing_messages, reconcile.apply_closing)
        packet_in_meters.remove_idle(self._state, {
            dpid: tables.flows.values() for dpid, tables in self.installed.tables.items()})
        for dpid in list(self.installed.unchecked):
            if not self._is_returning(dpid):
                self._check_explicit(dpid)
        for dpid in tried - self._full.waiting:
            self._full.has_space(dpid)
            log.info("the flow tables of %s hold everything again", self._state.name_of(dpid))

    def _changes(self, dpid: str, dirty: DirtyEntries | None) -> TableChanges:
        """What turns the tables that a switch holds into those that are planned for it."""
        return reconcile.changes(self.installed.tables[dpid], self._planner.tables(dpid), self._planner.registry,
                                 dirty)

    def _keep_groups_in_use(self, dpid: str, change: TableChanges) -> None:
        """A group goes after the last single flow that goes through it: the switch would take its entry out with it.
        The next audit looks at those that stay."""
        entries = [record.placement.entry for record in self._records.at(dpid) if record.placement is not None]
        if dpid in self.installed.unchecked:
            entries += self.installed.unchecked[dpid].explicit
        used = groups_reached(self.installed.tables[dpid].groups, (entry.actions for entry in entries))
        if not used.isdisjoint(change.stale_groups):
            self._groups_to_recheck.add(dpid)
            change.stale_groups = [group_id for group_id in change.stale_groups if group_id not in used]

    def _send_step(self, todo: Mapping[str, TableChanges], make: Callable[[Any, TableChanges], list[Any]],
                   note: Callable[[SwitchTables, TableChanges], None]) -> None:
        turns = Turns()

        def send(dpid: str, change: TableChanges) -> None:
            turns.others()
            datapath = self._state.datapaths.get(dpid)
            if datapath is not None and dpid in self.installed and (batch := make(datapath, change)):
                # What is sent counts as there: a change that is sent meanwhile must build on it.
                note(self.installed.tables[dpid], change)
                self.installed.was_sent(dpid)
                self._send({datapath: batch})

        hub.joinall([self._loops.spawn(send, *each) for each in todo.items()])

    def _add_modifies(self, messages: dict[Any, list[Any]], records: Iterable[FlowRecord]) -> None:
        for record in records:
            placement = record.placement
            datapath = self._state.datapaths.get(placement.dpid) if placement else None
            if placement is not None and datapath is not None and not self._is_returning(placement.dpid):
                messages.setdefault(datapath, []).append(openflow.flow_modify(datapath, placement.entry))

    def _send(self, messages: Mapping[Any, list[Any]]) -> bool:
        """Send to switches, confirmed by all of them if True. Those that do not confirm are read again later."""
        failures = confirmed_on_all(self._state, messages, SYNC_TIMEOUT_SECONDS)
        for datapath, error in failures.items():
            if self._state.is_current(datapath) and not isinstance(error, SwitchGone):
                dpid = dpid_hex(datapath.id)
                if is_table_full(error):
                    self._wait_for_space(dpid)
                else:
                    self.installed.not_confirmed(dpid, error)
        return not failures

    def full_switches(self) -> list[Trouble]:
        """The switches that have no space for all entries that they should hold."""
        return self._full.troubles(time.monotonic())

    def _wait_for_space(self, dpid: str) -> None:
        """A switch has no space for more entries. What it holds goes on working, and is changed as far as that takes
        no more space; the rest is tried ever more rarely."""
        delay_seconds = self._full.refused(dpid, time.monotonic())
        self.installed.tables.pop(dpid, None)
        log.error("the flow tables of %s are full: entries are missing there, which are tried again in %g s",
                  self._state.name_of(dpid), delay_seconds)
        self._loops.spawn(self.installed.read, dpid)
        self._loops.spawn_after(delay_seconds, self._try_for_space, dpid)

    def _try_for_space(self, dpid: str) -> None:
        self._full.waiting.discard(dpid)
        if dpid in self.installed:
            self._compare_all(dpid)

    def _check_explicit(self, dpid: str) -> None:
        """Put back what a switch lost of explicit paths and meters, and take out what would send packets astray."""
        found, datapath = self.installed.unchecked.get(dpid), self._state.datapaths.get(dpid)
        if found is not None and datapath is not None:
            missing, astray = self._records.compare(dpid, found.explicit)
            messages = self._meters.missing_meters(dpid, datapath, found)
            messages += [openflow.flow_delete(datapath, key) for key in astray]
            messages += [openflow.flow_add(datapath, entry) for entry in missing]
            if self._send({datapath: messages}):
                self._meters.restored(dpid)
        if self.installed.unchecked.get(dpid) is found:      # not if the switch was read once more meanwhile
            self.installed.unchecked.pop(dpid, None)

    def _remove_astray(self, dpid: str, found: ReadBack) -> None:
        """An earlier controller's entry stays while packets use it; where its host has moved, that is for ever."""
        astray, datapath = self._records.astray(dpid, found.explicit), self._state.datapaths.get(dpid)
        if astray and datapath is not None:
            self._send({datapath: [openflow.flow_delete(datapath, key) for key in astray]})

    # --- what switches hold ---

    def _was_read(self, dpid: str, found: ReadBack) -> None:
        """See `InstalledTables`."""
        self._convergence.found(dpid, found.tables, time.monotonic())
        if self._is_returning(dpid):
            self._loops.spawn_after(RETURN_PATIENCE_SECONDS, self.plan_anew)
        used = ports_to_switches(found.tables)
        if used:
            for key in [key for key in self._state.ports if key[0] == dpid and key[1] not in used]:
                self._state.port_recovered(key)
        for port_no, mac, ip in known_hosts(found.tables):
            self._listener.host_found(HostLocation(ip, mac, dpid, port_no))
        self._compare_all(dpid)

    def _compare_all(self, dpid: str) -> None:
        """Compare all of a switch's tables with the plan."""
        self._dirty_entries[dpid] = None
        self._due.set()

    def _audit_all(self) -> None:
        """Compare what switches hold with what was sent, one after the other, all of them in one interval."""
        if not self.installed:
            hub.sleep(AUDIT_INTERVAL_SECONDS / 10)
            return
        for dpid in sorted(self.installed):
            hub.sleep(AUDIT_INTERVAL_SECONDS / max(len(self.installed), 1))
            audited = None if self.is_busy else self.installed.audit(dpid)
            if audited is None:
                continue
            is_other, found = audited
            self._remove_astray(dpid, found)
            if is_other or dpid in self._groups_to_recheck:
                self._groups_to_recheck.discard(dpid)
                self._compare_all(dpid)
        labels = self.installed.labels_in_use
        if labels is not None and self._planner.forget_inherited(labels):
            self._due.set()
