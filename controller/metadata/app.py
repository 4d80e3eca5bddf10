"""Steers requests for keys to the metadata servers that own them. `/v1/metadata` is in `api`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network

from speedwell.controller.application import Application
from speedwell.controller.metadata.api import MetadataApi
from speedwell.controller.metadata.book import (
    SETTLE_SECONDS,
    SILENT_SECONDS,
    MetadataBook,
    MetadataServerRefused,
    Server,
)
from speedwell.controller.metadata.hot_book import HotBook, Place
from speedwell.controller.metadata.metrics import MetadataMetrics
from speedwell.controller.metadata.owners import SlotOwner, SlotOwners
from speedwell.controller.metadata.steering import TABLE, Steering
from speedwell.controller.policy.errors import MetadataError, TableFull
from speedwell.controller.policy.metadata.blocks import SLOTS, SPACE, Node, Tables, nodes_above
from speedwell.controller.policy.metadata.btree import grown, paper_tables, tree_of
from speedwell.controller.policy.metadata.tables import Also
from speedwell.controller.policy.network.prefixes import Prefix
from speedwell.controller.policy.network.traffic_classes import class_of_priority
from speedwell.controller.rest import RestApplication
from speedwell.controller.services import Services
from speedwell.controller.switches.entries import FlowEntry
from speedwell.controller.tables.forwarding import Forwarding
from speedwell.controller.topology.hosts import Hosts
from speedwell.controller.topology.state import NetworkState

STEP_SECONDS = 0.05
STEP_PATIENCE_SECONDS = 60.0
SYNC_SECONDS = 10.0


class Metadata(Application):
    """Has `Forwarding` keep the entries, and tells servers which blocks to take and to leave."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._state = services.get(NetworkState)
        rest = services.get(RestApplication)
        self.book = MetadataBook(self._above, self._require_space, time.monotonic())
        self.owners = SlotOwners(lambda blocks: self._require_space(blocks, SLOTS))
        self.hot = HotBook(self._room_for_hot_keys)
        self._listens_until = time.monotonic() + SETTLE_SECONDS
        self._metrics = MetadataMetrics(rest.metrics)
        self._metrics.servers.set_function(lambda: len(self.book.servers))
        self._metrics.silent.set_function(lambda: sum(
            time.monotonic() - server.heard_at > SILENT_SECONDS for server in self.book.servers.values()))
        self._metrics.moving.set_function(lambda: len(self.book.transfers))
        self._steering: tuple[tuple[int, int, int, int], list[Steering]] | None = None
        self._paper_tables: tuple[tuple[tuple[str, ...], int], Tables] | None = None
        self._planned: tuple[int, int, int, bool] = (0, 0, 0, False)
        rest.register(MetadataApi(self, self._state))

    def start(self) -> None:
        self._hosts = self.services.get(Hosts)
        self._forwarding = self.services.get(Forwarding)
        self._forwarding.own_table(TABLE, self._entries)
        super().start()
        self.loops.run("metadata moves", self._go_on, every_seconds=STEP_SECONDS,
                       patience_seconds=STEP_PATIENCE_SECONDS)

    # --- for the interface ---

    def announce(self, said: Server) -> None:
        """A server is there. Raises UnknownHost, MetadataServerRefused."""
        self._join(said.host, SPACE, lambda: self.book.announced(said))

    def announce_owner(self, said: SlotOwner) -> None:
        """A nameserver owns blocks of the namespace. Raises UnknownHost, MetadataServerRefused."""
        self._join(said.host, SLOTS, lambda: self.owners.announced(said))

    def _join(self, host: str, space: Prefix, announced: Callable[[], None]) -> None:
        self._hosts.locate(host)
        network = IPv4Network(space)
        if network not in self._state.reserved and (
                taken := next((ip for ip in self._state.hosts if IPv4Address(ip) in network), None)):
            raise self._refused(f"host {taken} has an address within {network}, where those of keys are", host)
        try:
            announced()
        except MetadataError as error:
            raise self._refused(str(error), host) from None
        self._state.reserved.add(network)

    def remove(self, host: str, lost: bool) -> None:
        """A server is to leave. Raises UnknownMetadataServer, MetadataServerRefused."""
        try:
            self.book.left(host, lost)
        except MetadataError as error:
            raise self._refused(str(error), host) from None

    def entries(self, dpid: str) -> list[FlowEntry]:
        """What one switch shall have."""
        return list(dict.fromkeys(entry for steering in self._current() for entry in steering.entries(dpid)))

    def paper_entries(self, dpid: str) -> int:
        """How many MetaFlow's own tables would have at one switch, for as many servers with evenly spread keys."""
        servers = tuple(sorted(server for server in self.book.blocks if server in self._state.network))
        key = servers, self._state.network.version
        if self._paper_tables is None or self._paper_tables[0] != key:
            tree = grown(tree_of(self._state.network, servers, SPACE), len(servers))
            self._paper_tables = key, paper_tables(tree)
        return len(self._paper_tables[1].get(dpid, ()))

    def _refused(self, message: str, host: str) -> MetadataServerRefused:
        self._metrics.refused.inc()
        return MetadataServerRefused(message, host=host)

    # --- tables ---

    def _entries(self, dpid: str) -> Iterable[FlowEntry] | None:
        return None if self._listens else self.entries(dpid)

    @property
    def _listens(self) -> bool:
        """Whether it is not known yet what servers owned before this controller started: tables stay as they are."""
        if time.monotonic() < self._listens_until:
            return True
        return self.book.layout is None and (bool(self.book.servers or self.book.awaited) or not self.owners.said)

    def _current(self) -> list[Steering]:
        key = self.book.version, self.owners.version, self.hot.version, self._state.network.version
        if self._steering is None or self._steering[0] != key:
            senders = self.book.senders
            for server, prefixes in self.hot.senders.items():
                senders[server] = [*senders.get(server, ()), *prefixes]
            self._steering = key, [self._steer(self.book.blocks, senders, self.book.also, hot=self.hot.in_force),
                                   self._steer(self.owners.blocks, self.owners.senders, space=SLOTS)]
        return self._steering[1]

    def _steer(self, blocks: Mapping[str, Sequence[Prefix]], senders: Mapping[str, Sequence[Prefix]],
               also: Also = (), space: Prefix = SPACE, hot: Mapping[Place, tuple[str, ...]] | None = None
               ) -> Steering:
        hosts = self._state.hosts
        places = {server: hosts[server] for server in (*blocks, *senders) if server in hosts}
        # what has no class would get its least share alone where flows of coflows want the rest
        traffic_class = class_of_priority(0) if self._state.settings.queues == "priorities" else None
        return Steering(blocks, senders, places, frozenset(self._state.edge_switches()), self._state.switch_ports(),
                        self._forwarding.planner.default_route, also, space, hot or {}, traffic_class)

    def _require_space(self, blocks: Mapping[str, Sequence[Prefix]], space: Prefix = SPACE) -> None:
        """Raises TableFull, which names a switch that would have more entries than it may."""
        steering, limit = self._steer(blocks, blocks, space=space), self._state.settings.metadata_entries
        for dpid in self._state.datapaths:
            if (count := len(steering.entries(dpid))) > limit:
                raise TableFull(self._state.name_of(dpid), count, limit)

    def _room_for_hot_keys(self) -> int:
        """For so many hot keys the fullest edge switch has space: each costs an entry a replica, and as many beside
        it for their sources."""
        steering = self._steer(self.book.blocks, self.book.blocks)
        if not steering.racks:
            return 0
        busiest = max(Counter(place.dpid for place in steering.places.values()).values())
        held = max(len(steering.entries(dpid)) for dpid in steering.racks)
        return max((self._state.settings.metadata_entries - held) // (2 * busiest), 0)

    def _above(self, hosts: Sequence[str]) -> Mapping[str, tuple[Node, ...]]:
        return nodes_above(self._state.network, [host for host in hosts if host in self._state.network])

    def _go_on(self) -> None:
        now = time.monotonic()
        self.book.go_on(now)
        if not self._listens:
            self.hot.go_on(now, self.book.layout, {
                host for host, server in self.book.servers.items() if now - server.heard_at <= SILENT_SECONDS})
        version, hot_version = self.book.version, self.hot.version
        if (planned := (version, self.owners.version, hot_version, self._listens)) != self._planned:
            self._planned = planned
            self._forwarding.plan_systems_tables()
        if not self._listens and (self.book.synced_version < version or self.hot.synced_version < hot_version) \
                and self._forwarding.wait_until_synced(SYNC_SECONDS) and self._forwarding.is_in_force:
            self.book.synced_version, self.hot.synced_version = version, hot_version
