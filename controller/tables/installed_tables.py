"""What each switch holds: read when it connects, when it did not confirm a change, and once in a while anyway.

Between readings it is kept up to date with every message that is sent, so that what differs from the plan is known
without asking.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from speedwell.controller.errors import ControllerError
from speedwell.controller.loops import Loops, Turns
from speedwell.controller.switches import openflow
from speedwell.controller.switches.entries import FlowEntry, FlowKey, LoadLabel, ToGroup, dpid_hex
from speedwell.controller.switches.layout import Table
from speedwell.controller.switches.transactions import confirmed
from speedwell.controller.tables.backoff import Backoff
from speedwell.controller.tables.entries import STATIC_ENTRIES, SwitchTables
from speedwell.controller.tables.plan import TablePlanner
from speedwell.controller.tables.read_back import ReadBack, read_back
from speedwell.controller.tables.switch_meters import SwitchMeters
from speedwell.controller.topology import packet_in_limits, packet_in_meters
from speedwell.controller.topology.state import NetworkState

READ_TIMEOUT_SECONDS = 10.0

log = logging.getLogger(__name__)


class InstalledTables:
    """The switches whose tables are known. Calls `was_read` when what a switch holds was found out anew.

    A switch's explicit entries and meters stay in `unchecked` until somebody has compared them with what should be.
    """

    def __init__(self, state: NetworkState, planner: TablePlanner, meters: SwitchMeters,
                 was_read: Callable[[str, ReadBack], None], loops: Loops) -> None:
        self._state = state
        self._planner = planner
        self._meters = meters
        self._was_read = was_read
        self._loops = loops
        self.tables: dict[str, SwitchTables] = {}
        """By datapath id; absent: not known."""
        self.unchecked: dict[str, ReadBack] = {}
        self._sent: dict[str, int] = {}
        """Counts the changes sent to a switch, so that a reading overtaken by one is thrown away."""
        self._reading: set[Any] = set()
        self._turns = Turns()
        self._retries = Backoff()
        self._labels: dict[str, frozenset[int]] = {}
        """The labels that entries of single flows had when a switch was last audited."""

    def __contains__(self, dpid: str) -> bool:
        return dpid in self.tables

    def __iter__(self) -> Iterator[str]:
        """A snapshot: switches may come and go while it is walked through."""
        return iter(list(self.tables))

    def __len__(self) -> int:
        return len(self.tables)

    # --- look-ups ---

    def holds(self, dpid: str, key: FlowKey) -> bool:
        """Whether a switch is known to hold this planned entry."""
        return dpid in self.tables and key in self.tables[dpid].flows

    def holds_group(self, dpid: str, entry: FlowEntry) -> bool:
        """Whether a switch is known to hold the group that an entry uses, if it uses one."""
        return all(dpid in self.tables and action.group_id in self.tables[dpid].groups
                   for action in entry.actions if isinstance(action, ToGroup))

    def is_put_right(self, dpid: str) -> bool:
        """Whether it is known what a switch holds, explicit entries and meters included."""
        return dpid in self.tables and dpid not in self.unchecked

    def is_being_read(self, dpid: str) -> bool:
        """Whether a switch is being asked what it holds; it is brought up to date after that."""
        return any(dpid_hex(datapath.id) == dpid for datapath in self._reading)

    @property
    def labels_in_use(self) -> frozenset[int] | None:
        """The labels that entries of single flows had at the latest audits; None before all switches were audited."""
        if not self.tables or not self.tables.keys() <= self._labels.keys():
            return None
        return frozenset().union(*self._labels.values())

    # --- what happened ---

    def forget(self, dpid: str) -> None:
        """A switch came or went: nothing is known of it."""
        self.tables.pop(dpid, None)
        self.unchecked.pop(dpid, None)
        self._labels.pop(dpid, None)
        self._sent.pop(dpid, None)
        self._retries.reset(dpid)

    def was_sent(self, dpid: str) -> None:
        """A change left for a switch, and is in its `tables`: a change that is sent meanwhile must build on it."""
        self._sent[dpid] = self._sent.get(dpid, 0) + 1

    def not_confirmed(self, dpid: str, error: ControllerError) -> None:
        """A change may have taken effect or not: a switch is not as it should be, and it is not known how it is."""
        self.tables.pop(dpid, None)
        self._read_later(dpid, error)

    # --- reading ---

    def _read_later(self, dpid: str, error: ControllerError) -> None:
        """Ever rarer, so as not to fill the log."""
        delay_seconds = self._retries.failed(dpid)
        log.error("%s; the tables of %s are read and compared again in %g s",
                  error, self._state.name_of(dpid), delay_seconds)
        self._loops.spawn_after(delay_seconds, self.read, dpid)

    def read(self, dpid: str) -> None:
        """Find out what a switch holds: it may have restarted, or served an earlier controller."""
        datapath = self._state.datapaths.get(dpid)
        if datapath is None or datapath in self._reading:
            return
        self._reading.add(datapath)
        try:
            packet_in_meters.begin(self._state, datapath)
            self._turns.others()            # after a restart all switches come at once
            # What hosts ask must not be lost while the fabric is still being found out.
            at_once = [*STATIC_ENTRIES, *packet_in_limits.entries_for_all_ports(
                self._state, dpid, self._planner.registry.after(Table.SOURCES))]
            confirmed(self._state, datapath, [openflow.flow_add(datapath, entry) for entry in at_once],
                      READ_TIMEOUT_SECONDS)
            found = read_back(self._state, datapath, READ_TIMEOUT_SECONDS)
        except ControllerError as error:
            self._read_later(dpid, error)
            return
        finally:
            self._reading.discard(datapath)
        if not self._state.is_current(datapath):
            return
        self._leave_groups_of_others(dpid, found)
        packet_in_meters.found(self._state, dpid, found.packet_meters)
        self.tables[dpid] = found.tables
        self.unchecked[dpid] = found
        self._meters.found(dpid, found)
        self._was_read(dpid, found)

    def audit(self, dpid: str) -> tuple[bool, ReadBack] | None:
        """Read a switch whose tables are known once more. Returns whether its planned part is another than what was
        sent to it, and what it holds; None if that could not be told, because it did not answer or a change was under
        way."""
        datapath, before = self._state.datapaths.get(dpid), self._sent.get(dpid)
        if datapath is None or dpid not in self.tables:
            return None
        try:
            found = read_back(self._state, datapath, READ_TIMEOUT_SECONDS)
        except ControllerError as error:
            log.warning("cannot read the tables of %s: %s", self._state.name_of(dpid), error)
            return None
        if self._sent.get(dpid) != before or not self._state.is_current(datapath):
            return None
        self._leave_groups_of_others(dpid, found)
        self._labels[dpid] = _labels_of(found)
        packet_in_meters.found(self._state, dpid, found.packet_meters)
        self._meters.found(dpid, found)
        if dpid not in self.tables:
            return False, found
        if found.tables == self.tables[dpid]:
            self._retries.reset(dpid)
            return False, found
        log.warning("the tables of %s are not as planned; they are put right", self._state.name_of(dpid))
        self.tables[dpid] = found.tables
        return True, found

    def _leave_groups_of_others(self, dpid: str, found: ReadBack) -> None:
        """A group that entries of others use and that is not planned is theirs, whatever its number."""
        others = {number for number in found.groups_of_others if not self._planner.has_group(dpid, number)}
        for number in others:
            del found.tables.groups[number]
        known = self._planner.groups_of_others[dpid]
        known.clear()
        known.update(others)


def _labels_of(found: ReadBack) -> frozenset[int]:
    """The labels that entries of single flows load."""
    return frozenset(action.label for entry in found.explicit for action in entry.actions
                     if isinstance(action, LoadLabel))
