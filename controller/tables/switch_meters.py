"""The controller's meters at each switch: given to flows, put back where they miss, deleted when nothing uses them.

Only numbers of the controller's range are touched, and of these none that an entry of somebody else uses.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from speedwell.controller.errors import ControllerError, SwitchRefused
from speedwell.controller.loops import Loops
from speedwell.controller.switches import openflow
from speedwell.controller.switches.entries import FlowKey, Meter
from speedwell.controller.switches.transactions import confirmed
from speedwell.controller.tables import meters
from speedwell.controller.tables.flow_records import FlowRecords
from speedwell.controller.tables.meters import MeterIds, MetersExhausted, own_range
from speedwell.controller.tables.read_back import ReadBack
from speedwell.controller.topology.state import NetworkState

METER_TROUBLE = "OFPET_METER_MOD_FAILED"
OUT_OF_METERS, METER_EXISTS = "OFPMMFC_OUT_OF_METERS", "OFPMMFC_METER_EXISTS"

log = logging.getLogger(__name__)


def meter_trouble(error: ControllerError) -> str | None:
    """What a switch has against a meter; None if something else is wrong."""
    if isinstance(error, SwitchRefused) and error.extensions.get("openflow_type") == METER_TROUBLE:
        return str(error.extensions["openflow_code"])
    return None


class SwitchMeters:
    """The meters of flows that have a rate."""

    def __init__(self, state: NetworkState, records: FlowRecords, loops: Loops) -> None:
        self._state = state
        self._loops = loops
        self._records = records
        self._ids: dict[str, MeterIds] = {}
        self._left: dict[str, dict[FlowKey, Meter]] = {}
        """The entries with a meter that an earlier controller left, by switch. Whoever takes such a flow over goes on
        with its meter; where nobody does, the meter goes with the entry."""

    def forget(self, dpid: str) -> None:
        """A switch is no longer waited for. What flows have there is given back when they end."""
        self._left.pop(dpid, None)
        if dpid in self._ids and not self._records.at(dpid):
            del self._ids[dpid]

    def of(self, dpid: str) -> MeterIds:
        if dpid not in self._ids:
            self._ids[dpid] = MeterIds(own_range(None, self._state.settings.max_meters))
        return self._ids[dpid]

    def meter_for(self, dpid: str, kept: Meter | None, rate_bps: float) -> Meter | None:
        """A meter for a flow, the one that it has if there is one; None if there is none left."""
        least = self._state.settings.meter_min_burst_bytes
        if kept is not None:
            return meters.meter_for(kept.meter_id, rate_bps, least)
        try:
            return meters.meter_for(self.of(dpid).allocate(), rate_bps, least)
        except MetersExhausted as error:
            log.warning("%s: %s; a flow goes without", self._state.name_of(dpid), error)
            return None

    def adopt(self, dpid: str, key: FlowKey) -> Meter | None:
        """The meter that an earlier controller's entry for a flow has; it is ours now."""
        meter = self._left.get(dpid, {}).pop(key, None)
        if meter is not None:
            self.of(dpid).adopt(meter.meter_id)
        return meter

    def has_left(self, dpid: str) -> bool:
        """Whether a switch has meters of an earlier controller that entries may use."""
        return bool(self._left.get(dpid))

    def left_entry_gone(self, dpid: str, key: FlowKey) -> None:
        """The switch took an entry out that nobody here made: the earlier controller's meter goes too."""
        meter = self.adopt(dpid, key)
        if meter is not None:
            self._loops.spawn(self.drop, dpid, [meter])

    def refused(self, dpid: str, meter: Meter, refusal: SwitchRefused) -> bool:
        """Somebody else changed the meters of a switch: this one is there without our doing, or not there. Returns
        whether the switch may have room for another one."""
        code = meter_trouble(refusal)
        if code == METER_EXISTS:
            self.of(dpid).is_somebody_elses(meter.meter_id)
        else:
            self.of(dpid).release(meter.meter_id)
        return code != OUT_OF_METERS

    def drop(self, dpid: str, gone: Sequence[Meter]) -> None:
        """Delete meters that no entry uses any more."""
        datapath = self._state.datapaths.get(dpid)
        if not gone:
            return
        if datapath is not None:
            try:
                confirmed(self._state, datapath, [openflow.meter_delete(datapath, meter.meter_id) for meter in gone],
                          self._state.settings.confirm_timeout_seconds)
            except ControllerError as error:
                log.info("meters are left to the next look at the switch: %s", error)
        for meter in gone:
            self.of(dpid).release(meter.meter_id)

    def found(self, dpid: str, found: ReadBack) -> None:
        """A switch was read. Call it before anything else is done there: what is known of its meters is then right
        again, and those that nothing uses are on their way out."""
        ids = self.of(dpid)
        if found.max_meters is not None:
            ids.use(own_range(found.max_meters, self._state.settings.max_meters))
        idle = ids.found(found.meters, found.meters_in_use)
        self._left[dpid] = {entry.key: found.meters[entry.meter_id] for entry in found.explicit
                            if entry.meter_id in ids.foreign and entry.meter_id in found.meters}
        if idle:
            self._loops.spawn(self.drop, dpid, [found.meters[number] for number in idle])

    def missing_meters(self, dpid: str, datapath: Any, found: ReadBack) -> list[Any]:
        """Messages for the meters that a switch lacks or has otherwise, to be sent before entries that use them."""
        wanted = {meter.meter_id: meter for record in self._records.at(dpid) if (meter := record.meter) is not None}
        return [openflow.meter_modify(datapath, meter) if number in found.meters else
                openflow.meter_add(datapath, meter) for number, meter in sorted(wanted.items())
                if found.meters.get(number) != meter]

    def restored(self, dpid: str) -> None:
        """The entries that a switch lacked are there; what an earlier controller had in their place is not."""
        own = {record.placement.entry.key for record in self._records.at(dpid) if record.placement}
        for key in own.intersection(self._left.get(dpid, {})):
            self.left_entry_gone(dpid, key)
