"""Asks switches' databases how fast their ports are, and has them limit what they hand up."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from speedwell.controller.policy.network.graph import Link
from speedwell.controller.switches.ovsdb import (
    DatabaseNotProven,
    DatabaseUnreachable,
    limit_packet_ins,
    read_capacities,
)
from speedwell.controller.topology.state import NetworkState, PortKey, SwitchInfo

log = logging.getLogger(__name__)


class CapacityReader:
    """How fast each port is, in bits per second: what its switch's database tells, else the speed that the switch
    gives it, else the setting.

    Looks into the database of each switch that is due, and from then on at the interval of the settings. `changed` is
    called with each link whose capacity is another one.
    """

    def __init__(self, state: NetworkState, spawn: Callable[..., object], changed: Callable[[Link], None]) -> None:
        self._state = state
        self._spawn = spawn
        self._changed = changed
        self._due: dict[str, float] = {}
        self._speeds: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._told: defaultdict[str, dict[int, float]] = defaultdict(dict)

    def of(self, key: PortKey) -> float:
        dpid, port_no = key
        return (self._told[dpid].get(port_no) or self._speeds[dpid].get(port_no)
                or self._state.settings.default_capacity_bps)

    def described(self, key: PortKey, speed_bps: float) -> float:
        """A switch says over OpenFlow how fast its port is, 0 if it does not know. Returns the port's capacity."""
        dpid, port_no = key
        self._speeds[dpid][port_no] = speed_bps
        return self.of(key)

    def _news(self, dpid: str, found: Mapping[int, float]) -> list[PortKey]:
        """The ports for which what a switch's database tells now is news. What it no longer tells counts no more."""
        before, self._told[dpid] = self._told[dpid], dict(found)
        return [(dpid, port_no) for port_no in sorted(before.keys() | found.keys())
                if before.get(port_no) != found.get(port_no)]

    def forget_port(self, key: PortKey) -> None:
        """A port is gone."""
        dpid, port_no = key
        for known in (self._speeds[dpid], self._told[dpid]):
            known.pop(port_no, None)

    def due(self, dpid: str, delay_seconds: float = 0.0) -> None:
        """Look into a switch's database so long from now."""
        self._due[dpid] = time.monotonic() + delay_seconds

    def forget_switch(self, dpid: str) -> None:
        """A switch is no longer waited for."""
        for known in (self._speeds, self._told, self._due):
            known.pop(dpid, None)

    def look(self) -> None:
        """Begin to read what is due."""
        now = time.monotonic()
        for dpid in [dpid for dpid, due in self._due.items() if due <= now]:
            self.due(dpid, self._state.settings.ovsdb_interval_seconds)
            self._spawn(self._read, dpid)

    def _read(self, dpid: str) -> None:
        info = self._state.switches.get(dpid)
        if info is None or not info.connected:
            self._due.pop(dpid, None)
            return
        try:
            database, most = self._state.database(info), self._state.settings.packet_ins_per_switch
            found = read_capacities(database, refuse=lambda problem: self._refuse(info, "bad-row", problem))
            datapath = self._state.datapaths.get(dpid)
            if datapath is not None and limit_packet_ins(database, datapath.target, most):
                log.info("switch %s hands up at most %d packets a second", info.name, most)
        except DatabaseNotProven as error:
            self._refuse(info, "certificate", str(error))
            return
        except DatabaseUnreachable as error:
            log.debug("switch %s: %s", info.name, error)
            return
        if dpid not in self._state.datapaths:
            return
        for key in self._news(dpid, found):
            port, capacity_bps = self._state.ports.get(key), self.of(key)
            if port is not None and port.capacity_bps != capacity_bps:
                self._state.set_port(dpid, replace(port, capacity_bps=capacity_bps))
                if key in self._state.links:
                    self._changed((dpid, self._state.links[key][0]))

    def _refuse(self, info: SwitchInfo, why: str, problem: str) -> None:
        if self._state.refusals.count("ovsdb", why, time.monotonic()):
            log.warning("the database of switch %s: %s", info.name, problem)
