"""The one entry to replica and path selection: a replica policy times a path policy over one model.

A new replica policy is a file with a class that has `choose`: docs/extending.md.
Policies that decide replica and path together, or split a read into parts, belong beside `_mayflower_plus`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Protocol, cast

from speedwell.controller.policy.errors import DuplicateFlow, NoPath, UnknownNode, UnknownPolicy
from speedwell.controller.policy.network.examples import smallest_network
from speedwell.controller.policy.network.five_tuple import TCP, FiveTuple
from speedwell.controller.policy.network.graph import Link, Network, Path
from speedwell.controller.policy.reads.link_load import ReadFlow
from speedwell.controller.policy.reads.mayflower import FlowReading, Mayflower
from speedwell.controller.policy.reads.mayflower_plus import PATIENCE, Division, MayflowerPlus
from speedwell.controller.policy.reads.mayflower_srpt import MayflowerSrpt
from speedwell.controller.policy.reads.multi_replica import Subflow, select_parts
from speedwell.controller.policy.reads.selection_request import Replica, Selection, SelectionRequest
from speedwell.controller.policy.reads.sinbad_r import SinbadR
from speedwell.controller.policy.registry import POLICIES, Kind

MAYFLOWER, PLUS, SRPT = "mayflower", "mayflower-plus", "mayflower-srpt"


class ReplicaPolicy(Protocol):
    """Picks one of the replicas that have a path to the client; there is at least one."""

    def choose(self, request: SelectionRequest, reachable: Sequence[Replica], now: float) -> Replica: ...


class Selector:
    """Answers read requests, and keeps the model behind the answers up to date.

    Flows and measurements are reported here whichever policies are in use, so requests under different
    policies see each other. `now` is in seconds on any clock that does not go back; `generator` decides
    what is left to chance. A poll reports all flows first, then all links.
    """

    def __init__(
        self,
        network: Network,
        replica_policy: str,
        path_policy: str,
        generator: Random,
        patience: float = PATIENCE,
    ) -> None:
        """Raises UnknownPolicy. The named policies are the defaults of `select`; `patience` is mayflower-plus's."""
        _require_known(replica_policy, path_policy)
        self.replica_policy = replica_policy
        self.path_policy = path_policy
        self._network = network
        self._mayflower = Mayflower(network)
        self._srpt = MayflowerSrpt(self._mayflower)
        self._plus: MayflowerPlus | None = None
        self._patience = patience
        self._replica_policies: dict[str, ReplicaPolicy] = {
            policy.name: policy.make(network, self._mayflower.flows, generator)
            for policy in POLICIES.of(Kind.REPLICA) if policy.make is not None}
        self._told = [cast(SinbadR, self._replica_policies[name]) for name in ("sinbad-r", "sinbad-r-estimate")]
        self._measured = [*self._told, cast(SinbadR, self._replica_policies["sinbad-r-measured"])]

    def select(
        self,
        request: SelectionRequest,
        now: float,
        replica_policy: str | None = None,
        path_policy: str | None = None,
    ) -> Selection:
        """The replica and path for a read; nothing changes until `flow_added` reports the flow.

        Replicas without a path to the client are passed over. Raises NoPath if none is left, UnknownNode
        if the client is not in the network, UnknownPolicy for a policy name that is not offered.
        """
        replica_policy = replica_policy or self.replica_policy
        path_policy = path_policy or self.path_policy
        _require_known(replica_policy, path_policy)
        if replica_policy == PLUS:
            return self._mayflower_plus(now).select(request, now)
        policy = self._srpt if replica_policy == SRPT else self._mayflower
        if replica_policy in (MAYFLOWER, SRPT) and path_policy == "mayflower":
            return policy.select_replica_and_path(request, now)
        replicas = self._reachable(request)
        if replica_policy not in (MAYFLOWER, SRPT):
            replicas = [self._replica_policies[replica_policy].choose(request, replicas, now)]
        paths = [(replica, path) for replica in replicas for path in self._paths(request, replica, path_policy)]
        return policy.select_replica_and_path(request, now, paths)

    def select_parts(
        self,
        request: SelectionRequest,
        now: float,
        most_parts: int,
        replica_policy: str | None = None,
        path_policy: str | None = None,
        client_ports: Sequence[int] | None = None,
    ) -> list[Subflow]:
        """Up to `most_parts` replicas and paths to read parts of the data from at once (section 4.3).

        Sizes are such that the parts should end together. Nothing changes until `flow_added` reports them.
        `client_ports` has a port for each part that there may be. Raises what `select` raises.
        Under mayflower-plus there may be none: then the read waits for what `revise` gives it.
        """
        _require_known(replica_policy or self.replica_policy, path_policy or self.path_policy)
        if (replica_policy or self.replica_policy) == PLUS:
            return self._mayflower_plus(now).select_parts(request, now, most_parts)

        def select(part: SelectionRequest) -> Selection:
            return self.select(part, now, replica_policy, path_policy)

        return select_parts(self._mayflower, select, request, now, most_parts, client_ports)

    # --- reads under mayflower-plus: its module says what is reported when ---

    def read_added(self, read_id: str, request: SelectionRequest, most_parts: int, now: float) -> None:
        """A read that mayflower-plus has placed, or lets wait. Raises DuplicateFlow."""
        self._mayflower_plus(now).read_added(read_id, request, most_parts, now)

    def revise(self, now: float) -> list[Division]:
        """What running and waiting reads of mayflower-plus should do now; none if there are no such reads."""
        return [] if self._plus is None else self._plus.revise(now)

    def read_divided(self, division: Division, flow_ids: Sequence[str], now: float) -> None:
        """A division is being carried out; `flow_ids` name its new parts, in order.

        Raises UnknownLink if a new part's path is gone, DuplicateFlow for a name in use: nothing changes then.
        """
        opened = [part for part in division.parts if part.flow_id is None]
        for flow_id, part in zip(flow_ids, opened, strict=True):
            for link in part.selection.path.links:
                self._network.link_index(link)
            if flow_id in self.by_id:
                raise DuplicateFlow(f"a flow {flow_id!r} is already known")
        sizes_bits = {part.flow_id: (flow.size_bits, flow.remaining_at(now)) for part in division.parts
                      if (flow := self.by_id.get(part.flow_id or "")) is not None}
        names = iter(flow_ids)
        for part in division.parts:
            if part.flow_id is None:
                self._mayflower.flow_added(next(names), part.selection.path, part.size_bits, now)
                for policy in self._told:
                    policy.flow_added(part.selection.path, part.size_bits, now)
            elif part.flow_id in sizes_bits:
                size_bits, left_bits = sizes_bits[part.flow_id]
                self._mayflower.flow_resized(part.flow_id, size_bits - left_bits + part.size_bits, now)
        self._mayflower_plus(now).read_divided(division, flow_ids, now)

    def flow_resized(self, flow_id: str, size_bits: float, now: float) -> None:
        """A part will have carried `size_bits` in all when it ends. An unknown flow is passed over."""
        self._mayflower.flow_resized(flow_id, size_bits, now)
        if self._plus is not None:
            self._plus.flow_resized(flow_id, size_bits, now)

    def read_narrowed(self, read_id: str, host: str) -> None:
        """A read is to get no further part from `host`. An unknown read is passed over."""
        if self._plus is not None:
            self._plus.read_narrowed(read_id, host)

    def read_ended(self, read_id: str) -> None:
        """A read has all it asked for, or nobody wants it any more. Its flows are reported apart."""
        if self._plus is not None:
            self._plus.read_ended(read_id)

    def _mayflower_plus(self, now: float) -> MayflowerPlus:
        """Made when it is first asked for, so that others need not pay for exact shares."""
        if self._plus is None:
            self._plus = MayflowerPlus(self._network, self._patience)
            for flow in self._mayflower.flows():
                if self._network.has_path(flow.path):
                    self._plus.flow_added(flow.flow_id, flow.path, flow.size_bits, now, None)
                    self._plus.flow_measured(flow.flow_id, int((flow.size_bits - flow.remaining_at(now)) / 8), now)
        return self._plus

    def _reachable(self, request: SelectionRequest) -> list[Replica]:
        network = self._network
        if request.client not in network:
            raise UnknownNode(request.client)
        reachable = [
            replica
            for replica in request.replicas
            if replica.host in network and network.distance(replica.host, request.client) is not None
        ]
        if not reachable:
            raise NoPath(f"no replica of this read can reach {request.client}")
        return reachable

    def _paths(self, request: SelectionRequest, replica: Replica, path_policy: str) -> Sequence[Path]:
        paths = self._network.shortest_paths(replica.host, request.client)
        header = FiveTuple(replica.host, request.client, TCP, replica.port, request.client_port)
        chosen: Sequence[Path] = POLICIES.make(Kind.PATH, path_policy, paths, header)
        return chosen

    # --- what happened in the network ---

    def flow_added(
        self, flow_id: str, path: Path, size_bits: float, now: float, read_id: str | None = None
    ) -> float:
        """A flow starts on `path`, as a part of `read_id` under mayflower-plus. Gives its estimated share in bits/s.

        Raises DuplicateFlow, or UnknownLink if the path is no longer there.
        """
        share_bps = self._mayflower.flow_added(flow_id, path, size_bits, now)
        for policy in self._told:
            policy.flow_added(path, size_bits, now)
        if self._plus is not None:
            self._plus.flow_added(flow_id, path, size_bits, now, read_id)
        return share_bps

    def flow_moved(self, flow_id: str, path: Path, now: float) -> None:
        """A flow continues on another path. Raises UnknownLink; an unknown flow is passed over."""
        self._mayflower.flow_moved(flow_id, path, now)
        if self._plus is not None:
            self._plus.flow_moved(flow_id, path, now)

    def flow_extended(self, flow_id: str, whole: Path, hop: Path, size_bits: float, now: float) -> None:
        """A flow is passed on over a further `hop`, at the one rate that it has on its `whole` way. Raises
        UnknownLink."""
        self.flow_moved(flow_id, whole, now)
        for policy in self._told:
            policy.flow_added(hop, size_bits, now)

    def flow_dropped(self, flow_id: str, now: float) -> bool:
        """A flow ended or failed. False if it was not known."""
        if self._plus is not None:
            self._plus.flow_dropped(flow_id, now)
        return self._mayflower.flow_dropped(flow_id, now)

    def flow_measured(self, flow_id: str, transferred_bytes: int, rate_bps: float | None, now: float) -> None:
        """See `flows_measured`."""
        self.flows_measured([(flow_id, transferred_bytes, rate_bps)], now)

    def flows_measured(self, counters: Sequence[FlowReading], now: float) -> None:
        """Counters of flows; a rate is None if it is not known yet. Unknown flows are passed over. Many at once take
        a fraction of the time.

        Raises InvalidMeasurement for a rate that is negative or not finite.
        """
        self._mayflower.flows_measured(counters, now)
        if self._plus is not None:
            for flow_id, transferred_bytes, _ in counters:
                self._plus.flow_measured(flow_id, transferred_bytes, now)

    def link_measured(self, link: Link, rate_bps: float, now: float) -> None:
        """A link's rate since the last poll, all traffic counted. Raises UnknownLink or InvalidMeasurement."""
        self._mayflower.link_measured(link, rate_bps, now)
        for policy in self._measured:
            policy.link_measured(link, rate_bps, now)
        if self._plus is not None:
            self._plus.link_measured(link, rate_bps, now)

    def flows(self) -> Iterable[ReadFlow]:
        """The flows in flight with their estimates, oldest first."""
        return self._mayflower.flows()

    @property
    def by_id(self) -> dict[str, ReadFlow]:
        """See `Mayflower.by_id`."""
        return self._mayflower.by_id

    def background_bps(self, link: Link) -> float:
        """What a link carries beyond the known flows, in bits per second. Raises UnknownLink."""
        return self._mayflower.background_bps(link)


def _require_known(replica_policy: str, path_policy: str) -> None:
    POLICIES.get(Kind.REPLICA, replica_policy)
    POLICIES.get(Kind.PATH, path_policy)
    if replica_policy == PLUS and path_policy != "mayflower":
        raise UnknownPolicy(f"{PLUS} chooses paths itself: its path policy is mayflower, not {path_policy}")


def compile_selection() -> None:
    """Have everything compiled that Mayflower computes with. The first time in an installation that takes ten seconds
    and more, and a controller that began with it at its first read would answer nobody meanwhile."""
    network = smallest_network()
    selector = Selector(network, "mayflower", "mayflower", Random(0))
    request = SelectionRequest("a", (Replica("b", 1), Replica("c", 1)), 8e6)
    for number in range(3):
        now = float(number)
        path = selector.select(request, now).path
        selector.select(request, now, "nearest", "ecmp")
        selector.select(request, now, SRPT)
        selector.select(SelectionRequest("a", (Replica("a"), Replica("b")), 8e6), now)
        selector.select(SelectionRequest("a", (Replica("b"),), 8e6), now)
        selector.select_parts(request, now, 2)
        selector.flow_added(str(number), path, 8e6, now)
        selector.flow_measured(str(number), 1, 1.0, now)
        for link in path.links:
            selector.link_measured(link, 1e6, now)
    selector.flow_moved("0", path, 3.0)
    selector.flow_resized("0", 9e6, 3.0)
    selector.background_bps(path.links[0])
    for flow in selector.flows():
        flow.remaining_at(4.0)
    selector.flow_dropped("0", 4.0)
