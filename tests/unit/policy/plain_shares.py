"""Max-min fair shares of one link in plain words: what compiled code is held to.

On one link with demands (Mayflower, section 4.2): divide the capacity equally, give nobody more than its demand, and
divide what is left again. Picture a vessel filled with water up to a level: a flow gets its demand if that lies below
the level, else the level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


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
