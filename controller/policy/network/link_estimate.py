"""Sinbad's estimate v of what a link carries: a moving average, and what was placed since it was measured.

Chowdhury, Kandula, Stoica: "Leveraging endpoint flexibility in data-intensive clusters", SIGCOMM 2013, section 5.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from speedwell.controller.policy.errors import InvalidMeasurement
from speedwell.controller.policy.network.graph import Link, Network

SMOOTHING = 0.2
"""Weight of a new measurement in the moving average (the paper's alpha)."""

MOST_PLACEMENTS = 1000
"""That count for their duration on one link, the latest ones: on a full link that is as good as for ever."""


class _Ramp(NamedTuple):
    """What one placement is expected to add: v_old + (S/D) (1 - T/D) until T = D."""

    transfer_id: object
    before_bps: float
    rate_bps: float
    begin: float
    duration_seconds: float
    is_highest: bool
    """Of those that began before: it begins at what these expect, and they only fall."""


class LinkEstimate:
    """What one directed link is expected to carry, in bits/s. Placements count in one of two ways:

    - `placed_for_duration`, the paper's: for as long as the transfer is expected to take, as the maximum of what is
      measured and a ramp that falls with the transfer's rest;
    - `placed_until_measured`, as in Sinbad's code for HDFS: until the next measurement.
    """

    __slots__ = ("_average_bps", "_interval_seconds", "_measured_at", "_passing_bps", "_ramps")

    def __init__(self) -> None:
        self._average_bps: float | None = None
        self._measured_at = -math.inf
        self._interval_seconds = 0.0
        self._passing_bps = 0.0
        self._ramps: list[_Ramp] = []

    def measured(self, rate_bps: float, now: float) -> bool:
        """Take in a rate in bits/s. False, and nothing is changed, if it is older than the last one.

        Raises InvalidMeasurement for what no link can have.
        """
        if not (math.isfinite(rate_bps) and rate_bps >= 0):
            raise InvalidMeasurement(f"a link carries a number of bits per second from 0 up, not {rate_bps!r}")
        if now < self._measured_at:
            return False
        self._drop_over(now)
        old_bps = rate_bps if self._average_bps is None else self._average_bps
        self._average_bps = SMOOTHING * rate_bps + (1 - SMOOTHING) * old_bps
        self._passing_bps = 0.0
        self._interval_seconds = now - self._measured_at
        self._measured_at = now
        return True

    def expected_bps(self, now: float) -> float:
        """The estimate v at `now`, in bits/s."""
        if not self._ramps:
            return (self._average_bps or 0.0) + self._passing_bps
        self._drop_over(now)
        highest_bps = self.measured_bps + self._passing_bps
        for _, before_bps, rate_bps, begin, duration_seconds, is_highest in reversed(self._ramps):
            ramp_bps = before_bps + rate_bps * (1 - max(now - begin, 0.0) / duration_seconds)
            if ramp_bps > highest_bps:
                highest_bps = ramp_bps
            if is_highest:
                break
        return highest_bps

    def _drop_over(self, now: float) -> None:
        if self._ramps:
            self._ramps = [ramp for ramp in self._ramps if now - ramp.begin < ramp.duration_seconds]

    @property
    def measured_bps(self) -> float:
        """The moving average of what was measured, in bits/s."""
        return self._average_bps or 0.0

    def placements(self, now: float) -> int:
        """How many placements count for their duration at `now`."""
        return sum([now - ramp.begin < ramp.duration_seconds for ramp in self._ramps]) if self._ramps else 0

    def placed_until_measured(self, size_bits: float, capacity_bps: float, now: float) -> None:
        """Expect a transfer to take all that is left, or what it needs to be done by the next measurement."""
        added_bps = max(capacity_bps - self.expected_bps(now), 0.0)
        seconds_left = self._measured_at + self._interval_seconds - now
        if 0 < seconds_left < math.inf:
            added_bps = min(added_bps, size_bits / seconds_left)
        self._passing_bps += added_bps

    def placed_for_duration(self, transfer_id: object, rate_bps: float, duration_seconds: float, now: float) -> None:
        """Expect a transfer of `rate_bps` for `duration_seconds`, less and less as its rest shrinks."""
        before_bps = self.expected_bps(now)
        del self._ramps[:len(self._ramps) + 1 - MOST_PLACEMENTS]
        self._ramps.append(_Ramp(transfer_id, before_bps, rate_bps, now, duration_seconds, True))

    def forget(self, transfer_id: object) -> None:
        """A placement is over, or is measured and modelled elsewhere from now on."""
        kept: list[_Ramp] = []
        lower_bps = 0.0
        for ramp in self._ramps:
            if ramp.transfer_id == transfer_id:
                lower_bps += ramp.rate_bps
            else:
                kept.append(ramp._replace(before_bps=max(ramp.before_bps - lower_bps, 0.0),
                                          is_highest=ramp.is_highest and not lower_bps))
        self._ramps = kept


class LinkEstimates:
    """The estimates of a network's links. Those of links that are gone are forgotten."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._version = network.version
        self._estimates: dict[Link, LinkEstimate] = {}

    def __len__(self) -> int:
        return len(self._estimates)

    def of(self, link: Link) -> LinkEstimate:
        """A link's, from now on if there was none."""
        if self._version != self._network.version:
            self._version = self._network.version
            self._estimates = {known: estimate for known, estimate in self._estimates.items()
                               if self._network.has_link(known)}
        return self._estimates.setdefault(link, LinkEstimate())

    def known(self, links: Iterable[Link]) -> list[LinkEstimate]:
        """Those of these links that anything is known of."""
        return [estimate for estimate in map(self._estimates.get, links) if estimate is not None]

    def expected_bps(self, links: Iterable[Link], now: float) -> float:
        """What links are expected to carry together at `now`."""
        return sum(estimate.expected_bps(now) for estimate in self.known(links))
