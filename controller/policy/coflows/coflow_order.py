"""In which order coflows go, over arrays (compiled); the arguments are those of `coflow_kernels`.

Both orders look at links as machines that serve one coflow after the other, all in the same order: a coflow ends
when the last of its links has served it. `bssi` is proven to be within four times the best, `improved` goes on
from there: it moves single coflows to other places as long as the sum of all ends shrinks. Call them by
`checked_kernels`.

A change here must not call into another module: numba's cache looks at this file alone.
"""

import numpy as np

from speedwell.controller.policy.compiled import Integers, Reals
from speedwell.controller.policy.compiled import compiled_for_threads as compiled

WORTH = 1e-9
"""A move has to shorten the sum of ends by this part: less is rounding."""
MOST_MOVES = 20
"""For each coflow, in one improvement: far more than are seen."""


@compiled
def seconds_by_link(coflows: Integers, first: Integers, count: Integers, flows: Integers, links: Integers,
                    left: Reals, whole: Reals, load: Reals) -> tuple[Integers, Integers, Reals]:
    """What each coflow has to do on each link that it uses, in seconds.

    (begin, link, seconds): those of the nth coflow stand from `begin[n]` to `begin[n + 1]`.
    """
    entries = 0
    for c in coflows:
        entries += count[c] * links.shape[1]
    begin = np.zeros(len(coflows) + 1, np.int64)
    on = np.empty(entries, np.int64)
    seconds = np.empty(entries)
    rows = 0
    for number in range(len(coflows)):
        c = coflows[number]
        for i in range(first[c], first[c] + count[c]):
            for link in links[flows[i]]:
                if link < 0:
                    break
                load[link] += left[flows[i]]
        for i in range(first[c], first[c] + count[c]):
            for link in links[flows[i]]:
                if link < 0:
                    break
                if load[link] > 0:
                    on[rows], seconds[rows] = link, load[link] / whole[link]
                    load[link] = 0.0
                    rows += 1
        begin[number + 1] = rows
    return begin, on[:rows].copy(), seconds[:rows].copy()


@compiled
def bssi(coflows: Integers, first: Integers, count: Integers, flows: Integers, links: Integers, left: Reals,
         whole: Reals, load: Reals) -> Integers:
    """Sincronia's order (Agarwal et al., SIGCOMM 2018, Algorithm 1: bottleneck, select, scale, iterate).

    From the last place up: on the link with most to do, the coflow with the least weight for what it has there goes
    last, and the weights of the others on that link shrink by what it would have cost to put them last.
    """
    begin, on, seconds = seconds_by_link(coflows, first, count, flows, links, left, whole, load)
    n = len(coflows)
    weights, owner = np.ones(n), np.empty(len(on), np.int64)
    total, users = np.zeros(len(whole)), np.zeros(len(whole) + 1, np.int64)
    for number in range(n):
        for row in range(begin[number], begin[number + 1]):
            owner[row] = number
            total[on[row]] += seconds[row]
            users[on[row] + 1] += 1
    of_link = np.cumsum(users)
    filled, by_link = of_link[:-1].copy(), np.empty(len(on), np.int64)
    for row in range(len(on)):
        by_link[filled[on[row]]] = row
        filled[on[row]] += 1
    placed, ranked = np.zeros(n, np.bool_), np.empty(n, np.int64)
    for place in range(n - 1, -1, -1):
        busiest = np.argmax(total)
        rows = by_link[of_link[busiest] : of_link[busiest + 1]]
        last, least, last_seconds = -1, np.inf, 0.0
        for row in rows:
            number = owner[row]
            if not placed[number] and weights[number] / seconds[row] < least:
                last, least, last_seconds = number, weights[number] / seconds[row], seconds[row]
        if last < 0:                                # nothing left to send: any order
            for number in range(n):
                if not placed[number]:
                    last = number
        for row in rows:
            number = owner[row]
            if last_seconds > 0 and not placed[number]:
                weights[number] = max(weights[number] - least * seconds[row], 0.0)
        placed[last] = True
        ranked[place] = coflows[last]
        for row in range(begin[last], begin[last + 1]):
            total[on[row]] = max(total[on[row]] - seconds[row], 0.0)
    return ranked


@compiled
def improved(order: Integers, first: Integers, count: Integers, flows: Integers, links: Integers, left: Reals,
             whole: Reals, load: Reals, reach: int, passes: int) -> Integers:
    """An order with a sum of ends that is no larger: each coflow in turn goes to the best place at most `reach` away.

    It ends when no coflow has a better place, after `passes` at the latest.
    """
    begin, on, seconds = seconds_by_link(order, first, count, flows, links, left, whole, load)
    n = len(order)
    ranked, ends, own = np.arange(n), np.zeros(n), np.zeros(len(whole))
    before = np.zeros(len(whole))               # what links have to do for those in earlier places
    _see_ends(ranked, 0, n, begin, on, seconds, before, ends)
    least_gain, moves = WORTH * ends.sum(), 0
    for _ in range(passes):
        before[:] = 0.0
        moves_before, place = moves, 0
        while place < n:
            best = _best_place(place, reach, least_gain, ranked, begin, on, seconds, before, own, ends)
            if best == place or moves >= MOST_MOVES * n:
                _put(ranked[place], 1.0, begin, on, seconds, before)
                place += 1
                continue
            moves += 1
            begins, until = min(best, place), max(best, place) + 1
            for other in range(begins, place):
                _put(ranked[other], -1.0, begin, on, seconds, before)
            number = ranked[place]
            if best < place:
                ranked[best + 1 : place + 1] = ranked[best:place].copy()
            else:
                ranked[place:best] = ranked[place + 1 : best + 1].copy()
            ranked[best] = number
            _see_ends(ranked, begins, until, begin, on, seconds, before, ends)
            if best < place:
                place += 1
            else:                               # another one has come to this place
                for other in range(begins, until):
                    _put(ranked[other], -1.0, begin, on, seconds, before)
        if moves == moves_before:
            break
    return order[ranked]


@compiled
def _best_place(place: int, reach: int, least_gain: float, ranked: Integers, begin: Integers, on: Integers,
                seconds: Reals, before: Reals, own: Reals, ends: Reals) -> int:
    """Where the coflow at `place` had best stand; `before` counts all that stand before it, `own` is scratch."""
    number = ranked[place]
    alone = 0.0
    for row in range(begin[number], begin[number + 1]):
        own[on[row]] = seconds[row]
        alone = max(alone, seconds[row])
    best, most, lost, other = place, least_gain, 0.0, place
    while other > max(place - reach, 0) and ends[place] - alone - lost > most:
        other -= 1                              # those that it overtakes end later
        end = 0.0
        for row in range(begin[ranked[other]], begin[ranked[other] + 1]):
            end = max(end, before[on[row]] + own[on[row]])
            before[on[row]] -= seconds[row]
        lost += end - ends[other]
        gain = ends[place] - _end_after(number, begin, on, seconds, before) - lost
        if gain > most:
            best, most = other, gain
    for passed in range(other, place):
        _put(ranked[passed], 1.0, begin, on, seconds, before)
    won, other = 0.0, place
    while other < min(place + reach, len(ranked) - 1):
        other += 1                              # those that overtake it end sooner
        _put(ranked[other], 1.0, begin, on, seconds, before)
        won += ends[other] - _latest(ranked[other], begin, on, before)
        gain = won - (_end_after(number, begin, on, seconds, before) - ends[place])
        if gain > most:
            best, most = other, gain
    for passed in range(place + 1, other + 1):
        _put(ranked[passed], -1.0, begin, on, seconds, before)
    for row in range(begin[number], begin[number + 1]):
        own[on[row]] = 0.0
    return best


@compiled
def _put(number: int, sign: float, begin: Integers, on: Integers, seconds: Reals, before: Reals) -> None:
    for row in range(begin[number], begin[number + 1]):
        before[on[row]] += sign * seconds[row]


@compiled
def _latest(number: int, begin: Integers, on: Integers, before: Reals) -> float:
    end = 0.0
    for row in range(begin[number], begin[number + 1]):
        end = max(end, before[on[row]])
    return end


@compiled
def _end_after(number: int, begin: Integers, on: Integers, seconds: Reals, before: Reals) -> float:
    end = 0.0
    for row in range(begin[number], begin[number + 1]):
        end = max(end, before[on[row]] + seconds[row])
    return end


@compiled
def _see_ends(ranked: Integers, place: int, until: int, begin: Integers, on: Integers, seconds: Reals, before: Reals,
              ends: Reals) -> None:
    """The ends of those in some places; `before` counts them afterwards."""
    for k in range(place, until):
        _put(ranked[k], 1.0, begin, on, seconds, before)
        ends[k] = _latest(ranked[k], begin, on, before)
