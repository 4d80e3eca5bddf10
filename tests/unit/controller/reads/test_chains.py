"""The hops of a placement's chain are one flow of the policy's model, but where a link carries the bytes twice."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from speedwell.controller.policy.network.five_tuple import TCP, FiveTuple
from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.reads.selection import Selector
from speedwell.controller.reads.book import Read, ReadPart
from speedwell.controller.reads.chains import Chains

BPS = 8e6


@pytest.fixture(name="network")
def _network() -> Network:
    """Two racks of two hosts, and one link between them."""
    network = Network()
    network.add_switch("s")
    network.add_switch("t")
    for host, switch in (("a", "s"), ("b", "s"), ("c", "t"), ("d", "t")):
        network.add_host(host)
        network.add_link(host, switch, BPS)
        network.add_link(switch, host, BPS)
    network.add_link("s", "t", BPS)
    network.add_link("t", "s", BPS)
    return network


class Running:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.selector = Selector(network, "mayflower", "mayflower", Random(0))
        self.chains = Chains(self.selector)
        self.read = Read("read", "d", 1_000_000, None, "mayflower", "mayflower", 0.0, placement_id="placement")

    def hop(self, source: str, target: str, port: int = 1) -> ReadPart:
        path, = self.network.shortest_paths(source, target)
        part = ReadPart("read", 0, FiveTuple(source, target, TCP, port, 7000), path, 0, 1_000_000, 0.0, 0.0,
                        f"{source}{target}{port}", 0.0)
        self.chains.added(self.read, part, 0.0)
        return part

    @property
    def ways(self) -> list[str]:
        return ["".join(flow.path.nodes) for flow in self.selector.flows()]


@pytest.fixture(name="running")
def _running(network: Network) -> Running:
    return Running(network)


def test_hops_join_in_any_order_as_long_as_one_begins_where_another_ends(running: Running) -> None:
    for source, target in (("c", "d"), ("b", "c"), ("a", "b")):
        running.hop(source, target)
    assert running.ways == ["asbstctd"]
    flow, = running.selector.flows()
    assert flow.bandwidth_bps == BPS
    assert dict(running.chains.by_hop()) == dict.fromkeys(("cd1", "bc1", "ab1"), flow.flow_id)


def test_a_hop_that_crosses_a_link_of_its_chain_again_is_a_flow_beside_it(running: Running) -> None:
    for source, target in pairwise("acbd"):
        running.hop(source, target)
    assert running.ways == ["astctsb", "bstd"]
    assert [flow.bandwidth_bps for flow in running.selector.flows()] == [BPS / 2] * 2


def test_a_second_connection_on_a_hop_is_a_flow_of_its_own(running: Running) -> None:
    first, second = running.hop("a", "b", 1), running.hop("a", "b", 2)
    assert running.ways == ["asb", "asb"]
    running.chains.dropped(first, 1.0)
    running.chains.dropped(second, 1.0)
    assert running.ways == []


def test_a_chain_has_carried_what_came_over_its_last_hop(running: Running) -> None:
    first, last = running.hop("a", "b"), running.hop("b", "c")
    first.transferred_bytes, last.transferred_bytes = 900_000, 250_000
    names = [(running.chains.measured_as(part), part.transferred_bytes) for part in (first, last)]
    running.selector.flows_measured([(name, counted, BPS / 2) for name, counted in names if name is not None], 1.0)
    flow, = running.selector.flows()
    assert flow.remaining_bits == 8 * 750_000


def test_a_hop_that_takes_a_link_of_another_one_goes_on_beside_the_chain(running: Running) -> None:
    first, last = running.hop("a", "b"), running.hop("b", "c")
    running.chains.moved(first, Path(tuple("astsb")), 1.0)
    assert sorted(running.ways) == ["astsb", "bstc"]
    running.chains.dropped(first, 2.0)
    running.chains.dropped(last, 2.0)
    assert running.ways == [] and not dict(running.chains.by_hop())


def test_hops_before_and_after_one_that_goes_on_beside_the_chain_are_still_counted(running: Running) -> None:
    hops = [running.hop(source, target) for source, target in ("ab", "bc", "cd")]
    running.chains.moved(hops[1], Path(tuple("bstdtc")), 1.0)
    assert sorted(running.ways) == ["asb", "bstdtc", "ctd"]
    assert len(set(dict(running.chains.by_hop()).values())) == 3
    for hop in hops:
        running.chains.dropped(hop, 2.0)
    assert running.ways == [] and not dict(running.chains.by_hop())
