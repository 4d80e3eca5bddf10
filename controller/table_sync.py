"""What each switch holds of the plan, and how it is brought up to date.

Tables are planned anew after something changed, and what differs from what a switch holds is sent. What it holds is
read when it connects, when it did not confirm a change, and once in a while anyway.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ryu.lib import hub

from controller import openflow, reconcile
from controller.confirm import confirmed, confirmed_on_all
from controller.errors import ControllerError, SwitchGone
from controller.events import AffectedPath
from controller.explicit_paths import ExplicitPath, ExplicitPaths
from controller.metered_paths import MeteredPaths
from controller.network_state import HostLocation, NetworkState, dpid_hex
from controller.openflow import FlowEntry, FlowKey
from controller.policy.errors import LabelsExhausted
from controller.read_back import ReadBack, read_back
from controller.reconcile import Changes
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

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who is told what comes of it."""

    def host_found(self, host: HostLocation) -> None:
        """A switch holds entries for this host from before."""

    def synced(self, affected: tuple[AffectedPath, ...]) -> None:
        """The switches carry everything that is known. `affected` lost a link of their path since the last call."""


class TableSync:
    """Keeps the tables of every switch as planned, and what explicit paths need beside the plan.

    Tell it whatever changes; `is_busy` and the waits say how far it is, `holds` and `is_put_right` what is there.
    """

    def __init__(self, state: NetworkState, planner: Planner, explicit_paths: ExplicitPaths,
                 metered_paths: MeteredPaths, listener: Listener) -> None:
        self._state = state
        self._planner = planner
        self._explicit_paths = explicit_paths
        self._metered_paths = metered_paths
        self._listener = listener
        self._installed: dict[str, SwitchTables] = {}
        """What each switch holds of the plan, kept up to date with every message sent. Absent: not known."""
        self._sent: dict[str, int] = {}
        """Counts the changes sent to a switch, so that a reading overtaken by one is thrown away."""
        self._found: dict[str, ReadBack] = {}
        """What was read from switches: its explicit entries and meters have to be compared with what should be."""
        self._reading: set[Any] = set()
        self._retry_seconds: dict[str, float] = {}
        self._settling = Settling(state)
        self._dirty = hub.Event()
        self._synced = hub.Event()
        self._syncing = False
        self._pruning = False
        self._affected: list[AffectedPath] = []
        self._loops: list[Any] = []

    def start(self) -> None:
        self._loops = [hub.spawn(self._sync_loop), hub.spawn(self._audit_loop)]

    def stop(self) -> None:
        for loop in self._loops:
            hub.kill(loop)

    # --- what happened ---

    def switch_changed(self, dpid: str, connected: bool) -> None:
        """A switch came or went: what it holds is to be found out."""
        self._installed.pop(dpid, None)
        self._found.pop(dpid, None)
        self._retry_seconds.pop(dpid, None)
        self.fabric_changed()
        if connected:
            hub.spawn(self._read_back, dpid)

    def link_gone(self) -> None:
        """A link went, maybe one of several."""
        self.fabric_changed()
        if not self._pruning:
            self._pruning = True
            hub.spawn_after(URGENT_COALESCE_SECONDS, self._prune)

    def fabric_changed(self) -> None:
        """Something of the fabric is not as it was."""
        self._settling.changed(time.monotonic())
        self._dirty.set()

    def plan_anew(self) -> None:
        """Something else that plans depend on has changed, like hosts. From now on, `is_busy`."""
        self._dirty.set()

    # --- how far it is ---

    @property
    def is_busy(self) -> bool:
        """Whether there are changes that the switches do not carry yet."""
        return self._dirty.is_set() or self._syncing

    def wait_for_sync(self, deadline: float) -> bool:
        """Wait until the switches were brought up to date once more; False if that is not before `deadline`, on
        time's monotonic clock."""
        return bool(self._synced.wait(max(deadline - time.monotonic(), 0.0)))

    def holds(self, dpid: str, key: FlowKey) -> bool:
        """Whether a switch is known to hold this planned entry."""
        return dpid in self._installed and key in self._installed[dpid].flows

    def is_put_right(self, dpid: str) -> bool:
        """Whether it is known what a switch holds, explicit entries and meters included."""
        return dpid in self._installed and dpid not in self._found

    # --- links that go ---

    def _prune(self) -> None:
        """At once: no group leads over a link that went, and flows that had it in their path take the default."""
        self._pruning = False
        messages: dict[Any, list[Any]] = {}
        for dpid, installed in self._installed.items():
            datapath = self._state.datapaths.get(dpid)
            if datapath is None:
                continue
            pruned = reconcile.pruned_groups(installed, self._planner.groups(dpid))
            if pruned:
                installed.groups.update((group.group_id, group) for group in pruned)
                messages[datapath] = [openflow.group_modify(datapath, group) for group in pruned]
                self._count_change(dpid)
        diverted = self._explicit_paths.divert_dead()
        self._affected += [AffectedPath(path.five_tuple, path.path, path.cookie) for path, _ in diverted]
        self._add_modifies(messages, diverted)
        self._send(messages)
        self._dirty.set()

    # --- bringing switches up to date ---

    def _sync_loop(self) -> None:
        while True:
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
                log.error("no paths are given out: %s", error)
            finally:
                self._syncing = False
            if not self._dirty.is_set():
                affected, self._affected = tuple(self._affected), []
                self._listener.synced(affected)
            # Everybody waits for the next one from now on.
            done, self._synced = self._synced, hub.Event()
            done.set()

    def _sync(self) -> None:
        """Plan all switches anew and send what differs. All switches take each step before any takes the next."""
        if not self._planner.labels.labels:
            self._planner.adopt_labels(self._installed)
        self._planner.assign_labels()
        todo = {}
        for dpid in list(self._installed):
            if dpid in self._state.datapaths:
                change = reconcile.changes(self._installed[dpid], self._planner.tables(dpid))
                if change:
                    todo[dpid] = change
            # With many hosts a plan takes its time; echo replies must not wait for all of them.
            hub.sleep(0)
        self._take_step(todo, reconcile.arrival_messages, reconcile.apply_arrivals)
        self._take_step(todo, reconcile.departure_messages, reconcile.apply_departures)
        messages: dict[Any, list[Any]] = {}
        self._add_modifies(messages, self._explicit_paths.refreshed())
        self._send(messages)
        self._take_step(todo, reconcile.closing_messages, reconcile.apply_closing)
        for dpid in list(self._found):
            self._check_explicit(dpid)

    def _take_step(self, todo: Mapping[str, Changes], make: Callable[[Any, Changes], list[Any]],
                   note: Callable[[SwitchTables, Changes], None]) -> None:
        messages = {}
        for dpid, change in todo.items():
            datapath = self._state.datapaths.get(dpid)
            if datapath is None or dpid not in self._installed:
                continue
            if batch := make(datapath, change):
                messages[datapath] = batch
                # What is sent counts as there: a change that is sent meanwhile must build on it.
                note(self._installed[dpid], change)
                self._count_change(dpid)
        self._send(messages)

    def _add_modifies(self, messages: dict[Any, list[Any]], paths: Iterable[tuple[ExplicitPath, FlowEntry]]) -> None:
        for path, entry in paths:
            datapath = self._state.datapaths.get(path.first_switch)
            if datapath is not None:
                messages.setdefault(datapath, []).append(openflow.flow_modify(datapath, entry))

    def _send(self, messages: Mapping[Any, list[Any]]) -> bool:
        """Send to switches, confirmed by all of them if True. Those that do not confirm are read again later."""
        failures = confirmed_on_all(self._state, messages, SYNC_TIMEOUT_SECONDS)
        for datapath, error in failures.items():
            if self._state.is_current(datapath) and not isinstance(error, SwitchGone):
                dpid = dpid_hex(datapath.id)
                self._installed.pop(dpid, None)
                self._retry_later(dpid, error)
        return not failures

    def _count_change(self, dpid: str) -> None:
        self._sent[dpid] = self._sent.get(dpid, 0) + 1

    def _check_explicit(self, dpid: str) -> None:
        """Put back what a switch lost of explicit paths and meters, and take out what would send packets astray."""
        found, datapath = self._found.get(dpid), self._state.datapaths.get(dpid)
        if found is not None and datapath is not None:
            missing, astray = self._explicit_paths.compare(dpid, found.explicit)
            messages = self._metered_paths.missing_meters(dpid, datapath, found)
            messages += [openflow.flow_delete(datapath, key) for key in astray]
            messages += [openflow.flow_add(datapath, entry) for entry in missing]
            if self._send({datapath: messages}):
                self._metered_paths.restored(dpid)
        if self._found.get(dpid) is found:      # not if the switch was read once more meanwhile
            self._found.pop(dpid, None)

    # --- finding out what switches hold ---

    def _read_back(self, dpid: str) -> None:
        """Find out what a switch holds: it may have restarted, or served an earlier controller."""
        datapath = self._state.datapaths.get(dpid)
        if datapath is None or datapath in self._reading:
            return
        self._reading.add(datapath)
        try:
            # Probes are of no use before the switch hands them up.
            confirmed(self._state, datapath, [openflow.flow_add(datapath, entry) for entry in STATIC_ENTRIES],
                      SYNC_TIMEOUT_SECONDS)
            found = read_back(self._state, datapath, SYNC_TIMEOUT_SECONDS)
        except ControllerError as error:
            self._retry_later(dpid, error)
            return
        finally:
            self._reading.discard(datapath)
        if not self._state.is_current(datapath):
            return
        self._installed[dpid] = found.tables
        self._found[dpid] = found
        self._metered_paths.found(dpid, found)
        self._settling.found(dpid, found.tables)
        for port_no, mac, ip in known_hosts(found.tables):
            self._listener.host_found(HostLocation(ip, mac, dpid, port_no))
        self._dirty.set()

    def _retry_later(self, dpid: str, error: ControllerError) -> None:
        """A switch is not as it should be, and it is not known how it is. Ever rarer, so as not to fill the log."""
        delay_seconds = self._retry_seconds.get(dpid, FIRST_RETRY_SECONDS)
        self._retry_seconds[dpid] = min(2 * delay_seconds, LAST_RETRY_SECONDS)
        log.error("%s; the tables of %s are read and compared again in %g s",
                  error, self._state.name_of(dpid), delay_seconds)
        hub.spawn_after(delay_seconds, self._read_back, dpid)

    def _audit_loop(self) -> None:
        """Compare what switches hold with what was sent, one after the other, all of them in one interval."""
        while True:
            for dpid in sorted(self._installed):
                hub.sleep(AUDIT_INTERVAL_SECONDS / max(len(self._installed), 1))
                self._audit(dpid)
            if not self._installed:
                hub.sleep(AUDIT_INTERVAL_SECONDS / 10)

    def _audit(self, dpid: str) -> None:
        datapath, before = self._state.datapaths.get(dpid), self._sent.get(dpid)
        if datapath is None or dpid not in self._installed or self.is_busy:
            return
        try:
            found = read_back(self._state, datapath, SYNC_TIMEOUT_SECONDS)
        except ControllerError as error:
            log.warning("cannot read the tables of %s: %s", self._state.name_of(dpid), error)
            return
        if self._sent.get(dpid) != before or not self._state.is_current(datapath):
            return
        if dpid in self._installed and found.tables != self._installed[dpid]:
            log.warning("the tables of %s are not as planned; they are put right", self._state.name_of(dpid))
            self._installed[dpid] = found.tables
            self._dirty.set()
        self._metered_paths.found(dpid, found)
