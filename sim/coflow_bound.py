"""What no policy can beat: a lower bound on the mean completion time of coflows, under any order, any rates and any
paths, known ahead or not. The argument is that of `least_mean_seconds`.
"""

import heapq
from collections.abc import Sequence
from itertools import pairwise
from math import inf

import numpy as np
from numba import njit

from speedwell.controller.policy.coflows.coflow import BITS_PER_BYTE, Coflow, CoflowFlow
from speedwell.controller.policy.coflows.coflow_kernels import Reals
from speedwell.controller.policy.network.graph import Network

LARGEST_GROUP = 18
"""Coflows of one group: the sets of them are tried, each."""


def least_mean_seconds(coflows: Sequence[Coflow], network: Network) -> float:
    """A lower bound on the mean of what coflows take from their arrival to their last byte.

    1. *Cuts.* Whatever a flow's path, its bytes pass the first host's link, the last one's, and, between two switches
       at the edge, one of the links up from the first and one of those down to the last, which count as one cut as
       wide as all of them. A cut that carries nothing but a set S of coflows, never waits while one of them is there,
       and has `seconds[c]` to do for coflow c, is done at t(S), which does not depend on the order: with the coflows
       in order of arrival, t = max(t, arrival) + seconds. No policy has that cut carry all of S earlier.
    2. *Sets.* Let a policy end coflows in the order c1, c2, ... When ck ends, all bytes of Sk = {c1 ... ck} have
       passed every cut, so ck does not end before T(Sk), the latest t(Sk) of all cuts.
    3. *All orders.* So the sum of ends is no less than the least, over all orders, of T(S1) + T(S2) + ...; and that
       least sum is, of the set of all coflows, L(S) = T(S) + the least over c in S of L(S without c), L({}) = 0,
       since T(S) does not ask in which order S came about.
    4. *One cut each.* The same sum is also no less than this: each coflow counts on the one cut where it has most to
       do, and there serving the coflow with least left first has the least sum of ends (Schrage, 1968). Each coflow
       counts once, so the sums of the cuts add up. The larger of 3 and 4 is taken.
    5. *Groups.* The number of sets doubles with each coflow. What a policy does with all coflows, another can do with
       some of them alone; so coflows may be divided into groups by time of arrival, and the groups' bounds add up.
       That is done where no cut has anything left to do, and with more than `LARGEST_GROUP` where it has least.

    Left out: that a flow needs all its links at once, that a path is not a whole cut, and that nobody knows
    what comes. So the bound may be out of reach.
    """
    ordered = sorted(coflows, key=lambda coflow: coflow.arrived_at)
    arrivals, seconds = np.array([coflow.arrived_at for coflow in ordered]), _seconds_by_cut(ordered, network)
    return _least_sum(arrivals, seconds) / len(ordered)


def _seconds_by_cut(coflows: Sequence[Coflow], network: Network) -> Reals:
    """What each coflow (row) has to do on each cut (column)."""
    cuts: dict[object, int] = {}
    rows: list[dict[int, float]] = []
    for coflow in coflows:
        row: dict[int, float] = {}
        for flow in coflow.flows:
            for cut, capacity_bps in _cuts(flow, network):
                number = cuts.setdefault(cut, len(cuts))
                row[number] = row.get(number, 0.0) + flow.remaining_bytes * BITS_PER_BYTE / capacity_bps
        rows.append(row)
    seconds = np.zeros((len(rows), len(cuts)))
    for coflow_number, row in enumerate(rows):
        for number, own in row.items():
            seconds[coflow_number, number] = own
    return seconds


def _cuts(flow: CoflowFlow, network: Network) -> list[tuple[object, float]]:
    nodes = network.shortest_paths(flow.source, flow.destination)[0].nodes
    cuts: list[tuple[object, float]] = [((nodes[0], nodes[1]), network.capacity_bps((nodes[0], nodes[1]))),
                                        ((nodes[-2], nodes[-1]), network.capacity_bps((nodes[-2], nodes[-1])))]
    if len(nodes) > 3:
        for switch, name in ((nodes[1], "out of"), (nodes[-2], "into")):
            others = [other for other in network.neighbours(switch) if not network.is_host(other)]
            links = [(switch, other) if name == "out of" else (other, switch) for other in others]
            cuts.append(((name, switch), sum(network.capacity_bps(link) for link in links)))
    return cuts


def _least_sum(arrivals: Reals, seconds: Reals) -> float:
    """The least sum of completion times (steps 3 to 5) of coflows in order of arrival."""
    counted_once = _least_sum_on_longest(arrivals, seconds)
    left, done_at = np.zeros(len(arrivals)), np.zeros(seconds.shape[1])
    for c, arrival in enumerate(arrivals.tolist()):
        left[c] = max(float(done_at.max()) - arrival, 0.0)      # to do on the busiest cut when c comes
        done_at = np.where(seconds[c] > 0, np.maximum(done_at, arrival) + seconds[c], done_at)
    starts = [0, *np.flatnonzero(left[1:] <= 0) + 1]
    if len(starts) == 1:
        if len(arrivals) <= LARGEST_GROUP:
            return max(counted_once, float(_least_sum_over_sets(arrivals, seconds)) - float(arrivals.sum()))
        quarter = len(arrivals) // 4
        starts = [0, quarter + np.argmin(left[quarter : len(arrivals) - quarter])]
    return max(counted_once, sum(_least_sum(arrivals[begin:end], seconds[begin:end])
                                 for begin, end in pairwise([*starts, len(arrivals)])))


@njit(cache=True)
def _least_sum_over_sets(arrivals: Reals, seconds: Reals) -> float:
    """The least sum of ends (step 3) of coflows in order of arrival.

    A set is a number; its first bit is the last coflow, so that sets tried one after the other begin with mostly the
    same early coflows, for which `done_at` stands.
    """
    coflows, cuts = seconds.shape
    done_at = np.zeros((coflows + 1, cuts))     # row d: when the first d coflows of the set are done
    least = np.zeros(1 << coflows)
    for chosen in range(1, 1 << coflows):
        differs, changed = chosen ^ (chosen - 1), coflows - 1
        while differs > 1:
            differs >>= 1
            changed -= 1                        # the first coflow by which the set differs from the one before
        depth, best = 0, np.inf
        for c in range(coflows):
            bit = 1 << (coflows - 1 - c)
            if not chosen & bit:
                continue
            best = min(best, least[chosen ^ bit])
            depth += 1
            if c >= changed:
                for cut in range(cuts):
                    before, own = done_at[depth - 1, cut], seconds[c, cut]
                    done_at[depth, cut] = max(before, arrivals[c]) + own if own > 0 else before
        least[chosen] = best + done_at[depth].max()
    return least[(1 << coflows) - 1]


def _least_sum_on_longest(arrivals: Reals, seconds: Reals) -> float:
    """The least sum of completion times (step 4)."""
    jobs: dict[int, list[tuple[float, float]]] = {}
    for arrival, own in zip(arrivals.tolist(), seconds, strict=True):
        longest = int(own.argmax())
        jobs.setdefault(longest, []).append((arrival, float(own[longest])))
    return sum(_shortest_first(on_cut) for on_cut in jobs.values())


def _shortest_first(jobs: Sequence[tuple[float, float]]) -> float:
    """The sum of completion times of (arrival, seconds) on one machine that serves the one with least left."""
    coming = sorted(jobs, reverse=True)
    waiting: list[tuple[float, float]] = []
    now, total = 0.0, 0.0
    while coming or waiting:
        if not waiting:
            now = max(now, coming[-1][0])
        while coming and coming[-1][0] <= now:
            arrival, seconds = coming.pop()
            heapq.heappush(waiting, (seconds, arrival))
        left, arrival = heapq.heappop(waiting)
        until = coming[-1][0] if coming else inf
        if now + left <= until:
            now += left
            total += now - arrival
        else:
            heapq.heappush(waiting, (left - (until - now), arrival))
            now = until
    return total
