"""Tells of the network as a whole: `/v1/network`, `/v1/health`, `/v1.0/topology`, and its gauges in `/metrics`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from speedwell.controller.application import Application
from speedwell.controller.counters.measurements import Measurements
from speedwell.controller.network.api import NetworkApi, ReadsInFlight
from speedwell.controller.network.topology_api import TopologyApi
from speedwell.controller.rest import RestApplication
from speedwell.controller.services import Services
from speedwell.controller.switches.packet_ins import PacketIns
from speedwell.controller.topology.hosts import TableKeeper
from speedwell.controller.topology.refusals import RefusalsCollector
from speedwell.controller.topology.state import NetworkState


class NetworkReport(Application):
    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._state = services.get(NetworkState)
        self._rest = services.get(RestApplication)
        self._rest.register(TopologyApi(self._state))
        self._add_gauges(self._rest.metrics, services.get(PacketIns))

    def start(self) -> None:
        tables = self.services.get(TableKeeper)
        self._rest.register(NetworkApi(self._state, self.services.get(Measurements), self.services.get(ReadsInFlight),
                                       self.loops, lambda: tables.is_in_force))
        super().start()

    def _add_gauges(self, registry: CollectorRegistry, packet_ins: PacketIns) -> None:
        state = self._state
        Gauge("speedwell_switches_connected", "Switches that are connected.",
              registry=registry).set_function(lambda: len(state.datapaths))
        Gauge("speedwell_hosts", "Hosts whose place is known.",
              registry=registry).set_function(lambda: len(state.hosts))
        Gauge("speedwell_links", "Directed links between switches.",
              registry=registry).set_function(lambda: len(state.links))
        registry.register(packet_ins.taken)
        RefusalsCollector(registry, state.refusals.counts, packet_ins.counts)
