"""Flow entries in bytes: as Ryu would have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from ryu.ofproto import ofproto_v1_3, ofproto_v1_3_parser

from speedwell.controller.switches import wire
from speedwell.controller.switches.entries import (
    CLASS_OF_DSCP,
    GROUP_ANY,
    HEADER_BYTES,
    PORT_ANY,
    PORT_CONTROLLER,
    Bucket,
    CopyField,
    FlowEntry,
    ForgetPort,
    Group,
    LoadLabel,
    Output,
    PopLabel,
    PushLabel,
    PushLoaded,
    SetField,
    SetQueue,
    ToGroup,
    match,
)
from speedwell.controller.switches.openflow import flow_add, flow_delete, flow_modify
from speedwell.controller.tables.entries import STATIC_ENTRIES

MACS = st.integers(0, (1 << 48) - 1).map(lambda number: number.to_bytes(6).hex(":"))
ADDRESSES = st.ip_addresses(v=4).map(str)


def numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "in_port": numbers(32), "eth_dst": MACS, "eth_src": MACS, "eth_type": numbers(16), "ip_dscp": numbers(6),
    "ip_proto": numbers(8), "ipv4_src": ADDRESSES, "ipv4_dst": ADDRESSES, "tcp_src": numbers(16),
    "tcp_dst": numbers(16), "udp_src": numbers(16), "udp_dst": numbers(16), "arp_op": numbers(16),
    "arp_spa": ADDRESSES, "arp_tpa": ADDRESSES, "arp_sha": MACS, "arp_tha": MACS, "mpls_label": numbers(20),
    "mpls_tc": numbers(3),
}
MASKED = ADDRESSES | st.tuples(ADDRESSES, ADDRESSES)
SINGLE_FLOWS = st.sampled_from(["tcp", "udp"]).flatmap(lambda kind: st.fixed_dictionaries(
    {name: VALUES[name] for name in ("eth_type", "ip_proto", "ipv4_src", f"{kind}_src", f"{kind}_dst")}
    | {"ipv4_dst": MASKED}))
MATCHES = st.fixed_dictionaries({}, optional=VALUES | {"ipv4_dst": MASKED}) | SINGLE_FLOWS
COPIES = [CopyField("eth_src", "eth_dst", 48), CopyField("arp_sha", "arp_tha", 48),
          CopyField("arp_spa", "arp_tpa", 32), CLASS_OF_DSCP]
ACTIONS = st.lists(st.one_of(
    st.builds(Output, st.one_of(numbers(16), st.just(PORT_CONTROLLER))), st.builds(ToGroup, numbers(32)),
    st.builds(PushLabel, numbers(20)), st.builds(SetQueue, numbers(32)), st.just(PopLabel()),
    st.sampled_from([*COPIES, ForgetPort()]), st.builds(PopLabel, numbers(16)),
    st.builds(LoadLabel, numbers(20), st.none() | numbers(3)),
    st.builds(PushLoaded, numbers(4), st.integers(4, 8)), st.just(PushLoaded()),
    st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.builds(SetField, st.just(name), VALUES[name]))),
    max_size=5)
ENTRIES = st.builds(
    FlowEntry, st.integers(0, 254), numbers(16), MATCHES.map(lambda fields: match(**fields)), ACTIONS.map(tuple),
    st.none() | st.integers(0, 254), numbers(64), numbers(16), st.booleans(), st.none() | numbers(32), numbers(16),
    st.booleans())


class Datapath:
    ofproto = ofproto_v1_3
    ofproto_parser = ofproto_v1_3_parser


def ryu_actions(actions: Iterable[Any]) -> list[Any]:
    parser, encoded = ofproto_v1_3_parser, list[Any]()
    for action in actions:
        match action:
            case Output(port_no):
                most_bytes = HEADER_BYTES if port_no == PORT_CONTROLLER else 0
                encoded.append(parser.OFPActionOutput(port_no, most_bytes))
            case ToGroup(group_id):
                encoded.append(parser.OFPActionGroup(group_id))
            case PushLabel(label):
                encoded += [parser.OFPActionPushMpls(0x8847), parser.OFPActionSetField(mpls_label=label)]
            case SetQueue(queue):
                encoded.append(parser.OFPActionSetQueue(queue))
            case PopLabel(ethertype):
                encoded.append(parser.OFPActionPopMpls(ethertype))
            case LoadLabel(label, traffic_class):
                encoded.append(parser.NXActionRegLoad(19, "reg0", label))
                if traffic_class is not None:
                    encoded.append(parser.NXActionRegLoad(2, "reg1", traffic_class))
            case PushLoaded(choice, bits):
                encoded += [parser.OFPActionPushMpls(0x8847), parser.NXActionRegMove("reg0", "mpls_label", 20)]
                if bits:
                    encoded.append(parser.NXActionRegLoad(bits - 1, "mpls_label", choice))
                encoded.append(parser.NXActionRegMove("reg1", "mpls_tc", 3))
            case SetField(name, value):
                encoded.append(parser.OFPActionSetField(**{name: value}))
            case CopyField(source, destination, bits):
                encoded.append(parser.NXActionRegMove(source, destination, bits))
            case ForgetPort():
                encoded.append(parser.NXActionRegLoad(15, "in_port_nxm", 0))
    return encoded


def as_ryu_has_it(entry: FlowEntry, command: int) -> bytes:
    ofproto, parser = ofproto_v1_3, ofproto_v1_3_parser
    instructions = []
    if entry.meter_id is not None:
        instructions.append(parser.OFPInstructionMeter(entry.meter_id))
    if entry.actions:
        actions = ryu_actions(entry.actions)
        instructions.append(parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions))
    if entry.goto is not None:
        instructions.append(parser.OFPInstructionGotoTable(entry.goto))
    message = parser.OFPFlowMod(
        Datapath(), command=command, table_id=entry.table, priority=entry.priority, cookie=entry.cookie,
        match=parser.OFPMatch(**dict(entry.match)), instructions=instructions,
        idle_timeout=entry.idle_timeout_seconds, hard_timeout=entry.hard_timeout_seconds,
        flags=(ofproto.OFPFF_SEND_FLOW_REM * entry.notify_removal | ofproto.OFPFF_RESET_COUNTS * entry.reset_counts),
        out_port=PORT_ANY, out_group=GROUP_ANY)
    message.set_xid(7)
    message.serialize()
    return bytes(message.buf)


@given(ENTRIES)
def test_entries_are_packed_as_ryu_packs_them(entry: FlowEntry) -> None:
    for command in (ofproto_v1_3.OFPFC_ADD, ofproto_v1_3.OFPFC_MODIFY_STRICT, ofproto_v1_3.OFPFC_DELETE_STRICT):
        message = wire.flow_mod(entry, command)
        message.set_xid(7)
        message.serialize()
        assert message.buf == as_ryu_has_it(entry, command)


def test_the_entries_of_every_switch_are_packed_here_and_not_by_ryu() -> None:
    for entry in STATIC_ENTRIES:
        for message in (flow_add(Datapath(), entry), flow_modify(Datapath(), entry),
                        flow_delete(Datapath(), entry.key)):
            assert isinstance(message, wire.Packed)


@given(st.builds(Group, numbers(32), st.lists(st.builds(Bucket, ACTIONS.map(tuple), numbers(32), numbers(32)),
                                              max_size=4).map(tuple), st.booleans()))
def test_groups_are_packed_as_ryu_packs_them(group: Group) -> None:
    parser = ofproto_v1_3_parser
    for command in (ofproto_v1_3.OFPGC_ADD, ofproto_v1_3.OFPGC_MODIFY, ofproto_v1_3.OFPGC_DELETE):
        buckets = [parser.OFPBucket(weight=0 if group.is_failover else 1, watch_port=bucket.watch_port_no,
                                    watch_group=bucket.watch_group_id, actions=ryu_actions(bucket.actions))
                   for bucket in group.buckets]
        kind = ofproto_v1_3.OFPGT_FF if group.is_failover else ofproto_v1_3.OFPGT_SELECT
        expected = parser.OFPGroupMod(Datapath(), command, kind, group.group_id, buckets)
        packed = wire.group_mod(group, command)
        for message in (expected, packed):
            message.set_xid(7)
            message.serialize()
        assert packed.buf == bytes(expected.buf)
