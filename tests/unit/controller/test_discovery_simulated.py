"""The discovery application itself on 1,000 ports of faked switches, in simulated time, stalls included."""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Collection
from random import Random
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from ryu.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER
from ryu.ofproto import ofproto_v1_3, ofproto_v1_3_parser

from controller.apps import discovery as discovery_module
from controller.apps.discovery import Discovery
from controller.confirm import Confirmations
from controller.events import EventLinkChanged, EventPortChanged
from controller.network_state import NetworkState, PortKey, PortKind, dpid_hex
from controller.ovsdb import DatabaseUnreachable
from controller.policy.network import Link
from controller.settings import Settings
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
        self.ports = {port_no: port_description(number, port_no) for port_no in range(1, ports + 1)}
        self.send_q = SimpleNamespace(full=lambda: False)
        self.unread: deque[Any] = deque()
        self.is_hung = False
        self.hands_up_probes = False
        self._xid = 0

    def set_xid(self, message: Any) -> None:
        self._xid += 1
        message.set_xid(self._xid)

    def send(self, buffer: bytes) -> bool:
        kind, _, xid = struct.unpack_from("!xBHI", buffer)
        if self.is_hung:
            return True
        if kind == ofproto_v1_3.OFPT_FLOW_MOD:
            self.hands_up_probes = True
            # The barrier that follows came in the same buffer.
            (length,) = struct.unpack_from("!H", buffer, 2)
            return self.send(buffer[length:])
        if kind == ofproto_v1_3.OFPT_PACKET_OUT:
            (actions_length,) = struct.unpack_from("!H", buffer, 16)
            (port_no,) = struct.unpack_from("!I", buffer, 28)
            self.world.probe_left((dpid_hex(self.id), port_no), bytes(buffer[24 + actions_length:]))
        elif kind == ofproto_v1_3.OFPT_BARRIER_REQUEST:
            self.unread.append(lambda: self.world.state.confirmations.barrier_replied(self, xid))
        return True


def port_description(number: int, port_no: int, state: int = 0) -> Any:
    hw_addr = f"02:00:00:{number:02x}:00:{port_no:02x}"
    return SimpleNamespace(port_no=port_no, name=b"eth%d" % port_no, hw_addr=hw_addr,
                           state=state, config=0, curr_speed=1_000_000)


class World:
    """Switches in a ring of bundles: port p of switch s is wired to port p + ports/2 of switch s + 1."""

    def __init__(self, hub: SimulatedHub, monkeypatch: pytest.MonkeyPatch, switches: int, ports: int,
                 message_cost_seconds: float = 0.0, absent: Collection[int] = ()) -> None:
        monkeypatch.setattr(discovery_module, "time", SimpleNamespace(monotonic=hub.read))
        monkeypatch.setattr(discovery_module, "read_capacities", refuse)
        self.hub = hub
        self.message_cost_seconds = message_cost_seconds
        self.read_pause_seconds = 0.001
        self.reads_at_once = 4
        self.state = NetworkState(Settings())
        self.state.confirmations = Confirmations()
        self.app = Discovery(state=self.state)
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
        message = SimpleNamespace(datapath=datapath, data=frame, match={"in_port": destination[1]})
        datapath.unread.append(lambda: self.app.packet_arrived(SimpleNamespace(msg=message)))

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


def refuse(*_: Any) -> dict[int, float]:
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


def test_a_switch_that_reconnects_before_its_old_connection_died_keeps_its_new_one(patch: Any) -> None:
    def scenario(hub: SimulatedHub) -> None:
        world = World(hub, patch, switches=4, ports=2)
        eventlet.sleep(5)
        old = world.datapaths[dpid_hex(2)]
        new = FakeDatapath(world, 2, 2)
        world.datapaths[dpid_hex(2)] = new
        world.app.switch_state_changed(SimpleNamespace(datapath=new, state=MAIN_DISPATCHER))
        world.app.switch_state_changed(SimpleNamespace(datapath=old, state=DEAD_DISPATCHER))
        eventlet.sleep(3)
        assert world.state.datapaths[dpid_hex(2)] is new
        assert len(world.state.links) == 8

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
