"""coflow-plus: what MinCOF could be if it were free of the paper's limits.

* **Order**: Sincronia's (`coflow_order.bssi`), proven to be within four times the best, over the hosts' own links
  and, as one link each, what a switch at the edge can send up and what can come down to it. So the order does not
  depend on paths. The coflows that go next are then moved, one by one, to where the sum of all ends is least
  (`coflow_order.improved`).
* **Routes**: in that order each coflow is placed, its largest flow first, where what was placed before it and its own
  flows end soonest (`coflow_kernels.route`). Any coflow is re-balanced when that lets it end sooner by `worth`.
* **Priorities instead of meters**: at least the first four coflows have a class of traffic each, at most seven; all
  others share the eighth (`steady_classes`). No rate has to be right, and what a flow leaves when it ends is taken at
  once, without a decision.
* **Decisions** at arrivals, completions, and a second after the last one as reports come: what has to be done first
  changes while coflows run.

What is decided in a moment is decided by number, over arrays; `Schedule.assignments` makes its objects when asked.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from itertools import count
from typing import NamedTuple

import numpy as np

from speedwell.controller.policy.coflows import checked_kernels as kernels
from speedwell.controller.policy.coflows.coflow import (
    AGAIN_SECONDS,
    BITS_PER_BYTE,
    Assignment,
    Coflow,
    CoflowFlow,
    CoflowScheduler,
    Schedule,
    ServiceClass,
    require_bytes,
)
from speedwell.controller.policy.compiled import Integers, Reals
from speedwell.controller.policy.errors import (
    DuplicateFlow,
    InvalidRequest,
    NoPath,
    UnknownCoflow,
    UnknownFlow,
    UnknownLink,
    UnknownNode,
)
from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.network.traffic_classes import PRIORITIES

WORTH = 0.05
"""A coflow is moved if it ends sooner by this part."""
NEXT = 64
"""So many coflows from the first on are put into a better order: those that go soon. Later there are others."""
PASSES = 10
"""Over these coflows, at most: some two or three are enough mostly."""
_NO_LINKS = (-1, -1, -1, -1)


def coflow_plus_order(coflows: Integers, first: Integers, count: Integers,
                      flows: Integers, links: Integers, left: Reals, whole: Reals,
                      load: Reals) -> Integers:
    """Sincronia's order with the coflows that go next at better places; arguments as in `coflow_kernels`."""
    order = kernels.bssi(coflows, first, count, flows, links, left, whole, load)
    order[:NEXT] = kernels.improved(order[:NEXT], first, count, flows, links, left, whole, load, NEXT, PASSES)
    return order


class _Fabric:
    """The network's paths by number, for one version of the network.

    A pair is the edge switches of two hosts. Links are numbered as the network does; beyond these come the cuts: what
    a switch's links to other switches carry together, in each direction.
    """

    def __init__(self, network: Network) -> None:
        self.version = network.version
        self._network = network
        capacities = list(network.capacities_bps())
        self._cut: dict[tuple[str, str], int] = {}
        for switch in sorted(network.switches):
            others = [other for other in network.neighbours(switch) if not network.is_host(other)]
            for direction in ("out", "in"):
                links = [(switch, other) if direction == "out" else (other, switch) for other in others]
                self._cut[switch, direction] = len(capacities)
                live = [network.capacity_bps(link) for link in links if network.has_link(link)]
                capacities.append(max(sum(live), 1.0))
        self.whole = np.array(capacities, np.float64)
        self._pairs: dict[tuple[str, str], int] = {}
        self._first: list[int] = []
        self._paths: list[int] = []
        self._inner: list[tuple[int, ...]] = []
        self._nodes: list[tuple[str, ...]] = []
        self._edges: dict[str, str] = {}
        self._arrays: tuple[Integers, Integers, Integers] | None = None

    def attachment(self, host: str) -> str:
        """The host's switch; of several the first. Raises NoPath."""
        edge = self._edges.get(host)
        if edge is None:
            switches = self._network.neighbours(host)
            if not switches:
                raise NoPath(f"host {host!r} has no link")
            edge = self._edges[host] = switches[0]
        return edge

    def pair(self, source: str, destination: str) -> int:
        """The number of the pair of two hosts. Raises NoPath."""
        ends = self.attachment(source), self.attachment(destination)
        if ends not in self._pairs:
            paths = self._network.shortest_paths(*ends)
            if not paths:
                raise NoPath(f"no path from {source!r} to {destination!r}")
            self._pairs[ends] = len(self._first)
            self._first.append(len(self._inner))
            self._paths.append(len(paths))
            self._inner += self._network.shortest_path_links(*ends)
            self._nodes += [path.nodes for path in paths]
            self._arrays = None
        return self._pairs[ends]

    def ends(self, source: str, destination: str) -> tuple[int, int, int, int]:
        """The links out of the source and into the destination, and the cuts between; -1 for none. Raises NoPath."""
        out, into = self.attachment(source), self.attachment(destination)
        network = self._network
        try:
            first, last = network.link_index((source, out)), network.link_index((into, destination))
        except UnknownLink as error:
            raise NoPath(f"no path from {source!r} to {destination!r}: {error}") from None
        return (first, last, *((self._cut[out, "out"], self._cut[into, "in"]) if out != into else (-1, -1)))

    def arrays(self) -> tuple[Integers, Integers, Integers]:
        """(first path of each pair, paths of each pair, links of each path with -1 after the last)."""
        if self._arrays is None:
            inner = np.full((max(len(self._inner), 1), max(map(len, self._inner), default=1) or 1), -1, np.int64)
            for number, links in enumerate(self._inner):
                inner[number, : len(links)] = links
            self._arrays = np.array(self._first), np.array(self._paths), inner
        return self._arrays

    def number(self, source: str, path: Path, destination: str) -> int:
        """The number of a path between two hosts; -1 if it is none of theirs. Raises NoPath."""
        pair = self.pair(source, destination)
        return next((number for number in range(self._first[pair], self._first[pair] + self._paths[pair])
                     if self.path(source, number, destination) == path), -1)

    def path(self, source: str, number: int, destination: str) -> Path:
        return Path((source, *self._nodes[number], destination))


class _Rows:
    """Live flows in rows of arrays, which grow as needed and are used again."""

    def __init__(self) -> None:
        self.left = np.zeros(64)
        self.links = np.full((64, 4), -1, np.int64)     # ends, then cuts
        self.pair = np.zeros(64, np.int64)
        self.chosen = np.full(64, -1, np.int64)
        self._free = list(range(63, -1, -1))

    def allocate(self) -> int:
        if not self._free:
            size = len(self.left)
            self.left = np.concatenate((self.left, np.zeros(size)))
            self.links = np.concatenate((self.links, np.full((size, 4), -1, np.int64)))
            self.pair = np.concatenate((self.pair, np.zeros(size, np.int64)))
            self.chosen = np.concatenate((self.chosen, np.full(size, -1, np.int64)))
            self._free = list(range(2 * size - 1, size - 1, -1))
        return self._free.pop()

    def release(self, row: int) -> None:
        self.chosen[row] = -1
        self._free.append(row)


class _LiveCoflow(NamedTuple):
    """`age` sorts coflows by arrival; `rows` are those of its flows."""

    age: tuple[float, int]
    rows: dict[Hashable, int]


class _Assignments(Mapping[Hashable, Assignment]):
    """A schedule as arrays; each assignment is made when it is asked for."""

    def __init__(self, flows: Mapping[Hashable, tuple[CoflowFlow, Hashable, int]], chosen: Integers,
                 ranks: Mapping[Hashable, int], fabric: _Fabric) -> None:
        self._flows, self._chosen, self._ranks, self._fabric = flows, chosen, ranks, fabric

    def __getitem__(self, flow_id: Hashable) -> Assignment:
        flow, coflow_id, row = self._flows[flow_id]
        number = int(self._chosen[row])
        if number < 0:
            return Assignment(flow_id, coflow_id, None, None, ServiceClass.BEST_EFFORT)
        return Assignment(flow_id, coflow_id, self._fabric.path(flow.source, number, flow.destination), None,
                          ServiceClass.SCHEDULED, min(self._ranks[coflow_id], PRIORITIES - 1))

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._flows)

    def __len__(self) -> int:
        return len(self._flows)


class CoflowPlus(CoflowScheduler):
    def __init__(self, network: Network, worth: float = WORTH) -> None:
        super().__init__()
        self._network = network
        self._worth = worth
        self._fabric = _Fabric(network)
        self._rows = _Rows()
        self._flows: dict[Hashable, tuple[CoflowFlow, Hashable, int]] = {}
        self._coflows: dict[Hashable, _LiveCoflow] = {}
        self._schedule = Schedule()
        self._ended: set[Hashable] = set()
        """Flows that are in the schedule and have ended since."""
        self._numbers = count()
        self._decided_at = -math.inf
        self.moves = 0

    @property
    def schedule(self) -> Schedule:
        if self._ended:
            assignments = {flow_id: own for flow_id, own in self._schedule.assignments.items()
                           if flow_id not in self._ended}
            self._schedule, self._ended = Schedule(assignments, self._schedule.order), set()
        return self._schedule

    def coflow_arrived(self, coflow: Coflow, now: float) -> Schedule:
        self._follow_network()
        for flow in coflow.flows:
            if flow.flow_id in self._flows:
                raise DuplicateFlow(f"flow {flow.flow_id!r} is live already")
            for node in (flow.source, flow.destination):
                if not self._network.is_host(node):
                    self._network.neighbours(node)      # raises UnknownNode
                    raise InvalidRequest(f"flow {flow.flow_id!r}: {node!r} is a switch, not a host")
            self._fabric.ends(flow.source, flow.destination)
            self._fabric.pair(flow.source, flow.destination)
        live = self._coflows.get(coflow.id)
        if live is None:
            live = self._coflows[coflow.id] = _LiveCoflow((coflow.arrived_at, next(self._numbers)), {})
        for flow in coflow.flows:
            row = live.rows[flow.flow_id] = self._rows.allocate()
            self._flows[flow.flow_id] = (flow, coflow.id, row)
            self._rows.left[row] = flow.remaining_bytes * BITS_PER_BYTE
            self._rows.pair[row] = self._fabric.pair(flow.source, flow.destination)
            self._rows.links[row] = self._fabric.ends(flow.source, flow.destination)
        return self._decided(now)

    def progress(self, flow_id: Hashable, remaining_bytes: float, now: float) -> None:
        require_bytes(remaining_bytes)
        self._rows.left[self._flow(flow_id)[2]] = remaining_bytes * BITS_PER_BYTE

    def again(self, now: float) -> Schedule | None:
        return self._decided(now) if self._flows and now - self._decided_at >= AGAIN_SECONDS else None

    def flow_finished(self, flow_id: Hashable, now: float) -> Schedule | None:
        _, coflow_id, row = self._flow(flow_id)
        del self._flows[flow_id], self._coflows[coflow_id].rows[flow_id]
        self._rows.release(row)
        if flow_id in self._schedule.assignments:
            self._ended.add(flow_id)
        if self._coflows[coflow_id].rows:
            return None
        del self._coflows[coflow_id]
        return self._decided(now)

    def coflow_gone(self, coflow_id: Hashable, now: float) -> Schedule:
        if coflow_id not in self._coflows:
            raise UnknownCoflow(coflow_id)
        for flow_id, row in self._coflows.pop(coflow_id).rows.items():
            del self._flows[flow_id]
            self._rows.release(row)
            if flow_id in self._schedule.assignments:
                self._ended.add(flow_id)
        return self._decided(now)

    def network_changed(self, now: float) -> Schedule:
        return self._decided(now)

    # --- helpers ---

    def _flow(self, flow_id: Hashable) -> tuple[CoflowFlow, Hashable, int]:
        if flow_id not in self._flows:
            raise UnknownFlow(flow_id)
        return self._flows[flow_id]

    def _follow_network(self) -> None:
        """Number paths anew after a change; flows whose path is still there keep it, stranded ones have no links."""
        if self._fabric.version == self._network.version:
            return
        fabric, numbers = _Fabric(self._network), []
        for flow, _, row in self._flows.values():
            number = int(self._rows.chosen[row])
            had = self._fabric.path(flow.source, number, flow.destination) if number >= 0 else None
            try:
                pair, ends = fabric.pair(flow.source, flow.destination), fabric.ends(flow.source, flow.destination)
            except (NoPath, UnknownNode):
                numbers.append((row, 0, _NO_LINKS, -1))
            else:
                kept = fabric.number(flow.source, had, flow.destination) if had is not None else -1
                numbers.append((row, pair, ends, kept))
        for row, pair, ends, kept in numbers:
            self._rows.pair[row], self._rows.links[row], self._rows.chosen[row] = pair, ends, kept
        self._fabric = fabric

    def _decide_anew(self, now: float) -> Schedule:
        self._follow_network()
        self._decided_at = now
        rows, whole = self._rows, self._fabric.whole
        reachable = {coflow_id: own for coflow_id, live in self._coflows.items()
                     if (own := [row for row in live.rows.values() if rows.links[row, 0] >= 0])}
        ids = sorted(reachable, key=lambda coflow_id: self._coflows[coflow_id].age)
        counts = np.array([len(reachable[coflow_id]) for coflow_id in ids], np.int64)
        first = np.concatenate(([0], np.cumsum(counts)))[:-1].astype(np.int64)
        flows = np.array([row for coflow_id in ids for row in reachable[coflow_id]], np.int64)
        order = np.arange(len(ids))
        if len(flows):
            order = coflow_plus_order(order, first, counts, flows, rows.links, rows.left, whole,
                                      np.zeros(len(whole)))
            self.moves += kernels.route(order, first, counts, flows, rows.left, rows.links, rows.pair,
                                        *self._fabric.arrays(), whole, self._worth, rows.chosen,
                                        np.zeros(len(whole)))
        ordered = tuple(ids[number] for number in order)
        ranks = {coflow_id: rank for rank, coflow_id in enumerate(ordered)}
        self._schedule = Schedule(_Assignments(dict(self._flows), rows.chosen.copy(), ranks, self._fabric), ordered)
        self._ended = set()
        return self._schedule
