"""A fabric as the policies see it: the controller's network graph, under the fabric's own names."""

from speedwell.controller.policy.network.graph import Network
from speedwell.topo.fabric import Fabric


def network_of(fabric: Fabric) -> Network:
    """Hosts and switches by name, every link in both directions. A fabric is connected: it checks that itself."""
    network = Network()
    for host in fabric.hosts:
        network.add_host(host.name)
    for switch in fabric.switches:
        network.add_switch(switch.name)
    for link in fabric.links:
        network.add_link(link.a, link.b, link.capacity_bps)
        network.add_link(link.b, link.a, link.capacity_bps)
    return network
