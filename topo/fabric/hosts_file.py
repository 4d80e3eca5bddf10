"""The names of a fabric's hosts and switches, as /etc/hosts has names."""

from collections.abc import Iterator

from speedwell.topo.fabric.addresses import MACHINE_ADDRESS
from speedwell.topo.fabric.model import Fabric

NAME = "hosts"
"""Of the file in an emulation's directory."""


def hosts_file(fabric: Fabric, before: str = "") -> str:
    """A hosts file (hosts(5)): a host is its address on the fabric, `NAME-mgmt` that on the management network, a
    switch its management address, `controller` and `nameserver` the machine. `before` is what other names there are;
    the fabric's come first."""
    return "".join(f"{line}\n" for line in _lines(fabric)) + before


def _lines(fabric: Fabric) -> Iterator[str]:
    yield f"{MACHINE_ADDRESS} controller nameserver"
    for host in fabric.hosts:
        yield f"{host.ip} {host.name}"
    for host in fabric.hosts:
        yield f"{host.management_ip} {host.name}-mgmt"
    for switch in fabric.switches:
        yield f"{switch.management_ip} {switch.name}"
