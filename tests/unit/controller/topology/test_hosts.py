"""How hosts are learnt, found and forgotten, with faked switches in simulated time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from ryu.ofproto import ofproto_v1_3, ofproto_v1_3_parser

from speedwell.controller.errors import UnknownHost
from speedwell.controller.loops import TURN_SECONDS, Loops
from speedwell.controller.services import Services
from speedwell.controller.switches.layout import Table
from speedwell.controller.switches.packet_ins import PacketIn, PacketIns
from speedwell.controller.topology import arp
from speedwell.controller.topology import hosts as hosts_module
from speedwell.controller.topology.events import EventHostChanged, EventPortChanged
from speedwell.controller.topology.host_moves import ABSENCE_SECONDS, PAUSE_SECONDS, QUESTION_SECONDS, QUESTIONS
from speedwell.controller.topology.host_searches import SEARCHES_PER_PORT
from speedwell.controller.topology.hosts import Hosts
from speedwell.controller.topology.state import HostLocation, NetworkState, PortInfo, PortKind, SwitchInfo
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
        self.state = NetworkState()
        self.app = Hosts(Services(self.state, PacketIns(), Loops()))
        self.app.tables = self.forwarding
        self.events: list[EventHostChanged] = []
        self.app.send_event_to_observers = lambda event, state=None: self.events.append(event)
        self.sent: list[tuple[str, tuple[int, ...], arp.Packet]] = []
        self.when_sent: Callable[[str, int, arp.Packet], None] = lambda dpid, port_no, packet: None
        self.datapaths = {}
        for dpid in (A, B):
            datapath = SimpleNamespace(id=int(dpid, 16), ofproto=ofproto_v1_3, ofproto_parser=ofproto_v1_3_parser,
                                       is_backed_up=False)
            datapath.send_msg = lambda message, dpid=dpid: self._take(dpid, message)
            self.datapaths[dpid] = datapath
            self.state.switch_connected(SwitchInfo(dpid, dpid, "192.0.2.1", True), datapath)
            for port_no, kind in KINDS.items():
                self.state.set_port(dpid, PortInfo(port_no, f"eth{port_no}", "02:00:00:00:00:01", True, 1e9, kind))

    def _take(self, dpid: str, message: Any) -> bool:
        packet = arp.parse(message.data)
        assert packet is not None
        ports = tuple(action.port for action in message.actions)
        self.sent.append((dpid, ports, packet))
        for port_no in ports:
            self.when_sent(dpid, port_no, packet)
        return True

    def arrive(self, frame: bytes, dpid: str = A, port_no: int = EDGE_PORT, table: Table = Table.SOURCES) -> None:
        self.app.packet_arrived(PacketIn(self.datapaths[dpid], port_no, table, frame))
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


def test_a_port_that_turns_out_to_lead_to_hosts_is_asked_for_those_being_looked_for(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        world.sent.clear()
        world.change_port(A, NEW_PORT, kind=PortKind.EDGE)
        probe = arp.Packet(arp.REQUEST, arp.CONTROLLER_MAC, arp.NO_ADDRESS, arp.NO_MAC, OTHER_IP)
        assert world.sent == [(A, (NEW_PORT,), probe)]

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


def test_others_have_their_turn_while_many_hosts_are_looked_for_at_once(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        def locate(number: int) -> None:
            with pytest.raises(UnknownHost):
                world.app.locate(f"10.0.1.{number}", 0.5)

        world.when_sent = lambda *_: time.sleep(TURN_SECONDS / 4)       # each question goes out of four ports
        searches = [eventlet.spawn(locate, number) for number in range(20)]
        sent = [0]
        for _ in range(20):
            eventlet.sleep(0)
            sent.append(len(world.sent))
        assert max(after - before for before, after in pairwise(sent)) <= 6 < len(world.sent)
        for search in searches:
            search.wait()

    run(scenario)


def test_locate_asks_nobody_for_an_address_that_no_host_has(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        with pytest.raises(UnknownHost):
            world.app.locate("224.0.0.1")
        assert world.sent == []

    run(scenario)


def answers(world: World, hub: SimulatedHub, ip: str, mac: str, place: tuple[str, int]) -> None:
    """From now on a host answers at its place, and there only, as a host's kernel does."""
    def answer(dpid: str, port_no: int, packet: arp.Packet) -> None:
        if (dpid, port_no) == place and packet.operation == arp.REQUEST and packet.target_ip == ip:
            eventlet.spawn_after(0.002, world.arrive, reply(ip, mac), dpid, port_no, Table.NEIGHBOURS)

    world.when_sent = answer


def test_a_host_moves_once_nobody_answers_at_its_former_place(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        world.sent.clear()
        begin = hub.now
        world.arrive(request(OTHER_IP), B, OTHER_EDGE_PORT)
        assert world.state.hosts[IP].dpid == A
        while world.state.hosts[IP].dpid == A:
            eventlet.sleep(0.01)
        assert hub.now - begin == pytest.approx(QUESTIONS * QUESTION_SECONDS, abs=0.2)
        probe = arp.Packet(arp.REQUEST, arp.CONTROLLER_MAC, arp.NO_ADDRESS, arp.NO_MAC, IP)
        assert world.sent.count((A, (EDGE_PORT,), probe)) == QUESTIONS
        event = world.events[-1]
        assert (event.location, event.previous) == (HostLocation(IP, MAC, B, OTHER_EDGE_PORT),
                                                    HostLocation(IP, MAC, A, EDGE_PORT))
        assert not world.state.network.has_link((IP, A)) and world.state.network.has_link((IP, B))
        assert world.state.refusals.counts["host", "spoofed"] == 0

    run(scenario)


@pytest.mark.parametrize("forged", [
    ipv4(IP, OTHER_IP, MAC), ipv4(IP, OTHER_IP, OTHER_MAC), request(OTHER_IP), request(OTHER_IP, mac=OTHER_MAC),
    request(IP), reply(IP, OTHER_MAC),
])
def test_a_host_that_answers_is_not_moved_by_any_packet_from_elsewhere(run: Any, forged: bytes) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        answers(world, hub, IP, MAC, (A, EDGE_PORT))
        events = len(world.events)
        for _ in range(100):
            world.arrive(forged, B, OTHER_EDGE_PORT)
            eventlet.sleep(0.1)
        assert world.state.hosts[IP] == HostLocation(IP, MAC, A, EDGE_PORT)
        assert len(world.events) == events
        eventlet.sleep(5)
        assert world.state.refusals.counts["host", "spoofed"] == 100

    run(scenario)


def test_forged_packets_cause_no_more_than_a_question_a_second(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        answers(world, hub, IP, MAC, (A, EDGE_PORT))
        world.sent.clear()
        for _ in range(2000):
            world.arrive(ipv4(IP, "10.0.0.99"), B, OTHER_EDGE_PORT)
            eventlet.sleep(0.004)
        assert 5 <= len(world.sent) <= 12

    run(scenario)


def test_a_host_that_answered_while_others_forged_its_address_may_still_move(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        answers(world, hub, IP, MAC, (A, EDGE_PORT))
        world.arrive(ipv4(IP, OTHER_IP), B, EDGE_PORT)
        eventlet.sleep(0.3)
        world.when_sent = lambda dpid, port_no, packet: None
        begin = hub.now
        world.arrive(request(OTHER_IP), B, OTHER_EDGE_PORT)
        while world.state.hosts[IP].dpid == A:
            eventlet.sleep(0.01)
        assert world.state.hosts[IP].port_key == (B, OTHER_EDGE_PORT)
        assert hub.now - begin <= PAUSE_SECONDS + QUESTIONS * QUESTION_SECONDS + 0.2

    run(scenario)


def test_another_network_card_at_the_same_port_is_believed_once_the_former_is_silent(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        answers(world, hub, IP, OTHER_MAC, (A, EDGE_PORT))
        world.arrive(request(OTHER_IP, mac=OTHER_MAC))
        eventlet.sleep(1)
        assert world.state.hosts[IP] == HostLocation(IP, OTHER_MAC, A, EDGE_PORT)

    run(scenario)


def test_hosts_of_a_switch_that_cannot_be_asked_move_after_a_longer_while(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        world.state.switch_disconnected(A)
        begin = hub.now
        world.arrive(request(OTHER_IP), B, OTHER_EDGE_PORT)
        eventlet.sleep(ABSENCE_SECONDS - 1)
        assert world.state.hosts[IP].dpid == A
        while world.state.hosts[IP].dpid == A:
            eventlet.sleep(0.01)
        assert hub.now - begin == pytest.approx(ABSENCE_SECONDS, abs=0.2)

    run(scenario)


def test_hosts_at_a_doubtful_port_stay_if_they_answer_and_are_forgotten_if_not(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        world.arrive(request(IP, ip=OTHER_IP, mac=OTHER_MAC))
        answers(world, hub, IP, MAC, (A, EDGE_PORT))
        world.app.doubted((A, EDGE_PORT))
        eventlet.sleep(1)
        assert set(world.state.hosts) == {IP}
        assert (world.events[-1].ip, world.events[-1].location) == (OTHER_IP, None)

    run(scenario)


def test_a_port_that_goes_down_frees_its_hosts_at_once(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        answers(world, hub, IP, MAC, (A, EDGE_PORT))
        world.arrive(request(OTHER_IP), B, OTHER_EDGE_PORT)
        assert world.state.hosts[IP].dpid == A
        world.change_port(A, EDGE_PORT, up=False, kind=PortKind.UNDETERMINED)
        world.arrive(request(OTHER_IP), B, OTHER_EDGE_PORT)
        assert world.state.hosts[IP].port_key == (B, OTHER_EDGE_PORT)
        eventlet.sleep(20)
        assert world.state.hosts[IP].port_key == (B, OTHER_EDGE_PORT)

    run(scenario)


def test_one_port_does_not_have_the_whole_fabric_asked_for_what_it_invents(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        for number in range(10_000):
            world.app._look_for(f"10.9.{number >> 8}.{number & 255}", (A, EDGE_PORT))
        assert len(world.sent) == 2 * SEARCHES_PER_PORT
        assert len(world.app._searches) == SEARCHES_PER_PORT
        assert world.state.refusals.counts["question", "too-many"] == 10_000 - SEARCHES_PER_PORT
        world.app._look_for(OTHER_IP, (B, EDGE_PORT))
        assert world.sent[-1][2].target_ip == OTHER_IP
        eventlet.sleep(1.1)
        world.app._look_for("10.10.0.1", (A, EDGE_PORT))
        assert world.sent[-1][2].target_ip == "10.10.0.1"
        assert len(world.app._searches) == 1

    run(scenario)


def test_a_port_is_a_hosts_from_its_first_packet_until_the_port_goes_down(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.app.recovered(HostLocation(IP, MAC, B, EDGE_PORT))
        assert world.state.host_ports == set()
        world.arrive(request(OTHER_IP, OTHER_IP, OTHER_MAC))
        world.state.remove_host(OTHER_IP)
        assert world.state.host_ports == {(A, EDGE_PORT)}
        world.change_port(A, EDGE_PORT, up=False, kind=PortKind.UNDETERMINED)
        world.change_port(A, EDGE_PORT, up=True)
        world.change_port(A, EDGE_PORT, kind=PortKind.EDGE)
        assert world.state.host_ports == set()

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


def test_ten_thousand_ports_that_go_with_their_hosts_leave_nothing_behind(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.app.logger.disabled = True
        for port_no in range(100, 10_100):
            world.state.set_port(A, PortInfo(port_no, "eth", MAC, True, 1e9, PortKind.EDGE))
            world.arrive(request(OTHER_IP), port_no=port_no)
            assert world.state.hosts[IP].port_no == port_no
            world.state.remove_port((A, port_no))
            world.app.port_changed(EventPortChanged(A, port_no))
        world.app.logger.disabled = False
        assert world.state.hosts == {} and not world.app._not_yet

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


def test_ten_thousand_invented_addresses_leave_no_more_hosts_than_answer(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP))
        answers(world, hub, IP, MAC, (A, EDGE_PORT))
        most = 0
        for number in range(10_000):
            world.app._heard_at((A, EDGE_PORT), f"10.7.{number >> 8}.{number & 255}", OTHER_MAC)
            if number % 100 == 0:
                eventlet.sleep(1)
            most = max(most, len(world.state.hosts))
        assert most <= world.state.settings.max_hosts_per_port
        eventlet.sleep(20)
        world.app._heard_at((A, EDGE_PORT), "10.8.0.1", OTHER_MAC)
        eventlet.sleep(2)
        world.arrive(reply("10.8.0.2", OTHER_MAC))
        assert set(world.state.hosts) == {IP, "10.8.0.2"}
        assert len(world.app._moves) == 0 and len(world.state._hosts_behind) == 1

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


def test_arp_that_ends_at_a_switch_where_nobody_has_the_address_is_answered_once_the_host_is_found(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        world.arrive(request(OTHER_IP, ip="10.0.0.77"), dpid=B, port_no=FABRIC_PORT, table=Table.DELIVERY)
        assert world.sent == []     # from nobody that is known
        world.arrive(ipv4(IP, OTHER_IP))
        world.sent.clear()
        world.arrive(request(OTHER_IP), dpid=B, port_no=FABRIC_PORT, table=Table.DELIVERY)
        assert {packet.target_ip for _, _, packet in world.sent} == {OTHER_IP}
        world.sent.clear()
        world.arrive(reply(OTHER_IP, OTHER_MAC), dpid=B)
        eventlet.sleep(1)
        ((dpid, ports, packet),) = world.sent
        assert (dpid, ports, packet.sender_mac) == (A, (EDGE_PORT,), OTHER_MAC)

    run(scenario)
