"""Serves the REST interface: the network's own routes, and whatever the other applications registered."""

from __future__ import annotations

from prometheus_client import Gauge

from controller.application import Application
from controller.counters.measurements import Measurements
from controller.reads.book import ReadBook
from controller.rest import RestApplication
from controller.rest.server import listen, serve
from controller.services import Services
from controller.switches.packet_ins import PacketIns
from controller.topology.network_api import NetworkApi
from controller.topology.refusals import RefusalsCollector
from controller.topology.state import NetworkState
from controller.topology.topology_api import TopologyApi


class RestApi(Application):
    """`address` is where it is served, once it is started."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._state = services.get(NetworkState)
        self._application = services.get(RestApplication)
        reads = services.get(ReadBook)
        self._application.register(NetworkApi(self._state, services.get(Measurements), reads, self.loops))
        self._application.register(TopologyApi(self._state))
        self._add_gauges(reads, services.get(PacketIns))

    def _add_gauges(self, reads: ReadBook, packet_ins: PacketIns) -> None:
        state, registry = self._state, self._application.metrics
        registry.register(self.loops.failures)
        Gauge("speedwell_switches_connected", "Switches that are connected.",
              registry=registry).set_function(lambda: len(state.datapaths))
        Gauge("speedwell_hosts", "Hosts whose place is known.",
              registry=registry).set_function(lambda: len(state.hosts))
        Gauge("speedwell_links", "Directed links between switches.",
              registry=registry).set_function(lambda: len(state.links))
        registry.register(packet_ins.taken)
        RefusalsCollector(registry, state.refusals.counts, packet_ins.counts)
        Gauge("speedwell_reads_in_flight", "Reads that have not ended.",
              registry=registry).set_function(lambda: len(reads))

    def start(self) -> None:
        """Raises OSError if the address cannot be had: a controller that cannot be asked is of no use."""
        settings = self._state.settings
        listening = listen(str(settings.rest_host), settings.rest_port)
        self.address: tuple[str, int] = listening.getsockname()[:2]
        super().start()
        self.loops.run("REST connections", lambda: serve(listening, self._application, self.loops),
                       patience_seconds=None)
