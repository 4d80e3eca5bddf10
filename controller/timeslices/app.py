"""Keeps pairs of hosts that have turns on one path each, and says which. The scheduler of turns asks again and again.

Flows with a path of their own, as those of reads, keep it, and the pair is pinned where the first of them goes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from speedwell.controller.application import Application
from speedwell.controller.errors import NoSuchPath
from speedwell.controller.policy.errors import PolicyError
from speedwell.controller.policy.network.graph import Path
from speedwell.controller.policy.timeslices.timeslice_policy import Pair, PinnedPaths
from speedwell.controller.rest import RestApplication
from speedwell.controller.rest.fields import InputModel, Ipv4, Node, NodeName, OutputModel
from speedwell.controller.rest.roles import SCHEDULER
from speedwell.controller.rest.routes import route
from speedwell.controller.services import Services
from speedwell.controller.switches.entries import ETH_IPV4, FlowEntry, match
from speedwell.controller.switches.layout import Priority, Table
from speedwell.controller.tables.explicit_paths import ExplicitPaths
from speedwell.controller.tables.forwarding import Forwarding
from speedwell.controller.tables.registry import OwnedTable
from speedwell.controller.timeslices.classes import FlowClasses
from speedwell.controller.timeslices.told import TurnsTold
from speedwell.controller.topology.state import NetworkState

TABLE = OwnedTable("timeslices", 26, 0x5750 << 48, beside=frozenset({Table.ROUTES}))
PRIORITY = Priority.NO_UNICAST + 10
MAX_PAIRS = 4096
KEEP_SECONDS = 10.0
"""How long a pair stays pinned that nobody asks for."""
SYNC_SECONDS = 1.0


class PairOfHosts(InputModel):
    source: Ipv4
    destination: Ipv4


class PairsRequest(InputModel):
    pairs: Annotated[list[PairOfHosts], Field(max_length=MAX_PAIRS, description="Those that have turns now.")]


class PinnedPair(OutputModel):
    source: Ipv4
    source_name: NodeName
    destination: Ipv4
    destination_name: NodeName
    path: list[Node] = Field(description="From host to host; the switches between carry it out.")
    path_names: list[NodeName]
    rank: int | None = Field(description="The place of the first coflow between the two in the order of service.")


class PinnedPairs(OutputModel):
    pairs: list[PinnedPair]


class Timeslices(Application):
    """See the module."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._state = services.get(NetworkState)
        self._paths = PinnedPaths(self._state.network)
        self._asked_at: dict[Pair, float] = {}
        self._pinned: dict[Pair, Path] = {}
        """As the switches were told last."""
        self._confirmed: set[Pair] = set()
        self._is_table_owned = False
        rest = services.get(RestApplication)
        rest.register(self)
        rest.register(TurnsTold(self._state))
        self._classes = FlowClasses()
        rest.register(self._classes)

    def start(self) -> None:
        self._forwarding = self.services.get(Forwarding)
        self._forwarding.records.host_orders_watchers.append(self._classes.tell)
        self._ways = ExplicitPaths(self._forwarding.planner)
        super().start()
        self.loops.run("pinned pairs", self._let_go, every_seconds=KEEP_SECONDS / 10, patience_seconds=KEEP_SECONDS)

    @route("POST", "/v1/timeslices/pairs", summary="Pin pairs of hosts to one path each", tag="timeslices",
           request=PairsRequest, response=PinnedPairs, roles=(SCHEDULER,))
    def pin(self, body: PairsRequest) -> PinnedPairs:
        """Everything that a source sends to a destination takes one path, but for flows with a path of their own. A
        pair that nobody asks for stays pinned for 10 s. The answer has all pairs whose switches confirmed it, also
        those of other requests; not those of hosts that are not there, or beyond 4,096."""
        now = time.monotonic()
        for pair in [(each.source, each.destination) for each in body.pairs if each.source != each.destination]:
            if pair in self._asked_at or (len(self._asked_at) < MAX_PAIRS and self._state.hosts.keys() >= {*pair}):
                self._asked_at[pair] = now
        self._follow_flows()
        if self._asked_at and not self._is_table_owned:
            self._is_table_owned = True
            self._forwarding.own_table(TABLE, self._entries)
        asked = set(self._asked_at)
        is_new = self._bring_up_to_date() or not asked <= self._confirmed
        if is_new and self._forwarding.wait_until_synced(SYNC_SECONDS):
            self._confirmed = asked
        return self.list_pairs()

    @route("GET", "/v1/timeslices/pairs", summary="The pinned pairs of hosts", tag="timeslices", response=PinnedPairs)
    def list_pairs(self) -> PinnedPairs:
        name = self._state.name_of
        return PinnedPairs(pairs=[PinnedPair(
            source=pair[0], source_name=name(pair[0]), destination=pair[1], destination_name=name(pair[1]),
            path=list(path.nodes), path_names=list(map(name, path.nodes)),
            rank=self._forwarding.records.ranks.get(pair))
            for pair, path in sorted(self._pinned.items()) if pair in self._confirmed])

    def _follow_flows(self) -> None:
        taken: dict[Pair, Path] = {}
        for record in self._forwarding.records:
            pair = record.five_tuple.source, record.five_tuple.destination
            if record.path is not None and pair in self._asked_at:
                taken.setdefault(pair, record.path)
        for pair, path in taken.items():
            if self._pinned.get(pair) != path and self._state.network.has_path(path):
                self._paths.pin(pair, path)

    def _let_go(self) -> None:
        now = time.monotonic()
        for pair in [pair for pair, at in self._asked_at.items() if now - at > KEEP_SECONDS]:
            del self._asked_at[pair]
            self._paths.release([pair])
        self._confirmed &= self._asked_at.keys()
        self._bring_up_to_date()

    def _bring_up_to_date(self) -> bool:
        """Whether there is something new for switches."""
        pinned = {}
        for pair in self._asked_at:
            try:
                links = self._paths.of(pair)
            except PolicyError:     # a host or a link is away; default ways are all there is
                continue
            pinned[pair] = Path((links[0][0], *(end for _, end in links)))
        if pinned == self._pinned:
            return False
        self._confirmed -= {pair for pair, path in pinned.items() if self._pinned.get(pair) != path}
        self._pinned = pinned
        self._forwarding.plan_systems_tables()
        return True

    def _entries(self, dpid: str) -> Iterable[FlowEntry]:
        for (source, destination), path in self._pinned.items():
            if path.nodes[1] != dpid or len(path.nodes) == 3:
                continue
            try:
                actions = self._ways.actions(path)
            except NoSuchPath:
                continue
            yield FlowEntry(Table.ROUTES, PRIORITY, match(eth_type=ETH_IPV4, ipv4_src=source, ipv4_dst=destination),
                            actions, cookie=TABLE.cookie)
