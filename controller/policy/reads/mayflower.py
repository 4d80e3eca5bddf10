"""Mayflower's replica and path selection (Rizvi et al., "Mayflower", section 4, Pseudocode 1 and 2, Eq. 2).

The names and symbols are the paper's: R a request for d_j bits, P the shortest paths from all its replicas,
b_j the new flow's estimated share, and for an existing flow f its share b_f, remaining size r_f, new share
b'_f and the end T of its update-freeze state.

Where the paper leaves a choice, it is made so:

* The brackets in Pseudocode 2, line 8, group and do not round: the worked example of Figure 2 needs that.
* The flow that is added is put in the update-freeze state too. Its share has changed as well (from none),
  and its first counters show a connection that is still speeding up.
* Between polls a remaining size shrinks at the flow's estimated share. A poll sets it right, frozen or not.
* When a flow is dropped (section 3.3.3: estimates are recomputed after each add and drop), the flows that
  shared a link with it divide what it leaves by max-min, as far as their other links allow. Nobody loses
  and, as with an added flow, effects further away wait for the next poll. Those that gain are frozen at
  the new share for the reason that holds for added flows: the next counters cover time before the change.
* Paths of equal cost: the one with fewer links, then the earlier replica, then the earlier path.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from speedwell.controller.policy.compiled import Integers, Records
from speedwell.controller.policy.errors import DuplicateFlow, InvalidMeasurement
from speedwell.controller.policy.network.graph import Link, Network, Path
from speedwell.controller.policy.reads import progressive_filling
from speedwell.controller.policy.reads import share_kernels as kernels
from speedwell.controller.policy.reads.candidates import Candidates
from speedwell.controller.policy.reads.link_load import ReadFlow, ShareTable
from speedwell.controller.policy.reads.selection_request import Replica, Selection, SelectionRequest

FlowReading = tuple[str, int, float | None]
"""The name of a flow, its bytes since it started, and its rate in bits per second since the last poll."""


class Mayflower:
    """The Flowserver's model: the flows in flight with their shares, and the decisions that rest on it.

    Selecting changes nothing. Report the flow with `flow_added` before the next request is answered, and
    take it back with `flow_dropped` if it could not be set up.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._version = network.version
        self.table = ShareTable()
        """The flows and links as `share_kernels` has them, for those who decide over them too."""
        self._flows: dict[str, ReadFlow] = {}

    # --- decisions ---

    def select_replica_and_path(
        self, request: SelectionRequest, now: float, paths: Sequence[tuple[Replica, Path]] | None = None
    ) -> Selection:
        """SELECTREPLICAANDPATH, lines 1 to 8: the replica and path of least cost (Eq. 1).

        P is every shortest path from every replica, or just `paths` where another policy has narrowed the
        choice (one replica for path selection alone). Raises NoPath if P is empty, UnknownNode if the
        client is not in the network. A replica that is not in the network is passed over.
        """
        candidates = self.candidates(request, paths)
        table = self.table
        best, cost, share, costs = kernels.cheapest(
            *table.state(), candidates.rows, float(request.size_bits), now, table.stamps(len(candidates.rows)),
            table.losing, table.new_shares)
        return candidates.selection(best, share, cost, costs)

    def candidates(self, request: SelectionRequest, paths: Sequence[tuple[Replica, Path]] | None) -> Candidates:
        """The paths that are weighed. Raises what `Candidates` does."""
        self._follow_network()
        return Candidates(self._network, request, paths)

    # --- flows come and go ---

    def flow_added(self, flow_id: str, path: Path, size_bits: float, now: float) -> float:
        """SELECTREPLICAANDPATH, lines 9 to 11: account for a flow on its path, and give its estimated share.

        Whichever policy chose the path. Raises DuplicateFlow, or UnknownLink for a path that is gone.
        """
        self._follow_network()
        if flow_id in self._flows:
            raise DuplicateFlow(f"a flow {flow_id!r} is already known")
        links = self._indices(path)
        flow = ReadFlow(flow_id, path, links, size_bits, self.table, self.table.new_row(links, size_bits, now))
        self._flows[flow_id] = flow
        self._share_with(flow, now)
        return flow.bandwidth_bps

    def flow_moved(self, flow_id: str, path: Path, now: float) -> None:
        """A known flow takes another path. Raises UnknownLink; an unknown flow is passed over."""
        self._follow_network()
        links = self._indices(path)
        flow = self._flows.get(flow_id)
        if flow is not None:
            self._settle(flow, flow.remaining_at(now), now)
            self._remove(flow, now)
            flow.path, flow.links = path, links
            self.table.route(flow.row, links)
            self.table.flows["since"][flow.row] = now
            self._flows[flow_id] = flow
            self._share_with(flow, now)

    def flow_resized(self, flow_id: str, size_bits: float, now: float) -> None:
        """A flow will have carried `size_bits` in all when it ends. An unknown flow is passed over."""
        flow = self._flows.get(flow_id)
        if flow is not None:
            self._settle(flow, max(flow.remaining_at(now) + size_bits - flow.size_bits, 0.0), now)
            flow.size_bits = size_bits

    def flow_dropped(self, flow_id: str, now: float) -> bool:
        """Forget a flow that ended or failed, and share out what it leaves. False if it was not known."""
        self._follow_network()
        flow = self._flows.get(flow_id)
        if flow is None:
            return False
        self._remove(flow, now)
        self.table.release(flow.row)
        flow.dropped()
        return True

    def _settle(self, flow: ReadFlow, remaining_bits: float, now: float) -> None:
        self.table.flows["remaining"][flow.row] = remaining_bits
        self.table.flows["settled_at"][flow.row] = now

    def _share_with(self, flow: ReadFlow, now: float) -> None:
        table = self.table
        table.make_room(flow.links)
        kernels.share_with(*table.state(), flow.row, now, table.stamps(1), table.losing,
                           table.new_shares)

    def trial(self) -> Trial:
        """A context in which temporary flows can be added; at its end everything is as it was, to the bit."""
        self._follow_network()
        return Trial(self)

    def _remove(self, flow: ReadFlow, now: float) -> None:
        """Take a flow off its links, and share out what it leaves."""
        table = self.table
        del self._flows[flow.flow_id]
        kernels.flow_left(*table.state(), flow.row, now)
        able, shares, spares, crossed = kernels.flows_with_room(
            *table.state(), table.routes[flow.row], table.stamps(1))
        if len(able):
            shares = progressive_filling.raised(shares, spares, crossed)
            kernels.raise_to(*table.state(), able, shares, now)

    # --- measurements ---

    def flow_measured(self, flow_id: str, transferred_bytes: int, rate_bps: float | None, now: float) -> None:
        """See `flows_measured`."""
        self.flows_measured([(flow_id, transferred_bytes, rate_bps)], now)

    def flows_measured(self, counters: Iterable[FlowReading], now: float) -> None:
        """Take in the counters of flows.

        Without a rate (None) a flow keeps the one that it is thought to have. Counters of a flow that was dropped
        while the poll ran are passed over. Raises InvalidMeasurement for a rate that is not a number of bits per
        second from 0 up, and takes nothing in.
        """
        rows: list[int] = []
        readings: list[tuple[float, float, float]] = []
        for flow_id, transferred_bytes, rate_bps in counters:
            if rate_bps is not None:
                _require_rate(rate_bps)
            flow = self._flows.get(flow_id)
            if flow is not None:
                rows.append(flow.row)
                readings.append((flow.size_bits, 8.0 * transferred_bytes, math.nan if rate_bps is None else rate_bps))
        if rows:
            kernels.flows_measured(*self.table.state(), np.array(rows), np.array(readings, np.float64), now)

    def link_measured(self, link: Link, rate_bps: float, now: float) -> None:
        """Take in a link's rate since its last poll; call it after `flow_measured` of the same poll.

        What the known flows do not explain is background, one flow that demands the difference. Until the
        next poll it gives way to new flows and takes back what it lost as any flow does. Raises UnknownLink,
        or InvalidMeasurement for a rate that is not a number of bits per second from 0 up.
        """
        _require_rate(rate_bps)
        self._follow_network()
        table = self.table
        index = self._network.link_index(link)
        kernels.link_measured(*table.state(), index, float(rate_bps), now)

    # --- look-ups ---

    def flows(self) -> Iterable[ReadFlow]:
        """The flows in flight, oldest first."""
        return self._flows.values()

    @property
    def by_id(self) -> dict[str, ReadFlow]:
        """The same by their names, as they are at any time. Not to be changed."""
        return self._flows

    def background_bps(self, link: Link) -> float:
        """The background's share of a link in bits per second, as measured or since estimated.

        Raises UnknownLink.
        """
        self._follow_network()
        return self.table.background_bps(self._network.link_index(link))

    def _indices(self, path: Path) -> tuple[int, ...]:
        return tuple([self._network.link_index(link) for link in path.links])

    def _follow_network(self) -> None:
        """Catch up with links that were added and capacities that were changed since the last call."""
        if self._version != self._network.version or not len(self.table.links):
            for index, capacity_bps in enumerate(self._network.capacities_bps()):
                self.table.set_capacity(index, capacity_bps)
            self._version = self._network.version


class Trial:
    """Temporary flows (section 4.3), and the states of those that they change."""

    def __init__(self, mayflower: Mayflower) -> None:
        self._mayflower = mayflower
        self._saved: list[tuple[ReadFlow, Integers, Records]] = []

    def __enter__(self) -> Trial:
        return self

    def add(self, path: Path, size_bits: float, now: float) -> float:
        """Add a temporary flow. Gives its estimated share in bits per second."""
        model = self._mayflower
        table, links = model.table, model._indices(path)
        flow = ReadFlow(f"temporary {len(self._saved)}", path, links, size_bits, table,
                        table.new_row(links, size_bits, now))
        meeting = table.rows_on(links)
        self._saved.append((flow, meeting, table.flows[meeting]))
        model._share_with(flow, now)
        return flow.bandwidth_bps

    def shares_bps(self) -> list[float]:
        """The estimated shares of the temporary flows, in the order in which they were added."""
        return [flow.bandwidth_bps for flow, _, _ in self._saved]

    def __exit__(self, *error: object) -> None:
        table = self._mayflower.table
        for flow, rows, before in reversed(self._saved):
            kernels.remove_flow(*table.state(), flow.row)
            kernels.restore(*table.state(), rows, before)
            table.release(flow.row)


def _require_rate(rate_bps: float) -> None:
    if not (math.isfinite(rate_bps) and rate_bps >= 0):
        raise InvalidMeasurement(f"a measured rate is a number of bits per second from 0 up, not {rate_bps!r}")
