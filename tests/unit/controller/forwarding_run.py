"""Fabrics of fake switches whose tables are kept as the forwarding application keeps them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

from speedwell.controller.tables import reconcile
from speedwell.controller.tables.entries import SwitchTables
from speedwell.controller.tables.explicit_paths import ExplicitPaths
from speedwell.controller.tables.plan import TablePlanner
from speedwell.controller.tables.read_back import sort_read_back
from speedwell.controller.topology.state import NetworkState
from speedwell.topo.fabric import Fabric, fat_tree, spine_leaf, three_tier
from tests.unit.controller.fake_switch import FakeNetwork

FABRICS: list[Fabric] = [
    three_tier(pods=2, racks_per_pod=2, hosts_per_rack=1, aggregations_per_pod=2, cores=2),
    three_tier(pods=3, racks_per_pod=1, hosts_per_rack=2, aggregations_per_pod=1, cores=2),
    three_tier(pods=1, racks_per_pod=3, hosts_per_rack=1, aggregations_per_pod=3, cores=1),
    spine_leaf(leaves=3, spines=3, hosts_per_leaf=1),
    spine_leaf(leaves=1, spines=1, hosts_per_leaf=2),
    fat_tree(k=4),
]


class Run:
    """A fake network, its state and what was sent to it, kept in step as the forwarding application does."""

    def __init__(self, fabric: Fabric) -> None:
        self.network = FakeNetwork(fabric)
        self.state: NetworkState = self.network.state()
        self.planner = TablePlanner(self.state)
        self.installed = {dpid: SwitchTables() for dpid in self.network.switches}

    @property
    def paths(self) -> ExplicitPaths:
        return ExplicitPaths(self.planner)

    def sync(self, between_steps: Callable[[], None] = lambda: None,
             between_messages: Callable[[], None] = lambda: None) -> None:
        """Bring all switches up to date, step by step."""
        self.planner.assign_labels()
        todo = {dpid: reconcile.changes(self.installed[dpid], self.planner.tables(dpid), self.planner.registry)
                for dpid in self.installed}
        for make, note in ((reconcile.arrival_messages, reconcile.apply_arrivals),
                           (reconcile.departure_messages, reconcile.apply_departures),
                           (reconcile.sender_messages, reconcile.apply_senders),
                           (reconcile.closing_messages, reconcile.apply_closing)):
            for dpid, change in todo.items():
                switch = self.network.switches[dpid]
                for message in make(switch.datapath, change):
                    switch.receive([message])
                    between_messages()
                note(self.installed[dpid], change)
                between_steps()
        for dpid, switch in self.network.switches.items():
            planned = sort_read_back(switch.flows.values(), switch.groups.values()).tables
            assert planned == self.installed[dpid]

    def fail(self, a: str, b: str) -> None:
        self.network.dead.add(frozenset((a, b)))
        self.state.remove_link(self.network.ends(a, b)[0])

    def restore(self, a: str, b: str) -> None:
        self.network.dead.discard(frozenset((a, b)))
        ends = self.network.ends(a, b)
        for key in ends:
            self.state.set_port(key[0], replace(self.state.ports[key], up=True))
        self.state.add_link(*ends)

    def connected(self, a: str, b: str) -> bool:
        hosts = self.network.hosts
        return bool(self.state.network.shortest_paths(hosts[a].ip, hosts[b].ip))

    def assert_everybody_reaches_everybody(self) -> None:
        for a, b in permutations(self.network.hosts, 2):
            wheres = {arrival.where for arrival in self.network.send(a, self.network.tcp(a, b))}
            assert wheres == ({self.network.hosts[b].ip} if self.connected(a, b) else {"nowhere"}), (a, b)
