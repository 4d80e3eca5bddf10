"""Exact max-min shares of chains, over arrays (compiled); `chain_shares` says what they mean.

Row c of `routes` has the places that chain c crosses, -1 after the last; one crossed twice stands there twice.
A change here must not call into another module: numba's cache looks at this file alone.
"""

import numpy as np

from speedwell.controller.policy.compiled import Integers, Reals, compiled


@compiled
def fill(routes: Integers, left_bps: Reals, rates_bps: Reals) -> None:
    """The rate of every chain: the tightest place is filled first, its chains are fixed, and so on with what is left
    (Bertsekas and Gallager, "Data Networks", section 6.5.2). Infinite for one that crosses nothing."""
    chains, width = routes.shape
    waiting = np.zeros(len(left_bps), np.int64)
    places = np.empty(chains * width, np.int64)
    number = 0
    for c in range(chains):
        rates_bps[c] = np.inf
        for place in routes[c]:
            if place < 0:
                break
            if waiting[place] == 0:
                places[number] = place
                number += 1
            waiting[place] += 1
    first = np.empty(len(left_bps) + 1, np.int64)
    spare_bps = np.empty(len(left_bps), np.float64)
    begin = 0
    for index in range(number):
        place = places[index]
        first[place] = begin
        spare_bps[place] = left_bps[place]
        begin += waiting[place]
    members = np.empty(begin, np.int64)
    end = first.copy()
    for c in range(chains):
        for place in routes[c]:
            if place < 0:
                break
            members[end[place]] = c
            end[place] += 1
    while number:
        tightest, level_bps, kept = -1, np.inf, 0
        for index in range(number):
            place = places[index]
            if waiting[place]:
                places[kept] = place
                kept += 1
                if spare_bps[place] / waiting[place] < level_bps:
                    tightest, level_bps = place, spare_bps[place] / waiting[place]
        number = kept
        if tightest < 0:
            break
        for index in range(first[tightest], end[tightest]):
            c = members[index]
            if rates_bps[c] == np.inf:
                rates_bps[c] = level_bps
                for place in routes[c]:
                    if place < 0:
                        break
                    spare_bps[place] = max(spare_bps[place] - level_bps, 0.0)
                    waiting[place] -= 1


@compiled
def added_seconds(routes: Integers, left_bps: Reals, left_bits: Reals, rates_bps: Reals, trials: Integers,
                  size_bits: float) -> Reals:
    """By how much each of these chains, were it added, would lengthen all, its own time included."""
    chains = len(routes)
    every = np.empty((chains + 1, routes.shape[1]), np.int64)
    every[:chains] = routes
    shares_bps = np.empty(chains + 1, np.float64)
    seconds = np.empty(len(trials), np.float64)
    for trial in range(len(trials)):
        every[chains] = trials[trial]
        fill(every, left_bps, shares_bps)
        seconds[trial] = size_bits / shares_bps[chains]
        for c in range(chains):
            seconds[trial] += left_bits[c] * (1 / shares_bps[c] - 1 / rates_bps[c])
    return seconds


@compiled
def carry(routes: Integers, left_bits: Reals, bits: Reals, carried_bits: Reals) -> None:
    """So many bits of each chain are through."""
    for c in range(len(routes)):
        left_bits[c] -= bits[c]
        for place in routes[c]:
            if place < 0:
                break
            carried_bits[place] += bits[c]


def compile_kernels() -> None:
    """The first time in an installation that takes seconds: not while a file waits for its placement."""
    routes, none = np.zeros((1, 1), np.int64), np.zeros(1)
    fill(routes, np.ones(1), none.copy())
    added_seconds(routes, np.ones(1), none, np.ones(1), routes, 1.0)
    carry(routes, none.copy(), none, none.copy())
