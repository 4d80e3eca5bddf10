"""Switches that have no space for all entries that they should hold. No clock: `now` is in seconds."""

from __future__ import annotations

from speedwell.controller.errors import ControllerError, SwitchRefused
from speedwell.controller.loops import Trouble
from speedwell.controller.tables.backoff import Backoff
from speedwell.controller.topology.state import NetworkState

TABLE_FULL = "OFPFMFC_TABLE_FULL"
FULL = ("They are full, and entries are missing there: let the switch hold more, or take out entries that are not "
        "the controller's.")


def is_table_full(error: ControllerError) -> bool:
    """Whether a switch refused an entry because it has no space for it."""
    return isinstance(error, SwitchRefused) and error.extensions.get("openflow_code") == TABLE_FULL


class FullTables:
    """Which switches were full when last tried, and which of them are not tried again yet (`waiting`)."""

    def __init__(self, state: NetworkState) -> None:
        self._state = state
        self._backoff = Backoff()
        self._since: dict[str, float] = {}
        self.waiting: set[str] = set()

    def __contains__(self, dpid: str) -> bool:
        return dpid in self._since

    def refused(self, dpid: str, now: float) -> float:
        """A switch had no space. Returns after how many seconds to try again."""
        self._since.setdefault(dpid, now)
        self.waiting.add(dpid)
        return self._backoff.failed(dpid)

    def has_space(self, dpid: str) -> None:
        """A switch holds everything, or nothing is known of it any more."""
        self._backoff.reset(dpid)
        self._since.pop(dpid, None)
        self.waiting.discard(dpid)

    def troubles(self, now: float) -> list[Trouble]:
        return [Trouble(f"flow tables of {self._state.name_of(dpid)}", FULL, now - since)
                for dpid, since in self._since.items()]
