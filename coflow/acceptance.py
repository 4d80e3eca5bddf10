"""Which of the reports that are signed correctly are news: neither late nor seen before. No clock, no sockets."""

from __future__ import annotations

from dataclasses import dataclass, field

from coflow.errors import InvalidReport
from coflow.report import Flow, FlowReport, Report

WINDOW = 64
"""How far a datagram may be overtaken by others of its sender."""
MAX_SENDERS = 20_000


@dataclass(slots=True)
class _Sender:
    """What is known of one sender's reports on one coflow."""

    highest: int = 0
    seen: int = 0
    """Bit n: `highest - n` was seen."""
    heard_at: float = 0.0
    latest: dict[Flow, int] = field(default_factory=dict)
    """The sequence number that last told of a flow."""


class Acceptance:
    """Refuses replays and takes reports in any order.

    A report counts if its clock is within `allowed_skew_seconds` of ours and its sequence number was not seen. A
    sender is remembered as long as a replay of its reports could pass the clock.
    """

    def __init__(self, allowed_skew_seconds: float = 30.0, max_senders: int = MAX_SENDERS) -> None:
        self._allowed_skew_seconds = allowed_skew_seconds
        self._max_senders = max_senders
        self._senders: dict[tuple[bytes, int], _Sender] = {}

    def __len__(self) -> int:
        return len(self._senders)

    def take(self, report: Report, now_unix: float) -> list[FlowReport]:
        """What is new in a report: flows of which nothing later was heard. Raises InvalidReport."""
        if abs(report.sent_at_microseconds / 1e6 - now_unix) > self._allowed_skew_seconds:
            raise InvalidReport("stale", "its clock is too far from ours")
        key = report.coflow_id, report.sender
        sender = self._senders.get(key)
        if sender is None:
            if len(self._senders) >= self._max_senders:
                self.forget(now_unix)
            if len(self._senders) >= self._max_senders:
                raise InvalidReport("crowded", f"more than {self._max_senders} senders")
            sender = self._senders[key] = _Sender()
        _note(sender, report.sequence)
        sender.heard_at = now_unix
        news = []
        for each in report.flows:
            if report.sequence > sender.latest.get(each.flow, 0):
                sender.latest[each.flow] = report.sequence
                news.append(each)
        return news

    def forget(self, now_unix: float) -> None:
        """Drop senders whose last reports could not be replayed any more."""
        horizon = now_unix - 2 * self._allowed_skew_seconds
        self._senders = {key: sender for key, sender in self._senders.items() if sender.heard_at > horizon}


def _note(sender: _Sender, sequence: int) -> None:
    if sequence > sender.highest:
        sender.seen = (sender.seen << min(sequence - sender.highest, WINDOW) | 1) & (1 << WINDOW) - 1
        sender.highest = sequence
        return
    behind = sender.highest - sequence
    if behind >= WINDOW or sender.seen >> behind & 1:
        raise InvalidReport("replayed", "it was seen before, or is too far behind")
    sender.seen |= 1 << behind
