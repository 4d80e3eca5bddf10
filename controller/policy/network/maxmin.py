"""Max-min fair shares over a whole network.

The tightest link is filled first, its flows are fixed, and so on with what is left (Bertsekas and Gallager, "Data
Networks", section 6.5.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

RELATIVE_TOLERANCE = 1e-9
"""Differences below this part of a capacity are rounding, not bandwidth."""


def global_shares(
    routes: Sequence[tuple[int, ...]], capacities_bps: Sequence[float], background_bps: Mapping[int, float]
) -> list[float]:
    """The exact max-min fair share of each flow, given as the indices of its links; infinite without links.

    `background_bps` holds the demand of one more flow on a link alone, by link.
    """
    shares = [math.inf] * len(routes)
    flows_on: dict[int, list[int]] = {}
    for flow, links in enumerate(routes):
        for link in links:
            flows_on.setdefault(link, []).append(flow)
    left_bps = {link: capacities_bps[link] for link in flows_on}
    waiting = {link: len(flows) for link, flows in flows_on.items()}

    def level(link: int) -> float:
        left, flows = left_bps[link], waiting[link]
        return max((left - background_bps[link]) / flows if link in background_bps else 0.0,
                   left / (flows + (link in background_bps)))

    tightest = [(level(link), link) for link in flows_on]
    heapify(tightest)
    while tightest:
        found_bps, link = heappop(tightest)
        if not waiting[link]:
            continue
        level_bps = level(link)
        if level_bps > found_bps * (1 + RELATIVE_TOLERANCE):       # others were fixed since: levels only rise
            heappush(tightest, (level_bps, link))
            continue
        for flow in flows_on[link]:
            if shares[flow] == math.inf:
                shares[flow] = level_bps
                for other in routes[flow]:
                    left_bps[other] = max(left_bps[other] - level_bps, 0.0)
                    waiting[other] -= 1
    return shares
