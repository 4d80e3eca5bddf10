"""Which meters a switch has in use, and what a meter for a rate looks like. No Ryu, no sockets."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from controller.openflow import Meter

BURST_SECONDS = 0.5
"""How long at its rate a metered flow may send at once: twice the least with which TCP, which sends in bursts and
gives way at each loss, gets 90 % of the rate (`scripts/bench-meters`)."""
MIN_BURST_BYTES = 64 << 10
"""A burst must hold what a sender's offload hands over at once, or nothing of it passes."""
DEFAULT_LIMIT = 1 << 16


class MetersExhausted(Exception):
    """A switch has no meter left."""


def meter_for(meter_id: int, rate_bps: float, min_burst_bytes: int = MIN_BURST_BYTES) -> Meter:
    """The meter that lets `rate_bps` pass, rounded to kbit/s, at least one."""
    rate_kbps = max(1, round(rate_bps / 1000))
    return Meter(meter_id, rate_kbps, max(-(-8 * min_burst_bytes // 1000), round(rate_kbps * BURST_SECONDS)))


class MeterIds:
    """The meter numbers of one switch: the lowest free one is taken, and given back it is taken again.

    `limit` is the highest number. Numbers that were found on the switch and are nobody's here are `foreign`: an
    earlier controller's, not to be given out as long as entries use them. Whoever takes such an entry over takes its
    meter over.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.taken: set[int] = set()
        self.foreign: set[int] = set()
        self._free: list[int] = []
        self._next = 1

    def take(self) -> int:
        """A free number. Raises MetersExhausted."""
        while self._free:
            number = heapq.heappop(self._free)
            if self._is_free(number):
                self.taken.add(number)
                return number
        while self._next <= self.limit:
            number, self._next = self._next, self._next + 1
            if self._is_free(number):
                self.taken.add(number)
                return number
        raise MetersExhausted(f"all {self.limit} meters are in use")

    def give_back(self, number: int) -> None:
        """A meter is gone from the switch, or never got there. Unknown numbers are fine."""
        if number in self.taken:
            self.taken.remove(number)
            heapq.heappush(self._free, number)

    def found(self, numbers: Iterable[int], in_use: Iterable[int]) -> list[int]:
        """The switch says which meters it has, and which of them entries use. Returns those to be deleted, and given
        back after that: nobody's here, and of no use there. The others of an earlier controller become foreign."""
        used = set(in_use)
        strangers = set(numbers) - self.taken
        released, self.foreign = self.foreign - strangers, strangers & used
        for number in released:
            heapq.heappush(self._free, number)
        idle = strangers - used
        # Nobody gets one of them before the switch has deleted it.
        self.taken |= idle
        return sorted(idle)

    def take_over(self, number: int) -> None:
        """A foreign meter is ours from now on."""
        self.foreign.remove(number)
        self.taken.add(number)

    def _is_free(self, number: int) -> bool:
        return number <= self.limit and number not in self.taken and number not in self.foreign
