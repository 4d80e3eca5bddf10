"""Serves the REST interface: the network's own routes, and whatever the other applications registered."""

from __future__ import annotations

from typing import Any

from prometheus_client import Gauge
from ryu.ofproto import ofproto_v1_3

from controller.application import Application
from controller.counters.measurements import Measurements
from controller.reads.book import ReadBook
from controller.rest import RestApplication
from controller.rest.server import listen, serve
from controller.switches.packet_ins import PacketIns
from controller.topology.network_api import NetworkApi
from controller.topology.refusals import RefusalsCollector
from controller.topology.state import NetworkState
from controller.topology.topology_api import TopologyApi


class RestApi(Application):
    """`address` is where it is served, once it is started."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"state": NetworkState, "measurements": Measurements, "reads": ReadBook, "rest": RestApplication,
                 "packet_ins": PacketIns}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: NetworkState = kwargs["state"]
        self._application: RestApplication = kwargs["rest"]
        self._application.register(NetworkApi(self._state, kwargs["measurements"], kwargs["reads"],
                                              self.loops))
        self._application.register(TopologyApi(self._state))
        self._add_gauges(kwargs["reads"], kwargs["packet_ins"])
        self.address: tuple[str, int] | None = None

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
        self.address = listening.getsockname()[:2]
        super().start()
        self.loops.run("REST connections", lambda: serve(listening, self._application, self.loops),
                       patience_seconds=None)
