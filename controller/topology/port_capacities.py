"""How fast each port is, by whoever knows it best. No clock, no sockets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from speedwell.controller.topology.state import PortKey


class PortCapacities:
    """In bits per second: what a switch's database tells of a port, else the speed that the switch itself gives it,
    else `default_bps`. What a database no longer tells counts no more."""

    def __init__(self, default_bps: float) -> None:
        self._default_bps = default_bps
        self._speeds: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._told: defaultdict[str, dict[int, float]] = defaultdict(dict)

    def of(self, key: PortKey) -> float:
        dpid, port_no = key
        return self._told[dpid].get(port_no) or self._speeds[dpid].get(port_no) or self._default_bps

    def described(self, key: PortKey, speed_bps: float) -> float:
        """A switch says over OpenFlow how fast its port is, 0 if it does not know. Returns the port's capacity."""
        dpid, port_no = key
        self._speeds[dpid][port_no] = speed_bps
        return self.of(key)

    def told(self, dpid: str, found: Mapping[int, float]) -> list[int]:
        """All that a switch's database tells now, by port number. Returns the ports for which that is news."""
        before, self._told[dpid] = self._told[dpid], dict(found)
        return [port_no for port_no in sorted(before.keys() | found.keys())
                if before.get(port_no) != found.get(port_no)]

    def forget_port(self, key: PortKey) -> None:
        """A port is gone."""
        dpid, port_no = key
        for known in (self._speeds[dpid], self._told[dpid]):
            known.pop(port_no, None)

    def forget_switch(self, dpid: str) -> None:
        """A switch is no longer waited for."""
        self._speeds.pop(dpid, None)
        self._told.pop(dpid, None)
