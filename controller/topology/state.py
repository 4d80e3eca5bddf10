"""What the controller knows of the network: one object that all applications share.

Each change is whole: it takes no time, so that no other green thread sees half of it, and one that is refused with an
error changes nothing.

Discovery writes switches, ports and links, the host application writes hosts, everybody else reads. `network`, the
graph that policies see, holds connected switches, live links and attached hosts, and nothing else. A switch that has
hosts and is away goes on delivering to them: `switch_ports` and `edge_switches`, by which tables are planned, know
it as a last hop until the ports that lead to it go down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from speedwell.controller.errors import InvalidPort, NoSuchPath, SwitchGone
from speedwell.controller.leadership import Leadership
from speedwell.controller.loops import Loops
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Link, Network
from speedwell.controller.settings import Settings
from speedwell.controller.switches.entries import dpid_hex
from speedwell.controller.switches.ovsdb import Database
from speedwell.controller.switches.transactions import Confirmations
from speedwell.controller.topology import arp
from speedwell.controller.topology.host_names import read_host_names
from speedwell.controller.topology.refusals import Refusals
from speedwell.fs.identity.bundle import Identity

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


class NetworkState:
    """The shared state. Look-ups raise nothing unless their docstring says so. Raises InvalidSettings for a
    `hosts_file` that is none."""

    def __init__(self, settings: Settings | None = None, loops: Loops | None = None,
                 identity: Identity | None = None, leadership: Leadership | None = None) -> None:
        self.settings = settings or Settings()
        self.leadership = leadership or Leadership()
        self.identity = identity
        hosts_file = self.settings.hosts_file
        self._host_names = {} if hosts_file is None else read_host_names(hosts_file)
        self.confirmations = Confirmations(loops)
        self.network = Network()
        self.datapaths: dict[str, Any] = {}
        self.switches: dict[str, SwitchInfo] = {}
        self.ports: dict[PortKey, PortInfo] = {}
        self.links: dict[PortKey, PortKey] = {}
        self._edge_ports: dict[str, set[int]] = {}
        """Those that are up, by switch."""
        self.hosts: dict[str, HostLocation] = {}
        self._hosts_behind: dict[PortKey, dict[str, HostLocation]] = {}
        self.host_ports: set[PortKey] = set()
        """Ports by which packets of hosts came since they are up: no cable between switches is there, unless it was
        plugged in and the port did not notice."""
        self.recovered_ports: set[PortKey] = set()
        """Ports of which it is not known where they lead, but that by what their switch held before its connection
        began it is to no other switch."""
        self.refusals = Refusals()
        self.set_queue_classes: dict[str, tuple[int, ...]] = {}
        """The traffic classes with a queue, at switches where packets get there by `set_queue` (kernel datapath)."""
        self.packet_in_meters: dict[str, frozenset[int]] = {}
        """The meters on packets handed up that a switch has, by `speedwell.controller.topology.packet_in_limits`."""
        self.reserved: set[IPv4Network] = set()
        """Addresses that are no host's: a system has other uses for them."""
        self._port_toward: dict[Link, int] = {}
        self._last_hops: dict[PortKey, str] = {}
        """Ports that lead to a switch with hosts that is away, or that came back a moment ago."""

    # --- look-ups ---

    def database(self, info: SwitchInfo) -> Database:
        """Where the database of a switch listens."""
        return Database(info.address, self.settings.ovsdb_port, info.dpid, self.identity,
                        lambda: self.leadership.leads)

    def datapath(self, dpid: str) -> Any:
        """The connection of a switch. Raises SwitchGone."""
        datapath = self.datapaths.get(dpid)
        if datapath is None:
            raise SwitchGone(dpid)
        return datapath

    def is_current(self, datapath: Any) -> bool:
        """Whether a connection is its switch's: it has not ended, and no newer one has taken its place."""
        return self.datapaths.get(dpid_hex(datapath.id)) is datapath

    def may_be_host(self, ip: str) -> bool:
        """Whether this can be one host's address on this fabric."""
        return arp.is_host_address(ip) and not any(IPv4Address(ip) in network for network in self.reserved)

    def is_found_out(self, dpid: str) -> bool:
        """Whether a switch is connected, and of all its ports that are up it is known where they lead."""
        return dpid in self.datapaths and not any(
            key[0] == dpid and port.up and port.kind is PortKind.UNDETERMINED and key not in self._hosts_behind
            for key, port in self.ports.items())

    def name_of(self, node: str) -> str:
        """What people call a node: a switch's or host's name, or the node itself if it has none."""
        switch = self.switches.get(node)
        return switch.name if switch else self._host_names.get(node, node)

    def named_ends(self, flow: FiveTuple) -> dict[str, Any]:
        """Addresses, names and ports of both ends of a flow, as the REST interface calls them."""
        return {"source": flow.source, "source_name": self.name_of(flow.source), "source_port": flow.source_port,
                "destination": flow.destination, "destination_name": self.name_of(flow.destination),
                "destination_port": flow.destination_port}

    def port_toward(self, dpid: str, neighbour: str) -> int:
        """The port of a switch that leads to a neighbouring switch (datapath id) or host (IP). Raises NoSuchPath."""
        host = self.hosts.get(neighbour)
        if host is not None and host.dpid == dpid:
            return host.port_no
        port_no = self._port_toward.get((dpid, neighbour))
        if port_no is None:
            raise NoSuchPath(f"{self.name_of(dpid)} has no live link to {self.name_of(neighbour)}")
        return port_no

    def switch_ports(self) -> dict[Link, int]:
        """The directed links by which switches reach others, each with the port of its first switch: those that are
        live, and those to a last hop."""
        return {(key[0], dpid): key[1] for key, dpid in self._last_hops.items()} | self._port_toward

    def last_hops_to(self, dpid: str) -> list[PortKey]:
        """The ports that lead to a switch with hosts that is away, or came back and has not shown its links yet."""
        return [key for key, last in self._last_hops.items() if last == dpid]

    def leads_away(self, key: PortKey) -> bool:
        """Whether a port leads to a last hop that is away."""
        return self._last_hops.get(key) not in (None, *self.datapaths)

    def is_edge_port(self, dpid: str, port_no: int) -> bool:
        """Whether hosts may be behind this port."""
        port = self.ports.get((dpid, port_no))
        return port is not None and port.kind is PortKind.EDGE

    def edge_ports(self, dpid: str) -> list[int]:
        """The ports of a switch that are up and may have hosts behind them, sorted."""
        return sorted(self._edge_ports.get(dpid, ()))

    def edge_switches(self) -> list[str]:
        """Switches with hosts that are connected or last hops, or with an edge port that is up and may lead to some,
        sorted."""
        edges = {*self._edge_ports, *self._last_hops.values()}
        edges |= {host.dpid for host in self.hosts.values() if host.ip in self.network}
        return sorted(edges)

    def hosts_behind(self, key: PortKey) -> list[HostLocation]:
        """The hosts that are believed to be at a port."""
        return list(self._hosts_behind.get(key, {}).values())

    def hosts_at(self, dpid: str) -> list[HostLocation]:
        """The hosts attached to a switch, by address."""
        return sorted((host for host in self.hosts.values() if host.dpid == dpid), key=lambda host: host.ip)

    # --- changes: discovery ---

    def switch_connected(self, info: SwitchInfo, datapath: Any) -> None:
        """A switch connected, or connected anew; its ports are told one by one with `set_port`."""
        self.switches[info.dpid] = info
        self.datapaths[info.dpid] = datapath
        self.packet_in_meters.pop(info.dpid, None)
        self.network.add_switch(info.dpid)

    def switch_disconnected(self, dpid: str) -> list[Link]:
        """A switch's connection ended. Returns the directed links that went with it; its hosts are kept aside, and
        the ports that lead to it if it has some."""
        self.datapaths.pop(dpid, None)
        if dpid in self.switches:
            self.switches[dpid] = replace(self.switches[dpid], connected=False)
        has_hosts = any(host.ip in self.network for host in self.hosts_at(dpid))
        last_hops = {far: dpid for key, far in self.links.items() if has_hosts and key[0] == dpid != far[0]}
        lost = [link for key in [key for key in self.links if key[0] == dpid] for link in self.remove_link(key)]
        self._last_hops = {key: last for key, last in self._last_hops.items() if key[0] != dpid} | last_hops
        for key in [key for key in self.ports if key[0] == dpid]:
            del self.ports[key]
            self.host_ports.discard(key)
            self.recovered_ports.discard(key)
        self._edge_ports.pop(dpid, None)
        if dpid in self.network:
            for host in self.hosts_at(dpid):
                self._detach(host)
            self.network.remove_node(dpid)
        return lost

    def set_switch_name(self, dpid: str, name: str) -> None:
        self.switches[dpid] = replace(self.switches[dpid], name=name)

    def forget_switch(self, dpid: str) -> None:
        """A switch that is away is no longer waited for. Its hosts are to be forgotten before."""
        if dpid not in self.datapaths:
            self.switches.pop(dpid, None)
            self.packet_in_meters.pop(dpid, None)
            self.set_queue_classes.pop(dpid, None)

    def set_port(self, dpid: str, port: PortInfo) -> list[Link]:
        """Add or change a port, and the capacity of what hangs on it. Returns the directed links that are live no
        more, if it is down. Raises SwitchGone for a switch that is not connected, InvalidPort for a capacity that
        none can have."""
        key = dpid, port.port_no
        if dpid not in self.network:
            raise SwitchGone(dpid)
        if not (math.isfinite(port.capacity_bps) and port.capacity_bps > 0):
            raise InvalidPort(f"port {port.port_no} of {self.name_of(dpid)} cannot have a capacity of "
                              f"{port.capacity_bps} bits/s")
        lost = [] if port.up else self.remove_link(key)
        if not port.up:
            self.host_ports.discard(key)
        if not port.up or port.kind is not PortKind.UNDETERMINED:
            self.recovered_ports.discard(key)
        self.ports[key] = port
        self._note_edge_port(key, port.up and port.kind is PortKind.EDGE)
        peer = self.links.get(key)
        if peer is not None and self._port_toward.get((dpid, peer[0])) == port.port_no:
            self.network.set_capacity((dpid, peer[0]), port.capacity_bps)
        for host in self.hosts_behind(key):
            if port.up:
                self._attach(host)
            else:
                self._detach(host)
        return lost

    def remove_port(self, key: PortKey) -> list[Link]:
        """A port is gone. Returns the directed links that are live no more."""
        lost = self.remove_link(key)
        self.ports.pop(key, None)
        self.host_ports.discard(key)
        self.recovered_ports.discard(key)
        self._note_edge_port(key, False)
        for host in self.hosts_behind(key):
            self._detach(host)
        return lost

    def port_recovered(self, key: PortKey) -> None:
        """By what its switch held before its connection began, a port leads to no other switch."""
        port = self.ports.get(key)
        if port is not None and port.up and port.kind is PortKind.UNDETERMINED:
            self.recovered_ports.add(key)

    def _note_edge_port(self, key: PortKey, is_edge: bool) -> None:
        dpid, port_no = key
        if is_edge:
            self._edge_ports.setdefault(dpid, set()).add(port_no)
        elif port_no in self._edge_ports.get(dpid, ()):
            self._edge_ports[dpid].remove(port_no)
            if not self._edge_ports[dpid]:
                del self._edge_ports[dpid]

    def add_link(self, a: PortKey, b: PortKey) -> list[Link]:
        """Join two ports, both directions; what they were joined to before, they are no more. Returns the directed
        links that this made live. A cable between two ports of one switch is a link, but none that packets take.
        Raises InvalidPort if one of them is not there or not up."""
        for key in (a, b):
            if a == b or key not in self.ports or not self.ports[key].up:
                raise InvalidPort(f"port {key[1]} of {self.name_of(key[0])} cannot have a link")
        for key in (a, b):
            self.remove_link(key)
        self.links[a], self.links[b] = b, a
        return [link for near, far in ((a, b), (b, a)) for link in self._link_up(near, far)]

    def remove_link(self, key: PortKey) -> list[Link]:
        """Take out what a port leads to, both directions. Returns the directed links that are live no more."""
        self._last_hops.pop(key, None)
        other = self.links.pop(key, None)
        if other is None:
            return []
        self.links.pop(other, None)
        return [link for near, far in ((key, other), (other, key)) for link in self._link_down(near, far)]

    def _link_up(self, near: PortKey, far: PortKey) -> list[Link]:
        link = near[0], far[0]
        if link in self._port_toward or link[0] == link[1]:
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
        self.remove_host(host.ip)
        self.hosts[host.ip] = host
        self._hosts_behind.setdefault(host.port_key, {})[host.ip] = host
        self._attach(host)

    def remove_host(self, ip: str) -> None:
        host = self.hosts.pop(ip, None)
        if host is None:
            return
        self._detach(host)
        behind = self._hosts_behind[host.port_key]
        del behind[ip]
        if not behind:
            del self._hosts_behind[host.port_key]

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
