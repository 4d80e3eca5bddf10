"""What mayflower-srpt's paths cost, over the arrays of `share_kernels` (compiled). `mayflower_srpt.py` says what it
means. A change here must not call into another module: numba's cache looks at this file alone."""

import numpy as np

from speedwell.controller.policy.compiled import Integers, Reals, Records, compiled


@compiled
def cheapest(flows: Records, links: Records, members: Integers, candidates: Integers, size: float, now: float,
             stamp: int, waits: Reals) -> tuple[int, float, Reals]:
    """The candidate of least cost: its number, the seconds that a read of this size takes on it, all costs.

    Each candidate uses up a `stamp`, from this one on. `waits` is scratch with room for all flows.
    """
    place_of = np.full(len(links), -1, np.int64)
    busy, pressed = np.empty(candidates.size, np.float64), np.empty(candidates.size, np.float64)
    behind, begins = np.empty(room_for(links, candidates), np.int64), np.zeros(candidates.size + 1, np.int64)
    count = 0
    costs = np.empty(len(candidates), np.float64)
    best, best_own, best_beside, best_length = -1, 0.0, 0.0, 0
    for number in range(len(candidates)):
        stamp += 1
        own, beside, length, found = 0.0, 0.0, 0, 0
        for link in candidates[number]:
            if link < 0:
                break
            length += 1
            alone = size / links[link].capacity
            if place_of[link] < 0:
                place_of[link] = count
                first, ahead, end = links[link].first, 0.0, begins[count]
                for index in range(first, first + links[link].count):
                    f = members[index]
                    left = max(flows[f].remaining - flows[f].bandwidth * (now - flows[f].settled_at), 0.0)
                    if left <= size:
                        ahead += left
                    else:
                        behind[end] = f
                        end += 1
                background = flows[links[link].background].bandwidth
                busy[count] = (ahead + size) / links[link].capacity
                pressed[count] = background / links[link].capacity * alone
                count += 1
                begins[count] = end
            place = place_of[link]
            own, beside = max(own, busy[place]), max(beside, busy[place] + pressed[place])
            for index in range(begins[place], begins[place + 1]):
                f = behind[index]
                if flows[f].mark != stamp:
                    flows[f].mark, flows[f].place = stamp, found
                    waits[found] = alone
                    found += 1
                elif alone > waits[flows[f].place]:
                    waits[flows[f].place] = alone
        others = 0.0
        for index in range(found):
            others += waits[index]
        cost = costs[number] = own + others
        if best < 0 or cost < costs[best] or (cost == costs[best] and (
                beside < best_beside or (beside == best_beside and length < best_length))):
            best, best_own, best_beside, best_length = number, own, beside, length
    return best, best_own, costs


@compiled
def room_for(links: Records, candidates: Integers) -> int:
    """So many flows are on the links of these candidates, one that is on several links counted as often."""
    seen = np.zeros(len(links), np.bool_)
    flows = 0
    for candidate in candidates:
        for link in candidate:
            if link < 0:
                break
            if not seen[link]:
                seen[link] = True
                flows += links[link].count
    return flows
