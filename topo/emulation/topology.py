"""A fabric as a Mininet topology."""

from typing import Any

from mininet.topo import Topo

from speedwell.topo.emulation.nodes import FabricHost, FabricLink, FabricSwitch, Site
from speedwell.topo.fabric import Fabric
from speedwell.topo.fabric.addresses import FABRIC_NETWORK


class FabricTopo(Topo):  # type: ignore[misc]
    """Tells Mininet the nodes and links of a fabric, with the classes that emulate them."""

    def __init__(self, fabric: Fabric, site: Site) -> None:
        self.fabric = fabric
        self._site = site
        site.name_hosts(fabric)
        super().__init__()

    def build(self, *_args: Any, **_params: Any) -> None:
        """Mininet's hook to add nodes and links."""
        macs = {}
        for host in self.fabric.hosts:
            self.addHost(host.name, cls=FabricHost, site=self._site, management_ip=host.management_ip,
                         ip=f"{host.ip}/{FABRIC_NETWORK.prefixlen}", mac=host.mac)
            macs[host.name] = {"addr1": host.mac}
        for switch in self.fabric.switches:
            self.addSwitch(switch.name, cls=FabricSwitch, site=self._site, management_ip=switch.management_ip,
                           dpid=switch.dpid_hex)
        for link in self.fabric.links:
            self.addLink(link.a, link.b, cls=FabricLink, capacity_bps=link.capacity_bps,
                         port1=self.fabric.port_toward(link.a, link.b).number,
                         port2=self.fabric.port_toward(link.b, link.a).number, **macs.get(link.a, {}))
