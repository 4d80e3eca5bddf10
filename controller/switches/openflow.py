"""Messages to switches, and what they say, in terms of `entries`.

Nothing here imports Ryu: messages are made in `wire`, or with the parser that a datapath carries, so all of this
works without a switch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from speedwell.controller.switches import wire
from speedwell.controller.switches.entries import (
    COOKIE_MASK,
    FIRST_PACKET_METER,
    GROUP_ANY,
    LAST_PACKET_METER,
    NO_BUFFER,
    PORT_ANY,
    PORT_CONTROLLER,
    Bucket,
    CopyField,
    FlowEntry,
    FlowKey,
    ForgetPort,
    Group,
    LoadLabel,
    Meter,
    Output,
    PacketMeter,
    PopLabel,
    PushLabel,
    PushLoaded,
    SetField,
    SetQueue,
    ToGroup,
)

# --- to OpenFlow ---


def flow_add(datapath: Any, entry: FlowEntry) -> Any:
    """Add an entry, replacing the one with its key, if any, counters included."""
    return wire.flow_mod(entry, datapath.ofproto.OFPFC_ADD)


def flow_modify(datapath: Any, entry: FlowEntry) -> Any:
    """Give the entry with this key other actions; its cookie, timeouts and counters stay."""
    return wire.flow_mod(entry, datapath.ofproto.OFPFC_MODIFY_STRICT)


def flow_delete(datapath: Any, key: FlowKey) -> Any:
    """Delete the entry with this key, if there is one."""
    return wire.flow_mod(FlowEntry(*key), datapath.ofproto.OFPFC_DELETE_STRICT)


def group_add(datapath: Any, group: Group) -> Any:
    return wire.group_mod(group, datapath.ofproto.OFPGC_ADD)


def group_modify(datapath: Any, group: Group) -> Any:
    return wire.group_mod(group, datapath.ofproto.OFPGC_MODIFY)


def group_delete(datapath: Any, group_id: int) -> Any:
    """Delete a group, if it is there; OpenFlow deletes the entries that still use it with it."""
    return wire.group_mod(Group(group_id, ()), datapath.ofproto.OFPGC_DELETE)


def meter_add(datapath: Any, meter: Meter | PacketMeter) -> Any:
    return _meter_mod(datapath, meter, datapath.ofproto.OFPMC_ADD)


def meter_modify(datapath: Any, meter: Meter | PacketMeter) -> Any:
    """Give a meter another rate; the entries that use it stay."""
    return _meter_mod(datapath, meter, datapath.ofproto.OFPMC_MODIFY)


def meter_delete(datapath: Any, meter_id: int) -> Any:
    """Delete a meter, if it is there; OpenFlow deletes the entries that still use it with it."""
    parser, ofproto = datapath.ofproto_parser, datapath.ofproto
    return parser.OFPMeterMod(datapath, ofproto.OFPMC_DELETE, 0, meter_id, [])


def _meter_mod(datapath: Any, meter: Meter | PacketMeter, command: int) -> Any:
    parser, ofproto = datapath.ofproto_parser, datapath.ofproto
    if isinstance(meter, PacketMeter):
        unit, band = ofproto.OFPMF_PKTPS, parser.OFPMeterBandDrop(meter.rate_per_second, meter.burst_packets)
    else:
        unit, band = ofproto.OFPMF_KBPS, parser.OFPMeterBandDrop(meter.rate_kbps, meter.burst_kbits)
    return parser.OFPMeterMod(datapath, command, unit | ofproto.OFPMF_BURST, meter.meter_id, [band])


def packet_out(datapath: Any, port_numbers: Iterable[int], data: bytes) -> Any:
    """Send a packet of the controller's own out of some ports."""
    parser = datapath.ofproto_parser
    actions = [parser.OFPActionOutput(port_no) for port_no in port_numbers]
    return parser.OFPPacketOut(datapath, buffer_id=NO_BUFFER, in_port=PORT_CONTROLLER, actions=actions, data=data)


def flow_stats_request(datapath: Any, table: int | None = None, cookie_prefix: int | None = None) -> Any:
    """Ask for all entries, or those of one table or cookie prefix alone."""
    ofproto, parser = datapath.ofproto, datapath.ofproto_parser
    return parser.OFPFlowStatsRequest(
        datapath, 0, ofproto.OFPTT_ALL if table is None else table, PORT_ANY, GROUP_ANY,
        cookie_prefix or 0, COOKIE_MASK if cookie_prefix else 0, parser.OFPMatch(),
    )


# --- from OpenFlow ---


def decode_flow(stats: Any) -> FlowEntry:
    """The entry that an OFPFlowStats describes. What Speedwell never installs comes out as an entry like no other."""
    actions: tuple[Any, ...] = ()
    goto = meter_id = None
    for instruction in stats.instructions:
        if hasattr(instruction, "meter_id"):
            meter_id = instruction.meter_id
        elif hasattr(instruction, "actions"):
            actions += _decode_actions(instruction.actions)
        elif hasattr(instruction, "table_id"):
            goto = instruction.table_id
        else:
            actions += (repr(instruction),)
    return FlowEntry(
        stats.table_id, stats.priority, tuple(sorted(stats.match.items())), actions, goto, stats.cookie,
        stats.idle_timeout, bool(stats.flags & 1), meter_id, stats.hard_timeout,
    )


def key_of_removed(message: Any) -> FlowKey:
    """The key of the entry that an OFPFlowRemoved is about."""
    return message.table_id, message.priority, tuple(sorted(message.match.items()))


def decode_meter(stats: Any) -> Meter | PacketMeter:
    """The meter that an OFPMeterConfigStats describes."""
    band = stats.bands[0] if stats.bands else None
    if FIRST_PACKET_METER <= stats.meter_id <= LAST_PACKET_METER:
        return PacketMeter(stats.meter_id, band.rate if band else 0, band.burst_size if band else 0)
    return Meter(stats.meter_id, band.rate if band else 0, band.burst_size if band else 0)


def decode_group(stats: Any) -> Group:
    """The group that an OFPGroupDescStats describes. One of a type that Speedwell never makes has no like."""
    buckets = tuple(Bucket(_decode_actions(bucket.actions), bucket.watch_port, bucket.watch_group)
                    for bucket in stats.buckets)
    if stats.type not in (wire.SELECT, wire.FAST_FAILOVER):
        buckets = (Bucket((), stats.type), *buckets)
    return Group(stats.group_id, buckets, stats.type == wire.FAST_FAILOVER)


def _decode_actions(actions: Iterable[Any]) -> tuple[Any, ...]:
    decoded: list[Any] = []
    for action in actions:
        kind = type(action).__name__
        if kind == "OFPActionOutput":
            decoded.append(Output(action.port))
        elif kind == "OFPActionGroup":
            decoded.append(ToGroup(action.group_id))
        elif kind == "OFPActionPushMpls":
            decoded.append(PushLabel(0))
        elif kind == "OFPActionSetQueue":
            decoded.append(SetQueue(action.queue_id))
        elif kind == "OFPActionPopMpls":
            decoded.append(PopLabel(action.ethertype))
        elif kind == "NXActionRegMove":
            # Ryu names the fields of the same header after their Nicira codes on the way back.
            source, destination = (name.removesuffix("_nxm") for name in (action.src_field, action.dst_field))
            last = decoded[-1] if decoded else None
            if (source, destination) == ("reg0", "mpls_label") and last == PushLabel(0):
                decoded[-1] = PushLoaded()
            elif (source, destination) != ("reg1", "mpls_tc") or not isinstance(last, PushLoaded):
                decoded.append(CopyField(source, destination, action.n_bits))
        elif kind == "NXActionRegLoad":
            last = decoded[-1] if decoded else None
            if action.dst == "mpls_label" and isinstance(last, PushLoaded):
                decoded[-1] = PushLoaded(action.value, (action.ofs_nbits & 63) + 1)
            elif action.dst == "in_port_nxm" and not action.value:
                decoded.append(ForgetPort())
            elif action.dst == "reg0":
                decoded.append(LoadLabel(action.value))
            elif action.dst == "reg1" and isinstance(last, LoadLabel):
                decoded[-1] = LoadLabel(last.label, action.value)
            else:
                decoded.append(repr(action))
        elif kind == "OFPActionSetField" and action.key == "mpls_label" and decoded \
                and isinstance(decoded[-1], PushLabel):
            decoded[-1] = PushLabel(action.value)
        elif kind == "OFPActionSetField":
            decoded.append(SetField(action.key, action.value))
        else:
            decoded.append(repr(action))
    return tuple(decoded)
