"""What MinCOF is compared with: coflow policies of others, behind the same interface.

Each decides when a coflow comes, when a flow ends and as reports come, a second after its last decision: as often as
its paper says or oftener, and at no fewer occasions than coflow-plus.

* `FairSharing`: nobody schedules; every flow takes the switches' default path (ECMP) at TCP's fair share.
* `Varys` (Chowdhury, Zhong and Stoica, SIGCOMM 2014): smallest effective bottleneck first (SEBF), MADD as its code
  has it (`coflow_kernels.scaled`), and what is left goes flow by flow. Hosts enforce the rates; the network between
  them is taken to be without limits, and the path is left to ECMP. Varys' guard against starvation, a share of time
  for all, is left out, as in its own simulator.
* `Aalo` (Chowdhury and Stoica, SIGCOMM 2015): sizes are not known. Coflows are in ten queues by what they have sent
  (D-CLAS); queues share each port by weights, so that none starves, and what one leaves goes to the first that can
  use it. Within a queue first come, first served, within a coflow max-min fair. ECMP. The paper asks for falling
  weights; here the first queue has ten, the last one.
* `Sincronia` (Agarwal et al., SIGCOMM 2018): the order of `bssi`, which is within four times the best, enforced by
  priorities alone: no rates. Coflows have the eight classes of traffic as under coflow-plus (`steady_classes`). ECMP.
* `Tailor` (Jiang et al., ICCCN 2016): fair sharing, but a new coflow's slowest flow is moved to the path on which it
  gets most, if the coflow then ends earlier: one flow a decision, no rates.
* `Rapier` (Zhao et al., INFOCOM 2015): route and rate together. Each coflow in turn, smallest bottleneck first, is
  placed on the paths that shorten it most, with MADD rates; what is left goes flow by flow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from speedwell.controller.policy.coflows import checked_kernels as kernels
from speedwell.controller.policy.coflows.coflow import ServiceClass
from speedwell.controller.policy.coflows.coflow_kernels import FULL
from speedwell.controller.policy.coflows.live_coflows import (
    LiveCoflow,
    LiveFlow,
    TableScheduler,
    hashed,
    without_rates,
)
from speedwell.controller.policy.compiled import Integers, Reals
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.network.maxmin import global_shares
from speedwell.controller.policy.network.traffic_classes import PRIORITIES


class LiveArrays:
    """The live flows of some coflows as the kernels want them; `flows[f]` is the object of row f."""

    def __init__(self, coflows: Sequence[LiveCoflow], network: Network, now: float) -> None:
        self.coflows = coflows
        self.flows = [flow for coflow in coflows for flow in coflow.flows.values()]
        longest = max((len(flow.links) for flow in self.flows), default=1)
        self.count = np.array([len(coflow.flows) for coflow in coflows], np.int64)
        self.first = np.concatenate(([0], np.cumsum(self.count)))[:-1].astype(np.int64)
        self.rows = np.arange(len(self.flows))
        self.links = np.full((len(self.flows), max(longest, 1)), -1, np.int64)
        for row, flow in enumerate(self.flows):
            self.links[row, : len(flow.links)] = flow.links
        self.left = np.array([0.0 if flow.is_stranded else flow.remaining_bits(now) for flow in self.flows],
                             np.float64)
        self.whole = np.array(network.capacities_bps(), np.float64)
        self.free = self.whole.copy()
        self.load = np.zeros(len(self.whole))
        self.rates = np.zeros(len(self.flows))
        self.all = np.arange(len(coflows))

    def gammas(self) -> Reals:
        """The time of each coflow if it had the network for itself."""
        out = np.zeros(len(self.coflows))
        kernels.gammas(self.all, self.first, self.count, self.rows, self.links, self.left, self.whole, self.whole,
                       self.load, out)
        return out

    def bssi(self) -> Integers:
        """Sincronia's order."""
        return kernels.bssi(self.all, self.first, self.count, self.rows, self.links, self.left, self.whole,
                                 self.load)

    def scaled(self, order: Integers) -> None:
        kernels.scaled(order, self.first, self.count, self.rows, self.links, self.left, self.free, self.whole,
                       self.load, self.rates)

    def fill(self, order: Integers) -> None:
        """In order, each coflow takes all that it can use."""
        kernels.fill(order, self.first, self.count, self.rows, self.links, self.left, self.free, self.whole,
                     self.load, self.rates)

    def fill_by_weight(self, queues: Mapping[int, Integers], number: int) -> None:
        """Each queue's coflows, in order, take what they can use of its part of every link: queue 0 weighs `number`,
        each one less than that before it, and those with flows on a link share it."""
        whole, shares = self.free, {}
        for queue, order in queues.items():
            users = np.repeat(np.isin(self.all, order), self.count) & (self.left > 0)
            shares[queue] = np.where(np.isin(np.arange(len(whole)), self.links[users]), number - queue, 0.0)
        weights = np.maximum(sum(shares.values()), 1.0)
        left = whole.copy()
        for queue, order in queues.items():
            self.free = whole * shares[queue] / weights
            left -= self.free
            self.fill(order)
            left += self.free
        self.free = left

    def backfill(self, order: Integers) -> None:
        """In order, each flow gets all that its links have left; the flows are told the rates that they have then."""
        kernels.backfill(order, self.first, self.count, self.rows, self.links, self.free, self.whole, self.rates)
        for flow, rate_bps in zip(self.flows, self.rates.tolist(), strict=True):
            flow.rate_bps = rate_bps

    def in_order(self, order: Integers) -> list[LiveCoflow]:
        return [self.coflows[number] for number in order]


class _HostLinksOnly(TableScheduler):
    """Policies that know the hosts' own links and leave the path between to the switches."""

    def _place(self, flows: Iterable[LiveFlow], now: float) -> None:
        for flow in flows:
            links = self._network.shortest_path_links(flow.source, flow.destination)[0]
            flow.links = (links[0], links[-1])


class FairSharing(_HostLinksOnly):
    decides_often = False

    def _decide(self, now: float) -> list[LiveCoflow]:
        return list(self._by_age())


class Varys(_HostLinksOnly):
    def _decide(self, now: float) -> list[LiveCoflow]:
        arrays = LiveArrays(list(self._by_age()), self._network, now)
        order = np.argsort(arrays.gammas(), kind="stable")
        arrays.scaled(order)
        arrays.backfill(order)
        for flow in arrays.flows:
            flow.service_class = ServiceClass.BEST_EFFORT
        return arrays.in_order(order)


class Aalo(_HostLinksOnly):
    def __init__(self, network: Network, first_limit_bytes: float = 10e6, factor: float = 10.0, queues: int = 10,
                 strict: bool = False) -> None:
        """10 MB in the first queue, then ten times as much in each of ten, are Aalo's own values. `strict`: a queue
        goes before the next instead of sharing with it, as in coflowsim."""
        super().__init__(network)
        self._first_limit_bits, self._factor = first_limit_bytes * 8, factor
        self._queues, self._strict = queues, strict

    def _decide(self, now: float) -> list[LiveCoflow]:
        ordered = sorted(self._by_age(), key=lambda coflow: self._queue(coflow, now))
        arrays = LiveArrays(ordered, self._network, now)
        arrays.left[:] = [not flow.is_stranded for flow in arrays.flows]    # sizes are not known: all alike
        if not self._strict:
            arrays.fill_by_weight({queue: np.array([number for number, _ in rows]) for queue, rows in groupby(
                enumerate(ordered), key=lambda row: self._queue(row[1], now))}, self._queues)
        arrays.fill(arrays.all)
        arrays.backfill(arrays.all)
        return ordered

    def _queue(self, coflow: LiveCoflow, now: float) -> int:
        sent_bits = coflow.size_bits - sum(flow.remaining_bits(now) for flow in coflow.flows.values())
        limit_bits, queue = self._first_limit_bits, 0
        while sent_bits > limit_bits and queue < self._queues - 1:
            limit_bits *= self._factor
            queue += 1
        return queue


class Sincronia(_HostLinksOnly):
    def __init__(self, network: Network, classes: int = PRIORITIES) -> None:
        """`classes` of traffic: the paper's order is exact with one for each coflow."""
        super().__init__(network)
        self._classes = classes

    def _decide(self, now: float) -> list[LiveCoflow]:
        arrays = LiveArrays(list(self._by_age()), self._network, now)
        ordered = arrays.in_order(arrays.bssi())
        for place, coflow in enumerate(ordered):
            for flow in coflow.flows.values():
                flow.priority = min(place, self._classes - 1)
        return ordered


class _Routed(TableScheduler):
    """Policies that know paths; at first each flow takes one by its hash, as ECMP would."""

    def _place(self, flows: Iterable[LiveFlow], now: float) -> None:
        for flow in flows:
            paths = self._network.shortest_paths(flow.source, flow.destination)
            self._put(flow, hashed(flow, len(paths)))

    def _put(self, flow: LiveFlow, number: int) -> None:
        flow.path = self._network.shortest_paths(flow.source, flow.destination)[number]
        flow.links = self._network.shortest_path_links(flow.source, flow.destination)[number]


class Tailor(_Routed):
    def _decide(self, now: float) -> list[LiveCoflow]:
        flows = [flow for flow in self._flows.values() if flow.links]
        numbers: dict[LiveCoflow, list[int]] = {}
        for number, flow in enumerate(flows):
            numbers.setdefault(flow.coflow, []).append(number)
        shares: list[float] | None = None
        for coflow in self._by_age():
            own = numbers.get(coflow, [])
            if any(len(self._network.shortest_paths(flows[number].source, flows[number].destination)) > 1
                   for number in own):
                shares = self._trim(own, flows, shares or self._shares(flows), now)
        return list(self._by_age())

    def _shares(self, flows: Sequence[LiveFlow]) -> list[float]:
        return global_shares([flow.links for flow in flows], self._network.capacities_bps(), {})

    def _trim(self, own: Sequence[int], flows: Sequence[LiveFlow], shares: list[float], now: float) -> list[float]:
        """Move the slowest of a coflow's `own` flows to where it gets most, if the coflow then ends earlier.

        Gives the shares that all flows have then."""
        capacities = self._network.capacities_bps()
        ends = {number: flows[number].remaining_bits(now) / shares[number] for number in own}
        slowest = max(own, key=lambda number: (ends[number], -number))
        flow, before = flows[slowest], flows[slowest].links
        paths = self._network.shortest_path_links(flow.source, flow.destination)
        used = dict.fromkeys((link for links in paths for link in links), 0)
        for number, other in enumerate(flows):
            if number != slowest:
                for link in other.links:
                    if link in used:
                        used[link] += 1
        best = max(range(len(paths)), key=lambda path: (min(capacities[link] / (used[link] + 1)
                                                            for link in paths[path]), paths[path] == before))
        if paths[best] == before:
            return shares
        present = paths.index(before)
        self._put(flow, best)
        after = self._shares(flows)
        if max(flows[number].remaining_bits(now) / after[number] for number in own) < max(ends.values()) * (1 - 1e-9):
            return after
        self._put(flow, present)
        return shares


class _Wanted(NamedTuple):
    """What Rapier places: paths are given by their links, of which `present` are the flow's now."""

    flow: LiveFlow
    bits: float
    paths: Sequence[tuple[int, ...]]
    present: int


class Rapier(_Routed):
    def _decide(self, now: float) -> list[LiveCoflow]:
        without_rates(self._flows.values(), ServiceClass.BEST_EFFORT)
        whole = list(self._network.capacities_bps())
        free, ordered = whole.copy(), []
        waiting = [(coflow, self._wanted(coflow, now)) for coflow in self._by_age()]
        while waiting:
            placed = [(*_placed(wanted, free, whole), coflow) for coflow, wanted in waiting]
            first = min(range(len(placed)), key=lambda number: placed[number][0])
            (seconds, numbers, coflow), (_, wanted) = placed[first], waiting.pop(first)
            ordered.append(coflow)
            for (flow, bits, _, _), number in zip(wanted, numbers, strict=True):
                self._put(flow, number)
                if 0 < seconds < math.inf:
                    flow.rate_bps = bits / seconds
                    for link in flow.links:
                        free[link] -= flow.rate_bps
        arrays = LiveArrays(ordered, self._network, now)
        arrays.free = np.array(free, np.float64)
        arrays.rates = np.array([flow.rate_bps or 0.0 for flow in arrays.flows])
        arrays.backfill(arrays.all)
        return ordered

    def _wanted(self, coflow: LiveCoflow, now: float) -> list[_Wanted]:
        """The largest flow first."""
        wanted = []
        for flow in coflow.flows.values():
            bits = flow.remaining_bits(now)
            if not flow.is_stranded and bits > 0:
                paths = self._network.shortest_path_links(flow.source, flow.destination)
                wanted.append(_Wanted(flow, bits, paths, paths.index(flow.links) if flow.links in paths else 0))
        return sorted(wanted, key=lambda each: -each.bits)


def _placed(wanted: Sequence[_Wanted], free: Sequence[float], whole: Sequence[float]) -> tuple[float, list[int]]:
    """The coflow's time on what is free, and the paths that give it: flow by flow, each where its most loaded link
    takes least, and where it is if that is as good."""
    load: dict[int, float] = {}
    longest, numbers = 0.0, []
    for _, bits, paths, present in wanted:
        best, least = present, math.inf
        for number, links in enumerate(paths):
            seconds = 0.0
            for link in links:
                if free[link] <= FULL * whole[link]:
                    seconds = math.inf
                    break
                seconds = max(seconds, (load.get(link, 0.0) + bits) / free[link])
            if seconds < least or (seconds == least and number == present):
                best, least = number, seconds
        longest = max(longest, least)
        numbers.append(best)
        for link in paths[best]:
            load[link] = load.get(link, 0.0) + bits
    return longest, numbers
