"""LLDP frames that hosts forge, record or relay, at the discovery application in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import eventlet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ryu.controller.handler import MAIN_DISPATCHER

from speedwell.controller.errors import InvalidSettings
from speedwell.controller.settings import Settings, load_settings
from speedwell.controller.switches.entries import dpid_hex
from speedwell.controller.switches.layout import Table
from speedwell.controller.switches.packet_ins import PacketIn
from speedwell.controller.topology import lldp
from speedwell.controller.topology.declared_ports import DeclaredPorts
from speedwell.controller.topology.discovery import NEW_SWITCH_SECONDS
from speedwell.controller.topology.probing import FRESH_PROBES, Probing
from speedwell.controller.topology.state import HostLocation, PortKey, PortKind
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated
from tests.unit.controller.topology.test_discovery_simulated import DOWN, World

EDGE, OTHER_EDGE = (dpid_hex(1), 2), (dpid_hex(2), 1)
"""In a ring of two switches with two ports each, this cable is pulled; the other stays."""
LINK = (dpid_hex(1), 1), (dpid_hex(2), 2)


class Fabric(World):
    """Two switches, joined once; what leaves by the two edge ports is recorded as a host there could."""

    def __init__(self, hub: SimulatedHub, patch: pytest.MonkeyPatch, settings: Settings | None = None) -> None:
        super().__init__(hub, patch, switches=2, ports=2, settings=settings)
        self.wires = {LINK[0]: LINK[1], LINK[1]: LINK[0]}
        self.recorded: dict[PortKey, list[bytes]] = {EDGE: [], OTHER_EDGE: []}
        eventlet.sleep(30)
        assert self.state.links == self.wires
        assert all(self.state.is_edge_port(*key) for key in self.recorded)

    def probe_left(self, source: PortKey, frame: bytes) -> None:
        super().probe_left(source, frame)
        if hasattr(self, "recorded") and source in self.recorded:
            self.recorded[source].append(frame)

    def arrive(self, frame: bytes, key: PortKey) -> None:
        self.app.probe_arrived(PacketIn(self.datapaths[key[0]], key[1], Table.CLASSIFY, frame))

    def relay(self, source: PortKey, destination: PortKey) -> None:
        """From now on, what leaves by one port arrives at the other."""
        self.wires[source] = destination

    def refused(self, why: str) -> int:
        return self.state.refusals.counts["lldp", why]

    def assert_as_before(self) -> None:
        assert self.state.links == {LINK[0]: LINK[1], LINK[1]: LINK[0]}
        assert self.lost_links == []
        assert all(self.state.is_edge_port(*key) for key in self.recorded)


@pytest.fixture(name="run")
def _run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Fabric, SimulatedHub], None]], None]:
    return lambda scenario: run_simulated(lambda hub: scenario(Fabric(hub, monkeypatch), hub))


def forged(source: PortKey, epoch: int = 10**6) -> bytes:
    return lldp.sign(lldp.unsigned(source, "02:00:00:00:00:66"), epoch, b"a host's guess")


def test_a_forged_probe_neither_parts_a_link_nor_makes_one(run: Any) -> None:
    def scenario(fabric: Fabric, hub: SimulatedHub) -> None:
        for _ in range(50):
            fabric.arrive(forged(LINK[0]), EDGE)
            fabric.arrive(forged(EDGE), OTHER_EDGE)
            fabric.arrive(forged(OTHER_EDGE), EDGE)
            eventlet.sleep(0.5)
        fabric.assert_as_before()
        assert fabric.refused("forged") == 150

    run(scenario)


def test_an_altered_probe_is_refused(run: Any) -> None:
    def scenario(fabric: Fabric, hub: SimulatedHub) -> None:
        frame = fabric.recorded[EDGE][-1]
        port_at = frame.index(b"\x07" + (2).to_bytes(4)) + 1
        altered = frame[:port_at] + (1).to_bytes(4) + frame[port_at + 4:]
        fabric.arrive(altered, OTHER_EDGE)
        fabric.assert_as_before()
        assert fabric.refused("forged") == 1

    run(scenario)


def test_probes_that_hosts_recorded_are_refused_later(run: Any) -> None:
    def scenario(fabric: Fabric, hub: SimulatedHub) -> None:
        old = {key: list(frames) for key, frames in fabric.recorded.items()}
        eventlet.sleep(60)
        for key, other in ((EDGE, OTHER_EDGE), (OTHER_EDGE, EDGE)):
            for frame in old[key]:
                fabric.arrive(frame, other)
        fabric.assert_as_before()
        assert fabric.refused("replayed") == sum(map(len, old.values())) > 0

    run(scenario)


def test_a_port_with_a_host_gets_no_link_by_relayed_probes_and_its_hosts_are_asked(run: Any) -> None:
    def scenario(fabric: Fabric, hub: SimulatedHub) -> None:
        fabric.state.set_host(HostLocation("10.0.0.1", "02:00:00:00:00:11", *EDGE))
        fabric.relay(EDGE, OTHER_EDGE)
        fabric.relay(OTHER_EDGE, EDGE)
        eventlet.sleep(60)
        del fabric.wires[EDGE], fabric.wires[OTHER_EDGE]
        fabric.assert_as_before()
        assert fabric.refused("host") > 5
        assert set(fabric.doubted) == {EDGE}

    run(scenario)


def test_a_switch_plugged_in_where_only_tables_had_a_host_gets_its_link_once_that_is_forgotten(run: Any) -> None:
    def scenario(fabric: Fabric, hub: SimulatedHub) -> None:
        fabric.state.set_host(HostLocation("10.0.0.1", "02:00:00:00:00:11", *EDGE))
        fabric.relay(EDGE, OTHER_EDGE)
        fabric.relay(OTHER_EDGE, EDGE)
        eventlet.sleep(15)
        assert EDGE not in fabric.state.links and fabric.doubted
        fabric.state.remove_host("10.0.0.1")
        eventlet.sleep(15)
        assert fabric.state.links[EDGE] == OTHER_EDGE
        assert fabric.state.ports[EDGE].kind is PortKind.FABRIC

    run(scenario)


def test_hosts_whose_probes_were_relayed_while_their_switches_were_new_get_no_link_later(run: Any) -> None:
    def scenario(fabric: Fabric, hub: SimulatedHub) -> None:
        for key in LINK:
            fabric.datapaths[key[0]].close()
        eventlet.sleep(1)
        for key in LINK:
            fabric.datapaths[key[0]].state = MAIN_DISPATCHER
            fabric.connect(fabric.datapaths[key[0]].id)
        eventlet.sleep(2)
        fabric.state.set_host(HostLocation("10.0.0.1", "02:00:00:00:00:11", *EDGE))
        fabric.state.host_ports.add(EDGE)
        fabric.relay(EDGE, OTHER_EDGE)
        fabric.relay(OTHER_EDGE, EDGE)
        eventlet.sleep(NEW_SWITCH_SECONDS)
        fabric.state.remove_host("10.0.0.1")
        eventlet.sleep(60)
        assert fabric.refused("host") > 0 and fabric.refused("former-host") > 5
        assert set(fabric.state.links) == set(LINK)

    run(scenario)


@pytest.mark.parametrize("has_host", [EDGE, OTHER_EDGE])
def test_a_port_by_which_a_host_spoke_gets_no_link_until_it_goes_down(run: Any, has_host: PortKey) -> None:
    def scenario(fabric: Fabric, hub: SimulatedHub) -> None:
        fabric.state.host_ports.add(has_host)
        fabric.relay(EDGE, OTHER_EDGE)
        fabric.relay(OTHER_EDGE, EDGE)
        eventlet.sleep(60)
        assert fabric.refused("former-host") > 5
        assert set(fabric.state.links) == set(LINK) and fabric.lost_links == []
        assert all(fabric.state.is_edge_port(*key) for key in fabric.recorded)
        fabric.port_status(has_host, DOWN)
        fabric.port_status(has_host, 0)
        eventlet.sleep(1)
        assert fabric.state.links[EDGE] == OTHER_EDGE

    run(scenario)


@pytest.mark.parametrize("declared", [EDGE, OTHER_EDGE])
def test_silent_hosts_that_relay_probes_make_no_link_where_one_port_is_declared_to_lead_to_hosts(
        monkeypatch: pytest.MonkeyPatch, declared: PortKey) -> None:
    def scenario(hub: SimulatedHub) -> None:
        fabric = Fabric(hub, monkeypatch, Settings(host_ports=(f"{declared[0]}:{declared[1]}",)))
        fabric.relay(EDGE, OTHER_EDGE)
        fabric.relay(OTHER_EDGE, EDGE)
        eventlet.sleep(60)
        fabric.port_status(declared, DOWN)
        fabric.port_status(declared, 0)
        assert fabric.state.is_edge_port(*declared), "at once"
        eventlet.sleep(60)
        assert fabric.recorded[declared] == [], "it is not even probed"
        assert fabric.refused("declared") > 5
        assert set(fabric.state.links) == set(LINK) and fabric.lost_links == []

    run_simulated(scenario)


@pytest.mark.parametrize(("entry", "named", "others"), [
    ("000000000000000A:3", [3], [2, 4]), ("000000000000000a:3-5", [3, 4, 5], [2, 6])])
def test_declared_ports_are_those_that_the_setting_names(entry: str, named: list[int], others: list[int]) -> None:
    ports = DeclaredPorts(Settings(host_ports=(entry,)).host_ports)
    assert all((dpid_hex(10), port_no) in ports for port_no in named)
    assert not any((dpid_hex(10), port_no) in ports for port_no in others)
    assert (dpid_hex(11), 3) not in ports


@pytest.mark.parametrize("entry", ["", ":", "leaf0:3", "0000000000000001", "0000000000000001:", "0000000000000001:0",
                                   "0000000000000001:5-3", "0000000000000001:a", "0000000000000001:1-", "1:1"])
def test_a_declared_port_that_cannot_be_is_refused_by_name(entry: str) -> None:
    with pytest.raises(InvalidSettings, match="host_ports"):
        load_settings(host_ports=[entry])


def test_hosts_that_spoke_through_a_switch_before_it_connected_do_not_keep_its_link_away(run: Any) -> None:
    def scenario(fabric: Fabric, hub: SimulatedHub) -> None:
        datapath = fabric.datapaths[OTHER_EDGE[0]]
        datapath.close()
        fabric.relay(EDGE, OTHER_EDGE)
        fabric.relay(OTHER_EDGE, EDGE)
        eventlet.sleep(60)
        fabric.state.host_ports.add(EDGE)
        datapath.state = MAIN_DISPATCHER
        fabric.connect(datapath.id)
        eventlet.sleep(5)
        assert fabric.state.links[EDGE] == OTHER_EDGE

    run(scenario)


A, B, C = ("a", 1), ("b", 1), ("c", 1)


def joined() -> Probing:
    probing = Probing(2.0, 400, 4)
    for key in (A, B, C):
        probing.add_port(key, 0.0)
    probing.received(A, B, probing.begin_epoch(A), 0.0)
    probing.received(B, A, probing.begin_epoch(B), 0.0)
    assert probing.joined_to(A) == B
    return probing


def test_an_epoch_counts_once() -> None:
    probing = joined()
    epoch = probing.begin_epoch(A)
    assert probing.received(A, B, epoch, 1.0).refused is None
    assert probing.received(A, B, epoch, 1.0).refused == "replayed"
    assert probing.received(A, C, epoch, 1.0).refused == "replayed"
    assert probing.joined_to(A) == B


def test_only_the_last_probes_of_a_port_may_tell_of_a_new_link() -> None:
    probing = Probing(2.0, 400, 4)
    for key in (A, B):
        probing.add_port(key, 0.0)
    epochs = [probing.begin_epoch(A) for _ in range(FRESH_PROBES + 1)]
    assert probing.received(A, B, epochs[0], 1.0).refused == "replayed"
    assert probing.received(A, B, epochs[1], 1.0).refused is None


def test_probes_from_before_a_port_went_down_are_refused() -> None:
    probing = joined()
    epoch = probing.begin_epoch(A)
    probing.add_port(A, 1.0)
    assert probing.received(A, B, epoch, 2.0).refused == "replayed"


def test_late_probes_keep_a_known_link_alive_however_many_left_since() -> None:
    probing = joined()
    epochs = [probing.begin_epoch(A) for _ in range(100)]
    for _ in epochs:
        probing.sent(A, 1.0)
    assert probing.is_suspect(A)
    assert probing.received(A, B, epochs[0], 2.0).refused is None
    assert not probing.is_suspect(A)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.sampled_from([A, B, C]), st.integers(-5, 60)), max_size=60),
       st.sets(st.sampled_from([A, B, C])))
def test_whatever_is_heard_no_port_with_a_host_becomes_part_of_a_link(
        frames: list[tuple[PortKey, PortKey, int]], with_hosts: set[PortKey]) -> None:
    probing = Probing(2.0, 400, 4)
    for key in (A, B, C):
        probing.add_port(key, 0.0)
    for source, destination, epoch in frames:
        probing.begin_epoch(source)
        probing.received(source, destination, epoch, 1.0, with_hosts.__contains__)
        for key in with_hosts:
            assert probing.far_end(key) is None and probing.joined_to(key) is None
