"""What a switch says it holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from controller import openflow
from controller.confirm import HasConfirmations, asked
from controller.errors import SwitchRefused
from controller.openflow import COOKIE_MASK, EXPLICIT_COOKIES, PLANNED_COOKIES, FlowEntry, Meter, SelectGroup
from controller.switch_tables import SwitchTables


@dataclass(slots=True)
class ReadBack:
    """What a switch says it holds: the planned part, entries of explicit paths, and meters."""

    tables: SwitchTables
    explicit: list[FlowEntry]
    meters: dict[int, Meter]
    max_meters: int | None = None
    """How many meters it can have; None if it was not asked."""


def read_back(state: HasConfirmations, datapath: Any, timeout_seconds: float) -> ReadBack:
    """Everything that a switch holds. Meters first: one whose entry goes meanwhile is then seen to be idle.

    `timeout_seconds` is for each question. Raises SwitchRefused, SwitchTimedOut or SwitchGone.
    """
    parser = datapath.ofproto_parser

    def ask(request: Any) -> list[Any]:
        return asked(state, datapath, request, timeout_seconds)

    try:
        [features] = ask(parser.OFPMeterFeaturesStatsRequest(datapath, 0))
        max_meters = features.max_meter
        meters = ask(parser.OFPMeterConfigStatsRequest(datapath, 0, datapath.ofproto.OFPM_ALL))
    except SwitchRefused:
        max_meters, meters = 0, []     # a switch may have no meters at all
    flows = ask(openflow.flow_stats_request(datapath))
    groups = ask(parser.OFPGroupDescStatsRequest(datapath, 0))
    found = sort_read_back(map(openflow.decode_flow, flows), map(openflow.decode_group, groups),
                           map(openflow.decode_meter, meters))
    return replace(found, max_meters=max_meters)


def sort_read_back(flows: Iterable[FlowEntry], groups: Iterable[SelectGroup],
                   meters: Iterable[Meter] = ()) -> ReadBack:
    """What a switch says it holds, sorted.

    Entries of others, recognised by their cookies, are left alone. Groups and meters are all taken for ours.
    """
    planned, explicit = SwitchTables(), []
    for entry in flows:
        prefix = entry.cookie & COOKIE_MASK
        if prefix in PLANNED_COOKIES:
            planned.add([entry])
        elif prefix in EXPLICIT_COOKIES:
            explicit.append(entry)
    planned.groups = {group.group_id: group for group in groups}
    return ReadBack(planned, explicit, {meter.meter_id: meter for meter in meters})
