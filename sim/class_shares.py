"""Rates of flows on links whose queues share them by weight, flows limited by meters included (compiled).

A link between switches has a queue for each class of traffic with a part of its capacity, and what one class leaves
the others may take (HTB); on a host's link all flows are alike. Within a class flows share as TCP does, max-min fair.
Classes that are ranked go strictly one before the other.

Hierarchical sharing on many links has no rates that a single pass would find. Here each class first has its part of
every link for itself; what is left of a link is then offered to its classes by their weights, some times over; and at
last what still is left goes to whoever can use it, max-min fair. So no link is overfull, no capacity that somebody
can use is wasted, and a class has its part of each link if it has the flows for it.
"""

import numpy as np
from numba import njit

from controller.policy.coflows.coflow_kernels import Integers, Reals

ROUNDS = 4
FULL = 1e-9


@njit(cache=True)
def fill(caps: Reals, slots: Integers, free: Reals, rates: Reals, active: np.ndarray) -> None:
    """Raise the rates of the `active` flows together until a slot of theirs is full or they have reached their cap.

    Flow f uses the slots `slots[f]` (-1 after the last) of which `free` is left, changed in place; it starts from
    `rates[f]`, which are all alike or all 0 for a max-min fair result.
    """
    flows, width = slots.shape
    users = np.zeros(len(free), np.int64)
    whole = free.copy()
    rising = 0
    for f in range(flows):
        if active[f]:
            rising += 1
            for position in range(width):
                if slots[f, position] < 0:
                    break
                users[slots[f, position]] += 1
    going = active.copy()
    while rising > 0:
        step = np.inf
        for slot in range(len(free)):
            if users[slot] > 0:
                step = min(step, max(free[slot], 0.0) / users[slot])
        for f in range(flows):
            if going[f]:
                step = min(step, max(caps[f] - rates[f], 0.0))
        if step == np.inf:
            return
        for slot in range(len(free)):
            if users[slot] > 0:
                free[slot] -= step * users[slot]
        stopped = 0
        for f in range(flows):
            if going[f]:
                rates[f] += step
                stop = rates[f] >= caps[f] * (1 - FULL)
                for position in range(width):
                    slot = slots[f, position]
                    if slot < 0:
                        break
                    stop = stop or free[slot] <= FULL * whole[slot]
                if stop:
                    going[f] = False
                    stopped += 1
                    for position in range(width):
                        if slots[f, position] < 0:
                            break
                        users[slots[f, position]] -= 1
        rising -= stopped
        if stopped == 0:
            return


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
def ranked_rates(links: Integers, caps: Reals, ranks: Integers, capacities: Reals, rates: Reals) -> None:
    """Strict priorities: flows of rank 0 share the links as if alone, those of rank 1 what is left, and so on."""
    free = capacities.copy()
    rates[:] = 0.0
    for rank in range(np.max(ranks) + 1 if len(ranks) else 0):
        fill(caps, links, free, rates, ranks == rank)
