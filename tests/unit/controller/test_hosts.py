"""How hosts are learnt, found and forgotten, with faked switches in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from ryu.ofproto import ofproto_v1_3, ofproto_v1_3_parser

from controller import arp
from controller.apps import hosts as hosts_module
from controller.apps.hosts import Hosts
from controller.errors import UnknownHost
from controller.events import EventHostChanged, EventPortChanged
from controller.network_state import HostLocation, NetworkState, PortInfo, PortKind, SwitchInfo
from controller.openflow import Table
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated

A, B = "0000000000000001", "0000000000000002"
EDGE_PORT, OTHER_EDGE_PORT, FABRIC_PORT, NEW_PORT = 1, 2, 3, 4
KINDS = {EDGE_PORT: PortKind.EDGE, OTHER_EDGE_PORT: PortKind.EDGE, FABRIC_PORT: PortKind.FABRIC,
         NEW_PORT: PortKind.UNDETERMINED}
MAC, OTHER_MAC = "02:00:00:00:00:11", "02:00:00:00:00:22"
IP, OTHER_IP = "10.0.0.11", "10.0.0.22"


class World:
    """Two switches, and what the application sends and tells."""

    def __init__(self, hub: SimulatedHub, patch: pytest.MonkeyPatch) -> None:
        self.forwarding = SimpleNamespace(is_busy=False, wait_until_synced=lambda timeout: None,
                                          plan_anew=lambda: None)
        patch.setattr(hosts_module, "time", SimpleNamespace(monotonic=hub.read))
        patch.setattr(hosts_module, "lookup_service_brick", lambda name: self.forwarding)
        self.state = NetworkState()
        self.app = Hosts(state=self.state)
        self.events: list[EventHostChanged] = []
        self.app.send_event_to_observers = lambda event, state=None: self.events.append(event)
        self.sent: list[tuple[str, tuple[int, ...], arp.Packet]] = []
        self.when_sent: Callable[[str, int, arp.Packet], None] = lambda dpid, port_no, packet: None
        self.datapaths = {}
        for dpid in (A, B):
            datapath = SimpleNamespace(id=int(dpid, 16), ofproto=ofproto_v1_3, ofproto_parser=ofproto_v1_3_parser)
            datapath.send_msg = lambda message, dpid=dpid: self._take(dpid, message)
            self.datapaths[dpid] = datapath
            self.state.switch_connected(SwitchInfo(dpid, dpid, "192.0.2.1", True), datapath)
            for port_no, kind in KINDS.items():
                self.state.set_port(dpid, PortInfo(port_no, f"eth{port_no}", "02:00:00:00:00:01", True, 1e9, kind))

    def _take(self, dpid: str, message: Any) -> None:
        packet = arp.parse(message.data)
        assert packet is not None
        ports = tuple(action.port for action in message.actions)
        self.sent.append((dpid, ports, packet))
        for port_no in ports:
            self.when_sent(dpid, port_no, packet)

    def arrive(self, frame: bytes, dpid: str = A, port_no: int = EDGE_PORT, table: Table = Table.SOURCES) -> None:
        message = SimpleNamespace(datapath=self.datapaths[dpid], data=frame, match={"in_port": port_no},
                                  table_id=table)
        self.app.packet_arrived(SimpleNamespace(msg=message))
        eventlet.sleep(0.001)

    def change_port(self, dpid: str, port_no: int, **changes: Any) -> None:
        self.state.set_port(dpid, replace(self.state.ports[dpid, port_no], **changes))
        self.app.port_changed(EventPortChanged(dpid, port_no))


def request(target: str, ip: str = IP, mac: str = MAC) -> bytes:
    return arp.build(arp.Packet(arp.REQUEST, mac, ip, arp.NO_MAC, target))


def reply(ip: str, mac: str) -> bytes:
    return arp.build(arp.Packet(arp.REPLY, mac, ip, arp.CONTROLLER_MAC, arp.NO_ADDRESS))


def ipv4(source: str, destination: str, mac: str = MAC) -> bytes:
    def packed(ip: str) -> bytes:
        return bytes(map(int, ip.split(".")))

    return (bytes.fromhex(OTHER_MAC.replace(":", "") + mac.replace(":", "")) + b"\x08\x00" + bytes(12)
            + packed(source) + packed(destination) + bytes(20))


@pytest.fixture(name="run")
def _run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[World, SimulatedHub], None]], None]:
    return lambda scenario: run_simulated(lambda hub: scenario(World(hub, monkeypatch), hub))


@pytest.mark.parametrize("frame", [request(OTHER_IP), reply(IP, MAC), ipv4(IP, OTHER_IP)])
def test_a_host_is_learnt_from_its_first_packet_on_an_edge_port(run: Any, frame: bytes) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(frame)
        assert world.state.hosts == {IP: HostLocation(IP, MAC, A, EDGE_PORT)}
        assert world.state.network.has_link((IP, A)) and world.state.network.has_link((A, IP))
        assert [(event.ip, event.location, event.previous) for event in world.events] == [
            (IP, world.state.hosts[IP], None)]
        world.arrive(frame)
        assert len(world.events) == 1

    run(scenario)


@pytest.mark.parametrize(("frame", "port_no"), [
    (request(OTHER_IP), FABRIC_PORT), (request(OTHER_IP), 99), (request(OTHER_IP, ip="0.0.0.0"), EDGE_PORT),
    (ipv4("224.0.0.1", OTHER_IP), EDGE_PORT), (request(OTHER_IP, mac=arp.NO_MAC), EDGE_PORT),
    (request(OTHER_IP, mac="03:00:00:00:00:11"), EDGE_PORT), (b"", EDGE_PORT), (request(OTHER_IP)[:30], EDGE_PORT),
])
def test_nothing_is_learnt_from_fabric_ports_or_senseless_packets(run: Any, frame: bytes, port_no: int) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(frame, port_no=port_no)
        assert world.state.hosts == {} and world.events == []

    run(scenario)


@pytest.mark.parametrize(("kind", "is_learnt"), [(PortKind.EDGE, True), (PortKind.FABRIC, False)])
def test_what_is_heard_at_an_undetermined_port_waits_until_it_is_known(
        run: Any, kind: PortKind, is_learnt: bool) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP), port_no=NEW_PORT)
        assert world.state.hosts == {}
        world.change_port(A, NEW_PORT, kind=kind)
        assert (IP in world.state.hosts) is is_learnt

    run(scenario)


def test_a_request_for_a_known_host_is_answered_in_its_name(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(ipv4(OTHER_IP, IP, OTHER_MAC), B, OTHER_EDGE_PORT)
        world.arrive(request(OTHER_IP))
        assert world.sent == [(A, (EDGE_PORT,), arp.Packet(arp.REPLY, OTHER_MAC, OTHER_IP, MAC, IP))]

    run(scenario)


def test_an_answer_waits_until_the_switches_know_the_way(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(ipv4(OTHER_IP, IP, OTHER_MAC), B, OTHER_EDGE_PORT)
        world.forwarding.is_busy = True
        world.forwarding.wait_until_synced = lambda timeout: eventlet.sleep(0.3)
        world.arrive(request(OTHER_IP))
        eventlet.sleep(0.2)
        assert world.sent == []
        eventlet.sleep(0.2)
        assert len(world.sent) == 1

    run(scenario)


def test_an_unknown_host_is_asked_for_on_all_edge_ports_and_nowhere_else_then_the_asker_is_told(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        probe = arp.Packet(arp.REQUEST, arp.CONTROLLER_MAC, arp.NO_ADDRESS, arp.NO_MAC, OTHER_IP)
        assert world.sent == [(dpid, (EDGE_PORT, OTHER_EDGE_PORT), probe) for dpid in (A, B)]
        world.arrive(reply(OTHER_IP, OTHER_MAC), B, OTHER_EDGE_PORT)
        assert world.sent[2:] == [(A, (EDGE_PORT,), arp.Packet(arp.REPLY, OTHER_MAC, OTHER_IP, MAC, IP))]

    run(scenario)


def test_the_asker_of_an_unknown_host_is_told_only_when_the_switches_know_the_way(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        def plan_anew() -> None:
            world.forwarding.is_busy = True

        def wait_until_synced(timeout_seconds: float) -> None:
            eventlet.sleep(0.1)
            world.forwarding.is_busy = False

        world.forwarding.plan_anew, world.forwarding.wait_until_synced = plan_anew, wait_until_synced
        world.arrive(request(OTHER_IP))
        world.sent.clear()
        world.arrive(reply(OTHER_IP, OTHER_MAC), B, OTHER_EDGE_PORT)
        eventlet.sleep(0.05)
        assert world.sent == []
        eventlet.sleep(0.1)
        assert [packet.operation for _, _, packet in world.sent] == [arp.REPLY]

    run(scenario)


def test_packets_to_nobody_cause_one_round_of_questions_a_second(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        for _ in range(50):
            world.arrive(ipv4(IP, OTHER_IP), table=Table.ROUTES)
            eventlet.sleep(0.05)
        assert 4 <= len(world.sent) <= 6

    run(scenario)


def test_a_packet_that_finds_its_way_causes_no_question(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(ipv4(IP, OTHER_IP), table=Table.SOURCES)
        assert world.sent == []

    run(scenario)


def test_locate_returns_a_host_that_answers_the_second_question(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        asked: list[int] = []

        def answer_later(dpid: str, port_no: int, packet: arp.Packet) -> None:
            asked.append(port_no)
            if len(asked) == 8:
                eventlet.spawn_after(0.05, world.arrive, reply(OTHER_IP, OTHER_MAC), B, OTHER_EDGE_PORT)

        world.when_sent = answer_later
        begin = hub.now
        assert world.app.locate(OTHER_IP) == HostLocation(OTHER_IP, OTHER_MAC, B, OTHER_EDGE_PORT)
        assert hub.now - begin < 0.5
        assert world.app.locate(OTHER_IP).mac == OTHER_MAC

    run(scenario)


def test_locate_gives_up_in_time_for_all_who_wait(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        def locate() -> float:
            begin = hub.now
            with pytest.raises(UnknownHost):
                world.app.locate(OTHER_IP, 0.7)
            return hub.now - begin

        waits = [eventlet.spawn(locate) for _ in range(3)]
        assert [wait.wait() for wait in waits] == pytest.approx([0.7] * 3)

    run(scenario)


def test_locate_asks_nobody_for_an_address_that_no_host_has(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        with pytest.raises(UnknownHost):
            world.app.locate("224.0.0.1")
        assert world.sent == []

    run(scenario)


def test_a_host_that_moves_is_told_with_its_former_place(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        world.arrive(request(OTHER_IP), B, OTHER_EDGE_PORT)
        event = world.events[-1]
        assert (event.location, event.previous) == (HostLocation(IP, MAC, B, OTHER_EDGE_PORT),
                                                    HostLocation(IP, MAC, A, EDGE_PORT))
        assert not world.state.network.has_link((IP, A)) and world.state.network.has_link((IP, B))

    run(scenario)


def test_a_port_that_goes_down_takes_its_hosts_and_brings_them_back(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        world.change_port(A, EDGE_PORT, up=False, kind=PortKind.UNDETERMINED)
        assert world.state.hosts == {} and IP not in world.state.network
        assert (world.events[-1].ip, world.events[-1].location) == (IP, None)
        world.change_port(A, EDGE_PORT, up=True)
        world.change_port(A, EDGE_PORT, kind=PortKind.EDGE)
        assert world.state.hosts[IP].port_key == (A, EDGE_PORT)

    run(scenario)


def test_hosts_of_a_switch_that_is_away_are_remembered_but_not_in_the_graph(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        port = world.state.ports[A, EDGE_PORT]
        world.state.switch_disconnected(A)
        world.app.port_changed(EventPortChanged(A, EDGE_PORT))
        assert IP in world.state.hosts and IP not in world.state.network
        world.state.switch_connected(SwitchInfo(A, A, "192.0.2.1", True), world.datapaths[A])
        world.state.set_port(A, replace(port, kind=PortKind.UNDETERMINED))
        assert world.state.network.has_link((A, IP))
        assert A in world.state.edge_switches()

    run(scenario)


def test_a_host_behind_a_port_that_turns_out_to_lead_to_a_switch_is_forgotten(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        world.change_port(A, EDGE_PORT, kind=PortKind.FABRIC)
        assert world.state.hosts == {}

    run(scenario)


def test_hosts_read_from_a_switch_are_known_again_but_do_not_overrule(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.app.recovered(HostLocation(IP, MAC, A, NEW_PORT))
        assert world.state.hosts == {}
        world.change_port(A, NEW_PORT, kind=PortKind.EDGE)
        assert world.state.hosts[IP].port_no == NEW_PORT
        world.app.recovered(HostLocation(IP, MAC, B, EDGE_PORT))
        assert world.state.hosts[IP].dpid == A

    run(scenario)


def test_a_host_that_invents_addresses_is_not_believed_for_ever(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        for number in range(200):
            world.arrive(ipv4(f"10.7.0.{number}", OTHER_IP))
            world.arrive(ipv4(f"10.8.0.{number}", OTHER_IP), port_no=NEW_PORT)
        world.change_port(A, NEW_PORT, kind=PortKind.EDGE)
        assert len(world.state.hosts) == 2 * world.state.settings.max_hosts_per_port
        world.arrive(request(IP, ip=OTHER_IP, mac=OTHER_MAC), B)
        assert OTHER_IP in world.state.hosts

    run(scenario)
