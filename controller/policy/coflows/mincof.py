"""MinCOF: coflow scheduling and routing (Chiu et al., "Minimal Coflow Routing and Scheduling in OpenFlow-based Cloud
Storage Area Networks", section III-D, Algorithm 1).

The symbols: gamma, the live coflows (here `coflows`); C_sch and C_str, those that are scheduled and those that
starve; d_ij, what a coflow has left from host i to host j; PathRem and h, see `path_table`; Gamma, a coflow's
bottleneck: the completion time of its slowest flow (Eq. 1); D, W_O, W_N, C_O and C_N, see `rerouting`.

Where the text is silent:

* *Least used path*: the one with the most left by PathRem. Flows of one coflow are placed one by one, the largest
  first, and each takes from PathRem what it would get if only the hosts' own links limited its coflow.
* *Re-balancing* the first coflow: place its flows anew in that way on a network without other coflows. It is done if
  the coflow then ends earlier although each moved flow has to send in addition what Eq. 2 and 4 say it loses, and if
  every move gains capacity (C_N > C_O). D is the mean time between two arrivals so far.
* *Sufficient bandwidth*: a coflow is scheduled if on every link that it uses at least `sufficient_share` is left;
  with less it is better off among the starved.
* *Work conservation*: PathRem starts from the Scheduled queue's share of a link between switches. What is then left
  of the whole links goes to the scheduled coflows, in their order, all flows of a coflow in proportion, so that they
  still end together. It does not harm the other queues, as these have their shares by the queues themselves.
* A coflow *carries large files* if one pair of its hosts exchanges more than `threshold_bytes`. The flows of others
  take the switches' default path in the best-effort queue, as does a flow that reports to have nothing left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from speedwell.controller.policy.coflows.coflow import BITS_PER_BYTE, Coflow, Schedule, ServiceClass
from speedwell.controller.policy.coflows.live_coflows import LiveCoflow, LiveFlow, TableScheduler, without_rates
from speedwell.controller.policy.errors import InvalidRequest
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.network.path_table import PathTable
from speedwell.controller.policy.reads.rerouting import Tcp, gain, loss

SCHEDULED_SHARE, STARVED_SHARE, BEST_EFFORT_SHARE = 0.5, 0.2, 0.3
"""Of a link's capacity (section III-B)."""
THRESHOLD_BYTES = 2_500_000
"""Files above this size, 0.01 of Data Oasis' sizes, have about 70 % of the bytes (section IV-B)."""
FIRST_INTERVAL_SECONDS = 6.91
"""The mean time between arrivals in Table II: what is assumed before arrivals have been seen."""

Choice = tuple[int, ...]        # a path as the indices of its links


class MinCOF(TableScheduler):
    """Algorithm 1. SERVECOFLOW is what happens at each arrival and completion of a coflow, SCHEDULE is `_decide`."""

    decides_often = False

    def __init__(self, network: Network, threshold_bytes: float = THRESHOLD_BYTES,
                 scheduled_share: float = SCHEDULED_SHARE, sufficient_share: float = STARVED_SHARE,
                 tcp: Tcp | None = None) -> None:
        """Raises InvalidRequest for a share that is not a part of a link."""
        super().__init__(network)
        for name, share in (("scheduled_share", scheduled_share), ("sufficient_share", sufficient_share)):
            if not 0 < share <= 1:
                raise InvalidRequest(f"{name} is a part of a link above 0 and up to 1, not {share!r}")
        self._threshold_bits = threshold_bytes * BITS_PER_BYTE
        self._scheduled_share = scheduled_share
        self._sufficient_share = sufficient_share
        self._tcp = tcp or Tcp()
        self._first_arrival: float | None = None
        self._last_arrival = 0.0
        self._arrivals = 0

    def coflow_arrived(self, coflow: Coflow, now: float) -> Schedule:
        schedule = super().coflow_arrived(coflow, now)
        if self._first_arrival is None:
            self._first_arrival = now
        self._last_arrival = now
        self._arrivals += 1
        return schedule

    # --- SERVECOFLOW, lines 17 to 23: new coflows on the least used paths ---

    def _place(self, flows: Iterable[LiveFlow], now: float) -> None:
        coflows = {flow.coflow.number: flow.coflow for flow in flows if self._is_large(flow.coflow)}
        table = self._table(self._scheduled_share)
        for flow in self._flows.values():
            if flow.rate_bps is not None and flow.links:
                table.reserve(flow.links, flow.rate_bps)
        for coflow in coflows.values():
            new = [flow for flow in coflow.flows.values() if not flow.links and not flow.is_stranded]
            choices = self._least_used(new, [flow.remaining_bits(now) for flow in new], table)
            for flow, links in zip(new, choices, strict=True):
                self._put(flow, links)

    def _least_used(self, flows: Sequence[LiveFlow], sizes_bits: Sequence[float], table: PathTable,
                    ) -> list[Choice]:
        """A path for each flow; `table` is updated with what the flows would get."""
        candidates = [self._network.shortest_path_links(flow.source, flow.destination) for flow in flows]
        on_hosts: dict[int, float] = {}
        for paths, bits in zip(candidates, sizes_bits, strict=True):
            for link in {paths[0][0], paths[0][-1]}:
                on_hosts[link] = on_hosts.get(link, 0.0) + bits
        seconds = max((bits / table.whole_bps(link) for link, bits in on_hosts.items()), default=0.0)
        chosen: list[Choice] = [()] * len(flows)
        for number in sorted(range(len(flows)), key=lambda number: -sizes_bits[number]):
            paths, present = candidates[number], flows[number].links
            # Equally good: stay where it is, else the first in the network's order.
            links = max(paths, key=lambda links: (table.path_rem(links), links == present))
            chosen[number] = links
            table.reserve(links, sizes_bits[number] / seconds if seconds > 0 else 0.0)
        return chosen

    def _put(self, flow: LiveFlow, links: Choice) -> None:
        if links != flow.links or flow.path is None:
            number = self._network.shortest_path_links(flow.source, flow.destination).index(links)
            flow.path = self._network.shortest_paths(flow.source, flow.destination)[number]
            flow.links = links

    # --- SCHEDULE ---

    def _decide(self, now: float) -> list[LiveCoflow]:
        large = [coflow for coflow in self._by_age() if self._is_large(coflow)]
        without_rates(self._flows.values(), ServiceClass.BEST_EFFORT)
        bits_on = {coflow.number: _bits_on(coflow, now) for coflow in large}
        ordered = self._shortest_bottleneck_first(large, bits_on)
        if ordered and self._rebalance(ordered[0], bits_on[ordered[0].number], now):
            bits_on[ordered[0].number] = _bits_on(ordered[0], now)
            ordered = self._shortest_bottleneck_first(ordered, bits_on)
        scheduled = self._allocate(ordered, bits_on, now)
        self._conserve(scheduled)
        return ordered

    def _shortest_bottleneck_first(self, coflows: Sequence[LiveCoflow],
                                   bits_on: Mapping[int, Mapping[int, float]]) -> list[LiveCoflow]:
        """Line 2: in SBF order, each judged as if it were alone; ties by arrival. `bits_on` has what each coflow, by
        its number, has left on each link."""
        gamma = self._table(self._scheduled_share).gamma
        return [coflow for _, _, coflow in sorted(
            [(gamma(bits_on[coflow.number]), coflow.age, coflow) for coflow in coflows])]

    def _rebalance(self, coflow: LiveCoflow, bits_on: Mapping[int, float], now: float) -> bool:
        """Lines 3 to 6: move flows of the first coflow if that shortens its completion; says whether it did."""
        flows = [flow for flow in coflow.flows.values() if flow.links]
        bits = [flow.remaining_bits(now) for flow in flows]
        before = self._table(self._scheduled_share).gamma(bits_on)
        choices = self._least_used(flows, bits, self._table(self._scheduled_share))
        after_on: dict[int, float] = {}
        for links, left in zip(choices, bits, strict=True):
            for link in links:
                after_on[link] = after_on.get(link, 0.0) + left
        after = self._table(self._scheduled_share).gamma(after_on)
        if not 0 < after < before:
            return False
        round_trips = self._tcp.round_trips(self._interval_seconds())
        for flow, links, left in zip(flows, choices, bits, strict=True):
            if links != flow.links:
                w_old, w_new = self._tcp.window(left / before), self._tcp.window(left / after)
                if gain(round_trips, w_old, w_new) <= 0:
                    return False
                for link in links:
                    after_on[link] += self._tcp.bits(loss(round_trips, w_new))
        if self._table(self._scheduled_share).gamma(after_on) >= before:
            return False
        for flow, links in zip(flows, choices, strict=True):
            self._put(flow, links)
        return True

    def _allocate(self, ordered: Sequence[LiveCoflow], bits_on: Mapping[int, Mapping[int, float]],
                  now: float) -> list[LiveCoflow]:
        """Lines 7 to 14: MADD rates for whom there is bandwidth (C_sch), the Starved queue for the others (C_str)."""
        table = self._table(self._scheduled_share)
        scheduled = []
        for coflow in ordered:
            seconds = table.gamma(bits_on[coflow.number])
            if not 0 < seconds < float("inf") or not self._is_sufficient(table, bits_on[coflow.number]):
                without_rates(coflow.flows.values(), ServiceClass.STARVED)
                continue
            scheduled.append(coflow)
            for flow in coflow.flows.values():
                if flow.links and (left := flow.remaining_bits(now)) > 0:
                    flow.rate_bps = left / seconds
                    flow.service_class = ServiceClass.SCHEDULED
                    table.reserve(flow.links, flow.rate_bps)
        return scheduled

    def _is_sufficient(self, table: PathTable, links: Iterable[int]) -> bool:
        return all(table.left_part(link) >= self._sufficient_share * (1 - 1e-9) for link in links)

    def _conserve(self, scheduled: Sequence[LiveCoflow]) -> None:
        """Give what is left of the whole links to the scheduled coflows, in their order."""
        table = self._table(1.0)
        rates = []
        for coflow in scheduled:
            rate_on: dict[int, float] = {}
            for flow in coflow.flows.values():
                for link in flow.links:
                    rate_on[link] = rate_on.get(link, 0.0) + (flow.rate_bps or 0.0)
                table.reserve(flow.links, flow.rate_bps or 0.0)
            rates.append(rate_on)
        for coflow, rate_on in zip(scheduled, rates, strict=True):
            more = table.headroom(rate_on)
            if more > 0:
                for flow in coflow.flows.values():
                    table.reserve(flow.links, more * (flow.rate_bps or 0.0))
                    flow.rate_bps = (flow.rate_bps or 0.0) * (1 + more)

    # --- helpers ---

    def _table(self, share: float) -> PathTable:
        return PathTable(self._network, share)

    def _interval_seconds(self) -> float:
        if self._first_arrival is None or self._arrivals < 2 or self._last_arrival <= self._first_arrival:
            return FIRST_INTERVAL_SECONDS
        return (self._last_arrival - self._first_arrival) / (self._arrivals - 1)

    def _is_large(self, coflow: LiveCoflow) -> bool:
        return coflow.largest_transfer_bits > self._threshold_bits


def _bits_on(coflow: LiveCoflow, now: float) -> dict[int, float]:
    """What the coflow has left on each link."""
    bits_on: dict[int, float] = {}
    for flow in coflow.flows.values():
        left = flow.remaining_bits(now)
        for link in flow.links:
            bits_on[link] = bits_on.get(link, 0.0) + left
    return bits_on
