"""The discovery application itself on 1,000 ports of faked switches, in simulated time, stalls included."""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Collection
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from ryu.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER
from ryu.ofproto import ofproto_v1_3, ofproto_v1_3_parser

from speedwell.controller.loops import Loops
from speedwell.controller.policy.network.graph import Link
from speedwell.controller.services import Services
from speedwell.controller.settings import Settings
from speedwell.controller.switches.entries import dpid_hex
from speedwell.controller.switches.layout import Table
from speedwell.controller.switches.ovsdb import DatabaseUnreachable
from speedwell.controller.switches.packet_ins import PacketIn, PacketIns
from speedwell.controller.switches.transactions import Confirmations
from speedwell.controller.topology import capacity_reader
from speedwell.controller.topology import discovery as discovery_module
from speedwell.controller.topology.absent_switches import MAX_ABSENT
from speedwell.controller.topology.admission import MAX_CONTENDERS
from speedwell.controller.topology.discovery import Discovery
from speedwell.controller.topology.events import EventLinkChanged, EventPortChanged
from speedwell.controller.topology.hosts import Hosts
from speedwell.controller.topology.state import NetworkState, PortKey, PortKind
from speedwell.fs.identity.bundle import Peer
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated

DOWN = ofproto_v1_3.OFPPS_LINK_DOWN


class FakeDatapath:
    """A switch's connection: probes travel to the switch at the other end, barriers are answered in order."""

    ofproto = ofproto_v1_3
    ofproto_parser = ofproto_v1_3_parser

    def __init__(self, world: World, number: int, ports: int) -> None:
        self.world = world
        self.id = number
        self.address = ("192.0.2.1", 6653)
        self.target = "tcp:192.0.2.2:6653"
        self.ports = {port_no: port_description(number, port_no) for port_no in range(1, ports + 1)}
        self.is_backed_up = False
        self.unread: deque[Any] = deque()
        self.is_hung = False
        self.is_admitted = False
        self.peer: Peer | None = None
        self.state = MAIN_DISPATCHER
        self.hands_up_probes = False
        self._xid = 0

    def close(self) -> None:
        """As Ryu's: the end is told a moment later."""
        if self.state != DEAD_DISPATCHER:
            self.state = DEAD_DISPATCHER
            eventlet.spawn_after(0.01, self.world.app.switch_state_changed,
                                 SimpleNamespace(datapath=self, state=DEAD_DISPATCHER))

    def set_xid(self, message: Any) -> None:
        self._xid += 1
        message.set_xid(self._xid)

    def send(self, buffer: bytes) -> bool:
        while buffer and not self.is_hung:
            kind, length, xid = struct.unpack_from("!xBHI", buffer)
            self._take(kind, xid, buffer[:length])
            buffer = buffer[length:]
        return True

    def _take(self, kind: int, xid: int, buffer: bytes) -> None:
        if kind in (ofproto_v1_3.OFPT_FLOW_MOD, ofproto_v1_3.OFPT_METER_MOD):
            self.hands_up_probes |= kind == ofproto_v1_3.OFPT_FLOW_MOD
        elif kind == ofproto_v1_3.OFPT_PACKET_OUT:
            (actions_length,) = struct.unpack_from("!H", buffer, 16)
            (port_no,) = struct.unpack_from("!I", buffer, 28)
            self.world.probe_left((dpid_hex(self.id), port_no), bytes(buffer[24 + actions_length:]))
        elif kind == ofproto_v1_3.OFPT_BARRIER_REQUEST:
            self.unread.append(lambda: self.world.state.confirmations.barrier_replied(self, xid))


def port_description(number: int, port_no: int, state: int = 0) -> Any:
    hw_addr = f"02:00:00:{number:02x}:00:{port_no:02x}"
    return SimpleNamespace(port_no=port_no, name=b"eth%d" % port_no, hw_addr=hw_addr,
                           state=state, config=0, curr_speed=1_000_000)


class World:
    """Switches in a ring of bundles: port p of switch s is wired to port p + ports/2 of switch s + 1."""

    def __init__(self, hub: SimulatedHub, monkeypatch: pytest.MonkeyPatch, switches: int, ports: int,
                 message_cost_seconds: float = 0.0, absent: Collection[int] = (),
                 settings: Settings | None = None) -> None:
        monkeypatch.setattr(discovery_module, "time", SimpleNamespace(monotonic=hub.read))
        monkeypatch.setattr(capacity_reader, "time", discovery_module.time)
        monkeypatch.setattr(capacity_reader, "read_capacities", refuse)
        self.hub = hub
        self.message_cost_seconds = message_cost_seconds
        self.read_pause_seconds = 0.001
        self.reads_at_once = 4
        self.state = NetworkState(settings)
        self.state.confirmations = Confirmations()
        self.packet_ins = PacketIns()
        self.services = Services(self.state, self.packet_ins, Loops())
        self.doubted: list[PortKey] = []
        self.forgotten: list[str] = []
        self.services.provide(Hosts, SimpleNamespace(doubted=self.doubted.append,
                                                     forget_switch=self.forgotten.append))
        self.app = Discovery(self.services)
        self.lost_links: list[Link] = []
        self.edge_ports: set[PortKey] = set()
        self.app.send_event_to_observers = self._note
        self.datapaths = {dpid_hex(number): FakeDatapath(self, number, ports) for number in range(1, switches + 1)}
        self.wires: dict[PortKey, PortKey] = {}
        for number in range(1, switches + 1):
            for port_no in range(1, ports // 2 + 1):
                a = dpid_hex(number), port_no
                b = dpid_hex(number % switches + 1), port_no + ports // 2
                self.wires[a], self.wires[b] = b, a
        self.probe_times: list[float] = []
        self.app.start()
        eventlet.spawn(self._read_connections)
        for number in set(range(1, switches + 1)).difference(absent):
            self.connect(number)

    def connect(self, number: int) -> None:
        datapath = self.datapaths[dpid_hex(number)]
        self.app.switch_state_changed(SimpleNamespace(datapath=datapath, state=MAIN_DISPATCHER))

    def probe_left(self, source: PortKey, frame: bytes) -> None:
        self.probe_times.append(self.hub.now)
        destination = self.wires.get(source)
        datapath = self.datapaths[destination[0]] if destination else None
        if destination is None or datapath is None or datapath.is_hung or not datapath.hands_up_probes:
            return
        packet = PacketIn(datapath, destination[1], Table.CLASSIFY, frame)
        datapath.unread.append(lambda: self.app.probe_arrived(packet))

    def _read_connections(self) -> None:
        """Read what arrived, a few messages per connection at a time, each at its cost in controller time."""
        while True:
            eventlet.sleep(self.read_pause_seconds)
            for datapath in self.datapaths.values():
                for _ in range(min(self.reads_at_once, len(datapath.unread))):
                    datapath.unread.popleft()()
                    self.hub.stall(self.message_cost_seconds)

    def port_status(self, key: PortKey, state: int) -> None:
        datapath = self.datapaths[key[0]]
        message = SimpleNamespace(datapath=datapath, reason=ofproto_v1_3.OFPPR_MODIFY,
                                  desc=port_description(datapath.id, key[1], state))
        self.app.port_status_changed(SimpleNamespace(msg=message))

    def _note(self, event: Any, state: Any = None) -> None:
        if isinstance(event, EventLinkChanged) and not event.live:
            self.lost_links.append(event.link)
        if isinstance(event, EventPortChanged) and self.state.is_edge_port(event.dpid, event.port_no):
            self.edge_ports.add((event.dpid, event.port_no))


def refuse(*_: Any, **__: Any) -> dict[int, float]:
    raise DatabaseUnreachable("there is none in a simulation")


@pytest.fixture(name="patch")
def _patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


def test_no_live_link_of_1000_ports_is_ever_dropped_by_a_busy_controller_that_stalls(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        # 50 switches with 20 ports; each probe that arrives costs 1 ms: discovery alone keeps 40 % of a core busy.
        world = World(hub, patch, switches=50, ports=20, message_cost_seconds=0.001)
        eventlet.sleep(15)
        assert len(world.state.links) == 1000
        stalls = Random(7)
        for _ in range(60):
            eventlet.sleep(stalls.uniform(0.1, 10))
            hub.stall(stalls.uniform(0.5, 12))
        assert world.lost_links == []
        assert len(world.state.links) == 1000
        assert not world.edge_ports
        for datapath in world.datapaths.values():
            for port_no in datapath.ports:
                assert world.state.ports[dpid_hex(datapath.id), port_no].kind is PortKind.FABRIC

    run_simulated(scenario)


def test_no_live_link_is_dropped_while_answers_lie_unread_although_probes_go_out(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=50, ports=20)
        eventlet.sleep(15)
        world.reads_at_once = 0
        eventlet.sleep(60)
        assert len(world.app.probing.suspects()) == 1000
        world.reads_at_once = 4
        eventlet.sleep(60)
        assert world.lost_links == []
        assert len(world.state.links) == 1000

    run_simulated(scenario)


def test_a_controller_that_stalls_while_it_discovers_takes_no_fabric_port_for_an_edge_port(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=10, ports=4)
        eventlet.sleep(0)
        world.read_pause_seconds = 0.5
        for _ in range(6):
            eventlet.sleep(0.55)
            hub.stall(3)
        eventlet.sleep(5)
        assert not world.edge_ports
        assert len(world.state.links) == 40

    run_simulated(scenario)


def test_probes_are_bounded_and_spread_evenly(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=50, ports=20)
        limit = world.state.settings.probes_per_second
        eventlet.sleep(200)
        per_second = Counter(int(at) for at in world.probe_times)
        assert max(per_second.values()) <= 1.15 * limit
        steady = [at for at in world.probe_times if at > hub.now - 100]
        per_tenth = Counter(int(10 * at) for at in steady)
        assert max(per_tenth.values()) <= 0.2 * limit
        assert len(steady) / 100 == pytest.approx(limit, rel=0.1)

    run_simulated(scenario)


def test_a_port_that_goes_down_takes_its_link_out_at_once(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=4, ports=2)
        eventlet.sleep(5)
        key = dpid_hex(1), 1
        other = world.wires[key]
        before = hub.now
        world.port_status(key, DOWN)
        assert hub.now == before
        assert key not in world.state.links and other not in world.state.links
        assert not world.state.network.has_link((key[0], other[0]))
        assert sorted(world.lost_links) == sorted([(key[0], other[0]), (other[0], key[0])])
        world.port_status(key, 0)
        eventlet.sleep(1.5)
        assert world.state.links[key] == other

    run_simulated(scenario)


@pytest.mark.parametrize("one_way", [True, False])
def test_a_link_that_falls_silent_goes_out_after_several_missed_probes(patch: Any, one_way: bool) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=4, ports=2)
        eventlet.sleep(20)
        key = dpid_hex(1), 1
        other = world.wires.pop(key)
        if not one_way:
            world.wires.pop(other)
        settings = world.state.settings
        eventlet.sleep(settings.probe_misses * settings.probe_interval_seconds - 0.1)
        assert key in world.state.links
        eventlet.sleep(3 * settings.probe_interval_seconds)
        assert key not in world.state.links
        assert len(world.state.links) == 6
        world.wires[key], world.wires[other] = other, key
        # By now the ports may have been taken for edge ports, which are probed less often.
        eventlet.sleep(5 * settings.probe_interval_seconds + 1)
        assert world.state.links[key] == other

    run_simulated(scenario)


def test_a_link_that_carries_probes_one_way_only_is_never_used(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=4, ports=2)
        key = dpid_hex(1), 1
        other = world.wires.pop(key)
        eventlet.sleep(60)
        assert key not in world.state.links and other not in world.state.links
        assert not world.state.network.has_link((other[0], key[0]))
        assert world.lost_links == []

    run_simulated(scenario)


def test_links_of_a_hung_switch_stay_until_its_connection_is_given_up(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=4, ports=2)
        eventlet.sleep(5)
        hung = world.datapaths[dpid_hex(2)]
        hung.is_hung = True
        eventlet.sleep(60)
        assert world.lost_links == []
        world.app.switch_state_changed(SimpleNamespace(datapath=hung, state=DEAD_DISPATCHER))
        assert len(world.lost_links) == 4
        assert len(world.state.links) == 4
        assert dpid_hex(2) not in world.state.network

    run_simulated(scenario)


def test_a_port_without_a_switch_behind_it_is_undetermined_first_and_an_edge_port_soon(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=2, ports=2)
        key = dpid_hex(1), 1
        other = world.wires.pop(key)
        del world.wires[other]
        assert world.state.ports[key].kind is PortKind.UNDETERMINED
        eventlet.sleep(1.5)
        assert world.state.is_edge_port(*key) and world.state.is_edge_port(*other)
        # Somebody plugs a switch in without the port ever going down.
        world.wires[key], world.wires[other] = other, key
        eventlet.sleep(15)
        assert world.state.ports[key].kind is PortKind.FABRIC
        assert world.state.links[key] == other

    run_simulated(scenario)


def test_a_cable_that_is_plugged_elsewhere_moves_its_link(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=4, ports=2)
        eventlet.sleep(5)
        a, b = (dpid_hex(1), 1), (dpid_hex(3), 1)
        a_other, b_other = world.wires[a], world.wires[b]
        world.wires.update({a: b_other, b_other: a, b: a_other, a_other: b})
        eventlet.sleep(20)
        assert world.state.links == world.wires

    run_simulated(scenario)


def test_a_port_that_a_cable_left_without_a_word_leads_to_hosts_soon(patch: Any) -> None:
    """As where a media converter keeps the link up: the far end of the cable is in another switch now."""
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=4, ports=2)
        stays, left, free = (dpid_hex(1), 1), (dpid_hex(2), 2), (dpid_hex(3), 1)
        del world.wires[world.wires.pop(free)]
        eventlet.sleep(5)
        assert world.state.links == world.wires and world.wires[stays] == left
        del world.wires[left]
        world.wires.update({stays: free, free: stays})
        eventlet.sleep(30)
        assert world.state.links == world.wires
        assert world.state.ports[left].kind is PortKind.EDGE
        other = dpid_hex(4), 2
        world.wires.update({left: other, other: left})
        eventlet.sleep(30)
        assert world.state.links == world.wires, "it is probed on"

    run_simulated(scenario)


def connect_again(world: World, number: int, peer: Peer | None = None) -> FakeDatapath:
    """Another connection says that it is switch `number`; `peer` is whose certificate it showed."""
    new = FakeDatapath(world, number, 2)
    new.peer = peer
    new.address = ("192.0.2.66", 50000)
    eventlet.spawn(read_connection, new)
    world.app.switch_state_changed(SimpleNamespace(datapath=new, state=MAIN_DISPATCHER))
    return new


def read_connection(datapath: FakeDatapath) -> None:
    while True:
        eventlet.sleep(0.001)
        while datapath.unread:
            datapath.unread.popleft()()


def test_a_second_connection_is_refused_while_the_first_answers(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=4, ports=2)
        eventlet.sleep(5)
        own = world.datapaths[dpid_hex(2)]
        for _ in range(20):
            new = connect_again(world, 2)
            eventlet.sleep(0.1)
            assert new.state == DEAD_DISPATCHER and not new.is_admitted
        eventlet.sleep(5)
        assert world.state.datapaths[dpid_hex(2)] is own and own.state == MAIN_DISPATCHER
        assert world.lost_links == []
        assert world.state.switches[dpid_hex(2)].address == "192.0.2.1"
        assert world.state.refusals.counts["connection", "taken"] == 20

    run_simulated(scenario)


def test_a_switch_that_crashed_gets_its_new_connection_within_one_question(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=4, ports=2)
        eventlet.sleep(5)
        old = world.datapaths[dpid_hex(2)]
        old.is_hung = True
        begin = hub.now
        new = world.datapaths[dpid_hex(2)] = connect_again(world, 2)
        while world.state.datapaths.get(dpid_hex(2)) is not new:
            eventlet.sleep(0.01)
        assert hub.now - begin <= world.state.settings.echo_interval_seconds + 0.1
        assert new.is_admitted and old.state == DEAD_DISPATCHER
        eventlet.sleep(3)
        assert world.state.datapaths[dpid_hex(2)] is new
        assert len(world.state.links) == 8

    run_simulated(scenario)


@pytest.mark.parametrize(("name", "is_admitted"), [("0000000000000002", True), ("0000000000000003", False)])
def test_a_certificate_is_for_one_datapath_id(patch: Any, name: str, is_admitted: bool) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=4, ports=2, absent={1, 2, 3, 4})
        new = connect_again(world, 2, Peer(name, "switch", "1", 0.0))
        eventlet.sleep(0.1)
        assert new.is_admitted is is_admitted and (dpid_hex(2) in world.state.datapaths) is is_admitted
        assert world.state.refusals.counts["connection", "other-certificate"] == (not is_admitted)

    run_simulated(scenario)


def test_many_that_claim_to_be_one_switch_do_not_flood_it_with_questions(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=4, ports=2)
        eventlet.sleep(5)
        own = world.datapaths[dpid_hex(2)]
        own.is_hung = True
        claimants = [connect_again(world, 2) for _ in range(100)]
        eventlet.sleep(0.1)
        assert sum(claimant.state == MAIN_DISPATCHER for claimant in claimants) == MAX_CONTENDERS
        eventlet.sleep(3)
        assert sum(claimant.is_admitted for claimant in claimants) == 1

    run_simulated(scenario)


@pytest.mark.parametrize(("entry", "is_admitted"), [
    ("0000000000000002", True), ("0000000000000002@192.0.2.66", True), ("0000000000000002@192.0.2.67", False),
    ("0000000000000003", False),
])
def test_only_switches_on_the_list_are_admitted(patch: Any, entry: str, is_admitted: bool) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=4, ports=2, absent={1, 2, 3, 4},
                      settings=Settings(datapath_ids=(entry,)))
        new = connect_again(world, 2)
        eventlet.sleep(0.1)
        assert new.is_admitted is is_admitted
        assert (dpid_hex(2) in world.state.datapaths) is is_admitted
        assert sum(world.state.refusals.counts.values()) == (not is_admitted)

    run_simulated(scenario)


def test_ten_thousand_switches_that_come_and_go_leave_nothing_behind(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=2, ports=2, settings=Settings(switch_expiry_seconds=30))
        world.read_pause_seconds = 0.05
        patch.setattr(world.app, "_listen", lambda datapath, dpid: None)
        patch.setattr(world.app, "_ask_name", lambda datapath, dpid: None)
        patch.setattr(world.app.logger, "disabled", True)
        for number in range(100, 10_100):
            datapath = FakeDatapath(world, number, 1)
            world.app.switch_state_changed(SimpleNamespace(datapath=datapath, state=MAIN_DISPATCHER))
            datapath.state = DEAD_DISPATCHER
            world.app.switch_state_changed(SimpleNamespace(datapath=datapath, state=DEAD_DISPATCHER))
            if number % 500 == 0:
                eventlet.sleep(0.2)
        eventlet.sleep(1)
        assert len(world.state.switches) == MAX_ABSENT + 2
        eventlet.sleep(world.state.settings.switch_expiry_seconds)
        assert set(world.state.switches) == {dpid_hex(1), dpid_hex(2)}
        assert len(world.forgotten) == 10_000
        assert len(world.state.links) == 4 and len(world.state.ports) == 4
        for held in (world.app._capacities._due, world.app._listening, world.app._probes, world.app.probing._ports):
            assert len(held) <= 4

    run_simulated(scenario)


@pytest.mark.parametrize("is_contended", [False, True])
def test_a_connection_that_cannot_be_admitted_is_closed(patch: Any, is_contended: bool) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=2, ports=2, absent=() if is_contended else (1,))
        eventlet.sleep(1)
        if is_contended:
            world.datapaths[dpid_hex(1)].is_hung = True
        datapath = FakeDatapath(world, 1, 2)
        with patch.context() as fault:
            fault.setattr(world.state, "switch_connected", lambda *_: 1 / 0)
            with nullcontext() if is_contended else pytest.raises(ZeroDivisionError):
                world.app.switch_state_changed(SimpleNamespace(datapath=datapath, state=MAIN_DISPATCHER))
            eventlet.sleep(5)
        assert datapath.state == DEAD_DISPATCHER
        assert dpid_hex(1) not in world.state.datapaths

    run_simulated(scenario)


def test_a_capacity_that_the_database_tells_no_more_is_the_ports_own_again(patch: Any) -> None:
    own_bps = 1e9

    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=2, ports=4)
        found: dict[int, float] = {1: 5e6, 2: 7e6}
        patch.setattr(capacity_reader, "read_capacities", lambda *_, **__: dict(found))
        patch.setattr(capacity_reader, "limit_packet_ins", lambda *_: False)
        interval_seconds = world.state.settings.ovsdb_interval_seconds

        def capacities() -> list[float]:
            return [world.state.ports[dpid_hex(1), port_no].capacity_bps for port_no in (1, 2, 3)]

        eventlet.sleep(interval_seconds + 1)
        assert capacities() == [5e6, 7e6, own_bps]
        del found[1]
        eventlet.sleep(interval_seconds + 1)
        assert capacities() == [own_bps, 7e6, own_bps]
        link_port = dpid_hex(1), world.state.port_toward(dpid_hex(1), dpid_hex(2))
        assert (world.state.network.capacity_bps((dpid_hex(1), dpid_hex(2)))
                == world.state.ports[link_port].capacity_bps)
        datapath = world.datapaths[dpid_hex(1)]
        world.app.switch_state_changed(SimpleNamespace(datapath=datapath, state=DEAD_DISPATCHER))
        del found[2]
        world.connect(1)
        eventlet.sleep(1)
        assert capacities() == [own_bps] * 3

    run_simulated(scenario)


def test_listed_switches_that_are_away_are_waited_for_without_end(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=2, ports=2,
                      settings=Settings(datapath_ids=(dpid_hex(1), dpid_hex(2)), switch_expiry_seconds=10))
        eventlet.sleep(5)
        datapath = world.datapaths[dpid_hex(2)]
        world.app.switch_state_changed(SimpleNamespace(datapath=datapath, state=DEAD_DISPATCHER))
        eventlet.sleep(60)
        assert not world.state.switches[dpid_hex(2)].connected

    run_simulated(scenario)


def test_a_cable_between_two_ports_of_one_switch_breaks_nothing(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=4, ports=4)
        a, b = (dpid_hex(1), 1), (dpid_hex(1), 2)
        for key in (a, b):
            del world.wires[world.wires[key]]
        world.wires.update({a: b, b: a})
        eventlet.sleep(20)
        assert world.state.links[a] == b
        assert len(world.state.links) == 16 - 2
        assert not world.state.is_edge_port(*a)

    run_simulated(scenario)


def test_links_of_a_switch_that_joins_late_are_found_at_once(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=50, ports=20, absent={2})
        eventlet.sleep(30)
        assert len(world.state.links) == 1000 - 2 * 20
        assert world.edge_ports  # its neighbours cannot know yet
        world.connect(2)
        eventlet.sleep(0.5)
        assert len(world.state.links) == 1000
        assert not any(world.state.is_edge_port(*key) for key in world.wires)

    run_simulated(scenario)
