"""coflowsim's FAIR: each flow the smaller of the equal shares of its two ports, in whole steps (see `coflowsim`).

All flows from one rack to another have one rate, so each pair of racks keeps the sum of what a flow of it has been
sent, and its flows stand in a heap by the sum at which they end. An event touches only pairs that share a port with
a flow that came or ended. A pair's number is source * racks + destination.
"""

import math

import numpy as np
from numba import njit

from sim.state import Integers, Reals

SOON = 1e-7         # steps: rounding, where whole steps are counted


@njit(cache=True)
def run_fair_ports(racks: int, first: Integers, sources: Integers, destinations: Integers, left: Reals,
                   starts: Integers, ends: Reals) -> None:
    """Run all coflows; `ends` gets the step at which each has ended. Flows are `first[c]` to `first[c + 1]`."""
    coflows, pairs = len(starts), racks * racks
    coflow_of = np.empty(len(left), np.int64)
    begin = np.zeros(pairs + 1, np.int64)           # where a pair's heap begins
    for c in range(coflows):
        for f in range(first[c], first[c + 1]):
            coflow_of[f] = c
            begin[sources[f] * racks + destinations[f] + 1] += 1
    for pair in range(pairs):
        begin[pair + 1] += begin[pair]
    heap, size = np.empty(len(left), np.int64), np.zeros(pairs, np.int64)
    threshold, sent, at = left.copy(), np.zeros(pairs), np.zeros(pairs)
    rate, due, row_due = np.zeros(pairs), np.full(pairs, np.inf), np.full(racks, np.inf)
    sending, receiving = np.zeros(racks, np.int64), np.zeros(racks, np.int64)      # flows by port
    changed_source, changed_destination = np.zeros(racks, np.bool_), np.zeros(racks, np.bool_)
    running = np.diff(first)
    come, total, now = 0, 0, 0.0
    while come < coflows or total > 0:
        soonest = np.min(row_due)
        if soonest < np.inf:
            soonest = math.ceil(soonest - SOON)
        now = max(min(soonest, float(starts[come]) if come < coflows else np.inf), now)
        changed_source[:] = False
        changed_destination[:] = False
        for source in range(racks):
            if row_due[source] <= now + SOON:
                for destination in range(racks):
                    pair = source * racks + destination
                    if due[pair] <= now + SOON:
                        sent[pair] += rate[pair] * (now - at[pair])
                        at[pair] = now
                        changed_source[source] = changed_destination[destination] = True
                        while size[pair] > 0 and threshold[heap[begin[pair]]] <= sent[pair] + SOON:
                            c = coflow_of[heap[begin[pair]]]
                            running[c] -= 1
                            if running[c] == 0:
                                ends[c] = now
                            size[pair] -= 1
                            _drop_first(heap, begin[pair], size[pair], threshold)
                            sending[source] -= 1
                            receiving[destination] -= 1
                            total -= 1
        while come < coflows and starts[come] <= now:
            for f in range(first[come], first[come + 1]):
                pair = sources[f] * racks + destinations[f]
                sent[pair] += rate[pair] * (now - at[pair])
                at[pair] = now
                threshold[f] = sent[pair] + left[f]
                _add(heap, begin[pair], size[pair], threshold, f)
                size[pair] += 1
                sending[sources[f]] += 1
                receiving[destinations[f]] += 1
                changed_source[sources[f]] = changed_destination[destinations[f]] = True
                total += 1
            come += 1
        for source in range(racks):
            again = False
            for destination in range(racks):
                if changed_source[source] or changed_destination[destination]:
                    pair = source * racks + destination
                    sent[pair] += rate[pair] * (now - at[pair])
                    at[pair] = now
                    again = again or due[pair] == row_due[source]
                    rate[pair], due[pair] = 0.0, np.inf
                    if size[pair] > 0:
                        rate[pair] = min(1.0 / sending[source], 1.0 / receiving[destination])
                        due[pair] = now + max(threshold[heap[begin[pair]]] - sent[pair], 0.0) / rate[pair]
                        row_due[source] = min(row_due[source], due[pair])
            if again:
                row_due[source] = np.min(due[source * racks : (source + 1) * racks])


@njit(cache=True)
def _add(heap: Integers, begin: int, size: int, threshold: Reals, flow: int) -> None:
    place = size
    while place > 0 and threshold[heap[begin + (place - 1) // 2]] > threshold[flow]:
        heap[begin + place] = heap[begin + (place - 1) // 2]
        place = (place - 1) // 2
    heap[begin + place] = flow


@njit(cache=True)
def _drop_first(heap: Integers, begin: int, size: int, threshold: Reals) -> None:
    """Take the first off; `size` is what is left."""
    flow, place = heap[begin + size], 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and threshold[heap[begin + below + 1]] < threshold[heap[begin + below]]:
            below += 1
        if threshold[heap[begin + below]] >= threshold[flow]:
            break
        heap[begin + place] = heap[begin + below]
        place = below
    heap[begin + place] = flow
