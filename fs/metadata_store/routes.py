"""Has the kernel take the addresses of blocks for this host's own: no address translation is needed."""

from __future__ import annotations

import errno
import os
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from speedwell.fs.errors import InvalidArgument, NotPermitted, StorageFailed
from speedwell.fs.metadata_store.addresses import GATEWAY_IP, GATEWAY_MAC, PREFIX

MAIN_TABLE, LOCAL_TABLE = 254, 255
_PERMANENT, _ONLINK = 0x80, 4


class OwnerRoutes:
    """The local routes of this network namespace to blocks of a network: `ip route add local BLOCK dev lo`."""

    def __init__(self, network: IPv4Network = PREFIX) -> None:
        """Takes over none of an earlier process: they are removed. Raises NotPermitted, StorageFailed."""
        self._blocks: set[IPv4Network] = set()
        # Otherwise ARP requests bear an address of a block as their sender's, and the network takes it for a host's.
        try:
            Path("/proc/sys/net/ipv4/conf/all/arp_announce").write_text("2")
        except OSError as error:
            raise NotPermitted(f"a metadata server sets routes and arp_announce, as root: {error.strerror}"
                                   ) from None
        with IPRoute() as kernel:
            kernel.link("set", index=kernel.link_lookup(ifname="lo")[0], state="up")
            for route in kernel.get_routes(family=2, table=LOCAL_TABLE):
                text = f"{route.get_attr('RTA_DST')}/{route['dst_len']}"
                if route.get_attr("RTA_DST") and IPv4Network(text, strict=False).subnet_of(network):
                    self._blocks.add(IPv4Network(text))
        self.set(set())

    def set(self, blocks: set[IPv4Network]) -> None:
        """These blocks are this host's, and no others."""
        with IPRoute() as kernel:
            loopback = kernel.link_lookup(ifname="lo")[0]
            for block in sorted(blocks - self._blocks):
                self._change(kernel, "replace", block, loopback)
            for block in sorted(self._blocks - blocks):
                self._change(kernel, "del", block, loopback)
        self._blocks = set(blocks)

    def _change(self, kernel: IPRoute, verb: str, block: IPv4Network, loopback: int) -> None:
        try:
            kernel.route(verb, dst=str(block), oif=loopback, table=LOCAL_TABLE, type="local", scope="host", family=2)
        except NetlinkError as error:
            if not (verb == "del" and error.code == errno.ESRCH):
                raise StorageFailed(f"cannot {verb} the local route to {block}: {error}") from None


def has_route(address: IPv4Address) -> bool:
    """Whether this namespace has a route to the address of a key, other than the default one: that leads to
    strangers."""
    with IPRoute() as kernel:
        return any(route["dst_len"] and address in IPv4Network(f"{route.get_attr('RTA_DST')}/{route['dst_len']}")
                   for table in (MAIN_TABLE, LOCAL_TABLE) for route in kernel.get_routes(family=2, table=table))


def lead_to_switch(interface: str, source: str) -> None:
    """Have this namespace send requests for keys out of an interface, from the host's own address, to the gateway
    that nobody is: its switch takes them by their destination. Raises InvalidArgument, NotPermitted."""
    with IPRoute() as kernel:
        found = kernel.link_lookup(ifname=interface)
        if not found:
            raise InvalidArgument(f"there is no interface {interface}")
        try:
            kernel.neigh("replace", dst=GATEWAY_IP, lladdr=GATEWAY_MAC, ifindex=found[0], state=_PERMANENT)
            kernel.route("replace", dst=str(PREFIX), gateway=GATEWAY_IP, oif=found[0], flags=_ONLINK, prefsrc=source)
        except NetlinkError as error:
            kind = NotPermitted if error.code == errno.EPERM else InvalidArgument
            raise kind(f"cannot set the route to {PREFIX} from {source} by {interface}: {os.strerror(error.code)}"
                       ) from None
