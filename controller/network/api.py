"""`/v1/network` and its parts, and `/v1/health`: what the controller knows, told with names."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

from speedwell.controller.counters.measurements import Measurements, counter_of, ends_of
from speedwell.controller.errors import UnknownSwitch
from speedwell.controller.loops import Loops
from speedwell.controller.network import models
from speedwell.controller.policy.network.graph import Link
from speedwell.controller.rest.fields import DpidInput
from speedwell.controller.rest.index import VERSION
from speedwell.controller.rest.roles import DATASERVER, MOUNT, NAMESERVER, READER, SCHEDULER
from speedwell.controller.rest.routes import route
from speedwell.controller.topology.state import NetworkState, PortInfo

LATE_POLLS = 5
"""The polls that may go wrong in a row before `/v1/health` says so."""


class ReadsInFlight(Protocol):
    """The reads that have not ended."""

    def __len__(self) -> int: ...


class NetworkApi:
    def __init__(self, state: NetworkState, measurements: Measurements, reads: ReadsInFlight, loops: Loops,
                 is_in_force: Callable[[], bool]) -> None:
        """`is_in_force` says whether the switches have confirmed everything that is planned for them."""
        self._state = state
        self._measurements = measurements
        self._reads = reads
        self._loops = loops
        self._is_in_force = is_in_force
        self._started_at = time.monotonic()

    @route("GET", "/v1/network", summary="Switches, hosts and links", tag="network", response=models.Network,
           roles=(READER, SCHEDULER))
    def network(self) -> models.Network:
        return models.Network(switches=self._switches(), hosts=self._hosts(), links=self._links())

    @route("GET", "/v1/switches", summary="Every switch that ever connected", tag="network",
           response=models.SwitchList)
    def list_switches(self) -> models.SwitchList:
        return models.SwitchList(switches=self._switches())

    @route("GET", "/v1/switches/{dpid}", summary="One switch", tag="network", response=models.Switch,
           problems=[UnknownSwitch])
    def get_switch(self, dpid: DpidInput) -> models.Switch:
        if dpid not in self._state.switches:
            raise UnknownSwitch(dpid)
        return self._switch(dpid, self._hosts_by_port())

    @route("GET", "/v1/links", summary="Both directions of every live link", tag="network",
           response=models.LinkList)
    def list_links(self) -> models.LinkList:
        """Links between switches, and between hosts and their switches, with what they carry now."""
        return models.LinkList(links=self._links())

    @route("GET", "/v1/hosts", summary="The hosts that were seen", tag="network", response=models.HostList)
    def list_hosts(self) -> models.HostList:
        return models.HostList(hosts=self._hosts())

    # whoever asks one of several controllers looks for the one that leads
    @route("GET", "/v1/health", summary="Is the controller well?", tag="controller", response=models.Health,
           roles=(READER, MOUNT, DATASERVER, NAMESERVER, SCHEDULER))
    def health(self) -> models.Health:
        state, settings = self._state, self._state.settings
        connected = sum(switch.connected for switch in state.switches.values())
        complete_at = self._measurements.complete_at
        age_seconds = None if complete_at is None else time.monotonic() - complete_at
        allowed_seconds = LATE_POLLS * settings.poll_interval_seconds
        late = (age_seconds if age_seconds is not None else self._uptime_seconds()) > allowed_seconds
        troubles = self._loops.troubles()
        is_degraded, is_converged = late or connected < len(state.switches), self._is_in_force()
        leadership = state.leadership
        return models.Health(
            status="standby" if not leadership.leads else "degraded" if troubles else "empty" if not connected else
            "degraded" if is_degraded else "ok" if is_converged else "converging", converged=is_converged,
            leader="" if leadership.leads else leadership.leader,
            switches_connected=connected, switches_known=len(state.switches),
            links=sum(not state.network.is_host(node) and not state.network.is_host(other)
                      for node, other in state.network.links),
            hosts=len(state.hosts), reads=len(self._reads), last_poll_age_seconds=age_seconds,
            uptime_seconds=self._uptime_seconds(), version=VERSION,
            troubles=[models.Trouble(**asdict(trouble)) for trouble in troubles],
            policies=models.Policies(replica_policy=settings.replica_policy, path_policy=settings.path_policy,
                                     placement_policy=settings.placement_policy))

    def _uptime_seconds(self) -> float:
        return time.monotonic() - self._started_at

    def _switches(self) -> list[models.Switch]:
        hosts = self._hosts_by_port()
        return [self._switch(dpid, hosts) for dpid in sorted(self._state.switches)]

    def _switch(self, dpid: str, hosts: dict[tuple[str, int], str]) -> models.Switch:
        info = self._state.switches[dpid]
        ports = [port for (owner, _), port in sorted(self._state.ports.items()) if owner == dpid]
        return models.Switch(dpid=dpid, name=info.name, address=info.address, connected=info.connected,
                             edge=dpid in self._state.edge_switches(),
                             ports=[self._port(dpid, port, hosts) for port in ports])

    def _port(self, dpid: str, port: PortInfo, hosts: dict[tuple[str, int], str]) -> models.SwitchPort:
        key = dpid, port.port_no
        peer = self._state.links.get(key)
        neighbour = peer[0] if peer else hosts.get(key)
        return models.SwitchPort(port=port.port_no, name=port.name, mac=port.hw_addr, up=port.up,
                                 kind=port.kind.value,
                                 capacity_bps=port.capacity_bps, neighbour=neighbour,
                                 neighbour_name=self._state.name_of(neighbour) if neighbour else None)

    def _hosts_by_port(self) -> dict[tuple[str, int], str]:
        return {host.port_key: host.ip for host in self._state.hosts.values()}

    def _hosts(self) -> list[models.Host]:
        return [models.Host(ip=host.ip, name=self._state.name_of(host.ip), mac=host.mac, dpid=host.dpid,
                            port=host.port_no, switch_name=self._state.name_of(host.dpid))
                for _, host in sorted(self._state.hosts.items())]

    def _links(self) -> list[models.Link]:
        return [self._link(link) for link in sorted(self._state.network.links)]

    def _link(self, link: Link) -> models.Link:
        source, destination = link
        source_port, destination_port = ends_of(self._state, link)
        capacity_bps = self._state.network.capacity_bps(link)
        counter = counter_of(self._state, self._measurements, link)
        rate_bps = counter.rate_bps if counter else None
        return models.Link(
            source=source, source_name=self._state.name_of(source),
            source_port=source_port[1] if source_port else None,
            destination=destination, destination_name=self._state.name_of(destination),
            destination_port=destination_port[1] if destination_port else None,
            capacity_bps=capacity_bps, rate_bps=rate_bps,
            utilisation=None if rate_bps is None else rate_bps / capacity_bps)
