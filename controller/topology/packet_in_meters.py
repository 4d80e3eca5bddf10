"""Sees to it that switches have the meters of `controller.topology.packet_in_limits`, and notes which they have.

`NetworkState.packet_in_meters` has no set for a switch that refused one: it is then left without.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from speedwell.controller.errors import ControllerError, SwitchRefused
from speedwell.controller.switches import openflow
from speedwell.controller.switches.entries import FlowEntry, PacketMeter, dpid_hex
from speedwell.controller.switches.transactions import confirmed, confirmed_on_all
from speedwell.controller.topology import packet_in_limits
from speedwell.controller.topology.packet_in_limits import PACKETS_METER, PROBES_METER
from speedwell.controller.topology.state import NetworkState

TIMEOUT_SECONDS = 5.0
EXISTS = "OFPMMFC_METER_EXISTS"

log = logging.getLogger(__name__)


def begin(state: NetworkState, datapath: Any) -> None:
    """A switch connected: give it the two meters for all ports. Raises SwitchTimedOut or SwitchGone."""
    _add_each(state, datapath, [packet_in_limits.meter(state, number) for number in (PROBES_METER, PACKETS_METER)])


def found(state: NetworkState, dpid: str, meters: dict[int, PacketMeter]) -> None:
    """A switch was read: it has these meters for packets, with these rates."""
    if dpid in state.packet_in_meters:
        state.packet_in_meters[dpid] = frozenset(number for number, meter in meters.items()
                                                 if meter == packet_in_limits.meter(state, number))


def add_missing(state: NetworkState, dpids: Iterable[str]) -> None:
    """Give switches the meters that they lack, all at once: ports have turned out to lead to hosts."""
    wanted = {}
    for dpid in dpids:
        present, datapath = state.packet_in_meters.get(dpid), state.datapaths.get(dpid)
        if present is not None and datapath is not None:
            missing = [packet_in_limits.meter(state, number)
                       for number in packet_in_limits.meter_numbers(state, dpid) if number not in present]
            if missing:
                wanted[datapath] = missing
    failures = confirmed_on_all(state, {datapath: [openflow.meter_add(datapath, meter) for meter in missing]
                                        for datapath, missing in wanted.items()}, TIMEOUT_SECONDS)
    for datapath, missing in wanted.items():
        try:
            if datapath in failures:
                _add_each(state, datapath, missing)
            else:
                _note(state, datapath, missing)
        except ControllerError as error:
            log.info("ports of %s have no meters yet: %s", state.name_of(dpid_hex(datapath.id)), error)


def remove_idle(state: NetworkState, held: Mapping[str, Collection[FlowEntry]]) -> None:
    """Take meters from switches whose ports lead to no hosts any more, and that no entry uses that they hold."""
    idle = {}
    for dpid, entries in held.items():
        present, datapath = state.packet_in_meters.get(dpid), state.datapaths.get(dpid)
        surplus = (present or frozenset()).difference(packet_in_limits.meter_numbers(state, dpid))
        if present is None or datapath is None or not surplus:
            continue
        surplus = surplus.difference(entry.meter_id for entry in entries)
        # From now on nothing is planned with them. What a switch does not confirm is found when it is looked at next.
        state.packet_in_meters[dpid] = present - surplus
        idle[datapath] = [openflow.meter_delete(datapath, number) for number in sorted(surplus)]
    confirmed_on_all(state, idle, TIMEOUT_SECONDS)


def _add_each(state: NetworkState, datapath: Any, meters: Iterable[PacketMeter]) -> None:
    """One by one: some may be there already, from an earlier controller. Raises SwitchTimedOut or SwitchGone."""
    for meter in meters:
        try:
            try:
                confirmed(state, datapath, [openflow.meter_add(datapath, meter)], TIMEOUT_SECONDS)
            except SwitchRefused as error:
                if error.extensions.get("openflow_code") != EXISTS:
                    raise
                confirmed(state, datapath, [openflow.meter_modify(datapath, meter)], TIMEOUT_SECONDS)
        except SwitchRefused as error:
            log.warning("%s: what hosts there have handed up is limited by the switch's controller_rate_limit and at "
                        "the controller only", error)
            state.packet_in_meters.pop(dpid_hex(datapath.id), None)
            return
        _note(state, datapath, [meter])


def _note(state: NetworkState, datapath: Any, meters: Iterable[PacketMeter]) -> None:
    dpid = dpid_hex(datapath.id)
    if state.is_current(datapath):
        known = state.packet_in_meters.get(dpid, frozenset())
        state.packet_in_meters[dpid] = known | {meter.meter_id for meter in meters}
