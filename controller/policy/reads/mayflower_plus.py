"""mayflower-plus: reads take what is free, in the order in which they came, and grow when more becomes free.

Mayflower (Rizvi et al., section 4) starts every read at once, shares what there is among all of them, and decides
once. When all reads are about equally long, that ends them all late: two reads that share a link both take twice
their time, where one after the other takes once and twice. So here

1. a part of a read is opened only on a path on which every link has bandwidth that no other flow uses, by the exact
   max-min shares of all flows (`exact_shares`). The oldest read chooses first, the path with most to spare;
2. a read gets further parts from other replicas by the same rule, so it gets them exactly if it gains by that. What
   it has left is divided in proportion to the parts' exact shares: then they end together;
3. a read that finds nothing free waits. Whenever a flow has ended, and after each poll, `revise` goes through the
   reads, oldest first: those that wait are started, those that run get parts on what has become free, and those
   whose parts would not end together any more are divided anew.

A read that has waited `PATIENCE` times as long as it would take alone starts where there is most room, so that a
crowd of younger reads cannot keep it waiting for ever. Traffic that is not a known flow keeps nobody waiting.

How a carrier (the flowserver, the simulator) uses it, through `Selector`:

* `select_parts` answers a request; no parts means: wait. Then `read_added`, and `flow_added` with the read's id for
  each part, before anything else is asked.
* After each `flow_dropped` (a part has ended) and after each poll: `revise`, which changes nothing. For each
  `Division` that it returns, in order: `read_divided` at once, then tell the client, which opens the new connections
  and divides what it has left by the fractions. The fraction of a part that has ended meanwhile goes to the others.
* When the client has done so: `flow_resized` for each part, with its new total.
* `read_narrowed` when a replica does not deliver; `read_ended` when nothing is left, or when the client has gone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from speedwell.controller.policy.errors import DuplicateFlow, NoPath, UnknownNode
from speedwell.controller.policy.network.exact_shares import ExactShares, SharedFlow, ShareTrial
from speedwell.controller.policy.network.graph import Link, Network, Path
from speedwell.controller.policy.reads.multi_replica import Subflow
from speedwell.controller.policy.reads.selection_request import Considered, Replica, Selection, SelectionRequest

FREE = 0.1
"""The part of its capacity that a link must have to spare for a new part. What is free is mostly next to nothing or
a large part, so results do not depend on it."""
PATIENCE = 8.0
"""Longest wait, in times that the read would take if its client's link were its own."""
WORTH_SECONDS = 0.1
"""A running read is divided anew only if it should end earlier by that much: a division costs time, too."""


@dataclass(frozen=True, slots=True)
class DivisionPart:
    """What one part is to carry of what its read has left. `flow_id` is None for a part that is to be opened."""

    flow_id: str | None
    selection: Selection
    fraction: float
    size_bits: float
    """The fraction of what the read should have left now, in bits."""


@dataclass(frozen=True, slots=True)
class Division:
    """A new division of what a read has left over all of its parts. The fractions add up to 1."""

    read_id: str
    parts: tuple[DivisionPart, ...]


@dataclass(slots=True)
class _Read:
    """A read that runs, or waits as long as it has not `started`."""

    read_id: str
    request: SelectionRequest
    asked_at: float
    most_parts: int
    started: bool = False


class _Choice(NamedTuple):
    """A replica, and a path from it: which of the shortest ones, and its links' indices."""

    replica: Replica
    number: int
    links: tuple[int, ...]
    considered: Considered = ()
    """See `Selection`."""


class MayflowerPlus:
    """The decisions. Sizes in bits, times in seconds on the carrier's clock."""

    def __init__(self, network: Network, patience: float = PATIENCE) -> None:
        """With a `patience` of 0 no read waits."""
        self._network = network
        self._patience = patience
        self._reads: dict[str, _Read] = {}
        self._shares = ExactShares(network)

    # --- decisions ---

    def select(self, request: SelectionRequest, now: float) -> Selection:
        """The replica and path with most room for the whole read, at once. Raises NoPath, UnknownNode."""
        self._require_path(request)
        self._shares.flows_at(now)
        trial = self._shares.trial()
        return self._parts(request, [self._open_roomiest(request, trial)], trial)[0].selection

    def select_parts(self, request: SelectionRequest, now: float, most_parts: int) -> list[Subflow]:
        """The parts that the read starts with; none if it is to wait. Raises NoPath, UnknownNode."""
        self._require_path(request)
        self._shares.flows_at(now)
        trial = self._shares.trial()
        if any(replica.host == request.client for replica in request.replicas):
            chosen = [self._open_roomiest(request, trial)]
        else:
            chosen = self._open_free(request, set(), most_parts, trial)
            if not chosen and self._patience == 0:
                chosen = [self._open_roomiest(request, trial)]
        return self._parts(request, chosen, trial)

    def revise(self, now: float) -> list[Division]:
        """The reads that should be divided anew, oldest first; most of the time none."""
        flows_of: dict[str, list[SharedFlow]] = {}
        for flow in self._shares.flows_at(now):
            if flow.read_id is not None:
                flows_of.setdefault(flow.read_id, []).append(flow)
        trial = self._shares.trial()
        divisions = []
        for read in self._reads.values():
            flows = flows_of.get(read.read_id, [])
            if read.started and not flows:
                continue                                    # its end is about to be reported
            used = {flow.path.nodes[0] for flow in flows}
            chosen = self._open_free(read.request, used, read.most_parts, trial)
            if (not chosen and not flows and next(self._choices(read.request), None) is not None
                    and now - read.asked_at > self._longest_wait_seconds(read.request)):
                chosen = [self._open_roomiest(read.request, trial)]
            division = self._division(read, flows, chosen, trial)
            if division is not None:
                divisions.append(division)
            else:
                trial.undo(len(chosen))
        return divisions

    # --- where something is free ---

    def _open_free(self, request: SelectionRequest, used: set[str], most_parts: int,
                   trial: ShareTrial) -> list[_Choice]:
        """Open the freest path, and so on, from replicas that are not `used` yet."""
        chosen: list[_Choice] = []
        used = set(used)
        while len(used) < min(most_parts, len(request.replicas)):
            best, best_bps = None, 0.0
            most_bps: dict[Replica, float] = {}
            for choice in self._choices(request):
                if choice.replica.host in used:
                    continue
                path_bps = self._free_bps(choice.links, trial)
                if path_bps >= most_bps.get(choice.replica, 0.0):
                    most_bps[choice.replica] = path_bps
                if path_bps > best_bps:
                    best, best_bps = choice, path_bps
            if best is None:
                break
            trial.add(best.links)
            chosen.append(best._replace(considered=_costs(request, most_bps)))
            used.add(best.replica.host)
        return chosen

    def _free_bps(self, links: tuple[int, ...], trial: ShareTrial) -> float:
        """What a path has free on all its links; 0 if one of them has next to nothing."""
        capacities_bps = self._shares.capacities_bps
        least_bps = math.inf
        for link in reversed(links):                        # the client's own link is the likeliest to be taken
            free_bps = trial.free_bps[link]
            if free_bps < FREE * capacities_bps[link]:
                return 0.0
            least_bps = min(least_bps, free_bps)
        return least_bps

    def _open_roomiest(self, request: SelectionRequest, trial: ShareTrial) -> _Choice:
        """Open the path on whose tightest link a new flow would find most: what is free, or an equal share."""
        flows = self._shares.flows_by_link()
        capacities_bps = self._shares.capacities_bps

        def room_bps(choice: _Choice) -> float:
            return min(
                [max(trial.free_bps[link], capacities_bps[link] / (flows.get(link, 0) + 1)) for link in choice.links],
                default=math.inf,
            )

        best, best_bps = None, -math.inf
        most_bps: dict[Replica, float] = {}
        for choice in self._choices(request):
            path_bps = room_bps(choice)
            most_bps[choice.replica] = max(most_bps.get(choice.replica, 0.0), path_bps)
            if path_bps > best_bps:
                best, best_bps = choice, path_bps
        assert best is not None, "who calls has seen a path"
        trial.add(best.links)
        return best._replace(considered=_costs(request, most_bps))

    def _choices(self, request: SelectionRequest) -> Iterator[_Choice]:
        for replica in request.replicas if request.client in self._network else ():
            if replica.host in self._network:
                for number, links in enumerate(self._network.shortest_path_links(replica.host, request.client)):
                    yield _Choice(replica, number, links)

    def _path(self, request: SelectionRequest, choice: _Choice) -> Path:
        return self._network.shortest_paths(choice.replica.host, request.client)[choice.number]

    def _require_path(self, request: SelectionRequest) -> None:
        if request.client not in self._network:
            raise UnknownNode(request.client)
        if next(self._choices(request), None) is None:
            raise NoPath(f"no replica of this read can reach {request.client}")

    def _longest_wait_seconds(self, request: SelectionRequest) -> float:
        client_bps = sum(
            self._network.capacity_bps((neighbour, request.client))
            for neighbour in self._network.neighbours(request.client)
            if self._network.has_link((neighbour, request.client))
        )
        return self._patience * request.size_bits / client_bps if client_bps else math.inf

    # --- how a read is divided ---

    def _parts(self, request: SelectionRequest, chosen: Sequence[_Choice], trial: ShareTrial) -> list[Subflow]:
        shares = trial.last_shares_bps(len(chosen))
        if math.inf in shares:
            (choice,) = chosen
            return [Subflow(Selection(choice.replica, self._path(request, choice), math.inf, 0.0, choice.considered),
                            request.size_bits)]
        total_bps = sum(shares)
        return [
            Subflow(Selection(choice.replica, self._path(request, choice), share, request.size_bits / total_bps,
                              choice.considered), request.size_bits * share / total_bps)
            for choice, share in zip(chosen, shares, strict=True)
        ]

    def _division(
        self, read: _Read, flows: Sequence[SharedFlow], chosen: Sequence[_Choice], trial: ShareTrial
    ) -> Division | None:
        """What is left, in proportion to the shares; None if the read would not gain by it."""
        if len(flows) + len(chosen) < 2 and (flows or not chosen):
            return None
        known = dict(zip(self._shares.flows, trial.shares_bps, strict=False))
        shares = [known[flow.flow_id] for flow in flows] + trial.last_shares_bps(len(chosen))
        left_bits = sum(flow.left_bits for flow in flows) if flows else read.request.size_bits
        if min(shares) <= 0:
            return None
        seconds = left_bits / sum(shares)
        if flows and max(flow.left_bits / flow.share_bps for flow in flows) - seconds < WORTH_SECONDS:
            return None
        replicas = {replica.host: replica for replica in read.request.replicas}
        targets: list[tuple[str | None, Replica, Path, Considered]] = [
            (flow.flow_id, replicas[flow.path.nodes[0]], flow.path, ()) for flow in flows
        ]
        targets += [(None, choice.replica, self._path(read.request, choice), choice.considered) for choice in chosen]
        parts = [
            DivisionPart(flow_id, Selection(replica, path, share, seconds, considered), share / sum(shares),
                         share * seconds)
            for (flow_id, replica, path, considered), share in zip(targets, shares, strict=True)
        ]
        return Division(read.read_id, tuple(parts))

    # --- what happened ---

    def read_added(self, read_id: str, request: SelectionRequest, most_parts: int, now: float) -> None:
        """A read was asked for, and is running or waiting. Raises DuplicateFlow."""
        if read_id in self._reads:
            raise DuplicateFlow(f"a read {read_id!r} is already known")
        self._reads[read_id] = _Read(read_id, request, now, most_parts)

    def read_divided(self, division: Division, flow_ids: Sequence[str], now: float) -> None:
        """A division is being carried out; `flow_ids` name its new parts, in order. Raises UnknownLink."""
        names = iter(flow_ids)
        left_bits = {flow.flow_id: flow.left_bits for flow in self._shares.flows_at(now)}
        for part in division.parts:
            if part.flow_id is None:
                self.flow_added(next(names), part.selection.path, part.size_bits, now, division.read_id)
            elif part.flow_id in left_bits:
                total_bits = self._shares.flows[part.flow_id].size_bits + part.size_bits - left_bits[part.flow_id]
                self._shares.flow_resized(part.flow_id, total_bits, now)

    def read_narrowed(self, read_id: str, host: str) -> None:
        """A read is to get no further part from `host`, from which none runs. An unknown read is passed over."""
        read = self._reads.get(read_id)
        if read is None:
            return
        left = tuple(replica for replica in read.request.replicas if replica.host != host)
        if left:
            read.request = replace(read.request, replicas=left)
        else:
            self.read_ended(read_id)

    def read_ended(self, read_id: str) -> None:
        """Forget a read; its flows are reported apart. An unknown one is passed over."""
        self._reads.pop(read_id, None)

    def flow_added(self, flow_id: str, path: Path, size_bits: float, now: float, read_id: str | None) -> None:
        """A flow starts, as a part of `read_id` or of another policy's read. Raises UnknownLink."""
        self._shares.flow_added(flow_id, path, size_bits, now, read_id)
        if read_id in self._reads:
            self._reads[read_id].started = True

    def flow_moved(self, flow_id: str, path: Path, now: float) -> None:
        """A flow takes another path. Raises UnknownLink; an unknown flow is passed over."""
        self._shares.flow_moved(flow_id, path, now)

    def flow_resized(self, flow_id: str, size_bits: float, now: float) -> None:
        """A flow will have carried `size_bits` in all when it ends. An unknown flow is passed over."""
        self._shares.flow_resized(flow_id, size_bits, now)

    def flow_dropped(self, flow_id: str, now: float) -> None:
        """A flow ended or failed. An unknown flow is passed over."""
        self._shares.flow_dropped(flow_id, now)

    def flow_measured(self, flow_id: str, transferred_bytes: int, now: float) -> None:
        """A flow's counter: bytes since it started. An unknown flow is passed over."""
        self._shares.flow_measured(flow_id, 8.0 * transferred_bytes, now)

    def link_measured(self, link: Link, rate_bps: float, now: float) -> None:
        """A link's rate since the last poll, after the flows' counters. Raises UnknownLink."""
        self._shares.link_measured(link, rate_bps, now)


def _costs(request: SelectionRequest, most_bps: Mapping[Replica, float]) -> Considered:
    """The seconds that all of the read would take with what each replica's best path has; None if that is nothing."""
    return tuple((replica, request.size_bits / path_bps if path_bps > 0 else None)
                 for replica, path_bps in most_bps.items())
