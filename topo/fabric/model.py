"""The parts of a fabric: hosts, switches and the links between them."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address
from typing import Any, Literal

import networkx
from pydantic import ConfigDict, TypeAdapter, ValidationError

from speedwell.controller.validation import reason
from speedwell.topo.fabric.addresses import FABRIC_NETWORK, MACHINE_ADDRESS, MANAGEMENT_NETWORK
from speedwell.topo.fabric.errors import InvalidFabric, UnknownNode

Tier = Literal["edge", "aggregation", "core"]

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_FORBID_UNKNOWN_KEYS = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Host:
    """A server: its address on the fabric (10/8), its place, and its address on the management network."""

    __pydantic_config__ = _FORBID_UNKNOWN_KEYS

    name: str
    ip: str
    mac: str
    rack: str
    pod: str
    management_ip: str


@dataclass(frozen=True)
class Switch:
    """A switch. The leaves of a spine-leaf fabric are its edge tier, the spines its core tier."""

    __pydantic_config__ = _FORBID_UNKNOWN_KEYS

    name: str
    dpid: int
    tier: Tier
    rack: str | None
    pod: str | None
    management_ip: str

    @property
    def dpid_hex(self) -> str:
        """The datapath id as 16 hexadecimal digits, the form every interface of Speedwell shows."""
        return f"{self.dpid:016x}"


@dataclass(frozen=True)
class Link:
    """A full-duplex link between two nodes: `capacity_bps` bits per second in each direction."""

    __pydantic_config__ = _FORBID_UNKNOWN_KEYS

    a: str
    b: str
    capacity_bps: int


@dataclass(frozen=True)
class Port:
    """One end of a link. Port n is the interface `eth{n}`; switches count from 1, a host has only port 0."""

    number: int
    peer: str
    capacity_bps: int


@dataclass(frozen=True)
class Fabric:
    """A whole network. Raises `InvalidFabric` unless it is connected and consistent.

    Every host hangs on exactly one edge switch; names, addresses and datapath ids are unique. Ports are
    numbered in the order of `links`, so the same description always gives the same port numbers.
    """

    __pydantic_config__ = _FORBID_UNKNOWN_KEYS

    name: str
    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check_nodes(self)
        _check_links(self)

    def host(self, name: str) -> Host:
        """The host of that name; raises `UnknownNode`."""
        try:
            return self._hosts[name]
        except KeyError:
            raise UnknownNode(name, "host") from None

    def switch(self, name: str) -> Switch:
        """The switch of that name; raises `UnknownNode`."""
        try:
            return self._switches[name]
        except KeyError:
            raise UnknownNode(name, "switch") from None

    def edge_switch_of(self, host: Host | str) -> Switch:
        """The edge switch a host is attached to; raises `UnknownNode`."""
        name = host if isinstance(host, str) else host.name
        return self.switch(self._ports[self.host(name).name][0].peer)

    def ports(self, name: str) -> tuple[Port, ...]:
        """The ports of a host or switch in ascending number; raises `UnknownNode`."""
        try:
            return self._ports[name]
        except KeyError:
            raise UnknownNode(name, "host or switch") from None

    def port_toward(self, name: str, peer: str) -> Port:
        """The port of `name` whose link leads to its neighbour `peer`; raises `UnknownNode`."""
        for port in self.ports(name):
            if port.peer == peer:
                return port
        raise UnknownNode(peer, f"neighbour of {name}")

    def to_json(self) -> str:
        """The fabric as JSON text, which `from_json` reads back to an equal fabric."""
        return _ADAPTER.dump_json(self).decode()

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """The JSON schema of what `to_json` writes and `from_json` reads."""
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_ADAPTER.json_schema()}

    @staticmethod
    def from_json(text: str | bytes) -> "Fabric":
        """Read what `to_json` wrote; raises `InvalidFabric` naming the field that is wrong."""
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            refused = first.get("ctx", {}).get("error")
            if isinstance(refused, InvalidFabric):      # names its node or link
                raise InvalidFabric(str(refused)) from None
            where = ".".join(str(part) for part in first["loc"]) or "the document"
            raise InvalidFabric(f"{where}: {reason(first)}") from None

    @cached_property
    def _hosts(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def _switches(self) -> dict[str, Switch]:
        return {switch.name: switch for switch in self.switches}

    @cached_property
    def _ports(self) -> dict[str, tuple[Port, ...]]:
        ports: dict[str, list[Port]] = {name: [] for name in (*self._hosts, *self._switches)}
        for link in self.links:
            for here, there in ((link.a, link.b), (link.b, link.a)):
                number = len(ports[here]) + (here in self._switches)
                ports[here].append(Port(number, there, link.capacity_bps))
        return {name: tuple(listed) for name, listed in ports.items()}


_ADAPTER: TypeAdapter[Fabric] = TypeAdapter(Fabric)


def _check_nodes(fabric: Fabric) -> None:
    if not fabric.hosts or not fabric.switches:
        raise InvalidFabric("a fabric needs at least one host and one switch")
    nodes: tuple[Host | Switch, ...] = (*fabric.hosts, *fabric.switches)
    for node in nodes:
        if not _NAME.fullmatch(node.name):
            raise InvalidFabric(f"name {node.name!r}: use a lower-case letter, then letters, digits, hyphens")
        management = _address(node.name, node.management_ip)
        if management not in MANAGEMENT_NETWORK or node.management_ip == MACHINE_ADDRESS:
            raise InvalidFabric(f"{node.name}: management address {node.management_ip} must be in "
                                f"{MANAGEMENT_NETWORK} and not {MACHINE_ADDRESS}")
    for host in fabric.hosts:
        address = _address(host.name, host.ip)
        if address not in FABRIC_NETWORK or address in MANAGEMENT_NETWORK:
            raise InvalidFabric(f"{host.name}: address {host.ip} must be in {FABRIC_NETWORK} "
                                f"and outside {MANAGEMENT_NETWORK}")
        if not _MAC.fullmatch(host.mac):
            raise InvalidFabric(f"{host.name}: MAC address {host.mac!r} must be six lower-case hex pairs")
    for switch in fabric.switches:
        if not 0 < switch.dpid < 2**64:
            raise InvalidFabric(f"{switch.name}: the datapath id must be in 1 ... 2**64 - 1")
    _check_unique("name", (node.name for node in nodes))
    _check_unique("address", (host.ip for host in fabric.hosts))
    _check_unique("MAC address", (host.mac for host in fabric.hosts))
    _check_unique("management address", (node.management_ip for node in nodes))
    _check_unique("datapath id", (switch.dpid_hex for switch in fabric.switches))


def _check_links(fabric: Fabric) -> None:
    hosts = {host.name for host in fabric.hosts}
    tiers = {switch.name: switch.tier for switch in fabric.switches}
    graph: networkx.Graph[str] = networkx.Graph()
    graph.add_nodes_from((*hosts, *tiers))
    for link in fabric.links:
        for end in (link.a, link.b):
            if end not in graph:
                raise InvalidFabric(f"link {link.a} - {link.b}: no node is named {end!r}")
        if link.a == link.b:
            raise InvalidFabric(f"link {link.a} - {link.b}: it must join two different nodes")
        if graph.has_edge(link.a, link.b):
            raise InvalidFabric(f"link {link.a} - {link.b}: these two are linked already, and parallel links are not "
                                "supported; give one link the capacity of both")
        if link.capacity_bps <= 0:
            raise InvalidFabric(f"link {link.a} - {link.b}: the capacity must be positive, "
                                f"not {link.capacity_bps} bit/s")
        graph.add_edge(link.a, link.b)
    for host in fabric.hosts:
        neighbours = list(graph[host.name])
        if len(neighbours) != 1 or tiers.get(neighbours[0]) != "edge":
            raise InvalidFabric(f"{host.name}: a host has exactly one link, to an edge switch (not two); this "
                                f"one is linked to {', '.join(neighbours) or 'nothing'}")
    if not networkx.is_connected(graph):
        raise InvalidFabric("the fabric is not connected: some nodes cannot reach each other")


def _check_unique(what: str, values: Iterable[str]) -> None:
    value, count = Counter(values).most_common(1)[0]
    if count > 1:
        raise InvalidFabric(f"{what} {value} is used {count} times")


def _address(name: str, text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except ValueError:
        raise InvalidFabric(f"{name}: {text!r} is not an IPv4 address") from None
