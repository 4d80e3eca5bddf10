"""The flows in flight with their exact max-min fair shares over the whole network.

Mayflower estimates shares on a new flow's own links and leaves effects further away to the next poll (Rizvi et
al., "Mayflower", section 4.2). Here every change re-computes all shares, so that what a link has to spare is known
at once. What a poll shows on a link beyond the known flows is background: one flow on that link alone, which
demands what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from speedwell.controller.policy.network.graph import Link, Network, Path
from speedwell.controller.policy.network.maxmin import global_shares

NOISE = 0.02
"""The part of a capacity up to which unexplained traffic is taken for counters that do not fit together."""


class SharedFlow:
    """A flow with its exact share and what it has left. `read_id` is None for what is not mayflower-plus's own."""

    __slots__ = ("flow_id", "left_bits", "links", "path", "read_id", "share_bps", "size_bits")

    def __init__(
        self, flow_id: str, path: Path, links: tuple[int, ...], size_bits: float, read_id: str | None
    ) -> None:
        self.flow_id = flow_id
        self.path = path
        self.links = links
        self.size_bits = size_bits
        self.left_bits = size_bits
        self.share_bps = 0.0
        self.read_id = read_id


class ShareTrial:
    """The exact shares of known flows and of temporary ones, and what each link has free beside them."""

    def __init__(self, routes: list[tuple[int, ...]], capacities_bps: Sequence[float],
                 background_bps: Mapping[int, float]) -> None:
        self._routes = routes
        self._capacities_bps = capacities_bps
        self._background_bps = background_bps
        self._solutions = [self._solve()]

    @property
    def shares_bps(self) -> list[float]:
        """Known flows come first."""
        return self._solutions[-1][0]

    @property
    def free_bps(self) -> list[float]:
        """By link. Background gives way to a new flow as any flow would: to as much as half of what others leave."""
        return self._solutions[-1][1]

    def add(self, links: tuple[int, ...]) -> None:
        """Add a temporary flow."""
        self._routes.append(links)
        self._solutions.append(self._solve())

    def undo(self, number: int) -> None:
        """Take back the last `number` temporary flows."""
        for _ in range(number):
            self._routes.pop()
            self._solutions.pop()

    def last_shares_bps(self, number: int) -> list[float]:
        """The shares of the last `number` temporary flows."""
        return self.shares_bps[len(self.shares_bps) - number:]

    def _solve(self) -> tuple[list[float], list[float]]:
        shares_bps = global_shares(self._routes, self._capacities_bps, self._background_bps)
        free_bps = list(self._capacities_bps)
        for links, share_bps in zip(self._routes, shares_bps, strict=True):
            for link in links:
                free_bps[link] -= share_bps
        for link, background_bps in self._background_bps.items():
            free_bps[link] = max(free_bps[link] - background_bps, free_bps[link] / 2)
        return shares_bps, free_bps


class ExactShares:
    """Knows flows from reports and counters alone. Sizes in bits, rates in bits per second, times in seconds.

    Between counters a flow is taken to carry its share. Shares are computed when they are next needed.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._capacities_bps: tuple[float, ...] = ()
        self._version = -1
        self.flows: dict[str, SharedFlow] = {}
        self._background_bps: dict[int, float] = {}
        self._explained_bits: dict[int, float] = {}
        self._unexplained_bps: dict[int, float] = {}
        self._measured_at: dict[int, float] = {}
        self._now = -math.inf
        self._stale = True

    # --- what happened ---

    def flow_added(self, flow_id: str, path: Path, size_bits: float, now: float, read_id: str | None) -> SharedFlow:
        """Raises UnknownLink for a path that is gone."""
        flow = SharedFlow(flow_id, path, self._indices(path), size_bits, read_id)
        self._carry_until(now)
        self.flows[flow_id] = flow
        self._stale = True
        return flow

    def flow_moved(self, flow_id: str, path: Path, now: float) -> None:
        """A flow takes another path. Raises UnknownLink; an unknown flow is passed over."""
        links = self._indices(path)
        self._carry_until(now)
        if flow_id in self.flows:
            self.flows[flow_id].path, self.flows[flow_id].links = path, links
            self._stale = True

    def flow_resized(self, flow_id: str, size_bits: float, now: float) -> None:
        """A flow will have carried `size_bits` in all when it ends. An unknown flow is passed over."""
        flow = self.flows.get(flow_id)
        if flow is not None:
            self._carry_until(now)
            flow.left_bits = max(flow.left_bits + size_bits - flow.size_bits, 0.0)
            flow.size_bits = size_bits

    def flow_dropped(self, flow_id: str, now: float) -> SharedFlow | None:
        """The flow that ended or failed, None if it was not known."""
        self._carry_until(now)
        self._stale = True
        flow = self.flows.pop(flow_id, None)
        if flow is not None:
            self._carry(flow, flow.left_bits)   # whoever got more than its share is no traffic from elsewhere
        return flow

    def flow_measured(self, flow_id: str, transferred_bits: float, now: float) -> None:
        """Take in a flow's counter: bits since it started. An unknown flow is passed over."""
        flow = self.flows.get(flow_id)
        if flow is not None:
            self._carry_until(now)
            self._carry(flow, flow.left_bits - max(flow.size_bits - transferred_bits, 0.0))

    def link_measured(self, link: Link, rate_bps: float, now: float) -> None:
        """Take in a link's rate since its last poll, after the flows' counters. Raises UnknownLink."""
        index = self._network.link_index(link)
        self._carry_until(now)
        explained_bits = self._explained_bits.pop(index, 0.0)
        since, self._measured_at[index] = self._measured_at.get(index), now
        if since is not None and now > since:
            unexplained_bps = rate_bps - explained_bits / (now - since)
            # Counters of one round are not read at one moment: what one window has too much, the next has too little
            background_bps = min(unexplained_bps, self._unexplained_bps.get(index, 0.0))
            self._unexplained_bps[index] = unexplained_bps
            if background_bps > NOISE * self._capacities_bps[index]:
                self._background_bps[index] = background_bps
                self._stale = True
            elif self._background_bps.pop(index, None) is not None:
                self._stale = True

    # --- what follows from it ---

    def trial(self) -> ShareTrial:
        """What would be if further flows were added. What is known does not change."""
        self._follow_network()
        return ShareTrial([flow.links for flow in self.flows.values()], self._capacities_bps, self._background_bps)

    def flows_by_link(self) -> dict[int, int]:
        """How many known flows cross each link that any of them crosses."""
        number: dict[int, int] = {}
        for flow in self.flows.values():
            for link in flow.links:
                number[link] = number.get(link, 0) + 1
        return number

    @property
    def capacities_bps(self) -> Sequence[float]:
        """By link index."""
        self._follow_network()
        return self._capacities_bps

    def flows_at(self, now: float) -> list[SharedFlow]:
        """The flows, oldest first, with their shares and what they should have left by now."""
        self._carry_until(now)
        self._refresh()
        return list(self.flows.values())

    def _refresh(self) -> None:
        self._follow_network()
        if self._stale:
            for flow, share_bps in zip(self.flows.values(), self.trial().shares_bps, strict=True):
                flow.share_bps = share_bps
            self._stale = False

    def _carry_until(self, now: float) -> None:
        seconds = now - self._now
        if seconds > 0:
            self._refresh()
            for flow in self.flows.values():
                if flow.links:
                    self._carry(flow, min(flow.share_bps * seconds, flow.left_bits))
            self._now = now

    def _carry(self, flow: SharedFlow, bits: float) -> None:
        flow.left_bits -= bits
        for link in flow.links:
            self._explained_bits[link] = self._explained_bits.get(link, 0.0) + bits

    def _indices(self, path: Path) -> tuple[int, ...]:
        return tuple([self._network.link_index(link) for link in path.links])

    def _follow_network(self) -> None:
        if self._version != self._network.version:
            self._version = self._network.version
            self._capacities_bps = self._network.capacities_bps()
            self._stale = True
