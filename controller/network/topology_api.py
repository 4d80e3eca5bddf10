"""`/v1.0/topology/...`: the same answers as Ryu's own rest_topology, for the tools that speak it."""

from __future__ import annotations

from speedwell.controller.network import models
from speedwell.controller.rest.fields import DpidInput
from speedwell.controller.rest.routes import route
from speedwell.controller.topology.state import NetworkState, PortKey


class TopologyApi:
    """An unknown switch gives an empty list here, as it does in Ryu."""

    def __init__(self, state: NetworkState) -> None:
        self._state = state

    @route("GET", "/v1.0/topology/switches", summary="Switches, as Ryu tells them", tag="topology",
           response=list[models.RyuSwitch])
    def list_switches(self) -> list[models.RyuSwitch]:
        return [self._switch(dpid) for dpid in sorted(self._state.datapaths)]

    @route("GET", "/v1.0/topology/switches/{dpid}", summary="One switch, as Ryu tells it", tag="topology",
           response=list[models.RyuSwitch])
    def get_switch(self, dpid: DpidInput) -> list[models.RyuSwitch]:
        return [self._switch(dpid)] if dpid in self._state.datapaths else []

    @route("GET", "/v1.0/topology/links", summary="Links between switches, as Ryu tells them", tag="topology",
           response=list[models.RyuLink])
    def list_links(self) -> list[models.RyuLink]:
        return [models.RyuLink(src=self._port(near), dst=self._port(far))
                for near, far in sorted(self._state.links.items())]

    @route("GET", "/v1.0/topology/links/{dpid}", summary="Links from one switch, as Ryu tells them",
           tag="topology", response=list[models.RyuLink])
    def get_links(self, dpid: DpidInput) -> list[models.RyuLink]:
        return [link for link in self.list_links() if link.src.dpid == dpid]

    @route("GET", "/v1.0/topology/hosts", summary="Hosts, as Ryu tells them", tag="topology",
           response=list[models.RyuHost])
    def list_hosts(self) -> list[models.RyuHost]:
        hosts: dict[tuple[str, PortKey], list[str]] = {}
        for ip, host in sorted(self._state.hosts.items()):
            if host.port_key in self._state.ports:
                hosts.setdefault((host.mac, host.port_key), []).append(ip)
        return [models.RyuHost(mac=mac, ipv4=addresses, ipv6=[], port=self._port(port))
                for (mac, port), addresses in hosts.items()]

    @route("GET", "/v1.0/topology/hosts/{dpid}", summary="Hosts at one switch, as Ryu tells them",
           tag="topology", response=list[models.RyuHost])
    def get_hosts(self, dpid: DpidInput) -> list[models.RyuHost]:
        return [host for host in self.list_hosts() if host.port.dpid == dpid]

    def _switch(self, dpid: str) -> models.RyuSwitch:
        return models.RyuSwitch(dpid=dpid, ports=[self._port(key) for key in sorted(self._state.ports)
                                                  if key[0] == dpid])

    def _port(self, key: PortKey) -> models.RyuPort:
        port = self._state.ports[key]
        return models.RyuPort(dpid=key[0], port_no=f"{port.port_no:08x}", hw_addr=port.hw_addr, name=port.name)
