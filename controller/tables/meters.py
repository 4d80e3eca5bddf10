"""Which meters a switch has in use, and what a meter for a rate looks like. No Ryu, no sockets."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from speedwell.controller.switches.entries import Meter

BURST_SECONDS = 0.5
"""How long at its rate a metered flow may send at once: twice the least with which TCP, which sends in bursts and
gives way at each loss, gets 90 % of the rate (`scripts/bench-meters`)."""
MIN_BURST_BYTES = 64 << 10
"""A burst must hold what a sender's offload hands over at once, or nothing of it passes."""
ASSUMED_METERS = 1 << 18
"""What a switch can have that did not say."""


class MetersExhausted(Exception):
    """A switch has no meter left."""


def meter_for(meter_id: int, rate_bps: float, min_burst_bytes: int = MIN_BURST_BYTES) -> Meter:
    """The meter that lets `rate_bps` pass, rounded to kbit/s, at least one."""
    rate_kbps = max(1, round(rate_bps / 1000))
    return Meter(meter_id, rate_kbps, max(-(-8 * min_burst_bytes // 1000), round(rate_kbps * BURST_SECONDS)))


def own_range(switch_meters: int | None, most: int) -> range:
    """The meter numbers of a switch that are the controller's, `most` at most.

    A meter carries no mark of its owner, so its number has to: the upper quarter of what the switch can have
    (`switch_meters`; None: it did not say) is for flows, the lower half is left to others.
    """
    can_have = ASSUMED_METERS if switch_meters is None else switch_meters
    first = can_have - can_have // 4 + 1
    return range(first, min(can_have + 1, first + most))


class MeterIds:
    """The controller's meter numbers at one switch. The lowest free one is allocated first.

    Meters with other numbers are somebody else's. Numbers of the range that are in use there and nobody's here are
    `foreign`: an earlier controller's, or taken by others all the same. They are neither given out nor deleted as
    long as entries use them. Whoever adopts an entry of an earlier controller adopts its meter.
    """

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers
        self.allocated: set[int] = set()
        self.foreign: set[int] = set()
        self._free: list[int] = []
        self._next = numbers.start

    def use(self, numbers: range) -> None:
        """The switch said how many meters it can have, so these are the controller's."""
        if numbers.start != self.numbers.start:
            self._free, self._next = [], numbers.start
        self.numbers = numbers

    def allocate(self) -> int:
        """A free number. Raises MetersExhausted."""
        while self._free:
            number = heapq.heappop(self._free)
            if self._is_free(number):
                self.allocated.add(number)
                return number
        while self._next < self.numbers.stop:
            number, self._next = self._next, self._next + 1
            if self._is_free(number):
                self.allocated.add(number)
                return number
        raise MetersExhausted(f"all {len(self.numbers)} meters are in use")

    def release(self, number: int) -> None:
        """A meter is gone from the switch, or never got there. Unknown numbers are fine."""
        if number in self.allocated:
            self.allocated.remove(number)
            heapq.heappush(self._free, number)

    def is_somebody_elses(self, number: int) -> None:
        """A number that was allocated is in use there without our doing."""
        self.allocated.discard(number)
        self.foreign.add(number)

    def found(self, numbers: Iterable[int], in_use: Iterable[int]) -> list[int]:
        """The switch says which meters it has, and which of them entries use, whoever's. Returns those to be deleted,
        and given back after that: of the controller's range, nobody's here, and of no use there."""
        used = set(in_use)
        strangers = {number for number in numbers if number in self.numbers} - self.allocated
        released, self.foreign = self.foreign - strangers, strangers & used
        for number in released:
            heapq.heappush(self._free, number)
        idle = strangers - used
        # Nobody gets one of them before the switch has deleted it.
        self.allocated |= idle
        return sorted(idle)

    def adopt(self, number: int) -> None:
        """A foreign meter is ours from now on."""
        self.foreign.discard(number)
        self.allocated.add(number)

    def _is_free(self, number: int) -> bool:
        return number in self.numbers and number not in self.allocated and number not in self.foreign
