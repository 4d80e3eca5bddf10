"""The switches of a house, whose entries end by themselves, and their connections to the controller."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import eventlet
from ryu.controller import ofp_event
from ryu.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER
from ryu.ofproto import ofproto_parser, ofproto_v1_3, ofproto_v1_3_parser

from speedwell.controller.switches import wire
from speedwell.controller.switches.entries import FlowEntry, FlowKey, Group, Meter, PacketMeter
from speedwell.controller.switches.layout import Table
from speedwell.controller.switches.packet_ins import PacketIn
from tests.unit.controller.fake_switch import FakeSwitch, Refused

DELAY_SECONDS = 0.002
"""Of a message between switch and controller, one way."""
DELETED = ofproto_v1_3.OFPRR_DELETE


class TimedSwitch(FakeSwitch):
    """Its entries end by their timeouts, and it tells of those that end."""

    def __init__(self, dpid: str, now: Callable[[], float], is_used: Callable[[FlowEntry], bool]) -> None:
        super().__init__(dpid)
        self._now = now
        self._is_used = is_used
        self.since: dict[FlowKey, tuple[float, float]] = {}
        """When each entry was added, and when a packet hit it last."""
        self.told: Callable[[FlowEntry, int], None] = lambda entry, reason: None

    def take(self, buffer: bytes) -> None:
        before = dict(self.flows)
        super().take(buffer)
        is_add = buffer[1] == ofproto_v1_3.OFPT_FLOW_MOD and buffer[25] == ofproto_v1_3.OFPFC_ADD
        for key, entry in self.flows.items():
            if key not in before or (is_add and before[key] is not entry):
                self.since[key] = self._now(), self._now()
        self._forget(before, DELETED)

    def expire(self) -> None:
        now, before = self._now(), dict(self.flows)
        for key, entry in before.items():
            if not (entry.idle_timeout_seconds or entry.hard_timeout_seconds):
                continue
            added, used = self.since[key]
            if self._is_used(entry):
                used = now
                self.since[key] = added, used
            if 0 < entry.hard_timeout_seconds <= now - added:
                self._end(key, ofproto_v1_3.OFPRR_HARD_TIMEOUT)
            elif 0 < entry.idle_timeout_seconds <= now - used:
                self._end(key, ofproto_v1_3.OFPRR_IDLE_TIMEOUT)

    def _end(self, key: FlowKey, reason: int) -> None:
        self._by_table = None
        before = {key: self.flows.pop(key)}
        self._forget(before, reason)

    def _forget(self, before: dict[FlowKey, FlowEntry], reason: int) -> None:
        for key in before.keys() - self.flows.keys():
            self.since.pop(key)
            if before[key].notify_removal:
                self.told(before[key], reason)

    def restart(self) -> None:
        for held in (self.flows, self.groups, self.meters, self.packet_meters, self.since):
            held.clear()
        self._by_table = None


@lru_cache(1 << 14)
def _flow_stats(entry: FlowEntry) -> Any:
    """An entry's match and instructions as Ryu has them."""
    message = wire.flow_mod(entry, ofproto_v1_3.OFPFC_ADD)
    message.set_xid(1)
    message.serialize()
    buffer = bytes(message.buf)
    return ofproto_parser.msg(SimpleNamespace(ofproto_parser=ofproto_v1_3_parser, ofproto=ofproto_v1_3),
                              *ofproto_parser.header(buffer), buffer)


@lru_cache(1 << 12)
def _group_stats(group: Group) -> Any:
    message = wire.group_mod(group, ofproto_v1_3.OFPGC_ADD)
    message.set_xid(1)
    message.serialize()
    buffer, buckets, offset = bytes(message.buf), [], 16
    while offset < len(buffer):
        buckets.append(ofproto_v1_3_parser.OFPBucket.parser(buffer, offset))
        offset += buckets[-1].len
    return ofproto_v1_3_parser.OFPGroupDescStats(buffer[10], group.group_id, buckets)


class Connection:
    """One connection of a switch with one life of the controller: messages arrive in order, each way."""

    ofproto = ofproto_v1_3
    ofproto_parser = ofproto_v1_3_parser
    is_backed_up = False
    target = "tcp:127.0.0.1:6653"

    def __init__(self, house: Any, dpid: str) -> None:
        self.id = int(dpid, 16)
        self.dpid = dpid
        self.house = house
        self.life = house.life
        self.address = ("127.0.0.1", 1)
        self.state = MAIN_DISPATCHER
        self.is_admitted = False
        self.peer = None
        self.ports = {number: house.port_description(dpid, number) for number in house.port_numbers(dpid)}
        self.silent_until = 0.0
        self._xid = 0
        self._way_in: deque[bytes] = deque()
        self._way_out: deque[Callable[[], None]] = deque()
        house.switches[dpid].told = self._tell_removed
        self._tell_state(MAIN_DISPATCHER)

    @property
    def is_alive(self) -> bool:
        return self.state == MAIN_DISPATCHER

    def close(self) -> None:
        """The connection ends, whoever ends it; the controller hears of it a moment later."""
        if self.is_alive:
            self.state = DEAD_DISPATCHER
            self.house.switches[self.dpid].told = lambda entry, reason: None
            eventlet.spawn_after(DELAY_SECONDS, self._tell_state, DEAD_DISPATCHER)

    def _tell_state(self, state: str) -> None:
        event = ofp_event.EventOFPStateChange(self)
        event.state = state
        self.life.send(event, state)

    # --- from the controller ---

    def set_xid(self, message: Any) -> None:
        self._xid += 1
        message.set_xid(self._xid)

    def send_msg(self, message: Any) -> bool:
        self.set_xid(message)
        message.serialize()
        return self.send(bytes(message.buf))

    def send(self, buffer: bytes) -> bool:
        if self.is_alive:
            self._way_in.append(buffer)
            if len(self._way_in) == 1:
                eventlet.spawn(self._deliver)
        return self.is_alive

    def _deliver(self) -> None:
        while self._way_in:
            eventlet.sleep(max(DELAY_SECONDS, self.silent_until - self.house.hub.now))
            buffer = self._way_in[0]
            while buffer and self.is_alive:
                _, kind, length, xid = ofproto_parser.header(buffer)
                self._take(kind, xid, buffer[:length])
                buffer = buffer[length:]
            self._way_in.popleft()

    def _take(self, kind: int, xid: int, message: bytes) -> None:
        confirmations = self.life.state.confirmations
        switch = self.house.switches[self.dpid]
        if kind == ofproto_v1_3.OFPT_BARRIER_REQUEST:
            self._answer(lambda: confirmations.barrier_replied(self, xid))
        elif kind == ofproto_v1_3.OFPT_MULTIPART_REQUEST:
            self._answer_question(xid, message)
        elif kind == ofproto_v1_3.OFPT_PACKET_OUT:
            (actions_bytes,) = struct.unpack_from("!H", message, 16)
            for offset in range(24, 24 + actions_bytes, 16):
                (port_no,) = struct.unpack_from("!I", message, offset + 4)
                self.house.left((self.dpid, port_no), message[24 + actions_bytes:])
        else:
            try:
                switch.take(message)
            except Refused as refusal:
                error_type, code = refusal.error_type, str(refusal)
                self._answer(lambda: confirmations.refused(self, xid, error_type, code))

    def _answer_question(self, xid: int, message: bytes) -> None:
        switch, parser = self.house.switches[self.dpid], ofproto_v1_3_parser
        (kind,) = struct.unpack_from("!H", message, 8)
        if kind == ofproto_v1_3.OFPMP_FLOW:
            cookie, mask = struct.unpack_from("!QQ", message, 32)
            reply = parser.OFPFlowStatsReply(self, body=[
                self._flow_stats(entry) for entry in switch.flows.values() if not (entry.cookie ^ cookie) & mask])
        elif kind == ofproto_v1_3.OFPMP_GROUP_DESC:
            reply = parser.OFPGroupDescStatsReply(self, body=list(map(_group_stats, switch.groups.values())))
        elif kind == ofproto_v1_3.OFPMP_METER_CONFIG:
            reply = parser.OFPMeterConfigStatsReply(self, body=[
                _meter_stats(meter) for meter in (*switch.meters.values(), *switch.packet_meters.values())])
        elif kind == ofproto_v1_3.OFPMP_METER_FEATURES:
            reply = parser.OFPMeterFeaturesStatsReply(self, body=[SimpleNamespace(max_meter=1 << 18)])
        elif kind == ofproto_v1_3.OFPMP_DESC:
            reply = parser.OFPDescStatsReply(self, body=SimpleNamespace(
                dp_desc=self.house.network.name_of[self.dpid].encode()))
        elif kind == ofproto_v1_3.OFPMP_PORT_STATS:
            reply = parser.OFPPortStatsReply(self, body=[
                self._port_stats(number) for number in self.ports])
        else:
            raise AssertionError(kind)
        reply.set_xid(xid)
        reply.flags = 0
        self._answer(lambda: self.life.answered(reply))

    def _port_stats(self, number: int) -> Any:
        received, sent = self.house.port_bytes(self.dpid, number)
        seconds, rest = divmod(self.house.hub.now, 1)
        return SimpleNamespace(port_no=number, rx_bytes=received, tx_bytes=sent, duration_sec=int(seconds),
                               duration_nsec=int(rest * 1e9))

    def _flow_stats(self, entry: FlowEntry) -> Any:
        added, _ = self.house.switches[self.dpid].since[entry.key]
        age_seconds = self.house.hub.now - added
        return SimpleNamespace(**vars(_flow_stats(entry)),
                               byte_count=self.house.entry_bytes(self.dpid, entry, age_seconds), packet_count=0,
                               duration_sec=int(age_seconds), duration_nsec=int(age_seconds % 1 * 1e9))

    # --- to the controller ---

    def tell(self, event_class: Any, **fields: Any) -> None:
        event = event_class(SimpleNamespace(datapath=self, **fields))
        self._answer(lambda: self.life.send(event, MAIN_DISPATCHER))

    def _tell_removed(self, entry: FlowEntry, reason: int) -> None:
        self.tell(ofp_event.EventOFPFlowRemoved, ofproto=ofproto_v1_3, cookie=entry.cookie, table_id=entry.table,
                  priority=entry.priority, match=dict(entry.match), reason=reason)

    def hand_up(self, port_no: int, frame: bytes) -> None:
        packet = PacketIn(self, port_no, Table.SOURCES, frame)
        packet_ins = self.life.packet_ins
        handler = packet_ins.on_probe if frame[12:14] == b"\x88\xcc" else packet_ins.on_packet
        self._answer(lambda: handler(packet) if self.is_admitted else None)

    def _answer(self, deliver: Callable[[], None]) -> None:
        self._way_out.append(deliver)
        if len(self._way_out) == 1:
            eventlet.spawn(self._deliver_out)

    def _deliver_out(self) -> None:
        while self._way_out:
            eventlet.sleep(DELAY_SECONDS)
            if self.is_alive:
                self._way_out[0]()
            self._way_out.popleft()


def _meter_stats(meter: Meter | PacketMeter) -> Any:
    rate, burst = ((meter.rate_kbps, meter.burst_kbits) if isinstance(meter, Meter)
                   else (meter.rate_per_second, meter.burst_packets))
    return SimpleNamespace(meter_id=meter.meter_id, bands=[SimpleNamespace(rate=rate, burst_size=burst)])
