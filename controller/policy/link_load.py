"""What Mayflower knows about one link: the flows on it, traffic that is not its own, and shares."""

from __future__ import annotations

from operator import attrgetter

from controller.policy.maxmin import RELATIVE_TOLERANCE, share_of_unbounded_flow
from controller.policy.network import Path


class Flow:
    """A read in flight, in the paper's terms f: bandwidth b_f, remaining size r_f, freeze state and its end T.

    Compared by identity. Counters give `remaining_bits` as of `settled_at`; between them it is taken to
    shrink at the estimated bandwidth.
    """

    __slots__ = (
        "bandwidth_bps",
        "flow_id",
        "frozen",
        "frozen_until",
        "links",
        "measured_bps",
        "on_path_since",
        "path",
        "remaining_bits",
        "settled_at",
        "size_bits",
    )

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

    __slots__ = (
        "_ascending",
        "_demand_bps",
        "_share_bps",
        "background",
        "background_demand_bps",
        "capacity_bps",
        "departed_bits",
        "flows",
        "measured_at",
        "stale",
    )

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
        are taken to have run at their estimate since they were added.
        """
        interval_seconds = 0.0 if self.measured_at is None else now - self.measured_at
        explained_bps = self.departed_bits / interval_seconds if interval_seconds > 0 else 0.0
        for flow in self.flows.values():
            if flow.measured_bps is not None:
                explained_bps += flow.measured_bps
            else:
                running_seconds = now - flow.on_path_since
                part = running_seconds / interval_seconds if running_seconds < interval_seconds else 1.0
                explained_bps += flow.bandwidth_bps * part
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
