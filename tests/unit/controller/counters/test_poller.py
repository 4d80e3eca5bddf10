"""The poller's rounds: what it asks whom, and what it makes of late, lost, refused and foreign answers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest

from speedwell.controller.counters.measurements import StatsRequest
from speedwell.controller.counters.poller import LOST_AFTER_INTERVALS, EventMeasured, Poller
from speedwell.controller.loops import Loops
from speedwell.controller.services import Services
from speedwell.controller.switches.transactions import Confirmations
from tests.unit.controller.in_process import AGGREGATIONS, EDGES, Controller

ofproto = importlib.import_module("ryu.ofproto.ofproto_v1_3")
ofproto_parser = importlib.import_module("ryu.ofproto.ofproto_parser")
parser = importlib.import_module("ryu.ofproto.ofproto_v1_3_parser")
INTERVAL_SECONDS = 0.05
PORT_REQUEST = ofproto.OFPMP_PORT_STATS
REPLIES = {kind: type(name, (SimpleNamespace,), {}) for kind, name in (
    (PORT_REQUEST, "OFPPortStatsReply"), (ofproto.OFPMP_TABLE, "OFPTableStatsReply"),
    (ofproto.OFPMP_FLOW, "OFPFlowStatsReply"))}


class Switch:
    """A connection whose requests are kept, by (kind, transaction id); `answer` makes it answer at once."""

    ofproto = ofproto
    ofproto_parser = parser
    is_backed_up = False

    def __init__(self, dpid: str) -> None:
        self.id = int(dpid, 16)
        self.requests: list[tuple[int, int]] = []
        self.answer: Callable[[int, int], None] | None = None
        self._xid = 100

    def set_xid(self, message: Any) -> None:
        self._xid += 1
        message.set_xid(self._xid)

    def send(self, buffer: bytes) -> bool:
        while buffer:
            _, _, length, xid = ofproto_parser.header(buffer)
            kind, buffer = int.from_bytes(buffer[8:10]), buffer[length:]
            self.requests.append((kind, xid))
            if self.answer is not None:
                self.answer(kind, xid)
        return True

    def asked(self, kind: int) -> int:
        return sum(each == kind for each, _ in self.requests)


class Polled:
    """A poller over the in-process fabric, whose edge switches are asked for something of a test's own too."""

    def __init__(self) -> None:
        controller = Controller(poll_interval_seconds=INTERVAL_SECONDS)
        self.state = controller.state
        self.state.confirmations = Confirmations()
        self.measurements = controller.measurements
        self.switches = {dpid: Switch(dpid) for dpid in (*EDGES, *AGGREGATIONS)}
        self.state.datapaths.update(self.switches)
        self.poller = Poller(Services(self.state, self.measurements, controller.application, Loops()))
        self.events: list[EventMeasured] = []
        self.poller.send_event_to_observers = self.events.append
        self.taken: list[tuple[str, list[Any]]] = []
        self.measurements.add_request(StatsRequest(
            "tables", lambda: EDGES, lambda datapath: parser.OFPTableStatsRequest(datapath, 0),
            lambda dpid, statistics, now: self.taken.append((dpid, statistics))))
        self.seconds = 10
        for switch in self.switches.values():
            switch.answer = lambda kind, xid, switch=switch: self.answer(switch, kind, xid)

    def answer(self, switch: Switch, kind: int, xid: int, more: bool = False) -> None:
        body = [SimpleNamespace(port_no=port_no, rx_bytes=self.seconds * 1000 * port_no,
                                tx_bytes=self.seconds * 2000 * port_no, duration_sec=self.seconds, duration_nsec=0)
                for port_no in (1, 2, 3, 4)] if kind == PORT_REQUEST else ["statistics"]
        self.state.confirmations._part_received(REPLIES[kind](
            datapath=switch, xid=xid, body=body, flags=ofproto.OFPMPF_REPLY_MORE if more else 0))

    def round(self) -> EventMeasured:
        self.poller.poll()
        self.seconds += 1
        return self.events[-1]

    def is_complete(self) -> bool:
        """Whether every switch answered everything in a round."""
        self.measurements.complete_at = None
        self.round()
        return self.measurements.complete_at is not None

    def new_ports(self) -> set[tuple[str, int]]:
        """What a round reads anew."""
        event = self.round()
        return {key for key, counters in self.measurements.ports.items()
                if (counters.sent.read_at or 0.0) >= event.began_at}


@pytest.fixture
def polled() -> Polled:
    return Polled()


def test_every_switch_is_asked_for_ports_and_whoever_a_system_wants_for_what_it_asks(polled: Polled) -> None:
    assert len(polled.new_ports()) == 16
    for dpid, switch in polled.switches.items():
        assert switch.asked(PORT_REQUEST) == 1
        assert switch.asked(ofproto.OFPMP_TABLE) == (dpid in EDGES)
    assert sorted(polled.taken) == [(dpid, ["statistics"]) for dpid in EDGES]


def test_two_rounds_make_rates(polled: Polled) -> None:
    polled.round()
    polled.round()
    counters = polled.measurements.ports[EDGES[0], 3]
    assert counters.received.rate_bps == pytest.approx(8 * 3000)
    assert counters.sent.rate_bps == pytest.approx(8 * 6000)


def test_requests_of_a_round_are_spread_not_sent_at_once(polled: Polled) -> None:
    clock = eventlet.hubs.get_hub().clock
    begin, sent = clock(), []
    for switch in polled.switches.values():
        switch.answer = lambda kind, xid, switch=switch: (sent.append(clock() - begin),
                                                          polled.answer(switch, kind, xid))
    polled.round()
    assert sent[-1] - sent[0] > 0.1 * INTERVAL_SECONDS


def test_slow_switch_is_not_asked_again_and_does_not_hold_up_the_others(polled: Polled) -> None:
    slow = polled.switches[EDGES[0]]
    answer, slow.answer = slow.answer, None
    for _ in range(3):
        assert {dpid for dpid, _ in polled.new_ports()} == {EDGES[1], *AGGREGATIONS}
    assert slow.asked(PORT_REQUEST) == slow.asked(ofproto.OFPMP_TABLE) == 1
    assert polled.measurements.complete_at is None
    for kind, xid in list(slow.requests):
        polled.answer(slow, kind, xid)
    slow.answer = answer
    eventlet.sleep(0)
    assert polled.is_complete()


def test_lost_answer_is_asked_for_again_in_the_end(polled: Polled) -> None:
    lossy = polled.switches[AGGREGATIONS[0]]
    answer, lossy.answer = lossy.answer, None
    polled.round()
    lossy.answer = answer
    rounds = 0
    while not polled.is_complete():
        rounds += 1
        assert rounds < 10 * LOST_AFTER_INTERVALS
    assert lossy.asked(PORT_REQUEST) == 2


def test_reconnected_switch_is_asked_at_once(polled: Polled) -> None:
    former = polled.switches[EDGES[0]]
    former.answer = None
    polled.round()
    again = polled.switches[EDGES[0]] = polled.state.datapaths[EDGES[0]] = Switch(EDGES[0])
    again.answer = lambda kind, xid: polled.answer(again, kind, xid)
    assert polled.is_complete()
    before = len(polled.taken)
    polled.answer(former, *next(request for request in former.requests if request[0] != PORT_REQUEST))
    eventlet.sleep(0)
    assert len(polled.taken) == before, "what a former connection says is late"
    assert polled.is_complete()


def test_answer_in_several_parts_counts_when_the_last_is_there(polled: Polled) -> None:
    switch = polled.switches[EDGES[0]]

    def in_two_parts(kind: int, xid: int) -> None:
        polled.answer(switch, kind, xid, more=True)
        if kind != PORT_REQUEST:
            polled.answer(switch, kind, xid)

    switch.answer = in_two_parts
    assert not polled.is_complete()
    assert (EDGES[0], ["statistics"] * 2) in polled.taken


@pytest.mark.parametrize("trouble", ["refuses", "is of no use"])
def test_what_one_switch_cannot_tell_does_not_harm_the_round(polled: Polled, trouble: str) -> None:
    def fails(dpid: str, statistics: list[Any], now: float) -> None:
        raise KeyError(dpid)

    if trouble == "refuses":
        switch = polled.switches[EDGES[0]]
        switch.answer = lambda kind, xid: polled.state.confirmations.refused(switch, xid, "type", "code")
        assert {dpid for dpid, _ in polled.new_ports()} == {EDGES[1], *AGGREGATIONS}
    else:
        polled.measurements.add_request(StatsRequest(
            "more", lambda: EDGES, lambda datapath: parser.OFPTableStatsRequest(datapath, 0), fails))
        assert len(polled.new_ports()) == 16
    assert polled.measurements.complete_at is None


def test_switch_that_goes_in_the_middle_of_a_round_does_not_end_it(polled: Polled) -> None:
    leaving = polled.switches[EDGES[0]]

    def leave(kind: int, xid: int) -> None:
        polled.state.datapaths.pop(EDGES[1], None)
        polled.answer(leaving, kind, xid)

    leaving.answer = leave
    assert {dpid for dpid, _ in polled.new_ports()} >= {EDGES[0], *AGGREGATIONS}


def test_round_without_switches_passes(polled: Polled) -> None:
    polled.state.datapaths.clear()
    polled.round()
    assert len(polled.events) == 1


def test_nothing_grows_while_a_switch_is_late_and_ports_come_and_go(polled: Polled) -> None:
    polled.switches[EDGES[0]].answer = None
    polled.poller._interval_seconds = 1e-4
    ports, info = polled.state.ports, polled.state.ports[EDGES[1], 1]
    for number in range(10_000):
        polled.measurements.read_port((EDGES[1], number), 1, 1, 1.0, 1.0)
    ports[EDGES[1], 9_999] = info
    polled.round()
    assert set(polled.measurements.ports) <= set(ports)
