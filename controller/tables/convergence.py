"""When a controller that just started knows enough of the fabric to change what the switches do.

An earlier controller's entries serve well meanwhile. Acting on half a fabric would take away working paths, and give
out labels that a later look at the whole fabric would not.
"""

from __future__ import annotations

from controller.switches.layout import Table
from controller.switches.openflow import Output
from controller.tables.entries import SwitchTables
from controller.topology.state import NetworkState, PortKey, PortKind

PATIENCE_SECONDS = 10.0
"""After this, whatever is known is acted upon. Open vSwitch tries to reach its controller every 8 s at least."""


class Convergence:
    """Over once the fabric stopped changing and every port that was in use has its link again; never begins anew."""

    def __init__(self, state: NetworkState) -> None:
        self._state = state
        self._reached = False
        self._began_at: float | None = None
        self._changed_at = 0.0
        self._ports_in_use: set[PortKey] = set()

    def changed(self, now: float) -> None:
        """Something of the fabric changed at `now` (seconds of a monotonic clock)."""
        self._changed_at = now
        if self._began_at is None:
            self._began_at = now

    def found(self, dpid: str, tables: SwitchTables) -> None:
        """A switch holds these entries from before."""
        for entry in () if self._reached else tables.flows.values():
            if entry.table == Table.LABELS:
                self._ports_in_use.update((dpid, action.port_no) for action in entry.actions
                                          if isinstance(action, Output))

    def is_reached(self, now: float) -> bool:
        if self._reached:
            return True
        if self._began_at is None:
            return False
        state = self._state
        self._reached = now - self._began_at >= PATIENCE_SECONDS or (
            now - self._changed_at >= state.settings.settle_seconds
            and all(key in state.links for key in self._ports_in_use)
            and not any(port.up and port.kind is PortKind.UNDETERMINED for port in state.ports.values())
        )
        if self._reached:
            self._ports_in_use.clear()
        return self._reached
