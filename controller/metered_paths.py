"""Flows with a path, a rate and a queue of their own: an entry and a meter at their first switch.

What is wanted is put into the switches in batches, one barrier each, and in an order that harms no packet: meters,
then the entries that use them, then entries that are no longer wanted, then meters that nothing uses any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ryu.lib import hub

from controller import openflow
from controller.confirm import confirmed
from controller.errors import ControllerError, NoSuchPath, SwitchGone, SwitchRefused
from controller.explicit_paths import ExplicitPath, ExplicitPaths
from controller.meters import MeterIds, MetersExhausted, meter_for
from controller.network_state import NetworkState
from controller.openflow import FlowEntry, Meter, Priority
from controller.policy.five_tuple import FiveTuple
from controller.reconcile import ReadBack

METER_TROUBLE = "OFPET_METER_MOD_FAILED"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a flow shall have. `rate_bps` None: no meter."""

    path: ExplicitPath
    rate_bps: float | None


class MeteredPaths:
    """Puts flows into place, all at once. `unmetered` counts flows that had to do without a meter."""

    def __init__(self, state: NetworkState, paths: ExplicitPaths,
                 entry_once_ready: Callable[[ExplicitPath], FlowEntry]) -> None:
        self._state = state
        self._paths = paths
        self._entry_once_ready = entry_once_ready
        self._meters: dict[str, MeterIds] = {}
        self.unmetered = 0

    def meters_of(self, dpid: str) -> MeterIds:
        return self._meters.setdefault(dpid, MeterIds(self._state.settings.max_meters))

    def get(self, five_tuple: FiveTuple) -> ExplicitPath | None:
        return self._paths.get(five_tuple, Priority.COFLOW)

    # --- putting flows into place ---

    def apply(self, wanted: Iterable[Wanted], unwanted: Iterable[FiveTuple] = ()) -> dict[FiveTuple, ControllerError]:
        """Put flows into place and take others out, confirmed by their switches. Returns what failed, by flow.

        A flow that fails stays as it was where that is possible. One whose switch is gone is put into place when the
        switch is back. A flow that changes nothing has its lifetime renewed.
        """
        batches: dict[str, tuple[list[Wanted], list[ExplicitPath]]] = {}
        for each in wanted:
            former = self.get(each.path.five_tuple)
            batches.setdefault(each.path.first_switch, ([], []))[0].append(each)
            if former is not None and former.first_switch != each.path.first_switch:
                batches.setdefault(former.first_switch, ([], []))[1].append(former)
        for five_tuple in unwanted:
            former = self.get(five_tuple)
            if former is not None:
                self._paths.discard(former)
                batches.setdefault(former.first_switch, ([], []))[1].append(former)
        failures: dict[FiveTuple, ControllerError] = {}
        # a flow's new entry is there before its old one, at another switch, goes
        hub.joinall([hub.spawn(self._place, dpid, placed, failures)
                     for dpid, (placed, _) in batches.items() if placed])
        hub.joinall([hub.spawn(self._take_out, dpid, gone) for dpid, (_, gone) in batches.items() if gone])
        return failures

    def _place(self, dpid: str, batch: Sequence[Wanted], failures: dict[FiveTuple, ControllerError],
               without_meters: bool = False) -> None:
        datapath = self._state.datapaths.get(dpid)
        placements = []
        for each in batch:
            try:
                placements.append(self._prepare(dpid, each, without_meters))
            except NoSuchPath as error:
                failures[each.path.five_tuple] = error
        for placement in placements:
            self._paths.add(placement.path)
        if datapath is None:
            failures.update((placement.path.five_tuple, SwitchGone(dpid)) for placement in placements)
            return
        try:
            self._send(datapath, placements)
        except SwitchGone as error:
            failures.update((placement.path.five_tuple, error) for placement in placements)
            return
        except ControllerError as error:
            for placement in placements:
                self._undo(dpid, placement)
            self._try_again(dpid, batch, error, failures, without_meters)
            return
        self._drop_meters(dpid, [placement.former.meter for placement in placements
                                 if placement.former and placement.former.meter
                                 and placement.former.meter.meter_id != _id_of(placement.path.meter)])

    def _try_again(self, dpid: str, batch: Sequence[Wanted], error: ControllerError,
                   failures: dict[FiveTuple, ControllerError], without_meters: bool) -> None:
        """One of several may be to blame; a single flow can do without its meter."""
        if len(batch) > 1:
            for each in batch:
                self._place(dpid, [each], failures, without_meters)
        elif _is_meter_trouble(error) and not without_meters:
            log.warning("%s: the flow goes without a meter", error)
            self._place(dpid, batch, failures, without_meters=True)
        else:
            failures[batch[0].path.five_tuple] = error

    def _prepare(self, dpid: str, wanted: Wanted, without_meters: bool) -> _Placement:
        """Choose the meter and make the entry. Raises NoSuchPath."""
        former = self.get(wanted.path.five_tuple)
        if former is not None and former.first_switch != dpid:
            former = None
        entry = self._entry_once_ready(wanted.path)
        kept = former.meter if former else None
        meter = None
        if wanted.rate_bps is not None:
            meter = None if without_meters else self._meter(dpid, kept, wanted.rate_bps)
            self.unmetered += meter is None
        path = replace(wanted.path, meter=meter,
                       cookie=former.cookie if former else wanted.path.cookie)
        return _Placement(path, replace(entry, meter_id=_id_of(meter), cookie=path.cookie), former)

    def _meter(self, dpid: str, kept: Meter | None, rate_bps: float) -> Meter | None:
        settings = self._state.settings
        least, rate_bps = settings.meter_min_burst_bytes, max(rate_bps, settings.meter_min_rate_bps)
        if kept is not None:
            return meter_for(kept.meter_id, rate_bps, least)
        try:
            return meter_for(self.meters_of(dpid).take(), rate_bps, least)
        except MetersExhausted as error:
            log.warning("%s: %s; a flow goes without", self._state.name_of(dpid), error)
            return None

    def _send(self, datapath: Any, placements: Sequence[_Placement]) -> None:
        meters: list[Any] = []
        for placement in placements:
            meter, former = placement.path.meter, placement.former.meter if placement.former else None
            if meter is not None and (former is None or former.meter_id != meter.meter_id):
                meters.append(openflow.meter_add(datapath, meter))
            elif meter is not None and meter != former:
                meters.append(openflow.meter_modify(datapath, meter))
        entries = [openflow.flow_add(datapath, placement.entry) for placement in placements]
        barrier = [datapath.ofproto_parser.OFPBarrierRequest(datapath)] if meters and entries else []
        self._confirmed(datapath, [*meters, *barrier, *entries])

    def _undo(self, dpid: str, placement: _Placement) -> None:
        """Go back to what was before a batch that the switch refused, whatever of it took effect."""
        path, former = placement.path, placement.former
        if former is not None:
            self._paths.add(former)
        else:
            self._paths.discard(path)
        if path.meter is not None and (former is None or _id_of(former.meter) != path.meter.meter_id):
            self._take_out(dpid, [path] if former is None else [])
            if former is not None:
                self._drop_meters(dpid, [path.meter])

    def _take_out(self, dpid: str, gone: Sequence[ExplicitPath]) -> None:
        """Take entries out, then their meters. What a switch does not confirm goes by itself, or when it is read."""
        datapath = self._state.datapaths.get(dpid)
        if datapath is not None and gone:
            try:
                self._confirmed(datapath, [openflow.flow_delete(datapath, path.key) for path in gone])
            except ControllerError as error:
                log.info("entries go by their timeout only: %s", error)
        self._drop_meters(dpid, [path.meter for path in gone if path.meter])

    def _drop_meters(self, dpid: str, meters: Sequence[Meter]) -> None:
        datapath = self._state.datapaths.get(dpid)
        if not meters:
            return
        if datapath is not None:
            try:
                self._confirmed(datapath, [openflow.meter_delete(datapath, meter.meter_id) for meter in meters])
            except ControllerError as error:
                log.info("meters are left to the next look at the switch: %s", error)
        for meter in meters:
            self.meters_of(dpid).give_back(meter.meter_id)

    def _confirmed(self, datapath: Any, messages: list[Any]) -> None:
        confirmed(self._state, datapath, messages, self._state.settings.confirm_timeout_seconds)

    # --- what switches tell ---

    def entries_gone(self, paths: Iterable[ExplicitPath]) -> None:
        """The switch took entries out by itself: their meters go too."""
        for path in paths:
            if path.meter is not None:
                hub.spawn(self._drop_meters, path.first_switch, [path.meter])

    def restore(self, dpid: str, datapath: Any, found: ReadBack) -> tuple[list[Any], list[Any]]:
        """(meters that a switch lacks or has otherwise, meters that nobody uses any more), as messages.

        The first go out before the entries that need them.
        """
        ids = self.meters_of(dpid)
        wanted = {path.meter.meter_id: path.meter for path in self._paths
                  if path.first_switch == dpid and path.meter is not None}
        first = [openflow.meter_modify(datapath, meter) if number in found.meters else
                 openflow.meter_add(datapath, meter) for number, meter in sorted(wanted.items())
                 if found.meters.get(number) != meter]
        in_use = {entry.meter_id for entry in found.explicit if entry.meter_id is not None}
        return first, [openflow.meter_delete(datapath, number) for number in ids.found(found.meters, in_use)]


@dataclass(frozen=True, slots=True)
class _Placement:
    """A flow on its way into a switch, and what it had at that switch before."""

    path: ExplicitPath
    entry: FlowEntry
    former: ExplicitPath | None


def _id_of(meter: Meter | None) -> int | None:
    return meter.meter_id if meter else None


def _is_meter_trouble(error: ControllerError) -> bool:
    return isinstance(error, SwitchRefused) and error.extensions.get("openflow_type") == METER_TROUBLE
