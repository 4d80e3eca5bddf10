"""The monitor's rounds: what it asks whom, and what it makes of late, lost, split and foreign answers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import eventlet
import pytest

from controller.apps.monitor import LOST_AFTER_INTERVALS, EventMeasured, Monitor
from controller.openflow import COOKIE_MASK, COOKIE_READS
from tests.unit.controller.in_process import AGGREGATIONS, EDGES, Controller

ofproto = importlib.import_module("ryu.ofproto.ofproto_v1_3")
parser = importlib.import_module("ryu.ofproto.ofproto_v1_3_parser")
INTERVAL_SECONDS = 0.05


class Switch:
    """A connection whose requests are kept; `answers` makes it answer at once."""

    ofproto = ofproto
    ofproto_parser = parser

    def __init__(self, dpid: str) -> None:
        self.id = int(dpid, 16)
        self.requests: list[Any] = []
        self.answer: Callable[[Any], None] | None = None
        self._xid = 100

    def set_xid(self, message: Any) -> None:
        self._xid += 1
        message.set_xid(self._xid)

    def send_msg(self, message: Any) -> None:
        self.requests.append(message)
        if self.answer is not None:
            self.answer(message)

    def asked(self, kind: str) -> list[Any]:
        return [request for request in self.requests if type(request).__name__ == f"OFP{kind}StatsRequest"]


class Polled:
    """A monitor over the in-process fabric, its switches answering with counters that this class keeps."""

    def __init__(self) -> None:
        controller = Controller(poll_interval_seconds=INTERVAL_SECONDS)
        self.state = controller.state
        self.measurements = controller.measurements
        self.switches = {dpid: Switch(dpid) for dpid in (*EDGES, *AGGREGATIONS)}
        self.state.datapaths.update(self.switches)
        self.monitor = Monitor(state=self.state, measurements=self.measurements, rest=controller.application)
        self.events: list[EventMeasured] = []
        self.monitor.send_event_to_observers = self.events.append
        self.seconds = 10
        for switch in self.switches.values():
            switch.answer = lambda request, switch=switch: self.answer(switch, request)

    def answer(self, switch: Switch, request: Any, more: bool = False) -> None:
        flags = ofproto.OFPMPF_REPLY_MORE if more else 0
        if type(request).__name__ == "OFPPortStatsRequest":
            body = [parser.OFPPortStats(port_no, 0, 0, self.seconds * 1000 * port_no, self.seconds * 2000 * port_no,
                                        0, 0, 0, 0, 0, 0, 0, 0, self.seconds, 0) for port_no in (1, 2, 3, 4)]
            reply, handler = parser.OFPPortStatsReply(switch), self.monitor._ports_counted
        else:
            body = [self.flow(COOKIE_READS | switch.id)]
            reply, handler = parser.OFPFlowStatsReply(switch), self.monitor._flows_counted
        reply.body, reply.flags, reply.xid = body, flags, request.xid
        handler(type("Event", (), {"msg": reply})())

    def flow(self, cookie: int) -> Any:
        return parser.OFPFlowStats(table_id=3, duration_sec=self.seconds, duration_nsec=0, priority=1, idle_timeout=0,
                                   hard_timeout=0, flags=0, cookie=cookie, packet_count=self.seconds,
                                   byte_count=self.seconds * 5000, match=parser.OFPMatch(), instructions=[])

    def round(self) -> EventMeasured:
        self.monitor._poll()
        self.seconds += 1
        return self.events[-1]


@pytest.fixture
def polled() -> Polled:
    return Polled()


def test_every_switch_is_asked_for_ports_and_edge_switches_for_the_flows_of_reads(polled: Polled) -> None:
    event = polled.round()
    for dpid, switch in polled.switches.items():
        assert len(switch.asked("Port")) == 1
        assert len(switch.asked("Flow")) == (dpid in EDGES)
    request = polled.switches[EDGES[0]].asked("Flow")[0]
    assert (request.cookie, request.cookie_mask) == (COOKIE_READS, COOKIE_MASK)
    assert event.complete and len(event.ports) == 16
    assert event.flows == {COOKIE_READS | int(dpid, 16): dpid for dpid in EDGES}


def test_two_rounds_make_rates(polled: Polled) -> None:
    polled.round()
    polled.round()
    counters = polled.measurements.ports[EDGES[0], 3]
    assert counters.received.rate_bps == pytest.approx(8 * 3000)
    assert counters.sent.rate_bps == pytest.approx(8 * 6000)
    assert polled.measurements.flows[COOKIE_READS | 1].latest_bps == pytest.approx(8 * 5000)


def test_requests_of_a_round_are_spread_not_sent_at_once(polled: Polled) -> None:
    begin, sent = eventlet.hubs.get_hub().clock(), []
    for switch in polled.switches.values():
        switch.answer = lambda request, switch=switch: (sent.append(eventlet.hubs.get_hub().clock() - begin),
                                                        polled.answer(switch, request))
    polled.round()
    assert sent[-1] - sent[0] > 0.1 * INTERVAL_SECONDS


def test_slow_switch_is_not_asked_again_and_does_not_hold_up_the_others(polled: Polled) -> None:
    slow = polled.switches[EDGES[0]]
    answer, slow.answer = slow.answer, None
    for _ in range(3):
        event = polled.round()
        assert not event.complete
        assert {dpid for dpid, _ in event.ports} == {EDGES[1], *AGGREGATIONS}
    assert len(slow.asked("Port")) == len(slow.asked("Flow")) == 1
    assert polled.measurements.complete_at is None
    for request in list(slow.requests):
        polled.answer(slow, request)
    slow.answer = answer
    assert polled.round().complete


def test_lost_answer_is_asked_for_again_in_the_end(polled: Polled) -> None:
    lossy = polled.switches[AGGREGATIONS[0]]
    answer, lossy.answer = lossy.answer, None
    polled.round()
    lossy.answer = answer
    rounds = 0
    while not polled.round().complete:
        rounds += 1
        assert rounds < 10 * LOST_AFTER_INTERVALS
    assert len(lossy.asked("Port")) == 2


def test_reconnected_switch_is_asked_at_once(polled: Polled) -> None:
    former = polled.switches[EDGES[0]]
    former.answer = None
    polled.round()
    again = polled.switches[EDGES[0]] = polled.state.datapaths[EDGES[0]] = Switch(EDGES[0])
    again.answer = lambda request: polled.answer(again, request)
    assert polled.round().complete
    polled.answer(former, former.requests[0])
    assert polled.round().complete


def test_answer_in_several_parts_counts_when_the_last_is_there(polled: Polled) -> None:
    switch = polled.switches[EDGES[0]]

    def in_two_parts(request: Any) -> None:
        polled.answer(switch, request, more=True)
        if type(request).__name__ == "OFPPortStatsRequest":
            polled.answer(switch, request)

    switch.answer = in_two_parts
    assert not polled.round().complete


def test_answers_to_the_questions_of_others_are_left_alone(polled: Polled) -> None:
    switch = polled.switches[EDGES[0]]

    class Foreign(parser.OFPFlowStatsRequest):
        xid = 7

    request = Foreign(switch)
    polled.answer(switch, request)
    assert polled.measurements.flows == {}


def test_switch_that_goes_in_the_middle_of_a_round_does_not_end_it(polled: Polled) -> None:
    leaving = polled.switches[EDGES[0]]

    def leave(request: Any) -> None:
        polled.state.datapaths.pop(EDGES[1], None)
        polled.answer(leaving, request)

    leaving.answer = leave
    polled.round()
    assert {dpid for dpid, _ in polled.events[-1].ports} >= {EDGES[0], *AGGREGATIONS}


def test_round_without_switches_passes(polled: Polled) -> None:
    polled.state.datapaths.clear()
    assert polled.round().ports == set()
