"""The forwarding application with fake switches in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from ryu.ofproto import ofproto_parser, ofproto_v1_3, ofproto_v1_3_parser

from speedwell.controller.counters.measurements import Measurements
from speedwell.controller.errors import ControllerError
from speedwell.controller.loops import Loops
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.reads.scheduler import CLAIMANT
from speedwell.controller.rest import RestApplication
from speedwell.controller.services import Services
from speedwell.controller.switches.entries import FlowEntry
from speedwell.controller.switches.layout import COOKIE_FLOWS
from speedwell.controller.switches.transactions import Confirmations
from speedwell.controller.tables import forwarding as forwarding_module
from speedwell.controller.tables import installed_tables
from speedwell.controller.tables import sync as table_sync
from speedwell.controller.tables.events import EventPathsChanged
from speedwell.controller.tables.flow_records import Claim, Withdrawal
from speedwell.controller.tables.forwarding import Forwarding
from speedwell.controller.tables.read_back import ReadBack, sort_read_back
from speedwell.controller.topology.events import EventLinkChanged, EventSwitchChanged
from speedwell.controller.topology.hosts import Hosts
from speedwell.controller.topology.state import NetworkState
from speedwell.topo.fabric import three_tier
from tests.unit.controller.fake_switch import FakeNetwork, Refused
from tests.unit.controller.simulated_time import SimulatedHub

FABRIC = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=1, aggregations_per_pod=2, cores=2)
ROUND_TRIP_SECONDS = 0.004
SOURCE, DESTINATION = "p0r0h0", "p1r1h0"


class Connection:
    """A connection to a fake switch, which takes a moment for each batch."""

    ofproto = ofproto_v1_3
    ofproto_parser = ofproto_v1_3_parser
    is_backed_up = False

    def __init__(self, world: World, dpid: str) -> None:
        self.id = int(dpid, 16)
        self.switch = world.network.switches[dpid]
        self.world = world
        self.is_hung = False
        self.refuses: Callable[[bytes], bool] = lambda message: False
        self._xid = 0

    def set_xid(self, message: Any) -> None:
        self._xid += 1
        message.set_xid(self._xid)

    def send_msg(self, message: Any) -> bool:
        self.set_xid(message)
        message.serialize()
        return self.send(bytes(message.buf))

    def send(self, buffer: bytes) -> bool:
        if not self.is_hung:
            eventlet.spawn_after(ROUND_TRIP_SECONDS, self._take, buffer)
        return True

    def _take(self, buffer: bytes) -> None:
        confirmations = self.world.state.confirmations
        while buffer:
            _, kind, length, xid = ofproto_parser.header(buffer)
            message, buffer = buffer[:length], buffer[length:]
            if kind == ofproto_v1_3.OFPT_BARRIER_REQUEST:
                confirmations.barrier_replied(self, xid)
                continue
            try:
                if self.refuses(message):
                    raise Refused("told to")
                self.switch.take(message)
            except Refused as refusal:
                confirmations.refused(self, xid, refusal.error_type, str(refusal))


def read_back(state: NetworkState, datapath: Connection, timeout_seconds: float) -> ReadBack:
    """What a fake switch holds."""
    eventlet.sleep(ROUND_TRIP_SECONDS)
    switch = datapath.switch
    return sort_read_back(list(switch.flows.values()), list(switch.groups.values()),
                          [*switch.meters.values(), *switch.packet_meters.values()])


class World:
    """The application on a whole fabric, settled."""

    def __init__(self, hub: SimulatedHub, patch: pytest.MonkeyPatch) -> None:
        self.hub = hub
        self.hosts = SimpleNamespace(recovered=lambda location: None)
        for module in (forwarding_module, table_sync):
            patch.setattr(module, "time", SimpleNamespace(monotonic=hub.read))
        patch.setattr(installed_tables, "read_back", read_back)
        self.network = FakeNetwork(FABRIC)
        self.state = self.network.state()
        self.state.confirmations = Confirmations()
        self.measurements = Measurements()
        self.app = self.new_forwarding()
        self.events: list[EventPathsChanged] = []
        self.app.send_event_to_observers = lambda event, state=None: self.events.append(event)
        self.connections = {dpid: Connection(self, dpid) for dpid in self.network.switches}
        self.state.datapaths.update(self.connections)
        self.app.start()
        for dpid in self.connections:
            self.app.switch_changed(EventSwitchChanged(dpid, connected=True))
        eventlet.sleep(5)

    @property
    def flow(self) -> FiveTuple:
        hosts = self.network.hosts
        return FiveTuple(hosts[SOURCE].ip, hosts[DESTINATION].ip, 6, 5000, 6000)

    def paths(self) -> tuple[Path, ...]:
        return self.state.network.shortest_paths(self.flow.source, self.flow.destination)

    def new_forwarding(self) -> Forwarding:
        self.services = Services(self.state, self.measurements, RestApplication(), Loops())
        self.services.provide(Hosts, self.hosts)
        return Forwarding(self.services)

    def install(self, path: Path, subject: str = "a part") -> None:
        """Claim a path as a read does. Raises what the switches have against it."""
        self._raise(self.app.apply([Claim(self.flow, CLAIMANT, subject, path, idle_timeout_seconds=30)]))

    def withdraw(self) -> None:
        self._raise(self.app.apply((), [Withdrawal(self.flow, CLAIMANT)]))

    def _raise(self, failures: dict[FiveTuple, ControllerError]) -> None:
        for error in failures.values():
            raise error

    def poll_flows(self) -> None:
        """The switches tell what their entries of single flows counted, as at a poll."""
        for dpid, switch in self.network.switches.items():
            self.app._counted(dpid, [
                SimpleNamespace(cookie=entry.cookie, byte_count=switch.byte_counts.get(entry.key, 0), packet_count=0,
                                duration_sec=1, duration_nsec=0, hard_timeout=entry.hard_timeout_seconds)
                for entry in self.explicit_entries(dpid)], self.hub.now)

    def taken(self) -> set[tuple[str, tuple[str, ...]]]:
        """Where the flow's packets end, and by which switches."""
        return {(arrival.where, arrival.switches)
                for arrival in self.network.send(SOURCE, self.network.tcp(SOURCE, DESTINATION))}

    def fail(self, a: str, b: str) -> None:
        dpids = a, b
        names = self.network.name_of[a], self.network.name_of[b]
        self.network.dead.add(frozenset(names))
        for link in self.state.remove_link(self.network.ends(*names)[0]):
            self.app.link_changed(EventLinkChanged(link, live=False))
        assert not self.state.network.has_link(dpids)

    def explicit_entries(self, dpid: str) -> list[FlowEntry]:
        return [entry for entry in self.network.switches[dpid].flows.values() if entry.cookie >= COOKIE_FLOWS]
