"""Which packets to a destination may go now: its turns, and what waits for them. No clock, no sockets."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

from speedwell.host_agent.channel import Turns

AHEAD_SECONDS, IDLE_SECONDS = 0.005, 0.003
"""As much as so long carries is let go at once: the uplink's own queue spreads it, and we are woken less."""


@dataclass(frozen=True, slots=True)
class Span:
    """A slice in seconds of our clock; in one without end everything goes."""

    begin: float
    end: float
    rate_bps: int


@dataclass(slots=True)
class Gate:
    """`uplink_bps` is what a slice without a rate carries. `free_at` is when the lease ends, in seconds of the
    caller's clock; before the first directive it is open."""

    uplink_bps: int
    free_at: float = -inf
    held_bytes: int = 0
    _waiting: deque[tuple[int, int]] = field(default_factory=deque)
    """(number, bytes) of each packet, the oldest first."""
    spans: tuple[Span, ...] = ()
    _sent_until: float = -inf
    """When what was let go will have left the uplink."""
    _used: float = -inf
    """Begin of the last slice in which something was let go."""

    def is_asleep(self, now: float) -> bool:
        """Whether nothing waits, and what comes would have to, as no slice is left for it."""
        return not self._waiting and now < self.free_at and all(each.end <= now for each in self.spans)

    def drained_at(self, now: float) -> float:
        """When all that was let go in the slice that runs has left the uplink; inf: more waits, nothing was let go,
        or no slice runs."""
        span = self._open_span(now)
        is_used = span is not None and span.end < inf and self._used == span.begin
        return self._sent_until if is_used and not self._waiting else inf

    def is_done(self, now: float, has_more: bool) -> bool:
        """Whether its turns are of no use now: nothing waits and nothing goes, for IDLE_SECONDS if the sender
        `has_more`, which waits for acknowledgements."""
        if self._waiting or now >= self.free_at:
            return False
        span = self._open_span(now)
        began_at = max(self._sent_until, span.begin if span else -inf)
        return now >= began_at + (IDLE_SECONDS if has_more else 0.0)

    def direct(self, turns: Turns, now: float) -> None:
        """Take what a directive says that arrives now."""
        running = self._open_span(now)
        self.free_at = now + turns.lease_microseconds / 1e6
        spans: list[Span] = []
        for each in turns.slices:
            begin = now + each.start_microseconds / 1e6
            end = now + (each.start_microseconds + each.duration_microseconds) / 1e6
            rate_bps = each.rate_bps or self.uplink_bps
            if begin == now and running and running.end < inf:
                begin = running.begin           # what is left of a slice is no shorter slice
            if spans and (spans[-1].end, spans[-1].rate_bps) == (begin, rate_bps):
                begin = spans.pop().begin       # a packet may begin in one slice and end in the next
            spans.append(Span(begin, end, rate_bps))
        self.spans = tuple(spans)

    def arrive(self, number: int, size_bytes: int) -> None:
        """A packet has come to wait."""
        self._waiting.append((number, size_bytes))
        self.held_bytes += size_bytes

    def release(self, now: float) -> int | None:
        """The number of the last packet that may go now; None: none may. Those up to it count as gone.

        What goes has left the uplink before the slice ends, unless a single packet is longer than that.
        """
        span = self._open_span(now)
        if not self._waiting or span is None:
            return None
        if span.end == inf:
            newest, _ = self._waiting[-1]
            self.forget_waiting()
            return newest
        last, self._sent_until = None, max(self._sent_until, now)
        while self._waiting and self._sent_until <= now + AHEAD_SECONDS and self._fits(span, self._sent_until):
            last, size_bytes = self._waiting.popleft()
            self.held_bytes -= size_bytes
            self._sent_until += size_bytes * 8 / span.rate_bps
            self._used = span.begin
        return last

    def next_change(self, now: float) -> float:
        """When `release` may give more than it did just now if nothing else happens; inf: never."""
        if not self._waiting:
            return inf
        span = self._open_span(now)
        if span is not None and span.end == inf:
            return now
        if span is not None and self._fits(span, max(self._sent_until, now)):
            return min(max(now, self._sent_until - AHEAD_SECONDS / 2), span.end, self.free_at)
        return min([each.begin for each in self.spans if each.begin > now] + [self.free_at])

    def forget_waiting(self) -> None:
        """Somebody else has let them go."""
        self._waiting.clear()
        self.held_bytes = 0

    def _fits(self, span: Span, begin: float) -> bool:
        takes = self._waiting[0][1] * 8 / span.rate_bps
        return begin + takes <= span.end or (takes > span.end - span.begin and self._used != span.begin)

    def _open_span(self, now: float) -> Span | None:
        if now >= self.free_at:
            return Span(now, inf, self.uplink_bps)
        return next((each for each in self.spans if each.begin <= now < each.end), None)
