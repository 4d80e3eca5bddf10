"""The management network: a bridge of the machine that reaches every host and switch beside the fabric."""

from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from socket import AF_INET
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from speedwell.topo.emulation.capacity import MAX_NODES
from speedwell.topo.emulation.errors import AddressConflict, EmulationError
from speedwell.topo.fabric.addresses import (
    MACHINE_ADDRESS,
    MANAGEMENT_NETWORK,
    host_management_address,
    switch_management_address,
)

BRIDGE = "swmgmt0"
NODE_INTERFACE = "mgmt0"
_MAIN_TABLE = 254
_MEMBER_PREFIX = "swm"
_OUR_ROUTES = 83    # rtnetlink(7), rtm_protocol: who made a route
_RESOLVERS = Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf")


class ManagementNetwork:
    """Joins the root namespace (10.255.0.1) and the `mgmt0` of each node."""

    def __init__(self) -> None:
        self._members = 0

    def create(self) -> None:
        """Make the bridge; raises `AddressConflict` if the machine uses its addresses for something else."""
        with IPRoute() as netlink:
            if netlink.link_lookup(ifname=BRIDGE):
                raise AddressConflict(f"the interface {BRIDGE} exists, but no emulation made it: "
                                      f"remove it with `ip link del {BRIDGE}`")
            for use in _uses_of_management_network(netlink):
                raise AddressConflict(f"the management network {MANAGEMENT_NETWORK} is in use on this machine by "
                                      f"{use}: free these addresses first")
            ways = [way for resolver in _shadowed_resolvers() for way in _ways_to(resolver, netlink)]
            netlink.link("add", ifname=BRIDGE, kind="bridge")
            with suppress(FileNotFoundError):
                Path(f"/proc/sys/net/ipv6/conf/{BRIDGE}/disable_ipv6").write_text("1")
            index = netlink.link_lookup(ifname=BRIDGE)[0]
            netlink.addr("add", index=index, address=MACHINE_ADDRESS, prefixlen=MANAGEMENT_NETWORK.prefixlen)
            netlink.link("set", index=index, state="up")
            for way in ways:
                netlink.route("replace", proto=_OUR_ROUTES, **way)

    def attach(self, pid: int) -> None:
        """Give the namespace of `pid` its `mgmt0`; the caller sets the address in there."""
        name = f"{_MEMBER_PREFIX}{self._members}"
        self._members += 1
        try:
            with IPRoute() as netlink:
                bridge = netlink.link_lookup(ifname=BRIDGE)[0]
                netlink.link("add", ifname=name, kind="veth", master=bridge, state="up",
                             peer={"ifname": NODE_INTERFACE, "net_ns_pid": pid})
        except (NetlinkError, IndexError) as error:
            raise EmulationError(f"cannot make the management interface {name}: {error}") from None


def remove_bridge() -> None:
    """Remove the bridge, its members and the ways round it, if they are there."""
    with IPRoute() as netlink:
        netlink.flush_routes(family=AF_INET, proto=_OUR_ROUTES)
        for bridge in netlink.link_lookup(ifname=BRIDGE):
            for link in netlink.get_links():
                if link.get_attr("IFLA_MASTER") == bridge:
                    _delete(netlink, link["index"])
            _delete(netlink, bridge)


def _delete(netlink: IPRoute, index: int) -> None:
    with suppress(NetlinkError):  # a member goes by itself when its namespace does
        netlink.link("del", index=index)


def _shadowed_resolvers() -> Iterator[str]:
    """The machine's DNS resolvers that the management network would hide. Raises AddressConflict."""
    ours = {MACHINE_ADDRESS, *map(host_management_address, range(MAX_NODES)),
            *map(switch_management_address, range(MAX_NODES))}
    for path in _RESOLVERS:
        with suppress(OSError):
            for words in map(str.split, path.read_text().splitlines()):
                with suppress(ValueError, IndexError):
                    if words[0] == "nameserver" and IPv4Address(words[1]) in MANAGEMENT_NETWORK:
                        if words[1] in ours:
                            raise AddressConflict(f"the DNS resolver {words[1]} of this machine ({path}) has a "
                                                  f"node's address in {MANAGEMENT_NETWORK}: name another resolver")
                        yield words[1]


def _ways_to(address: str, netlink: IPRoute) -> Iterator[dict[str, Any]]:
    """How the machine reaches an address now, if it does, as a route to it alone."""
    names = {"RTA_OIF": "oif", "RTA_GATEWAY": "gateway", "RTA_PREFSRC": "prefsrc"}
    with suppress(NetlinkError):
        for found in netlink.route("get", dst=address):
            way = {name: value for attribute, name in names.items()
                   if (value := found.get_attr(attribute)) is not None}
            yield {"dst": f"{address}/32", "scope": "universe" if "gateway" in way else "link", **way}


def _uses_of_management_network(netlink: IPRoute) -> Iterator[str]:
    for message in netlink.get_addr(family=AF_INET):
        address, prefix_length = message.get_attr("IFA_ADDRESS"), message["prefixlen"]
        network = IPv4Network((address, prefix_length), strict=False)
        if IPv4Address(address) in MANAGEMENT_NETWORK or network.subnet_of(MANAGEMENT_NETWORK):
            yield f"address {address}/{prefix_length} of {message.get_attr('IFA_LABEL') or 'an interface'}"
    for message in netlink.get_routes(family=AF_INET, table=_MAIN_TABLE):
        destination = message.get_attr("RTA_DST")
        if destination and IPv4Network((destination, message["dst_len"]), strict=False).subnet_of(
                MANAGEMENT_NETWORK):
            yield f"the route to {destination}/{message['dst_len']}"
