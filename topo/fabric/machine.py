"""The machine that emulates a fabric as one more host of it, so that its commands reach the fabric's servers."""

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from itertools import count

from speedwell.topo.fabric.addresses import MAX_HOSTS_PER_RACK, host_management_address
from speedwell.topo.fabric.errors import InvalidFabric
from speedwell.topo.fabric.model import Fabric, Host, Link

NAME = "machine"


def with_machine(fabric: Fabric) -> Fabric:
    """The fabric with a host `machine` at the first edge switch that has a free address, linked as the hosts there.

    All other nodes keep their addresses and port numbers. Raises InvalidFabric if a host has that name, or no address
    is free.
    """
    if any(host.name == NAME for host in fabric.hosts):
        raise InvalidFabric(f"{NAME}: the name is that of the machine itself; give this host another one")
    neighbour, address = next(_free_places(fabric), (None, ""))
    if neighbour is None:
        raise InvalidFabric("no address is left for the machine itself in any rack")
    taken = {host.management_ip for host in fabric.hosts} | {switch.management_ip for switch in fabric.switches}
    management = next(found for index in count() if (found := host_management_address(index)) not in taken)
    mac = "02:00:" + ":".join(f"{byte:02x}" for byte in IPv4Address(address).packed)
    machine = Host(NAME, address, mac, neighbour.rack, neighbour.pod, management)
    link = Link(NAME, fabric.edge_switch_of(neighbour).name, fabric.ports(neighbour.name)[0].capacity_bps)
    return replace(fabric, hosts=(*fabric.hosts, machine), links=(*fabric.links, link))


def _free_places(fabric: Fabric) -> Iterator[tuple[Host, str]]:
    """A host beside which there is room, and the last free address there."""
    taken = {host.ip for host in fabric.hosts}
    for host in fabric.hosts:
        block = host.ip.rpartition(".")[0]
        for last in range(MAX_HOSTS_PER_RACK, 0, -1):
            if f"{block}.{last}" not in taken:
                yield host, f"{block}.{last}"
                break
