from collections.abc import Iterable
from functools import partial
from typing import Any

from speedwell.controller.application import Application
from speedwell.controller.counters.measurements import Measurements, StatsRequest
from speedwell.controller.rest import RestApplication
from speedwell.controller.rest.fields import OutputModel
from speedwell.controller.rest.routes import route
from speedwell.controller.services import Services
from speedwell.controller.switches.entries import ETH_IPV4, IP_UDP, FlowEntry, match
from speedwell.controller.switches.layout import Table
from speedwell.controller.switches.openflow import flow_stats_request
from speedwell.controller.tables.forwarding import Forwarding
from speedwell.controller.tables.registry import OwnedTable
from speedwell.controller.topology.state import NetworkState

PAGE_TABLE = OwnedTable("page", number=30, cookie=0x5730 << 48)
UDP_PORT, PRIORITY = 5005, 100


class PageCounts(OutputModel):
    packets: dict[str, int]


class PageSystem(Application):
    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._packets: dict[str, int] = {}
        services.get(Measurements).add_request(StatsRequest(
            "page", services.get(NetworkState).edge_switches,
            partial(flow_stats_request, cookie_prefix=PAGE_TABLE.cookie), self._counted))
        services.get(RestApplication).register(self)

    def start(self) -> None:
        self.services.get(Forwarding).own_table(PAGE_TABLE, self._entries)
        super().start()

    def _entries(self, dpid: str) -> Iterable[FlowEntry]:
        yield FlowEntry(PAGE_TABLE.number, PRIORITY, match(eth_type=ETH_IPV4, ip_proto=IP_UDP, udp_dst=UDP_PORT),
                        goto=Table.ROUTES, cookie=PAGE_TABLE.cookie)

    def _counted(self, dpid: str, statistics: list[Any], now: float) -> None:
        self._packets[dpid] = sum(stat.packet_count for stat in statistics if stat.priority == PRIORITY)

    @route("GET", "/v1/page", summary="Packets to a UDP port, by edge switch", tag="page", response=PageCounts)
    def list_counts(self) -> PageCounts:
        return PageCounts(packets=self._packets)
