"""Rates of flows on links whose queues share them by weight, flows limited by meters included (compiled).

A link between switches has a queue for each class of traffic with a part of its capacity, and what one class leaves
the others may take (HTB); on a host's link all flows are alike. Within a class flows share as TCP does, max-min fair.
Classes that are ranked go one before the other on links that know ranks; each that has flows there keeps a small
part for certain, as HTB gives it.

Hierarchical sharing on many links has no rates that a single pass would find. Here each class first has its part of
every link for itself; what is left of a link is then offered to its classes by their weights, some times over; and at
last what still is left goes to whoever can use it, max-min fair. So no link is overfull, no capacity that somebody
can use is wasted, and a class has its part of each link if it has the flows for it.
"""

import numpy as np
from numba import njit

from speedwell.controller.policy.coflows.coflow_kernels import Integers, Reals

ROUNDS, RANKED_ROUNDS = 4, 8
NEVER_FULL = 1e30               # bit/s
FULL = 1e-9


@njit(cache=True)
def fill(caps: Reals, slots: Integers, free: Reals, rates: Reals, active: np.ndarray) -> None:
    """Raise the rates of the `active` flows together until a slot of theirs is full or they have reached their cap.

    Flow f uses the slots `slots[f]` (-1 after the last) of which `free` is left, changed in place; it starts from
    `rates[f]`, which are all alike or all 0 for a max-min fair result.
    """
    width = slots.shape[1]
    users = np.zeros(len(free), np.int64)
    whole = free.copy()
    going = np.flatnonzero(active)
    for f in going:
        for position in range(width):
            if slots[f, position] < 0:
                break
            users[slots[f, position]] += 1
    rising = len(going)
    while rising > 0:
        step = np.inf
        for slot in range(len(free)):
            if users[slot] > 0:
                step = min(step, max(free[slot], 0.0) / users[slot])
        for f in going[:rising]:
            step = min(step, max(caps[f] - rates[f], 0.0))
        if step == np.inf:
            return
        for slot in range(len(free)):
            if users[slot] > 0:
                free[slot] -= step * users[slot]
        kept = 0
        for f in going[:rising]:
            rates[f] += step
            stop = rates[f] >= caps[f] * (1 - FULL)
            for position in range(width):
                slot = slots[f, position]
                if slot < 0:
                    break
                stop = stop or free[slot] <= FULL * whole[slot]
            if not stop:
                going[kept] = f
                kept += 1
                continue
            for position in range(width):
                if slots[f, position] < 0:
                    break
                users[slots[f, position]] -= 1
        if kept == rising:
            return
        rising = kept


@njit(cache=True)
def fits(links: Integers, caps: Reals, capacities: Reals) -> bool:
    """Whether all flows can have the rate of their meter at once: then all do."""
    left = capacities * (1 + FULL)
    for f in range(len(links)):
        for link in links[f]:
            if link < 0:
                break
            left[link] -= caps[f]
            if left[link] < 0:
                return False
    return True


@njit(cache=True)
def class_rates(links: Integers, caps: Reals, classes: Integers, capacities: Reals, sliced: np.ndarray,
                weights: Reals, rates: Reals) -> None:
    """Each flow's rate; `caps` are infinite without a meter, `weights` the classes' parts of a sliced link."""
    flows, width = links.shape
    number = len(weights)
    slots = np.full((flows, width), -1, np.int64)
    free = np.zeros(len(capacities) * number)
    given = np.zeros(len(free))
    for link in range(len(capacities)):
        for k in range(number):
            free[link * number + k] = capacities[link] * (weights[k] if sliced[link] else (1.0 if k == 0 else 0.0))
    for f in range(flows):
        for position in range(width):
            link = links[f, position]
            if link < 0:
                break
            slots[f, position] = link * number + (classes[f] if sliced[link] else 0)
    everybody = np.ones(flows, np.bool_)
    given[:] = free
    wanting = np.zeros(len(free), np.bool_)
    for turn in range(ROUNDS):
        free[:] = given
        rates[:] = 0.0
        fill(caps, slots, free, rates, everybody)
        if turn == ROUNDS - 1:
            break
        wanting[:] = False
        for f in range(flows):
            if rates[f] < caps[f] * (1 - FULL):
                for position in range(width):
                    if slots[f, position] < 0:
                        break
                    wanting[slots[f, position]] = True
        more = False
        for link in range(len(capacities)):
            if not sliced[link]:
                continue
            left, weight = 0.0, 0.0
            for k in range(number):
                slot = link * number + k
                if wanting[slot] and free[slot] <= FULL * capacities[link]:
                    weight += weights[k]
                left += max(free[slot], 0.0)
            if weight > 0 and left > FULL * capacities[link]:
                more = True
                for k in range(number):
                    slot = link * number + k
                    used = given[slot] - max(free[slot], 0.0)
                    takes = wanting[slot] and free[slot] <= FULL * capacities[link]
                    given[slot] = used + (left * weights[k] / weight if takes else 0.0)
        if not more:
            return
    # What is left of whole links, for whoever can use it.
    spare = capacities.copy()
    for f in range(flows):
        for position in range(width):
            if links[f, position] < 0:
                break
            spare[links[f, position]] -= rates[f]
    fill(caps, links, np.maximum(spare, 0.0), rates, everybody)


@njit(cache=True)
def ranked_rates(links: Integers, caps: Reals, ranks: Integers, capacities: Reals, ranked: np.ndarray,
                 floor: float, rates: Reals) -> None:
    """Priorities on `ranked` links: flows of rank 0 share them as if alone, those of rank 1 what is left, ... But
    each rank has `floor` of a link's capacity for certain where it has flows; it leaves what it cannot use.
    Other links are shared fairly by flows of all ranks.

    The share of the latter comes first, as hosts send before switches queue. Flows that a ranked link then holds back
    further leave the rest of that share to others, some times over; and what is left at last goes to whoever can use
    it, by rank.
    """
    everybody = np.ones(len(ranks), np.bool_)
    ranks_used = np.unique(ranks)
    # what ranks below each have for certain, to be given free when their turn comes
    kept = np.zeros((len(ranks_used), len(capacities)))
    for number in range(len(ranks_used)):
        for own in np.flatnonzero(ranks == ranks_used[number]):
            for link in links[own]:
                if link < 0:
                    break
                if ranked[link]:
                    kept[number, link] = floor * capacities[link]
    limits, shares = caps.copy(), caps.copy()
    for _ in range(1 if ranked.all() else RANKED_ROUNDS):
        if not ranked.all():
            shares[:] = 0.0
            fill(limits, links, np.where(ranked, NEVER_FULL, capacities), shares, everybody)
        rates[:] = 0.0
        free = np.where(ranked, capacities - kept.sum(axis=0), NEVER_FULL)
        for number in range(len(ranks_used)):
            free += kept[number]
            fill(shares, links, free, rates, ranks == ranks_used[number])
        held_back = rates < shares * (1 - FULL)
        limits = np.where(held_back, np.minimum(limits, rates), limits)
        if not held_back.any():
            break
    spare = capacities.copy()
    for f in range(len(ranks)):
        for link in links[f]:
            if link < 0:
                break
            spare[link] -= rates[f]
    spare = np.maximum(spare, 0.0)
    for rank in ranks_used:
        fill(caps, links, spare, rates, ranks == rank)
