"""Which OpenFlow connection speaks for a switch: one of a switch on the list, and the first one while that one lives.

Anybody may claim a datapath id. When a second connection claims one that is taken, the first is asked (a barrier): if
it answers, the second is refused, else the second takes its place. So nobody takes a switch over that is well, and a
switch that came back after a crash waits no longer than one question takes.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ryu.controller.handler import MAIN_DISPATCHER
from ryu.lib import hub

from speedwell.controller.errors import ControllerError, SwitchTimedOut
from speedwell.controller.switches.entries import dpid_hex
from speedwell.controller.switches.transactions import confirmed
from speedwell.controller.topology.state import NetworkState

MAX_CONTENDERS = 4
"""Connections that may wait for the answer of the same switch; further ones are refused at once."""
RETRY_SECONDS = 0.05
WHY_REFUSED = {
    "not-listed": "its datapath id is not among those of the setting datapath_ids",
    "other-address": "the setting datapath_ids gives its datapath id another address",
    "other-certificate": "its certificate is for another datapath id",
    "taken": "another connection with its datapath id lives and answers",
}

log = logging.getLogger(__name__)


class Admission:
    """Admits connections: calls `connected` with one that speaks for its switch from now on, and before that `gone`
    with the datapath id of a switch whose connection does not answer any more."""

    def __init__(self, state: NetworkState, spawn: Callable[..., object], connected: Callable[[Any], None],
                 gone: Callable[[str], None]) -> None:
        self._state = state
        self._spawn = spawn
        self._connected = connected
        self._gone = gone
        self._contenders: Counter[str] = Counter()
        self._listed = listed(state.settings.datapath_ids)

    def allows(self, datapath: Any) -> bool:
        """Whether a connection may speak for the switch that it says it is. One that may not is closed."""
        dpid = dpid_hex(datapath.id)
        if datapath.peer is not None and datapath.peer.name != dpid:
            self._refuse(datapath, "other-certificate")
        elif self._listed and dpid not in self._listed:
            self._refuse(datapath, "not-listed")
        elif self._listed and self._listed[dpid] not in (None, datapath.address[0]):
            self._refuse(datapath, "other-address")
        else:
            return True
        return False

    def shook_hands(self, datapath: Any) -> None:
        """A connection that is allowed is ready, and this controller leads."""
        dpid = dpid_hex(datapath.id)
        if dpid not in self._state.datapaths:
            self._admit(datapath)
        elif self._contenders[dpid] >= MAX_CONTENDERS:
            self._refuse(datapath, "taken")
        else:
            self._contenders[dpid] += 1
            self._spawn(self._contend, datapath, dpid)

    def _contend(self, datapath: Any, dpid: str) -> None:
        try:
            while (current := self._state.datapaths.get(dpid)) is not None:
                if self._answers(current):
                    self._refuse(datapath, "taken")
                    return
            if datapath.state == MAIN_DISPATCHER:
                self._admit(datapath)
        except BaseException:
            datapath.close()
            raise
        finally:
            self._contenders[dpid] -= 1
            if not self._contenders[dpid]:
                del self._contenders[dpid]

    def _answers(self, current: Any) -> bool:
        """Whether a switch answers on the connection it has. One that does not is given up."""
        try:
            confirmed(self._state, current, [], self._state.settings.echo_interval_seconds)
            return True
        except SwitchTimedOut as error:
            if self._state.is_current(current):
                log.warning("%s: a new connection takes the place of the one that is silent", error)
                current.close()
                self._state.confirmations.connection_ended(current)
                self._gone(dpid_hex(current.id))
        except ControllerError:
            # It has just ended; this is told in a moment.
            hub.sleep(RETRY_SECONDS)
        return False

    def _admit(self, datapath: Any) -> None:
        datapath.is_admitted = True
        self._connected(datapath)

    def _refuse(self, datapath: Any, why: str) -> None:
        if self._state.refusals.count("connection", why, time.monotonic()):
            log.warning("the connection from %s as switch %s is refused: %s", datapath.address[0],
                        dpid_hex(datapath.id), WHY_REFUSED[why])
        datapath.close()


def listed(entries: Iterable[str]) -> dict[str, str | None]:
    """The address that each datapath id of the setting must come from; None for any."""
    return {dpid: address or None for dpid, _, address in (entry.partition("@") for entry in entries)}
