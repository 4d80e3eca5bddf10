"""What the controller knows of the network: one object that all applications share.

Discovery writes switches, ports and links, the host application writes hosts, everybody else reads. `network`, the
graph that policies see, holds connected switches, live links and attached hosts, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from controller.errors import NoSuchPath, SwitchGone
from controller.policy.network import Link, Network
from controller.settings import Settings

if TYPE_CHECKING:
    from controller.confirm import Confirmations

PortKey = tuple[str, int]
"""(datapath id in 16 hex digits, port number)"""


class PortKind(Enum):
    """What a port leads to. It is undetermined until its first probes had the time to come back."""

    UNDETERMINED = "undetermined"
    EDGE = "edge"
    FABRIC = "fabric"


@dataclass(frozen=True, slots=True)
class SwitchInfo:
    """A switch that connected at least once. `name` is its OpenFlow description, or the datapath id without one."""

    dpid: str
    name: str
    address: str
    connected: bool


@dataclass(frozen=True, slots=True)
class PortInfo:
    """A port of a switch. `capacity_bps` is for each direction."""

    port_no: int
    name: str
    hw_addr: str
    up: bool
    capacity_bps: float
    kind: PortKind = PortKind.UNDETERMINED


@dataclass(frozen=True, slots=True)
class HostLocation:
    """Where a host is attached."""

    ip: str
    mac: str
    dpid: str
    port_no: int

    @property
    def port_key(self) -> PortKey:
        return self.dpid, self.port_no


def dpid_hex(dpid: int) -> str:
    """A datapath id as it is written everywhere: 16 hex digits."""
    return f"{dpid:016x}"


class NetworkState:
    """The shared state. Look-ups raise nothing unless their docstring says so."""

    confirmations: Confirmations

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.network = Network()
        self.datapaths: dict[str, Any] = {}
        self.switches: dict[str, SwitchInfo] = {}
        self.ports: dict[PortKey, PortInfo] = {}
        self.links: dict[PortKey, PortKey] = {}
        self.hosts: dict[str, HostLocation] = {}
        self.set_queue_classes: dict[str, tuple[int, ...]] = {}
        """The traffic classes with a queue, at switches where packets get there by `set_queue` (kernel datapath)."""
        self._port_toward: dict[Link, int] = {}

    # --- look-ups ---

    def datapath(self, dpid: str) -> Any:
        """The connection of a switch. Raises SwitchGone."""
        datapath = self.datapaths.get(dpid)
        if datapath is None:
            raise SwitchGone(dpid)
        return datapath

    def is_current(self, datapath: Any) -> bool:
        """Whether a connection is its switch's: it has not ended, and no newer one has taken its place."""
        return self.datapaths.get(dpid_hex(datapath.id)) is datapath

    def name_of(self, node: str) -> str:
        """What people call a node: a switch's name, or the node itself."""
        switch = self.switches.get(node)
        return switch.name if switch else node

    def port_toward(self, dpid: str, neighbour: str) -> int:
        """The port of a switch that leads to a neighbouring switch (datapath id) or host (IP). Raises NoSuchPath."""
        host = self.hosts.get(neighbour)
        if host is not None and host.dpid == dpid:
            return host.port_no
        port_no = self._port_toward.get((dpid, neighbour))
        if port_no is None:
            raise NoSuchPath(f"{self.name_of(dpid)} has no live link to {self.name_of(neighbour)}")
        return port_no

    def is_edge_port(self, dpid: str, port_no: int) -> bool:
        """Whether hosts may be behind this port."""
        port = self.ports.get((dpid, port_no))
        return port is not None and port.kind is PortKind.EDGE

    def edge_ports(self, dpid: str) -> list[int]:
        """The ports of a switch that are up and may have hosts behind them, sorted."""
        return sorted(port.port_no for (owner, _), port in self.ports.items()
                      if owner == dpid and port.up and port.kind is PortKind.EDGE)

    def edge_switches(self) -> list[str]:
        """Connected switches with hosts, or with an edge port that is up and may lead to some, sorted."""
        edges = {dpid for (dpid, _), port in self.ports.items() if port.up and port.kind is PortKind.EDGE}
        edges |= {host.dpid for host in self.hosts.values() if host.ip in self.network}
        return sorted(edges)

    def hosts_at(self, dpid: str) -> list[HostLocation]:
        """The hosts attached to a switch, by address."""
        return sorted((host for host in self.hosts.values() if host.dpid == dpid), key=lambda host: host.ip)

    # --- changes: discovery ---

    def switch_connected(self, info: SwitchInfo, datapath: Any) -> None:
        """A switch connected, or connected anew; its ports are told one by one with `set_port`."""
        self.switches[info.dpid] = info
        self.datapaths[info.dpid] = datapath
        self.network.add_switch(info.dpid)

    def switch_disconnected(self, dpid: str) -> list[Link]:
        """A switch's connection ended. Returns the directed links that went with it; its hosts are kept aside."""
        self.datapaths.pop(dpid, None)
        if dpid in self.switches:
            self.switches[dpid] = replace(self.switches[dpid], connected=False)
        lost = [link for key in [key for key in self.links if key[0] == dpid] for link in self.remove_link(key)]
        for key in [key for key in self.ports if key[0] == dpid]:
            del self.ports[key]
        if dpid in self.network:
            for host in self.hosts_at(dpid):
                self._detach(host)
            self.network.remove_node(dpid)
        return lost

    def set_switch_name(self, dpid: str, name: str) -> None:
        self.switches[dpid] = replace(self.switches[dpid], name=name)

    def set_port(self, dpid: str, port: PortInfo) -> None:
        """Add or change a port, and the capacity of what hangs on it."""
        self.ports[dpid, port.port_no] = port
        peer = self.links.get((dpid, port.port_no))
        if peer is not None and self._port_toward.get((dpid, peer[0])) == port.port_no:
            self.network.set_capacity((dpid, peer[0]), port.capacity_bps)
        for host in self.hosts_at(dpid):
            if host.port_no == port.port_no:
                if port.up:
                    self._attach(host)
                else:
                    self._detach(host)

    def remove_port(self, key: PortKey) -> None:
        self.ports.pop(key, None)

    def add_link(self, a: PortKey, b: PortKey) -> list[Link]:
        """Join two ports of connected switches, both directions. Returns the directed links this made live."""
        self.links[a], self.links[b] = b, a
        return [link for near, far in ((a, b), (b, a)) for link in self._link_up(near, far)]

    def remove_link(self, key: PortKey) -> list[Link]:
        """Take out the link at a port, both directions. Returns the directed links that are live no more."""
        other = self.links.pop(key, None)
        if other is None:
            return []
        self.links.pop(other, None)
        return [link for near, far in ((key, other), (other, key)) for link in self._link_down(near, far)]

    def _link_up(self, near: PortKey, far: PortKey) -> list[Link]:
        link = near[0], far[0]
        if link in self._port_toward:
            return []
        self._port_toward[link] = near[1]
        self.network.add_link(*link, self.ports[near].capacity_bps)
        return [link]

    def _link_down(self, near: PortKey, far: PortKey) -> list[Link]:
        link = near[0], far[0]
        if self._port_toward.get(link) != near[1]:
            return []
        del self._port_toward[link]
        self.network.remove_link(*link)
        # Of parallel links between two switches the graph uses one; another takes over.
        spare = next((key for key in sorted(self.links)
                      if key[0] == near[0] and self.links[key][0] == far[0]), None)
        if spare is not None:
            self._link_up(spare, self.links[spare])
        return [link]

    # --- changes: hosts ---

    def set_host(self, host: HostLocation) -> None:
        """Add or move a host."""
        previous = self.hosts.get(host.ip)
        if previous is not None:
            self._detach(previous)
        self.hosts[host.ip] = host
        self._attach(host)

    def remove_host(self, ip: str) -> None:
        host = self.hosts.pop(ip, None)
        if host is not None:
            self._detach(host)

    def _attach(self, host: HostLocation) -> None:
        port = self.ports.get(host.port_key)
        if port is None or not port.up or host.dpid not in self.network:
            return
        self.network.add_host(host.ip)
        self.network.add_link(host.ip, host.dpid, port.capacity_bps)
        self.network.add_link(host.dpid, host.ip, port.capacity_bps)

    def _detach(self, host: HostLocation) -> None:
        if host.ip in self.network:
            self.network.remove_node(host.ip)
