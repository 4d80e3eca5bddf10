"""The compiled shares against the plain ones, over random histories: equal to the bit."""

from __future__ import annotations

from random import Random

import pytest

from controller.policy.network.graph import Network
from controller.policy.reads.mayflower import Mayflower
from controller.policy.reads.selection_request import Replica, SelectionRequest
from sim.fabric_network import network_of
from tests.unit.policy.plain_mayflower import PlainMayflower
from topo.fabric import fat_tree, three_tier

FABRICS = [three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, host_bps=10e6), fat_tree(4, host_bps=10e6)]


class Histories:
    """The same history told to both."""

    def __init__(self, network: Network, generator: Random) -> None:
        self.network = network
        self.generator = generator
        self.compiled, self.plain = Mayflower(network), PlainMayflower(network)
        self.hosts, self.links = sorted(network.hosts), sorted(network.links)
        self.now = 0.0
        self.flows: list[str] = []

    def step(self, number: int) -> None:
        self.now += self.generator.expovariate(1.0)
        happens = self.generator.choices([self.read, self.end, self.move, self.resize, self.poll, self.set_capacity],
                                         [50, 25, 5, 3, 10, 1])[0]
        if self.flows or happens == self.read:
            happens(number)
        self.compare()

    def read(self, number: int) -> None:
        client, *replicas = self.generator.sample(self.hosts, 4)
        if self.generator.random() < 0.05:
            replicas[0] = client
        size_bits = self.generator.choice([0.0, 1e6, 3e7, 8e8])
        request = SelectionRequest(client, tuple(map(Replica, replicas)), size_bits)
        chosen = self.plain.select_replica_and_path(request, self.now)
        assert self.compiled.select_replica_and_path(request, self.now) == chosen
        if self.generator.random() < 0.3:
            with self.compiled.trial() as trial:
                trial.add(chosen.path, size_bits, self.now)
                trial.add(chosen.path, size_bits, self.now)
            self.compare()
        share_bps = self.plain.flow_added(str(number), chosen.path, size_bits, self.now)
        assert self.compiled.flow_added(str(number), chosen.path, size_bits, self.now) == share_bps
        self.flows.append(str(number))

    def end(self, _: int) -> None:
        flow_id = self.flows.pop(self.generator.randrange(len(self.flows)))
        for mayflower in (self.compiled, self.plain):
            assert mayflower.flow_dropped(flow_id, self.now)

    def move(self, _: int) -> None:
        flow = self.generator.choice(list(self.plain.flows()))
        path = self.generator.choice(self.network.shortest_paths(flow.path.nodes[0], flow.path.nodes[-1]))
        for mayflower in (self.compiled, self.plain):
            mayflower.flow_moved(flow.flow_id, path, self.now)

    def resize(self, _: int) -> None:
        flow_id, size_bits = self.generator.choice(self.flows), self.generator.random() * 1e8
        for mayflower in (self.compiled, self.plain):
            mayflower.flow_resized(flow_id, size_bits, self.now)

    def poll(self, _: int) -> None:
        for flow_id in self.flows:
            moved_bytes, rate_bps = self.generator.randrange(10**6), self.generator.choice([None, 0.0, 2e6, 7e6])
            if self.generator.random() < 0.8:
                for mayflower in (self.compiled, self.plain):
                    mayflower.flow_measured(flow_id, moved_bytes, rate_bps, self.now)
        for link in self.links:
            rate_bps = self.generator.random() * 12e6
            for mayflower in (self.compiled, self.plain):
                mayflower.link_measured(link, rate_bps, self.now)

    def set_capacity(self, _: int) -> None:
        self.network.set_capacity(self.generator.choice(self.links), self.generator.choice([5e6, 1e7, 2e7]))

    def compare(self) -> None:
        compiled, plain = self.compiled, self.plain
        for ours, theirs in zip(compiled.flows(), plain.flows(), strict=True):
            for name in ("flow_id", "path", "links", "size_bits", "bandwidth_bps", "remaining_bits", "settled_at",
                         "frozen", "frozen_until", "measured_bps"):
                assert getattr(ours, name) == getattr(theirs, name), name
            assert ours.remaining_at(self.now) == theirs.remaining_at(self.now)
        assert [compiled.background_bps(link) for link in self.links] == [
            plain.background_bps(link) for link in self.links]


@pytest.mark.parametrize("seed", range(8))
def test_compiled_shares_equal_the_plain_ones(seed: int) -> None:
    generator = Random(seed)
    histories = Histories(network_of(generator.choice(FABRICS)), generator)
    for number in range(generator.choice([40, 150, 300])):
        histories.step(number)


def test_flow_that_was_dropped_keeps_what_it_had_while_its_row_is_anothers() -> None:
    network = network_of(FABRICS[0])
    mayflower = Mayflower(network)
    path = network.shortest_paths(*sorted(network.hosts)[:2])[0]
    mayflower.flow_added("first", path, 1e6, 0.0)
    (flow,) = mayflower.flows()
    mayflower.flow_dropped("first", 0.0)
    mayflower.flow_added("second", path, 5e6, 1.0)
    assert (flow.flow_id, flow.bandwidth_bps, flow.remaining_bits) == ("first", 10e6, 1e6)
