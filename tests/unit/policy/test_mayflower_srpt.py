"""mayflower-srpt: what a read costs where what has least left goes first."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.reads.selection import Selector
from speedwell.controller.policy.reads.selection_request import Replica, Selection, SelectionRequest
from speedwell.controller.policy.registry import POLICIES, Kind, replica_policy_beside
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import three_tier

MBIT = 1e6
CLIENT = "p0r0h0"
NEAR, FAR = Replica("p0r0h1"), Replica("p1r0h0")
NEAR_PATH = Path(("p0r0h1", "edge-p0r0", CLIENT))


@pytest.fixture
def network() -> Network:
    """10 Mbit/s each host, 40 each rack and pod, both ways."""
    return network_of(three_tier(pods=2, racks_per_pod=1, hosts_per_rack=4, aggregations_per_pod=1, cores=1,
                                 host_bps=10e6, oversubscription={"edge": 1.0, "aggregation": 1.0}))


def selector(network: Network) -> Selector:
    return Selector(network, "mayflower-srpt", "mayflower", Random(1))


def read(chooser: Selector, size_bits: float, *replicas: Replica) -> Selection:
    return chooser.select(SelectionRequest(CLIENT, replicas or (NEAR, FAR), size_bits), 0.0)


def out_of(host: str, size_bits: float, chooser: Selector, name: str = "other") -> None:
    chooser.flow_added(name, Path((host, "edge-" + host[:4], host[:4] + "h3")), size_bits, 0.0)


def test_on_an_idle_network_a_read_takes_its_size_over_its_narrowest_link(network: Network) -> None:
    chosen = read(selector(network), 20 * MBIT)
    assert (chosen.replica, chosen.path, chosen.cost_seconds, chosen.estimated_bps) == (NEAR, NEAR_PATH, 2.0, 10e6)


def test_a_read_waits_for_flows_that_have_less_left(network: Network) -> None:
    chooser = selector(network)
    out_of(NEAR.host, 5 * MBIT, chooser)
    assert read(chooser, 20 * MBIT, NEAR).cost_seconds == 2.5
    assert read(chooser, 20 * MBIT).replica == FAR


def test_a_read_goes_before_flows_that_have_more_left_and_pays_for_their_wait(network: Network) -> None:
    chooser = selector(network)
    out_of(NEAR.host, 50 * MBIT, chooser)
    chosen = read(chooser, 20 * MBIT, NEAR)
    assert chosen.estimated_bps == 10e6, "it has the link for itself"
    assert chosen.cost_seconds == 2.0 + 2.0, "but another one waits two seconds"
    assert read(chooser, 20 * MBIT).replica == FAR


def test_a_flow_that_ends_soon_costs_less_than_half_of_a_link(network: Network) -> None:
    chooser = selector(network)
    out_of(NEAR.host, 1 * MBIT, chooser)
    for number in range(3):
        out_of(FAR.host, 100 * MBIT, chooser, f"long {number}")
    request = SelectionRequest(CLIENT, (FAR, NEAR), 20 * MBIT)
    costs = dict(chooser.select(request, 0.0).considered)
    assert costs == {NEAR: 2.1, FAR: pytest.approx(2.0 + 3 * 2.0)}
    fair = dict(chooser.select(request, 0.0, "mayflower").considered)
    assert fair[NEAR] > costs[NEAR], "by fair shares half of the link is gone for all of the read"


def test_of_two_idle_replicas_the_one_without_background_is_taken(network: Network) -> None:
    chooser = selector(network)
    for link in NEAR_PATH.links[:1]:
        chooser.link_measured(link, 9e6, 1.0)
    chosen = chooser.select(SelectionRequest(CLIENT, (NEAR, FAR), 20 * MBIT), 1.0)
    assert (chosen.replica, chosen.cost_seconds) == (FAR, 2.0)


def test_a_replica_on_the_clients_own_host_costs_nothing(network: Network) -> None:
    chosen = read(selector(network), 20 * MBIT, FAR, Replica(CLIENT))
    assert (chosen.replica.host, chosen.cost_seconds, chosen.path.links) == (CLIENT, 0.0, ())


@given(st.data())
def test_costs_are_those_of_a_plain_reading(data: st.DataObject) -> None:
    fabric = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, host_bps=10e6)
    network, hosts = network_of(fabric), sorted(host.name for host in fabric.hosts)
    chooser, flows = selector(network), []
    for number in range(data.draw(st.integers(0, 6), "flows")):
        source, target = data.draw(st.sampled_from(hosts)), data.draw(st.sampled_from(hosts))
        if source != target:
            path = data.draw(st.sampled_from(network.shortest_paths(source, target)))
            size_bits = data.draw(st.sampled_from([1.0, 5.0, 20.0, 40.0])) * MBIT
            chooser.flow_added(str(number), path, size_bits, 0.0)
            flows.append((set(path.links), size_bits))
    client, *others = data.draw(st.permutations(hosts))
    size_bits = data.draw(st.sampled_from([2.0, 10.0, 30.0])) * MBIT
    request = SelectionRequest(client, tuple(map(Replica, others[:3])), size_bits)
    before = [(flow.flow_id, flow.bandwidth_bps, flow.remaining_bits) for flow in chooser.flows()]
    chosen = chooser.select(request, 0.0)
    assert [(flow.flow_id, flow.bandwidth_bps, flow.remaining_bits) for flow in chooser.flows()] == before

    def cost(path: Path) -> float:
        own = max((size_bits + sum(left for links, left in flows if link in links and left <= size_bits)) /
                  network.capacity_bps(link) for link in path.links)
        waits = [max((size_bits / network.capacity_bps(link) for link in path.links if link in links), default=0.0)
                 for links, left in flows if left > size_bits]
        return own + sum(waits)

    costs = {replica: min(map(cost, network.shortest_paths(replica.host, client))) for replica in request.replicas}
    assert dict(chosen.considered) == pytest.approx(costs)
    assert chosen.cost_seconds == pytest.approx(cost(chosen.path)) == pytest.approx(min(costs.values()))


@pytest.mark.parametrize("policy", POLICIES.names(Kind.COFLOW))
def test_reads_are_placed_so_by_default_where_coflows_rank_flows(policy: str) -> None:
    ranks_flows = POLICIES.get(Kind.COFLOW, policy).ranks_flows
    assert replica_policy_beside(policy) == ("mayflower-srpt" if ranks_flows else "mayflower")
    assert replica_policy_beside(None) == "mayflower"
