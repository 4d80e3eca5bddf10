"""Puts what flows should have into their first switches: one entry each, and a meter for those with a rate.

Claims are taken in batches, one barrier a switch, and in an order that harms no packet: meters, then the entries that
use them, then entries that are no longer wanted, then meters that nothing uses any more. An entry that changes is
replaced in one step, and its counts go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ryu.lib import hub

from speedwell.controller.errors import ControllerError, NoSuchPath, SwitchGone, SwitchRefused, SwitchTimedOut
from speedwell.controller.loops import Loops, Turns, pieces
from speedwell.controller.policy.network.five_tuple import FiveTuple
from speedwell.controller.switches import openflow
from speedwell.controller.switches.entries import FlowKey, Meter
from speedwell.controller.switches.transactions import confirmed
from speedwell.controller.tables.flow_locks import FlowLocks
from speedwell.controller.tables.flow_records import (
    Claim,
    Claimant,
    EntryPlacement,
    FlowRecord,
    FlowRecords,
    Withdrawal,
)
from speedwell.controller.tables.switch_meters import SwitchMeters, meter_trouble
from speedwell.controller.topology.state import NetworkState

FLOWS_AT_ONCE = 32
"""So many are put into place in one go, a few milliseconds' work; then others have their turn."""

log = logging.getLogger(__name__)

PlanWhenReady = Callable[[FlowRecord, int, bool, bool], EntryPlacement]
"""`FlowRecords.planned`, once the switches are ready for it; the last argument says that the flow has a meter.
Raises NoSuchPath if that takes too long."""
Failures = dict[FiveTuple, ControllerError]


@dataclass(slots=True)
class _Change:
    """What is to become of the claims of one flow."""

    claims: list[Claim] = field(default_factory=list)
    withdrawals: list[Withdrawal] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """A record on its way from what its switch held for it to what it should hold."""

    record: FlowRecord
    former_claims: dict[Claimant, Claim]
    former: EntryPlacement | None
    planned: EntryPlacement
    kept: Meter | None
    """The meter that the flow has at the switch: its own, or the one of an earlier controller."""
    messages: list[Any] = field(default_factory=list)

    def count(self) -> None:
        """The record counts on, or from 0 if all that it serves is new."""
        if self.planned.entry.reset_counts:
            self.record.count_anew()
        else:
            self.record.count_on(self.former_claims)

    @property
    def dpid(self) -> str:
        return self.planned.dpid

    @property
    def has_new_meter(self) -> bool:
        return self.planned.meter is not None and _id_of(self.kept) != self.planned.meter.meter_id


class FlowInstaller:
    """Takes claims and has the switches confirm what comes of them. `unmetered` counts flows that had to do without a
    meter.

    `begin` gives what plans, with one time limit for all that are asked of it. `moved` is told of flows that take
    another path without the doing of all who claim them.
    """

    def __init__(self, state: NetworkState, records: FlowRecords, begin: Callable[[], PlanWhenReady],
                 moved: Callable[[Sequence[FiveTuple]], None], loops: Loops) -> None:
        self._state = state
        self._loops = loops
        self._records = records
        self._begin = begin
        self._moved = moved
        self._locks = FlowLocks()
        self.meters = SwitchMeters(state, records, loops)
        self.unmetered = 0

    # --- claims ---

    def apply(self, claims: Iterable[Claim] = (), withdrawals: Iterable[Withdrawal] = ()) -> Failures:
        """Enter claims and take others back, confirmed by the switches. Returns what failed, by flow.

        A flow that fails stays as it was where that is possible, and so do its claims, but for those that were taken
        back. One whose switch is gone is put into place when the switch is back. An entry with a lifetime has it
        renewed.
        """
        changes: dict[FiveTuple, _Change] = {}
        for claim in claims:
            changes.setdefault(claim.five_tuple, _Change()).claims.append(claim)
        for withdrawal in withdrawals:
            changes.setdefault(withdrawal.five_tuple, _Change()).withdrawals.append(withdrawal)
        failures: Failures = {}
        plan = self._begin()
        batches = [changes] if len(changes) <= 1 else self._batches(changes)
        if len(batches) == 1:
            self._apply(changes, plan, failures)
        else:
            turns = Turns()
            hub.joinall([self._loops.spawn(self._apply_in_turn, batch, plan, failures, turns) for batch in batches])
        return failures

    def _batches(self, changes: dict[FiveTuple, _Change]) -> list[dict[FiveTuple, _Change]]:
        by_source: dict[str, dict[FiveTuple, _Change]] = {}
        for five_tuple, change in changes.items():
            host = self._state.hosts.get(five_tuple.source)
            by_source.setdefault(host.dpid if host else "", {})[five_tuple] = change
        return [dict(some) for batch in by_source.values() for some in pieces(list(batch.items()), FLOWS_AT_ONCE)]

    def _apply_in_turn(self, changes: dict[FiveTuple, _Change], plan: PlanWhenReady, failures: Failures,
                       turns: Turns) -> None:
        turns.others()
        self._apply(changes, plan, failures)

    def _apply(self, changes: dict[FiveTuple, _Change], plan: PlanWhenReady, failures: Failures) -> None:
        with self._locks.holding(changes):
            steps: dict[str, list[_Step]] = {}
            ended: list[FlowRecord] = []
            renewed: dict[str, list[FlowRecord]] = {}
            changed: list[tuple[FlowRecord, dict[Claimant, Claim]]] = []
            for five_tuple, change in changes.items():
                record = self._records.open(five_tuple)
                former_claims = dict(record.claims)
                record.claims.update((claim.claimant, claim) for claim in change.claims)
                for withdrawal in change.withdrawals:
                    record.withdraw(withdrawal)
                if not record.claims:
                    ended.append(record)
                elif record.placement is None or record.claims != former_claims or not self._records.is_as_claimed(
                        record):
                    changed.append((record, former_claims))
                elif record.lifetime_seconds:
                    renewed.setdefault(record.placement.dpid, []).append(record)
            for dpid, records in renewed.items():
                changed += [(record, record.claims) for record in self._renew(dpid, records, failures)]
            for record, former_claims in changed:
                try:
                    step = self._prepare(record, former_claims, plan,
                                         must_have_path=bool(changes[record.five_tuple].claims))
                except NoSuchPath as error:
                    failures[record.five_tuple] = error
                    self._restore_claims(record, former_claims)
                    if not record.claims:
                        ended.append(record)
                    continue
                if step.planned != step.former or step.planned.entry.reset_counts or record.lifetime_seconds:
                    steps.setdefault(step.dpid, []).append(step)
                else:
                    step.count()
            for dpid, batch in steps.items():
                self._put(dpid, batch, plan, failures)
            self._end(ended, failures)
        self._tell(step for batch in steps.values() for step in batch if step.record.five_tuple not in failures)

    def _tell(self, steps: Iterable[_Step]) -> None:
        """A flow took another path, and one of those who claim it did not ask for that now."""
        moved = [step.record.five_tuple for step in steps if step.former and step.former.path != step.planned.path
                 and any(claim == step.former_claims.get(claim.claimant) for claim in step.record.claims.values())]
        if moved:
            self._moved(moved)

    # --- putting flows into place ---

    def _prepare(self, record: FlowRecord, former_claims: dict[Claimant, Claim], plan: PlanWhenReady,
                 must_have_path: bool = True, without_meter: bool = False) -> _Step:
        """Choose the meter and make the entry. Raises NoSuchPath."""
        former, rate_bps = record.placement, record.rate_bps
        goes_on = record.goes_on(former_claims)
        number = former.entry.cookie if former and goes_on else self._records.new_cookie()
        planned = plan(record, number, must_have_path, rate_bps is not None or record.meter is not None)
        if former is not None and former.dpid == planned.dpid:
            kept = former.meter
        else:
            kept = self.meters.adopt(planned.dpid, planned.entry.key)
        meter = None
        if rate_bps is not None:
            meter = None if without_meter else self.meters.meter_for(planned.dpid, kept, rate_bps)
            self.unmetered += meter is None
        entry = planned.entry.metered(_id_of(meter), reset_counts=not goes_on)
        return _Step(record, former_claims, former, EntryPlacement(planned.dpid, entry, planned.path, meter), kept)

    def _renew(self, dpid: str, records: Sequence[FlowRecord], failures: Failures) -> list[FlowRecord]:
        """Send entries once more as they are, so that their lifetimes begin anew. Returns those that are refused."""
        datapath = self._state.datapaths.get(dpid)
        try:
            if datapath is None:
                raise SwitchGone(dpid)
            messages = [openflow.flow_add(datapath, record.placement.entry.metered(_id_of(record.meter), False))
                        for record in records if record.placement]
            self._confirmed(datapath, messages)
        except SwitchRefused as error:
            return [record for record, message in zip(records, messages, strict=True)
                    if message.xid in error.by_message]
        except ControllerError as error:
            failures.update((record.five_tuple, error) for record in records)
        return []

    def _put(self, dpid: str, batch: Sequence[_Step], plan: PlanWhenReady, failures: Failures,
             is_last_try: bool = False) -> None:
        datapath = self._state.datapaths.get(dpid)
        ended = [step for step in batch if self._records.get(step.record.five_tuple) is not step.record]
        for step in ended:      # its entry went while the plan was waited for, and its claims with it
            if step.planned.meter is not None and step.has_new_meter:
                self.meters.of(dpid).release(step.planned.meter.meter_id)
        batch = [step for step in batch if self._records.get(step.record.five_tuple) is step.record]
        if not batch:
            return
        for step in batch:
            self._records.place(step.record, step.planned)
        refusals: dict[int, SwitchRefused] = {}
        try:
            if datapath is None:
                raise SwitchGone(dpid)
            self._send(datapath, batch)
        except SwitchGone as error:
            for step in batch:
                step.count()
                failures[step.record.five_tuple] = error
                self._leave_former_switch(step)
            return
        except SwitchRefused as error:
            refusals = error.by_message
        except ControllerError as error:
            for step in batch:
                self._undo(step, failures, error)
            return
        for step in batch:
            refusal = next((refusals[message.xid] for message in step.messages if message.xid in refusals), None)
            if refusal is None:
                self._done(step)
            elif meter_trouble(refusal) is None or step.planned.meter is None:
                self._undo(step, failures, refusal)
            else:
                self._with_another_meter(step, refusal, plan, failures, is_last_try)

    def _done(self, step: _Step) -> None:
        step.count()
        self._leave_former_switch(step)
        if step.kept is not None and step.kept.meter_id != _id_of(step.planned.meter):
            self.meters.drop(step.dpid, [step.kept])

    def _leave_former_switch(self, step: _Step) -> None:
        """Not before the new entry is there, or is to come with its switch."""
        if step.former is not None and step.former.dpid != step.planned.dpid:
            self._remove_entries(step.former.dpid, [step.former])

    def _with_another_meter(self, step: _Step, refusal: SwitchRefused, plan: PlanWhenReady, failures: Failures,
                            is_last_try: bool) -> None:
        record, meter = step.record, step.planned.meter
        assert meter is not None
        without_meter = is_last_try or not self.meters.refused(step.dpid, meter, refusal)
        former = replace(step.former, meter=None) if step.former else None
        self._records.place(record, former)
        log.warning("%s: the flow %s", refusal, "goes without a meter" if without_meter else "gets another meter")
        try:
            again = self._prepare(record, step.former_claims, plan, without_meter=without_meter)
        except NoSuchPath as error:
            self._undo(step, failures, error)
            return
        # The switch may still have to tell that the former entry is gone: not to be taken for this one.
        again.planned = replace(again.planned, entry=replace(again.planned.entry, cookie=self._records.new_cookie()))
        self._put(step.dpid, [again], plan, failures, is_last_try=not without_meter)

    def _send(self, datapath: Any, batch: Sequence[_Step]) -> None:
        meters: list[Any] = []
        for step in batch:
            meter = step.planned.meter
            if meter is not None and step.has_new_meter:
                step.messages.append(openflow.meter_add(datapath, meter))
            elif meter is not None and meter != step.kept:
                step.messages.append(openflow.meter_modify(datapath, meter))
            meters += step.messages
        entries = [openflow.flow_add(datapath, step.planned.entry) for step in batch]
        for step, entry in zip(batch, entries, strict=True):
            step.messages.append(entry)
        barrier = [datapath.ofproto_parser.OFPBarrierRequest(datapath)] if meters else []
        self._confirmed(datapath, [*meters, *barrier, *entries])

    def _undo(self, step: _Step, failures: Failures, error: ControllerError) -> None:
        """Go back to what was before a step that failed, whatever of it took effect."""
        failures[step.record.five_tuple] = error
        self._records.place(step.record, step.former)
        self._restore_claims(step.record, step.former_claims)
        meter = step.planned.meter if step.has_new_meter else None
        clean_ups: list[tuple[Any, ...]] = []
        if step.former is None:
            clean_ups.append((self._remove_entries, step.dpid, [replace(step.planned, meter=meter or step.kept)]))
        elif not step.record.claims:
            clean_ups.append((self._remove_entries, step.former.dpid, [step.former]))
        if not step.record.claims:
            self._records.drop(step.record)
        if step.former is not None and meter is not None:
            clean_ups.append((self.meters.drop, step.dpid, [meter]))
        for clean_up in clean_ups:
            if isinstance(error, SwitchTimedOut):
                self._loops.spawn(*clean_up)        # nobody is to wait for this switch twice
            else:
                clean_up[0](*clean_up[1:])

    def _restore_claims(self, record: FlowRecord, former_claims: dict[Claimant, Claim]) -> None:
        """What was given up stays so: nobody will give it up once more."""
        record.claims = {claimant: claim for claimant, claim in former_claims.items() if claimant in record.claims}

    def _end(self, ended: Sequence[FlowRecord], failures: Failures) -> None:
        """Take out what nobody claims any more. An entry whose removal a switch does not confirm goes by its timeout,
        or when it is found there."""
        by_switch: dict[str, list[FlowRecord]] = {}
        for record in ended:
            if record.placement is not None:
                by_switch.setdefault(record.placement.dpid, []).append(record)
        for dpid, records in by_switch.items():
            placements = [record.placement for record in records if record.placement]
            for record in records:
                self._records.drop(record)
            error = self._remove_entries(dpid, placements)
            if error is not None:
                failures.update((record.five_tuple, error) for record in records)
        for record in ended:
            self._records.drop(record)

    def _remove_entries(self, dpid: str, gone: Sequence[EntryPlacement]) -> ControllerError | None:
        """Take entries out, then their meters. Returns what the switch had against it."""
        datapath, problem = self._state.datapaths.get(dpid), None
        if datapath is not None:
            try:
                self._confirmed(datapath, [openflow.flow_delete(datapath, each.entry.key) for each in gone])
            except SwitchGone:
                pass
            except ControllerError as error:
                log.info("entries go by their timeout only: %s", error)
                problem = error
        self.meters.drop(dpid, [each.meter for each in gone if each.meter])
        return problem

    def _confirmed(self, datapath: Any, messages: list[Any]) -> None:
        confirmed(self._state, datapath, messages, self._state.settings.confirm_timeout_seconds)

    # --- what switches tell ---

    def entry_gone(self, dpid: str, number: int, key: Callable[[], FlowKey], is_lifetime_over: bool) -> list[Claim]:
        """The switch took an entry out by itself. Returns the claims that end with it: those that were not renewed if
        its lifetime was over, all otherwise. What the others claim is put into place again."""
        record = self._records.with_cookie(number, dpid)
        if record is None:
            if self.meters.has_left(dpid):      # most are gone at our own word: their keys need not be read
                self.meters.left_entry_gone(dpid, key())
            return []
        ended = [claim for claim in record.claims.values() if claim.lifetime_seconds or not is_lifetime_over]
        for claim in ended:
            del record.claims[claim.claimant]
        if record.meter is not None:
            self._loops.spawn(self.meters.drop, dpid, [record.meter])
        self._records.place(record, None)
        if record.claims:
            self._loops.spawn(self.apply, list(record.claims.values()))
        else:
            self._records.drop(record)
        return ended


def _id_of(meter: Meter | None) -> int | None:
    return meter.meter_id if meter else None
