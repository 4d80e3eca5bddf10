"""What a switch says it holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from speedwell.controller.errors import SwitchRefused
from speedwell.controller.loops import in_turns
from speedwell.controller.switches import openflow
from speedwell.controller.switches.entries import COOKIE_MASK, FlowEntry, Group, Meter, PacketMeter, dpid_hex
from speedwell.controller.switches.layout import EXPLICIT_COOKIES, FIRST_GROUP, LAST_GROUP
from speedwell.controller.switches.transactions import HasConfirmations, asked
from speedwell.controller.tables.entries import SwitchTables, groups_reached
from speedwell.controller.tables.registry import is_planned


@dataclass(slots=True)
class ReadBack:
    """What a switch says it holds: the planned part, entries of explicit paths, meters of flows, and meters of
    packets handed up."""

    tables: SwitchTables
    explicit: list[FlowEntry]
    meters: dict[int, Meter]
    packet_meters: dict[int, PacketMeter]
    max_meters: int | None = None
    """How many meters it can have; None if it was not asked."""
    meters_in_use: frozenset[int] = frozenset()
    """The meters that entries use, whoever's they are."""
    groups_of_others: frozenset[int] = frozenset()
    """The groups with numbers of the controller's that entries of others lead to."""


def read_back(state: HasConfirmations, datapath: Any, timeout_seconds: float) -> ReadBack:
    """Everything that a switch holds. Meters first: one whose entry goes meanwhile is then seen to be idle.

    `timeout_seconds` is for each question. Raises SwitchRefused, SwitchTimedOut or SwitchGone.
    """
    parser = datapath.ofproto_parser

    def ask(request: Any) -> list[Any]:
        return asked(state, datapath, request, timeout_seconds)

    try:
        features, *_ = ask(parser.OFPMeterFeaturesStatsRequest(datapath, 0))
        max_meters = features.max_meter
        meters = ask(parser.OFPMeterConfigStatsRequest(datapath, 0, datapath.ofproto.OFPM_ALL))
    except SwitchRefused:
        max_meters, meters = 0, []     # a switch may have no meters at all
    flows = ask(openflow.flow_stats_request(datapath))
    groups = ask(parser.OFPGroupDescStatsRequest(datapath, 0))
    try:
        found = sort_read_back(in_turns(map(openflow.decode_flow, flows)),
                               in_turns(map(openflow.decode_group, groups)), map(openflow.decode_meter, meters))
    except Exception as error:
        # Ryu parses matches only now, and raises what it likes over one that no switch should send.
        raise SwitchRefused(dpid_hex(datapath.id), "unreadable entry", repr(error)) from error
    return replace(found, max_meters=max_meters)


def sort_read_back(flows: Iterable[FlowEntry], groups: Iterable[Group],
                   meters: Iterable[Meter | PacketMeter] = ()) -> ReadBack:
    """What a switch says it holds, sorted.

    Entries of others, recognised by their cookies, and groups of others, by their numbers, are left alone.
    """
    planned, explicit, in_use, others = SwitchTables(), [], set(), []
    for entry in flows:
        if entry.meter_id is not None:
            in_use.add(entry.meter_id)
        prefix = entry.cookie & COOKIE_MASK
        if is_planned(entry.cookie):
            planned.add([entry])
        elif prefix in EXPLICIT_COOKIES:
            explicit.append(entry)
        else:
            others.append(entry.actions)
    there = {group.group_id: group for group in groups}
    planned.groups = {number: group for number, group in there.items() if FIRST_GROUP <= number <= LAST_GROUP}
    listed = list(meters)
    return ReadBack(planned, explicit, {meter.meter_id: meter for meter in listed if isinstance(meter, Meter)},
                    {meter.meter_id: meter for meter in listed if isinstance(meter, PacketMeter)},
                    meters_in_use=frozenset(in_use),
                    groups_of_others=frozenset(groups_reached(there, others) & planned.groups.keys()))
