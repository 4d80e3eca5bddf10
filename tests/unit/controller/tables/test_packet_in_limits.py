"""Which meters limit what switches hand up, with fake switches in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import eventlet
import pytest

from speedwell.controller.switches.entries import PORT_CONTROLLER, FlowEntry, Output, PacketMeter
from speedwell.controller.switches.ovsdb import limits_to_write
from speedwell.controller.topology.events import EventSwitchChanged
from speedwell.controller.topology.packet_in_limits import PACKETS_METER, PROBES_METER, meter_of_port
from speedwell.controller.topology.state import NetworkState
from tests.unit.controller.fake_switch import FakeSwitch, Packet
from tests.unit.controller.forwarding_world import World
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated

LLDP = Packet.of(eth_type=0x88CC)
STRANGER = Packet.of(eth_type=0x0800, eth_src="02:00:00:00:00:99", ipv4_src="10.9.9.9", ipv4_dst="10.0.0.1",
                     ip_proto=17)
ASKING = Packet.of(eth_type=0x0806, arp_op=1, arp_sha="02:00:00:00:00:99", arp_spa="10.9.9.9", arp_tpa="10.9.9.8")


@pytest.fixture(name="run")
def _run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[World, SimulatedHub], None]], None]:
    return lambda scenario: run_simulated(lambda hub: scenario(World(hub, monkeypatch), hub))


def entries_up(switch: FakeSwitch) -> list[FlowEntry]:
    return [entry for entry in switch.flows.values() if Output(PORT_CONTROLLER) in entry.actions]


def edge(world: World) -> tuple[FakeSwitch, int]:
    dpid = world.state.edge_switches()[0]
    return world.network.switches[dpid], world.state.edge_ports(dpid)[0]


def meters_crossed(switch: FakeSwitch, packet: Packet, in_port: int) -> list[int | None]:
    """The meters of the entries by which a packet is handed up."""
    found, table = [], 0
    while (entry := switch.lookup(table, packet, in_port)) is not None:
        if Output(PORT_CONTROLLER) in entry.actions:
            found.append(entry.meter_id)
        if entry.goto is None:
            break
        table = entry.goto
    return found


def test_no_packet_is_handed_up_without_a_meter(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        for dpid, switch in world.network.switches.items():
            ports = world.state.edge_ports(dpid)
            assert {entry.meter_id for entry in entries_up(switch)} == {
                PROBES_METER, PACKETS_METER, *map(meter_of_port, ports)} == set(switch.packet_meters)

    run(scenario)


def test_what_the_hosts_of_a_port_cause_counts_on_the_meter_of_that_port_alone(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        switch, port_no = edge(world)
        own = meter_of_port(port_no)
        for packet in (LLDP, STRANGER, ASKING):
            assert set(meters_crossed(switch, packet, port_no)) == {own}
        fabric_port = next(number for (dpid, number) in world.state.links if dpid == switch.dpid)
        assert meters_crossed(switch, LLDP, fabric_port) == [PROBES_METER]
        assert switch.packet_meters[own or 0] == PacketMeter(own or 0, 100, 100)

    run(scenario)


def test_a_switch_without_such_meters_hands_up_all_and_is_kept_as_planned(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        switch, port_no = edge(world)
        switch.has_no_packet_meters = True
        restart(world, switch)
        assert switch.packet_meters == {} and meters_crossed(switch, LLDP, port_no) == [None]
        assert not world.app.is_busy

    run(scenario)


def test_meters_of_an_earlier_controller_get_the_rates_of_this_one(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        switch, _ = edge(world)
        before = dict(switch.packet_meters)
        restart(world, switch, packet_meters={number: PacketMeter(number, 7, 7) for number in before})
        assert switch.packet_meters == before
        assert all(entry.meter_id is not None for entry in entries_up(switch))

    run(scenario)


def test_a_meter_that_somebody_deletes_is_there_again_with_its_entries_after_the_next_look(run: Any) -> None:
    def scenario(world: World, hub: SimulatedHub) -> None:
        switch, port_no = edge(world)
        gone = meter_of_port(port_no)
        assert gone is not None
        entries = dict(switch.flows)
        del switch.packet_meters[gone]
        switch.flows = {key: entry for key, entry in switch.flows.items() if entry.meter_id != gone}
        switch._by_table = None
        eventlet.sleep(130)
        assert gone in switch.packet_meters and switch.flows == entries

    run(scenario)


def restart(world: World, switch: FakeSwitch, packet_meters: dict[int, PacketMeter] | None = None) -> None:
    """The switch is back with nothing but, perhaps, some meters."""
    state: NetworkState = world.state
    switch.flows, switch.groups, switch.packet_meters, switch._by_table = {}, {}, packet_meters or {}, None
    state.packet_in_meters.pop(switch.dpid, None)
    world.app.switch_changed(EventSwitchChanged(switch.dpid, connected=True))
    eventlet.sleep(10)


def rows(rate_limit: Any, target: str = "tcp:10.255.0.1:6653") -> Any:
    return {"Bridge": [{"datapath_id": "0000000000000001", "controller": ["set", [["uuid", "a"], ["uuid", "b"]]]}],
            "Controller": [{"_uuid": ["uuid", uuid], "target": its, "controller_rate_limit": rate_limit,
                            "controller_burst_limit": ["set", []]}
                           for uuid, its in (("a", target), ("b", "tcp:10.0.0.9:6653"), ("c", target))]}


@pytest.mark.parametrize(("present", "is_written"), [(["set", []], True), (5000, True), (1000, False), (200, False)])
def test_the_rate_limit_is_written_to_the_row_of_this_controller_unless_it_is_lower(
        present: Any, is_written: bool) -> None:
    operations = limits_to_write(rows(present), "0000000000000001", "tcp:10.255.0.1:6653", 1000)
    assert [operation["where"] for operation in operations] == [[["_uuid", "==", ["uuid", "a"]]]] * is_written
    assert all(operation["row"] == {"controller_rate_limit": 1000, "controller_burst_limit": 250}
               for operation in operations)
    assert limits_to_write(rows(present), "0000000000000002", "tcp:10.255.0.1:6653", 1000) == []
