"""Mayflower's decisions as the paper tells them, flow by flow: what the compiled ones must equal to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter

from controller.policy.errors import DuplicateFlow, NoPath, UnknownNode
from controller.policy.network.graph import Link, Network, Path
from controller.policy.network.maxmin import RELATIVE_TOLERANCE
from controller.policy.reads.selection_request import Replica, Selection, SelectionRequest
from tests.unit.policy.plain_shares import raised_shares, share_of_unbounded_flow


class Flow:

    def __init__(self, flow_id: str, path: Path, links: tuple[int, ...], size_bits: float, now: float) -> None:
        self.flow_id = flow_id
        self.path = path
        self.links = links
        self.size_bits = size_bits
        self.on_path_since = now
        self.remaining_bits = size_bits
        self.settled_at = now
        self.bandwidth_bps = 0.0
        self.measured_bps: float | None = None
        self.counted_bits = 0.0
        self.frozen = False
        self.frozen_until = now

    def remaining_at(self, now: float) -> float:
        """r_f in bits: the last known remaining size less what the estimated bandwidth has moved since."""
        if not self.links:
            return 0.0
        return max(self.remaining_bits - self.bandwidth_bps * (now - self.settled_at), 0.0)


_bandwidth = attrgetter("bandwidth_bps")


class LinkLoad:
    """The flows on one link and the max-min shares that follow from them.

    Traffic that is not a known flow counts as one more, `background`: it takes part in all shares, and as it
    has no remaining size it never costs anything. Whoever changes the flows or a flow's bandwidth sets
    `stale`; shares are computed when next asked for.
    """

    def __init__(self, index: int, capacity_bps: float) -> None:
        self.capacity_bps = capacity_bps
        self.flows: dict[str, Flow] = {}
        self.background = Flow("background", Path(()), (index,), 0.0, 0.0)
        self.background_demand_bps = 0.0
        self.measured_at: float | None = None
        self.departed_bits = 0.0
        self.stale = True
        self._ascending: list[Flow] = []
        self._demand_bps = 0.0
        self._share_bps = capacity_bps

    def link_measured(self, rate_bps: float, now: float) -> None:
        """Set the background to what the known flows do not explain of the rate since the last poll.

        Dropped flows explain the part of the interval in which they ran; flows that no poll has shown yet
        are taken to have run at their estimate since they were added, or to have moved what was counted if that is
        more.
        """
        interval_seconds = 0.0 if self.measured_at is None else now - self.measured_at
        explained_bps = self.departed_bits / interval_seconds if interval_seconds > 0 else 0.0
        for flow in self.flows.values():
            if flow.measured_bps is not None:
                explained_bps += flow.measured_bps
            else:
                running_seconds = now - flow.on_path_since
                part = running_seconds / interval_seconds if running_seconds < interval_seconds else 1.0
                counted_bps = flow.counted_bits / interval_seconds if interval_seconds > 0 else 0.0
                explained_bps += max(flow.bandwidth_bps * part, counted_bps)
        self.background_demand_bps = max(rate_bps - explained_bps, 0.0)
        self.background.bandwidth_bps = self.background_demand_bps
        self.departed_bits = 0.0
        self.measured_at = now
        self.stale = True

    def flow_left(self, flow: Flow, now: float) -> None:
        """Take a flow off the link, and remember what it moved since the last poll."""
        del self.flows[flow.flow_id]
        self.stale = True
        if self.measured_at is not None:
            self.departed_bits += flow.bandwidth_bps * (now - max(self.measured_at, flow.on_path_since))

    def spare_bps(self) -> float:
        """Capacity that neither a flow nor the background asks for; 0 if the demands exceed it."""
        if self.stale:
            self._refresh()
        spare_bps = self.capacity_bps - self._demand_bps
        return spare_bps if spare_bps > RELATIVE_TOLERANCE * self.capacity_bps else 0.0

    def share_of_new_flow(self) -> float:
        """MAXMINSHARE on this link: existing flows ask for their current share, the new one for infinity."""
        if self.stale:
            self._refresh()
        return self._share_bps

    def reductions(self, new_flow_bps: float) -> list[tuple[Flow, float]]:
        """NEWBANDWIDTH on this link: (f, b'_f) of the flows that lose bandwidth to a new flow of this demand.

        `new_flow_bps` is at most `share_of_new_flow()`, so the new flow gets it in full and the others
        share the rest: those above the water level come down to it. Found from the largest flow down.
        """
        if self.stale:
            self._refresh()
        excess_bps = self._demand_bps + new_flow_bps - self.capacity_bps
        if excess_bps <= RELATIVE_TOLERANCE * self.capacity_bps:
            return []
        above: list[Flow] = []
        above_bps = 0.0
        level_bps = 0.0
        for flow in reversed(self._ascending):
            if above and flow.bandwidth_bps <= level_bps:
                break
            above.append(flow)
            above_bps += flow.bandwidth_bps
            level_bps = (above_bps - excess_bps) / len(above)
        return [(flow, level_bps) for flow in above]

    def _refresh(self) -> None:
        flows = list(self.flows.values())
        if self.background.bandwidth_bps > 0:
            flows.append(self.background)
        flows.sort(key=_bandwidth)
        demands_bps = [flow.bandwidth_bps for flow in flows]
        self._ascending = flows
        self._demand_bps = sum(demands_bps)
        self._share_bps = share_of_unbounded_flow(self.capacity_bps, demands_bps)
        self.stale = False


Reductions = dict[tuple[int, float], list[tuple[Flow, float]]]
"""For a link index and a new flow's demand: the flows that lose bandwidth there, with their new shares."""


class PlainMayflower:
    """The Flowserver's model: the flows in flight with their shares, and the decisions that rest on it.

    Selecting changes nothing. Report the flow with `flow_added` before the next request is answered, and
    take it back with `flow_dropped` if it could not be set up.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._version = network.version
        self._loads: list[LinkLoad] = []
        self._flows: dict[str, Flow] = {}

    # --- decisions ---

    def select_replica_and_path(
        self, request: SelectionRequest, now: float, paths: Sequence[tuple[Replica, Path]] | None = None
    ) -> Selection:
        """SELECTREPLICAANDPATH, lines 1 to 8: the replica and path of least cost (Eq. 1).

        P is every shortest path from every replica, or just `paths` where another policy has narrowed the
        choice (one replica for path selection alone). Raises NoPath if P is empty, UnknownNode if the
        client is not in the network. A replica that is not in the network is passed over.
        """
        if request.client not in self._network:
            raise UnknownNode(request.client)
        self._follow_network()
        candidates = self._all_paths(request) if paths is None else self._given_paths(paths)
        if not candidates:
            raise NoPath(f"no replica of this read can reach {request.client}")
        best: tuple[float, int, int] | None = None
        best_share = 0.0
        reductions: Reductions = {}
        shares = [(-self._max_min_share(links), order) for order, (_, _, links) in enumerate(candidates)]
        # Widest first: once d_j / b_j alone exceeds the best cost, no later path can win.
        for negative_share, order in sorted(shares):
            share = -negative_share
            if best is not None and request.size_bits / share > best[0]:
                break
            links = candidates[order][2]
            cost = self._flow_cost(links, share, request.size_bits, now, reductions)
            rank = (cost, len(links), order)
            if best is None or rank < best:
                best, best_share = rank, share
        assert best is not None
        replica, number, _ = candidates[best[2]]
        path = (
            self._network.shortest_paths(replica.host, request.client)[number] if paths is None else paths[number][1]
        )
        return Selection(replica, path, best_share, best[0])

    def _all_paths(self, request: SelectionRequest) -> list[tuple[Replica, int, tuple[int, ...]]]:
        network = self._network
        return [
            (replica, number, links)
            for replica in request.replicas
            if replica.host in network
            for number, links in enumerate(network.shortest_path_links(replica.host, request.client))
        ]

    def _given_paths(self, paths: Sequence[tuple[Replica, Path]]) -> list[tuple[Replica, int, tuple[int, ...]]]:
        return [(replica, number, self._indices(path)) for number, (replica, path) in enumerate(paths)]

    def _max_min_share(self, links: tuple[int, ...]) -> float:
        """MAXMINSHARE: b_j, the new flow's share at its bottleneck. Infinite for a path without links."""
        loads = self._loads
        return min([loads[link].share_of_new_flow() for link in links], default=math.inf)

    def _flow_cost(
        self, links: tuple[int, ...], share: float, flow_size_bits: float, now: float, reductions: Reductions
    ) -> float:
        """FLOWCOST, Eq. 2: seconds the new flow takes, and seconds by which it delays the flows it meets.

        `reductions` holds what was found for (link, demand) so far: paths of one request share links.
        """
        lists = []
        for link in links:
            found = reductions.get((link, share))
            if found is None:
                found = reductions[link, share] = self._loads[link].reductions(share)
            if found:
                lists.append(found)
        cost = flow_size_bits / share
        for flow, new_share in _at_bottleneck(lists):
            cost += flow.remaining_at(now) * (1 / new_share - 1 / flow.bandwidth_bps)
        return cost

    # --- flows come and go ---

    def flow_added(self, flow_id: str, path: Path, size_bits: float, now: float) -> float:
        """SELECTREPLICAANDPATH, lines 9 to 11: account for a flow on its path, and give its estimated share.

        Whichever policy chose the path. Raises DuplicateFlow, or UnknownLink for a path that is gone.
        """
        self._follow_network()
        if flow_id in self._flows:
            raise DuplicateFlow(f"a flow {flow_id!r} is already known")
        flow = Flow(flow_id, path, self._indices(path), size_bits, now)
        self._place(flow, now)
        return flow.bandwidth_bps

    def flow_moved(self, flow_id: str, path: Path, now: float) -> None:
        """A known flow takes another path. Raises UnknownLink; an unknown flow is passed over."""
        self._follow_network()
        links = self._indices(path)
        flow = self._flows.get(flow_id)
        if flow is not None:
            flow.remaining_bits = flow.remaining_at(now)
            flow.settled_at = now
            self._remove(flow, now)
            flow.path, flow.links, flow.on_path_since = path, links, now
            self._place(flow, now)

    def flow_resized(self, flow_id: str, size_bits: float, now: float) -> None:
        """A flow will have carried `size_bits` in all when it ends. An unknown flow is passed over."""
        flow = self._flows.get(flow_id)
        if flow is not None:
            flow.remaining_bits = max(flow.remaining_at(now) + size_bits - flow.size_bits, 0.0)
            flow.settled_at = now
            flow.size_bits = size_bits

    def flow_dropped(self, flow_id: str, now: float) -> bool:
        """Forget a flow that ended or failed, and share out what it leaves. False if it was not known."""
        self._follow_network()
        flow = self._flows.get(flow_id)
        if flow is None:
            return False
        self._remove(flow, now)
        return True

    def _place(self, flow: Flow, now: float) -> None:
        self._flows[flow.flow_id] = flow
        self._share_with(flow, now)

    def _share_with(self, flow: Flow, now: float) -> None:
        share = self._max_min_share(flow.links)
        lists = [self._loads[link].reductions(share) for link in flow.links]
        for other, new_share in _at_bottleneck(lists):
            self.set_bandwidth(other, new_share, now)
        for link in flow.links:
            self._loads[link].flows[flow.flow_id] = flow
        self.set_bandwidth(flow, share, now)

    def _remove(self, flow: Flow, now: float) -> None:
        del self._flows[flow.flow_id]
        for link in flow.links:
            self._loads[link].flow_left(flow, now)
        self._share_out(flow.links, now)

    def _share_out(self, links: tuple[int, ...], now: float) -> None:
        """Raise the shares on `links` of those that have room on every link they cross."""
        loads = self._loads
        crossed = {flow: flow.links for link in links for flow in loads[link].flows.values()}
        spare_bps: dict[int, float] = {}
        for link in links:
            background = loads[link].background
            unmet_bps = loads[link].background_demand_bps - background.bandwidth_bps
            if unmet_bps > 0:
                # Background wants no more than was measured: as if it crossed one more link with that to spare.
                limit = -1 - link
                spare_bps[limit] = unmet_bps
                crossed[background] = (link, limit)
        for flow in crossed:
            for link in flow.links:
                if link not in spare_bps:
                    spare_bps[link] = loads[link].spare_bps()
        able = [flow for flow, path in crossed.items() if all(spare_bps[link] > 0 for link in path)]
        shares = raised_shares([flow.bandwidth_bps for flow in able], [crossed[flow] for flow in able], spare_bps)
        for flow, share in zip(able, shares, strict=True):
            if share > flow.bandwidth_bps:
                self.set_bandwidth(flow, share, now)

    # --- measurements ---

    def flow_measured(self, flow_id: str, transferred_bytes: int, rate_bps: float | None, now: float) -> None:
        """Take in a flow's counters: bytes since it started, rate since the last poll.

        Counters of a flow that was dropped while the poll ran are passed over. Raises InvalidMeasurement
        for a rate that is not a number of bits per second from 0 up.
        """
        flow = self._flows.get(flow_id)
        if flow is not None:
            flow.remaining_bits = max(flow.size_bits - 8 * transferred_bytes, 0.0)
            flow.settled_at = now
            flow.counted_bits = 8 * transferred_bytes
            if rate_bps is not None:
                flow.measured_bps = rate_bps
                self.update_bandwidth(flow, rate_bps, now)

    def link_measured(self, link: Link, rate_bps: float, now: float) -> None:
        """Take in a link's rate since its last poll; call it after `flow_measured` of the same poll.

        What the known flows do not explain is background, one flow that demands the difference. Until the
        next poll it gives way to new flows and takes back what it lost as any flow does. Raises UnknownLink,
        or InvalidMeasurement for a rate that is not a number of bits per second from 0 up.
        """
        self._follow_network()
        self._loads[self._network.link_index(link)].link_measured(rate_bps, now)

    def update_bandwidth(self, flow: Flow, bandwidth_bps: float, now: float) -> None:
        """UPDATEBW: take a measured bandwidth, unless the flow is in the update-freeze state (T <= f.T)."""
        if not flow.frozen or now > flow.frozen_until:
            flow.frozen = False
            self._set(flow, bandwidth_bps)

    def set_bandwidth(self, flow: Flow, bandwidth_bps: float, now: float) -> None:
        """SETBW: set an estimated bandwidth and freeze it until the flow should be done."""
        flow.remaining_bits = flow.remaining_at(now)
        flow.settled_at = now
        flow.frozen = True
        flow.frozen_until = now + flow.remaining_bits / bandwidth_bps
        self._set(flow, bandwidth_bps)

    def _set(self, flow: Flow, bandwidth_bps: float) -> None:
        flow.bandwidth_bps = bandwidth_bps
        for link in flow.links:
            self._loads[link].stale = True

    # --- look-ups ---

    def flows(self) -> Iterable[Flow]:
        """The flows in flight, oldest first."""
        return self._flows.values()

    def background_bps(self, link: Link) -> float:
        """The background's share of a link in bits per second, as measured or since estimated.

        Raises UnknownLink.
        """
        self._follow_network()
        return self._loads[self._network.link_index(link)].background.bandwidth_bps

    def _indices(self, path: Path) -> tuple[int, ...]:
        return tuple([self._network.link_index(link) for link in path.links])

    def _follow_network(self) -> None:
        """Catch up with links that were added and capacities that were changed since the last call."""
        if self._version != self._network.version or not self._loads:
            for index, capacity_bps in enumerate(self._network.capacities_bps()):
                if index == len(self._loads):
                    self._loads.append(LinkLoad(index, capacity_bps))
                elif self._loads[index].capacity_bps != capacity_bps:
                    self._loads[index].capacity_bps = capacity_bps
                    self._loads[index].stale = True
            self._version = self._network.version


def _at_bottleneck(lists: list[list[tuple[Flow, float]]]) -> Iterable[tuple[Flow, float]]:
    """Merge the per-link reductions of a path: b'_f is a flow's share at the tightest of its links."""
    if len(lists) <= 1:
        return lists[0] if lists else ()
    merged = dict(lists[0])
    for reductions in lists[1:]:
        for flow, share in reductions:
            if share < merged.get(flow, math.inf):
                merged[flow] = share
    return merged.items()
