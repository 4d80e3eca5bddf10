"""The network state: whatever happens to it in whatever order, it is whole, and what is refused changes nothing."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from speedwell.controller.errors import ControllerError
from speedwell.controller.policy.network.graph import Link
from speedwell.controller.switches.entries import dpid_hex
from speedwell.controller.topology.state import HostLocation, NetworkState, PortInfo, PortKind, SwitchInfo

DPIDS = st.integers(1, 4).map(dpid_hex)
PORTS = st.integers(1, 3)
KEYS = st.tuples(DPIDS, PORTS)
ADDRESSES = st.integers(1, 5).map(lambda number: f"10.0.0.{number}")
CAPACITIES = st.sampled_from([1e6, 1e9, math.inf, math.nan, 0.0, -1.0])


class Machine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.state = NetworkState()

    def attempt(self, change: Any, *arguments: Any) -> None:
        before = picture(self.state)
        try:
            change(*arguments)
        except ControllerError:
            assert picture(self.state) == before

    @rule(dpid=DPIDS)
    def connect(self, dpid: str) -> None:
        info = SwitchInfo(dpid, dpid, "192.0.2.1", True)
        self.attempt(self.state.switch_connected, info, SimpleNamespace(id=int(dpid, 16)))

    @rule(dpid=DPIDS)
    def disconnect(self, dpid: str) -> None:
        self.attempt(self.state.switch_disconnected, dpid)

    @rule(dpid=DPIDS)
    def forget(self, dpid: str) -> None:
        if dpid not in self.state.datapaths:
            for host in self.state.hosts_at(dpid):
                self.state.remove_host(host.ip)
        self.attempt(self.state.forget_switch, dpid)

    @rule(key=KEYS, up=st.booleans(), kind=st.sampled_from(PortKind), capacity_bps=CAPACITIES)
    def set_port(self, key: tuple[str, int], up: bool, kind: PortKind, capacity_bps: float) -> None:
        port = PortInfo(key[1], f"eth{key[1]}", "02:00:00:00:00:01", up, capacity_bps, kind)
        self.attempt(self.state.set_port, key[0], port)

    @rule(key=KEYS)
    def remove_port(self, key: tuple[str, int]) -> None:
        self.attempt(self.state.remove_port, key)

    @rule(a=KEYS, b=KEYS)
    def add_link(self, a: tuple[str, int], b: tuple[str, int]) -> None:
        self.attempt(self.state.add_link, a, b)

    @rule(key=KEYS)
    def remove_link(self, key: tuple[str, int]) -> None:
        self.attempt(self.state.remove_link, key)

    @rule(ip=ADDRESSES, key=KEYS)
    def set_host(self, ip: str, key: tuple[str, int]) -> None:
        self.attempt(self.state.set_host, HostLocation(ip, "02:00:00:00:00:11", *key))

    @rule(ip=ADDRESSES)
    def remove_host(self, ip: str) -> None:
        self.attempt(self.state.remove_host, ip)

    @invariant()
    def the_graph_says_what_the_rest_says(self) -> None:
        if not hasattr(self, "state"):
            return
        state = self.state
        assert state.network.switches == state.datapaths.keys()
        assert {dpid for dpid, info in state.switches.items() if info.connected} == state.datapaths.keys()
        assert all(key[0] in state.datapaths for key in state.ports)
        assert all(state.links[peer] == key and key != peer for key, peer in state.links.items())
        assert all(key in state.ports and state.ports[key].up for key in state.links)
        for (dpid, port_no), last in state._last_hops.items():
            assert state.ports[dpid, port_no].up and (dpid, port_no) not in state.links
            assert (dpid, last) in state.switch_ports() and last in state.edge_switches()
        attached = {host.ip: host for host in state.hosts.values()
                    if host.port_key in state.ports and state.ports[host.port_key].up}
        assert state.network.hosts == attached.keys()
        expected: set[Link] = {(a[0], b[0]) for a, b in state.links.items() if a[0] != b[0]}
        expected |= {link for host in attached.values() for link in ((host.ip, host.dpid), (host.dpid, host.ip))}
        assert set(state.network.links) == expected
        for node, other in expected:
            if node in state.datapaths:
                port = state.ports[node, state.port_toward(node, other)]
                assert state.network.capacity_bps((node, other)) == port.capacity_bps
        for dpid in state.datapaths:
            assert state.edge_ports(dpid) == sorted(
                port.port_no for (owner, _), port in state.ports.items()
                if owner == dpid and port.up and port.kind is PortKind.EDGE)
        for key in {host.port_key for host in state.hosts.values()} | state.ports.keys():
            assert {host.ip for host in state.hosts_behind(key)} == {
                host.ip for host in state.hosts.values() if host.port_key == key}


def picture(state: NetworkState) -> Any:
    return (dict(state.switches), dict(state.datapaths), dict(state.ports), dict(state.links), dict(state.hosts),
            sorted(state.network.links), state.network.version)


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestNetworkState = Machine.TestCase
