"""Max-min fair shares of one link, and progressive filling, in plain words: what compiled code is held to.

On one link with demands (Mayflower, section 4.2): divide the capacity equally, give nobody more than its demand, and
divide what is left again. Picture a vessel filled with water up to a level: a flow gets its demand if that lies below
the level, else the level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from controller.policy.network.maxmin import RELATIVE_TOLERANCE


def max_min_shares(capacity_bps: float, demands_bps: Sequence[float]) -> list[float]:
    """The share in bits per second of each demand, in the order given. A demand may be math.inf."""
    level = water_level(capacity_bps, sorted(demands_bps))
    return [min(demand, level) for demand in demands_bps]


def water_level(capacity_bps: float, ascending_demands_bps: Sequence[float]) -> float:
    """The level that the water reaches; math.inf if all demands fit."""
    left_bps = capacity_bps
    unsatisfied = len(ascending_demands_bps)
    for demand in ascending_demands_bps:
        if demand * unsatisfied > left_bps:
            return left_bps / unsatisfied
        left_bps -= demand
        unsatisfied -= 1
    return math.inf


def share_of_unbounded_flow(capacity_bps: float, ascending_demands_bps: Sequence[float]) -> float:
    """What one more flow of infinite demand would get, in bits per second."""
    left_bps = capacity_bps
    flows = len(ascending_demands_bps) + 1
    for demand in ascending_demands_bps:
        if demand * flows > left_bps:
            break
        left_bps -= demand
        flows -= 1
    return left_bps / flows


def raised_shares(
    shares_bps: Sequence[float], links_of: Sequence[Sequence[int]], spare_bps: dict[int, float]
) -> list[float]:
    """Shares after `spare_bps` (per link index, changed in place) went to the flows that can use it.

    Progressive filling from where the flows stand: the smallest share rises first, the next joins when it is
    reached, and a flow stops when one of its links has nothing to spare. No share falls, so the result is
    the max-min fair one among those that keep what everybody has. Every flow must cross a link.
    """
    shares = list(shares_bps)
    waiting = sorted(range(len(shares)), key=shares.__getitem__, reverse=True)
    rising: set[int] = set()
    rising_on = dict.fromkeys(spare_bps, 0)
    full = {link for link, spare in spare_bps.items() if spare <= 0}
    level = 0.0
    while waiting or rising:
        if not rising:
            level = shares[waiting[-1]]
        while waiting and shares[waiting[-1]] <= level:
            flow = waiting.pop()
            if full.isdisjoint(links_of[flow]):
                rising.add(flow)
                for link in links_of[flow]:
                    rising_on[link] += 1
        if not rising:
            continue
        to_next = shares[waiting[-1]] - level if waiting else math.inf
        to_full = {link: spare_bps[link] / count for link, count in rising_on.items() if count}
        step = min(to_next, *to_full.values())
        level += step
        for link, room in to_full.items():
            spare_bps[link] -= step * rising_on[link]
            if room <= step * (1 + RELATIVE_TOLERANCE):
                full.add(link)
        for flow in [flow for flow in rising if not full.isdisjoint(links_of[flow])]:
            rising.discard(flow)
            shares[flow] = level
            for link in links_of[flow]:
                rising_on[link] -= 1
    return shares
