"""Flows with a path, a rate and a queue of their own: an entry and a meter at their first switch.

What is wanted is put into the switches in batches, one barrier each, and in an order that harms no packet: meters,
then the entries that use them, then entries that are no longer wanted, then meters that nothing uses any more.
"""

from __future__ import annotations

import itertools
import logging
import secrets
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
from controller.openflow import COOKIE_MASK, FlowEntry, FlowKey, Meter, Priority
from controller.policy.five_tuple import FiveTuple
from controller.read_back import ReadBack

METER_TROUBLE, OUT_OF_METERS = "OFPET_METER_MOD_FAILED", "OFPMMFC_OUT_OF_METERS"

RETRY_COOKIES = 1 << 47
"""Cookies of second attempts have this bit, those of first ones do not."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a flow shall have. `rate_bps` None: no meter. With `counts_anew` its entry counts from 0, and has the
    path's cookie: what a connection moved before is not of the transfer that it serves now."""

    path: ExplicitPath
    rate_bps: float | None
    counts_anew: bool = False


EntryOf = Callable[[ExplicitPath], FlowEntry]
"""The entry for a path, once its first switch and its labels are ready. Raises NoSuchPath if that takes too long."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """How a batch is tried, and what failed so far."""

    entry_of: EntryOf
    failures: dict[FiveTuple, ControllerError]
    is_retry: bool = False
    with_other_meter: bool = False
    without_meters: bool = False


class MeteredPaths:
    """Puts flows into place, all at once. `unmetered` counts flows that had to do without a meter.

    `begin` gives what finds entries, with one time limit for all that are asked of it.
    """

    def __init__(self, state: NetworkState, paths: ExplicitPaths, begin: Callable[[], EntryOf]) -> None:
        self._state = state
        self._paths = paths
        self._begin = begin
        self._meters: dict[str, MeterIds] = {}
        self._left: dict[str, dict[FlowKey, Meter]] = {}
        """The entries with a meter that an earlier controller left, by switch. Whoever takes such a flow over goes on
        with its meter; where nobody does, the meter goes with the entry."""
        self._retry_cookies = itertools.count(RETRY_COOKIES | secrets.randbits(15) << 32)
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
        attempt = _Attempt(self._begin(), {})
        # a flow's new entry is there before its old one, at another switch, goes
        hub.joinall([hub.spawn(self._place, dpid, placed, attempt)
                     for dpid, (placed, _) in batches.items() if placed])
        hub.joinall([hub.spawn(self._take_out, dpid, gone) for dpid, (_, gone) in batches.items() if gone])
        return attempt.failures

    def _place(self, dpid: str, batch: Sequence[Wanted], attempt: _Attempt) -> None:
        failures = attempt.failures
        placements = []
        for each in batch:
            try:
                placements.append(self._prepare(dpid, each, attempt))
            except NoSuchPath as error:
                failures[each.path.five_tuple] = error
        datapath = self._state.datapaths.get(dpid)
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
            self._try_again(dpid, batch, error, attempt)
            return
        self._drop_meters(dpid, [placement.kept for placement in placements
                                 if placement.kept and placement.kept.meter_id != _id_of(placement.path.meter)])

    def _try_again(self, dpid: str, batch: Sequence[Wanted], error: ControllerError, attempt: _Attempt) -> None:
        """One of several may be to blame; a single flow gets another meter, and can do without one."""
        if len(batch) > 1:
            for each in batch:
                self._place(dpid, [each], replace(attempt, is_retry=True))
            return
        flow = batch[0].path.five_tuple
        code = _meter_trouble(error)
        if code is None or attempt.without_meters:
            attempt.failures[flow] = error
        elif code == OUT_OF_METERS or attempt.with_other_meter:
            log.warning("%s: the flow goes without a meter", error)
            self._place(dpid, batch, replace(attempt, is_retry=True, without_meters=True))
        else:
            # Somebody else changed the meters of the switch: this one is there without our doing, or not there.
            log.warning("%s: the flow gets another meter", error)
            former = self.get(flow)
            if former is not None and former.meter is not None:
                self._paths.add(replace(former, meter=None))
                self._drop_meters(dpid, [former.meter])
            self._place(dpid, batch, replace(attempt, is_retry=True, with_other_meter=True))

    def _prepare(self, dpid: str, wanted: Wanted, attempt: _Attempt) -> _Placement:
        """Choose the meter and make the entry. Raises NoSuchPath."""
        former = self.get(wanted.path.five_tuple)
        if former is not None and former.first_switch != dpid:
            former = None
        entry = attempt.entry_of(wanted.path)
        kept = former.meter if former else self._take_over(dpid, wanted.path.key)
        meter = None
        if wanted.rate_bps is not None:
            meter = None if attempt.without_meters else self._meter(dpid, kept, wanted.rate_bps)
            self.unmetered += meter is None
        number = former.cookie if former and not wanted.counts_anew else wanted.path.cookie
        if attempt.is_retry:
            # The switch may still have to tell that the first attempt's entry is gone: not to be taken for this one.
            number = openflow.cookie(number & COOKIE_MASK, next(self._retry_cookies))
        path = replace(wanted.path, meter=meter, cookie=number)
        entry = replace(entry, meter_id=_id_of(meter), cookie=path.cookie, reset_counts=wanted.counts_anew)
        return _Placement(path, entry, former, kept)

    def _take_over(self, dpid: str, key: FlowKey) -> Meter | None:
        """The meter that an earlier controller's entry for a flow has; it is ours now."""
        meter = self._left.get(dpid, {}).pop(key, None)
        if meter is not None:
            self.meters_of(dpid).take_over(meter.meter_id)
        return meter

    def _meter(self, dpid: str, kept: Meter | None, rate_bps: float) -> Meter | None:
        least = self._state.settings.meter_min_burst_bytes
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
            meter, kept = placement.path.meter, placement.kept
            if meter is not None and (kept is None or kept.meter_id != meter.meter_id):
                meters.append(openflow.meter_add(datapath, meter))
            elif meter is not None and meter != kept:
                meters.append(openflow.meter_modify(datapath, meter))
        entries = [openflow.flow_add(datapath, placement.entry) for placement in placements]
        barrier = [datapath.ofproto_parser.OFPBarrierRequest(datapath)] if meters and entries else []
        self._confirmed(datapath, [*meters, *barrier, *entries])

    def _undo(self, dpid: str, placement: _Placement) -> None:
        """Go back to what was before a batch that the switch refused, whatever of it took effect."""
        path, former, kept = placement.path, placement.former, placement.kept
        if former is None:
            self._paths.discard(path)
            if meter := path.meter or kept:
                self._take_out(dpid, [replace(path, meter=meter)])
            return
        self._paths.add(former)
        if path.meter is not None and _id_of(kept) != path.meter.meter_id:
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

    def left_entry_gone(self, dpid: str, key: FlowKey) -> None:
        """The switch took an entry out that nobody here made: the earlier controller's meter goes too."""
        meter = self._take_over(dpid, key)
        if meter is not None:
            hub.spawn(self._drop_meters, dpid, [meter])

    def found(self, dpid: str, found: ReadBack) -> None:
        """A switch was read. Call it before anything else is done there: what is known of its meters is then right
        again, and those that nothing uses are on their way out."""
        ids = self.meters_of(dpid)
        if found.max_meters is not None:
            ids.limit = min(self._state.settings.max_meters, found.max_meters)
        in_use = {entry.key: entry.meter_id for entry in found.explicit if entry.meter_id is not None}
        idle = ids.found(found.meters, in_use.values())
        self._left[dpid] = {key: found.meters[number] for key, number in in_use.items() if number in ids.foreign}
        if idle:
            hub.spawn(self._drop_meters, dpid, [found.meters[number] for number in idle])

    def missing_meters(self, dpid: str, datapath: Any, found: ReadBack) -> list[Any]:
        """Messages for the meters that a switch lacks or has otherwise, to be sent before entries that use them."""
        wanted = {path.meter.meter_id: path.meter for path in self._paths
                  if path.first_switch == dpid and path.meter is not None}
        return [openflow.meter_modify(datapath, meter) if number in found.meters else
                openflow.meter_add(datapath, meter) for number, meter in sorted(wanted.items())
                if found.meters.get(number) != meter]

    def restored(self, dpid: str) -> None:
        """The entries that a switch lacked are there; what an earlier controller had in their place is not."""
        own = {path.key for path in self._paths if path.first_switch == dpid}
        for key in own.intersection(self._left.get(dpid, {})):
            self.left_entry_gone(dpid, key)


@dataclass(frozen=True, slots=True)
class _Placement:
    """A flow on its way into a switch, and what it had at that switch before."""

    path: ExplicitPath
    entry: FlowEntry
    former: ExplicitPath | None
    kept: Meter | None
    """The meter it has there: its own, or the one of an earlier controller."""


def _id_of(meter: Meter | None) -> int | None:
    return meter.meter_id if meter else None


def _meter_trouble(error: ControllerError) -> str | None:
    """What a switch has against a meter; None if something else is wrong."""
    if isinstance(error, SwitchRefused) and error.extensions.get("openflow_type") == METER_TROUBLE:
        return str(error.extensions["openflow_code"])
    return None
