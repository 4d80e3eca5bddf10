"""When a controller that just started, or that a switch came back to, knows enough to change what switches do.

What a switch holds serves well meanwhile. Acting on half a fabric would take away working paths, and give out labels
that a later look at the whole fabric would not.
"""

from __future__ import annotations

from speedwell.controller.switches.entries import COOKIE_MASK
from speedwell.controller.switches.layout import COOKIE_LABELS, COOKIE_ROUTES
from speedwell.controller.tables.entries import SwitchTables, ports_to_switches
from speedwell.controller.topology.state import NetworkState, PortKey, PortKind

PATIENCE_SECONDS = 10.0
"""After this, whatever is known is acted upon. Open vSwitch tries to reach its controller every 8 s at least."""

RETURN_PATIENCE_SECONDS = 3.0
"""The same for a switch that came back. Links show within 0.1 s, ports of hosts within 1 s, unless the controller is
held up."""


class Convergence:
    """Over once every port in use has its link again, or a new fabric stopped changing; never begins anew."""

    def __init__(self, state: NetworkState) -> None:
        self._state = state
        self._reached = False
        self._began_at: float | None = None
        self._changed_at = 0.0
        self._ports_in_use: set[PortKey] = set()
        self._returned_at: dict[str, float] = {}
        """Switches that came back with what they were told before, until their links are found again."""

    def changed(self, now: float) -> None:
        """Something of the fabric changed at `now` (seconds of a monotonic clock)."""
        self._changed_at = now
        if self._began_at is None:
            self._began_at = now

    def found(self, dpid: str, tables: SwitchTables, now: float) -> None:
        """A switch that connected at `now` or a moment ago holds these entries from before."""
        if self._reached:
            if any(entry.cookie & COOKIE_MASK in (COOKIE_LABELS, COOKIE_ROUTES) for entry in tables.flows.values()):
                self._returned_at.setdefault(dpid, now)
            return
        self._ports_in_use.update((dpid, port_no) for port_no in ports_to_switches(tables))

    def left(self, dpid: str) -> None:
        """A switch's connection ended, or it begins anew."""
        self._returned_at.pop(dpid, None)

    def is_returning(self, dpid: str, now: float) -> bool:
        """Whether a switch is to be left as it is, because where its ports lead is not known again yet."""
        returned_at = self._returned_at.get(dpid)
        if returned_at is None:
            return False
        if now - returned_at < RETURN_PATIENCE_SECONDS and not self._state.is_found_out(dpid):
            return True
        del self._returned_at[dpid]
        return False

    def is_reached(self, now: float) -> bool:
        if self._reached:
            return True
        if self._began_at is None:
            return False
        state = self._state
        self._reached = now - self._began_at >= PATIENCE_SECONDS or (
            # every switch that an earlier controller used is waited for by its neighbours' ports, others by the clock
            now - self._changed_at >= (0.0 if self._ports_in_use else state.settings.settle_seconds)
            and all(key in state.links for key in self._ports_in_use)
            and not any(port.up and port.kind is PortKind.UNDETERMINED for port in state.ports.values())
        )
        if self._reached:
            self._ports_in_use.clear()
        return self._reached
