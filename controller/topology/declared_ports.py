"""Ports of which the operator says that hosts are behind them. No Ryu, no sockets."""

from __future__ import annotations

from collections.abc import Iterable

from speedwell.controller.topology.state import PortKey


class DeclaredPorts:
    """The ports that entries like `0000000000010001:3-10` name, as `Settings.host_ports` gives them."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._ranges: dict[str, list[range]] = {}
        for entry in entries:
            dpid, _, ports = entry.partition(":")
            first, _, last = ports.partition("-")
            self._ranges.setdefault(dpid, []).append(range(int(first), int(last) + 1))

    def __contains__(self, key: PortKey) -> bool:
        dpid, port_no = key
        return any(port_no in ports for ports in self._ranges.get(dpid, ()))
