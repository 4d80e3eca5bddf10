"""Progressive filling from where flows stand (compiled): nobody loses, and what is to spare is shared max-min fairly.

The smallest share rises first, the next joins when it is reached, and a flow stops when one of its links has nothing
to spare (Bertsekas and Gallager, "Data Networks", section 6.5.2). Every sum is taken in the order in which a plain
reading takes it. A change here must not call into another module: numba's cache looks at this file alone.
"""

import numpy as np

from speedwell.controller.policy.compiled import Flags, Integers, Reals, compiled

RELATIVE_TOLERANCE = 1e-9
"""As in `maxmin.py`."""


@compiled
def raised(shares: Reals, spares: Reals, crossed: Integers) -> Reals:
    """The shares after `spares` (by link, changed in place) went to the flows that can use it.

    Flow i crosses the links in row i of `crossed`, -1 after the last, and at least one.
    """
    flows = len(shares)
    rising_on, rooms = np.zeros(len(spares), np.int64), np.empty(len(spares), np.float64)
    full = spares <= 0
    waiting = np.argsort(shares, kind="mergesort")
    rising = np.zeros(flows, np.bool_)
    final = shares.copy()
    next_waiting, rising_count, level = 0, 0, 0.0
    while next_waiting < flows or rising_count:
        if rising_count == 0:
            level = shares[waiting[next_waiting]]
        while next_waiting < flows and shares[waiting[next_waiting]] <= level:
            number = waiting[next_waiting]
            next_waiting += 1
            if not crosses_any(full, crossed[number]):
                rising[number] = True
                rising_count += 1
                count_on(rising_on, crossed[number], 1)
        if rising_count == 0:
            continue
        step = shares[waiting[next_waiting]] - level if next_waiting < flows else np.inf
        for link in range(len(spares)):
            if rising_on[link]:
                rooms[link] = spares[link] / rising_on[link]
                step = min(step, rooms[link])
        level += step
        is_any_full = False
        for link in range(len(spares)):
            if rising_on[link]:
                spares[link] -= step * rising_on[link]
                if rooms[link] <= step * (1 + RELATIVE_TOLERANCE):
                    full[link] = is_any_full = True
        for number in range(flows if is_any_full else 0):
            if rising[number] and crosses_any(full, crossed[number]):
                rising[number] = False
                rising_count -= 1
                final[number] = level
                count_on(rising_on, crossed[number], -1)
    return final


@compiled
def crosses_any(full: Flags, links: Integers) -> bool:
    for link in links:
        if link < 0:
            break
        if full[link]:
            return True
    return False


@compiled
def count_on(counts: Integers, links: Integers, change: int) -> None:
    for link in links:
        if link < 0:
            break
        counts[link] += change
