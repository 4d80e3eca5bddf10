"""Mayflower's selection against a plain transcription of Eq. 2, over random histories of a small fabric."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.policy.network.graph import Link, Network, Path
from speedwell.controller.policy.reads.link_load import ReadFlow
from speedwell.controller.policy.reads.mayflower import Mayflower
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import fat_tree, three_tier
from tests.unit.policy.plain_shares import max_min_shares

FABRICS = [
    three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, aggregations_per_pod=2, cores=2, host_bps=10e6),
    fat_tree(4, host_bps=10e6),
]


def plain_cost(mayflower: Mayflower, network: Network, path: Path, size_bits: float, now: float) -> float:
    """Eq. 2 with every share computed afresh on every link."""

    def others(link: Link) -> list[ReadFlow]:
        return [flow for flow in mayflower.flows() if link in flow.path.links]

    def shares(link: Link, new_demand_bps: float) -> list[float]:
        demands = [flow.bandwidth_bps for flow in others(link)]
        return max_min_shares(network.capacity_bps(link), [*demands, mayflower.background_bps(link), new_demand_bps])

    if not path.links:
        return 0.0
    b_j = min(shares(link, math.inf)[-1] for link in path.links)
    new_bps: dict[str, float] = {}
    for link in path.links:
        for flow, share in zip(others(link), shares(link, b_j), strict=False):
            new_bps[flow.flow_id] = min(share, new_bps.get(flow.flow_id, math.inf))
    return size_bits / b_j + sum(
        flow.remaining_at(now) / new_bps[flow.flow_id] - flow.remaining_at(now) / flow.bandwidth_bps
        for flow in mayflower.flows()
        if flow.flow_id in new_bps and flow.bandwidth_bps > 0
    )


class History:
    """Random requests, drops and measurements, each checked against what must hold after it."""

    def __init__(self, seed: int) -> None:
        self.generator = Random(seed)
        self.network = network_of(self.generator.choice(FABRICS))
        self.mayflower = Mayflower(self.network)
        self.hosts = sorted(self.network.hosts)
        self.links = sorted(self.network.links)
        self.now = 0.0

    def step(self, number: int) -> None:
        self.now += self.generator.expovariate(1.0)
        happens = (self.read, self.drop, self.measure_flow, self.measure_link, self.move, self.resize, self.rebuild)
        self.generator.choices(happens, (40, 20, 20, 10, 5, 3, 1))[0](number)
        self.flows_are_in_order()

    def flows_are_in_order(self) -> None:
        """What is kept in order while bandwidths change is what sorting gives."""
        table = self.mayflower.table
        for number, link in enumerate(table.links):
            flows = [link["background"], *table.members[link["first"]:link["first"] + link["count"]]]
            bandwidths = table.flows["bandwidth"]
            flows.sort(key=lambda flow: (bandwidths[flow], table.flows["order"][flow]))
            kept = slice(link["first"], link["first"] + len(flows))
            assert table.ascending[kept].tolist() == flows
            assert table.bandwidths[kept].tolist() == bandwidths[flows].tolist()
            assert link["stale"] or link["demand"] == sum(bandwidths[flows].tolist()), number

    def read(self, number: int) -> None:
        client, *hosts = self.generator.sample(self.hosts, 4)
        size_bits = self.generator.choice((1e3, 1e6, 5e7))
        request = SelectionRequest(client, tuple(map(Replica, hosts)), size_bits)
        selection = self.mayflower.select_replica_and_path(request, self.now)
        paths = [path for host in hosts for path in self.network.shortest_paths(host, client)]
        costs = {path: plain_cost(self.mayflower, self.network, path, size_bits, self.now) for path in paths}
        assert selection.path.nodes[0] == selection.replica.host
        assert selection.cost_seconds == pytest.approx(costs[selection.path])
        assert selection.cost_seconds == pytest.approx(min(costs.values()))
        before = self.shares(), self.loads()
        with self.mayflower.trial() as trial:
            trial.add(selection.path, size_bits, self.now)
            trial.add(selection.path, size_bits, self.now)
        assert (self.shares(), self.loads()) == before
        loads_before = self.loads()
        assert self.mayflower.flow_added(str(number), selection.path, size_bits, self.now) == pytest.approx(
            selection.estimated_bps
        )
        for link, load in self.loads().items():
            assert load <= max(loads_before[link], self.network.capacity_bps(link)) * (1 + 1e-9)

    def drop(self, number: int) -> None:
        flows = list(self.mayflower.flows())
        if flows:
            gone = self.generator.choice(flows)
            loads_before = self.loads()
            before = {flow: flow.bandwidth_bps for flow in flows}
            self.mayflower.flow_dropped(gone.flow_id, self.now)
            for flow in self.mayflower.flows():
                assert flow.bandwidth_bps >= before[flow]
                assert flow.bandwidth_bps == before[flow] or set(flow.links) & set(gone.links)
            for link, load in self.loads().items():
                assert load <= max(loads_before[link], self.network.capacity_bps(link)) * (1 + 1e-9)

    def measure_flow(self, number: int) -> None:
        flows = list(self.mayflower.flows())
        if flows:
            flow = self.generator.choice(flows)
            transferred_bytes = int((flow.size_bits - flow.remaining_at(self.now)) * self.generator.random() / 8)
            rate_bps = self.generator.choice((0.0, 1e5, 3e6, 12e6))
            held = flow.frozen and self.now <= flow.frozen_until
            expected_bps = flow.bandwidth_bps if held else rate_bps
            self.mayflower.flow_measured(flow.flow_id, transferred_bytes, rate_bps, self.now)
            assert flow.bandwidth_bps == expected_bps

    def move(self, number: int) -> None:
        for flow in self.generator.sample(list(self.mayflower.flows()), min(1, len(list(self.mayflower.flows())))):
            remaining_bits = flow.remaining_at(self.now)
            path = self.generator.choice(self.network.shortest_paths(flow.path.nodes[0], flow.path.nodes[-1]))
            self.mayflower.flow_moved(flow.flow_id, path, self.now)
            assert (flow.path, flow.remaining_at(self.now)) == (path, pytest.approx(remaining_bits))

    def resize(self, number: int) -> None:
        for flow in self.generator.sample(list(self.mayflower.flows()), min(1, len(list(self.mayflower.flows())))):
            sent_bits, size_bits = flow.size_bits - flow.remaining_at(self.now), self.generator.random() * 1e8
            self.mayflower.flow_resized(flow.flow_id, size_bits, self.now)
            assert flow.remaining_at(self.now) == pytest.approx(max(size_bits - sent_bits, 0.0))

    def rebuild(self, number: int) -> None:
        self.network.set_capacity(self.generator.choice(self.links), self.generator.choice([5e6, 1e7, 2e7]))

    def measure_link(self, number: int) -> None:
        for link in self.generator.sample(self.links, 10):
            self.mayflower.link_measured(link, self.generator.choice((0.0, 1e6, 1e7)), self.now)

    def shares(self) -> dict[str, float]:
        return {flow.flow_id: flow.bandwidth_bps for flow in self.mayflower.flows()}

    def loads(self) -> dict[Link, float]:
        loads = {link: self.mayflower.background_bps(link) for link in self.links}
        for flow in self.mayflower.flows():
            for link in flow.path.links:
                loads[link] += flow.bandwidth_bps
        return loads


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_every_decision_has_the_least_cost_of_equation_2(seed: int) -> None:
    history = History(seed)
    for number in range(60):
        history.step(number)
