"""Which of the reports that are signed correctly are news: neither late nor seen before. No clock, no sockets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from speedwell.coflow.errors import InvalidReport
from speedwell.coflow.report import MAX_FLOWS, Flow, FlowReport, Report

WINDOW = 64
"""How far a datagram may be overtaken by others of its sender."""
MAX_ENTRIES = 200_000
"""Senders and flows that are remembered, a few hundred bytes each."""
ALLOWED_SKEW_SECONDS = 30.0
MOMENT_BITS = 16
"""Times are told apart by moments of so many bits of microseconds: 65 ms."""

_Key = tuple[bytes, int]


@dataclass(slots=True)
class _Sender:
    """What is known of one sender's reports on one coflow."""

    moment: int
    """Of the latest time that it told."""
    believed_from: int
    """Earlier reports of it may have been seen before it was forgotten."""
    highest: int = 0
    seen: int = 0
    """Bit n: `highest - n` was seen."""
    latest: dict[Flow, int] = field(default_factory=dict)
    """The sequence number that last told of a flow."""
    tidy_at: int = 2 * MAX_FLOWS

    def forget_flows(self) -> None:
        """Those of which every report that could still be taken is later."""
        self.latest = {flow: sequence for flow, sequence in self.latest.items() if sequence > self.highest - WINDOW}
        self.tidy_at = 2 * (len(self.latest) + MAX_FLOWS)


class Acceptance:
    """Refuses replays and takes reports in any order.

    A report counts if its clock is within `allowed_skew_seconds` of ours and its sequence number was not seen. A
    sender is remembered until no report of it could pass the clock any more. If that were more than `max_entries`
    senders and flows, those whose latest report has the earliest time are forgotten before, and from then on a sender
    that is not known is believed only with a later time than theirs: one that was forgotten is known again with its
    next report, and none of its old ones is taken twice.

    What was taken can be taken once more only if our clock is set back. Where this object takes the place of another
    one nothing from before `begun_unix` is believed, which has to be later than what was told to that one.
    """

    def __init__(self, allowed_skew_seconds: float = ALLOWED_SKEW_SECONDS, max_entries: int = MAX_ENTRIES, *,
                 begun_unix: float = 0.0, note_time: Callable[[float, float], None] | None = None) -> None:
        """`note_time` is told of each report, before it counts, its sender's time and ours."""
        self._note_time = note_time
        self._allowed_skew_seconds = allowed_skew_seconds
        self._max_entries = max_entries
        self._senders: dict[_Key, _Sender] = {}
        self._by_moment: dict[int, set[_Key]] = {}
        self._entries = 0
        self._believed_from = _moment(begun_unix)
        """The moment from which on senders that are not known are believed."""

    def __len__(self) -> int:
        return len(self._senders)

    def accept(self, report: Report, now_unix: float) -> list[FlowReport]:
        """What is new in a report: flows of which nothing later was heard. Raises InvalidReport."""
        if abs(report.sent_at_microseconds / 1e6 - now_unix) > self._allowed_skew_seconds:
            raise InvalidReport("stale", "its clock is too far from ours")
        if self._note_time is not None:
            self._note_time(report.sent_at_microseconds / 1e6, now_unix)
        key, moment = (report.coflow_id, report.sender), report.sent_at_microseconds >> MOMENT_BITS
        sender = self._senders.get(key)
        if sender is not None and moment < sender.believed_from:
            raise InvalidReport("replayed", "it may have been seen before its sender was forgotten")
        if sender is None:
            believed_from = self._believed_from
            if believed_from > _moment(now_unix + self._allowed_skew_seconds) + 1:
                believed_from = 0               # our clock was set back
            if moment < believed_from:
                raise InvalidReport("crowded", "its sender is not known, and may have been seen before")
            sender = self._senders[key] = _Sender(moment, believed_from)
            self._by_moment.setdefault(moment, set()).add(key)
            self._entries += 1
        _note(sender, report.sequence)
        if moment > sender.moment:
            self._leave_moment(key, sender)
            sender.moment = moment
            self._by_moment.setdefault(moment, set()).add(key)
        known = len(sender.latest)
        news = []
        for each in report.flows:
            if report.sequence > sender.latest.get(each.flow, 0):
                sender.latest[each.flow] = report.sequence
                news.append(each)
        if len(sender.latest) > sender.tidy_at:
            sender.forget_flows()
        self._entries += len(sender.latest) - known
        self._make_room(now_unix)
        return news

    def forget(self, now_unix: float) -> None:
        """Drop senders whose reports could not be replayed any more."""
        horizon = _moment(now_unix - self._allowed_skew_seconds)
        for moment in [each for each in self._by_moment if each < horizon]:
            self._drop(moment)

    def _make_room(self, now_unix: float) -> None:
        if self._entries > self._max_entries:
            self.forget(now_unix)
        while self._entries > self._max_entries:
            moment = min(self._by_moment)
            self._drop(moment)
            self._believed_from = moment + 1

    def _drop(self, moment: int) -> None:
        for key in self._by_moment.pop(moment):
            self._entries -= 1 + len(self._senders.pop(key).latest)

    def _leave_moment(self, key: _Key, sender: _Sender) -> None:
        keys = self._by_moment[sender.moment]
        keys.remove(key)
        if not keys:
            del self._by_moment[sender.moment]


def _moment(seconds: float) -> int:
    return int(seconds * 1e6) >> MOMENT_BITS


def _note(sender: _Sender, sequence: int) -> None:
    if sequence > sender.highest:
        sender.seen = (sender.seen << min(sequence - sender.highest, WINDOW) | 1) & (1 << WINDOW) - 1
        sender.highest = sequence
        return
    behind = sender.highest - sequence
    if behind >= WINDOW or sender.seen >> behind & 1:
        raise InvalidReport("replayed", "it was seen before, or is too far behind")
    sender.seen |= 1 << behind
