"""Whatever hosts, senders of reports and switches send that they should not: nothing ends, and nothing moves.

The whole controller with a read and a coflow under way, in simulated time.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ryu.ofproto import ofproto_v1_3_parser

from speedwell.coflow.report import Flow, FlowReport, Report, encode
from speedwell.controller.switches.layout import Priority, Table
from speedwell.controller.switches.packet_ins import PacketIn
from speedwell.controller.topology import arp, lldp
from speedwell.topo.fabric import spine_leaf
from tests.unit.controller.house import KEY, House
from tests.unit.controller.simulated_time import SimulatedHub, run_simulated

XID = st.integers(0, 1 << 32).map(lambda number: number - 1)
MUTATIONS = st.lists(st.tuples(st.sampled_from(["set", "cut", "put"]), st.floats(0, 1), st.integers(0, 255)),
                     min_size=1, max_size=4)
REPLIES = ["OFPFlowStatsReply", "OFPGroupDescStatsReply", "OFPPortStatsReply", "OFPMeterConfigStatsReply",
           "OFPDescStatsReply", "OFPMeterFeaturesStatsReply"]
PLACES = st.integers(0, 7)
EVENT = st.one_of(
    st.tuples(st.just("frame"), PLACES, st.one_of(st.binary(max_size=80), st.builds(
        lambda kind, rest: bytes(12) + kind + rest, st.sampled_from([b"\x88\xcc", b"\x08\x06", b"\x08\x00"]),
        st.binary(max_size=80)))),
    st.tuples(st.just("probe"), PLACES, MUTATIONS),
    st.tuples(st.just("arp"), PLACES, MUTATIONS),
    st.tuples(st.just("report"), PLACES, st.one_of(MUTATIONS, st.binary(max_size=1500))),
    st.tuples(st.just("barrier"), PLACES, XID),
    st.tuples(st.just("error"), PLACES, XID),
    st.tuples(st.just("reply"), st.sampled_from(REPLIES), XID),
)


def mutated(data: bytes, mutations: list[tuple[str, float, int]]) -> bytes:
    body = bytearray(data)
    for what, where, value in mutations:
        at = int(where * (len(body) - 1)) if body else 0
        if what == "set" and body:
            body[at] ^= value or 1
        elif what == "cut":
            del body[at:]
        else:
            body[at:at] = bytes([value])
    return bytes(body) if body != data else data[:-1]


class Attacked:
    """A fabric at rest but for one read and one coflow."""

    def __init__(self, hub: SimulatedHub, patch: pytest.MonkeyPatch, directory: Path) -> None:
        self.house = house = House(hub, patch, directory, spine_leaf(leaves=2, spines=2, hosts_per_leaf=2), 1)
        eventlet.sleep(5)
        for place in house.places:
            house.announce(place)
        eventlet.sleep(5)
        house.read("r0h0", ["r1h0"], 1)
        house.report([("r0h1", "r1h1")])
        eventlet.sleep(5)
        self.ports = [key for key, port in sorted(house.life.state.ports.items()) if port.up]

    def happen(self, kind: str, where: Any, what: Any) -> None:
        getattr(self, f"_{kind}")(where, what)

    def _hand_up(self, where: int, frame: bytes) -> None:
        dpid, port_no = self.ports[where % len(self.ports)]
        packet_ins = self.house.life.packet_ins
        handler = packet_ins.on_probe if frame[12:14] == b"\x88\xcc" else packet_ins.on_packet
        handler(PacketIn(self.house.connections[dpid], port_no, Table.SOURCES, frame))

    _frame = _hand_up

    def _probe(self, where: int, mutations: Any) -> None:
        frame = lldp.sign(lldp.unsigned(self.ports[where % len(self.ports)], "02:00:00:00:00:66"), 7, b"guessed")
        self._hand_up(where + 1, mutated(frame, mutations))

    def _arp(self, where: int, mutations: Any) -> None:
        victim, other = sorted(self.house.network.hosts.values(), key=lambda host: host.ip)[:2]
        frame = arp.build(arp.Packet(arp.REPLY, other.mac, victim.ip, other.mac, other.ip))
        self._hand_up(where, mutated(frame, mutations))

    def _report(self, where: int, what: Any) -> None:
        flow = Flow("10.0.0.1", "10.0.1.1", 4000 + where, 9000)
        good = encode(Report(bytes(16), 7, 1 << 40, round(self.house.hub.now * 1e6), (FlowReport(flow, 10**8),)), KEY)
        self.house.life.coflows.receive(what if isinstance(what, bytes) else mutated(good, what))

    def _barrier(self, where: int, xid: int) -> None:
        self.house.life.state.confirmations.barrier_replied(self._connection(where), xid)

    def _error(self, where: int, xid: int) -> None:
        self.house.life.state.confirmations.refused(self._connection(where), xid, "OFPET_BAD_REQUEST", "OFPBRC_EPERM")

    def _reply(self, kind: str, xid: int) -> None:
        reply = getattr(ofproto_v1_3_parser, kind)(self._connection(xid), body=[SimpleNamespace()] * 3)
        reply.set_xid(xid)
        reply.flags = xid % 2
        self.house.life.answered(reply)

    def _connection(self, where: int) -> Any:
        return self.house.connections[sorted(self.house.connections)[where % len(self.house.connections)]]

    def held(self) -> Any:
        """What nobody may change who is not entitled to."""
        life = self.house.life
        own = {host.ip for host in self.house.network.hosts.values()}
        return (dict(life.state.links), {ip: host for ip, host in life.state.hosts.items() if ip in own},
                {record.five_tuple: record.path for record in life.forwarding.records},
                [read.id for read in life.reads], {flow for coflow in life.coflows.book for flow in coflow.flows},
                {(dpid, entry.cookie, entry.actions) for dpid, switch in self.house.switches.items()
                 for entry in switch.flows.values() if entry.priority == Priority.EXPLICIT_PATH})


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@example([("arp", 0, [("set", 0.0, 0)]), *[("barrier", 0, -1)] * 4, ("arp", 0, [("set", 0.0, 0)]),
          ("arp", 4, [("put", 0.375, 0)])], 0.001)      # a host at 2.10.0.0, beside those in 10.0.0.0/8
@given(events=st.lists(EVENT, min_size=20, max_size=60), pause=st.sampled_from([0.0, 0.001, 0.05]))
def test_hostile_input_ends_no_loop_and_changes_nothing(events: list[Any], pause: float) -> None:
    def scenario(hub: SimulatedHub) -> None:
        with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as directory:
            attacked = Attacked(hub, patch, Path(directory))
            before = attacked.held()
            for event in events:
                attacked.happen(*event)
                eventlet.sleep(pause)
            eventlet.sleep(5)
            assert attacked.held() == before
            house = attacked.house
            house.read("r0h1", ["r1h1"], 1)
            house.report([("r1h0", "r0h0")])
            eventlet.sleep(3)
            assert len(house.reads) == 2 and len(house.life.coflows.book.enforced) == 2, "it goes on as before"
            house.end()
            assert house.failures == []

    run_simulated(scenario)
