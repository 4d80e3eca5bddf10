"""mayflower-plus: worked examples by hand, and what holds after any history."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.policy.errors import DuplicateFlow, NoPath, UnknownNode
from speedwell.controller.policy.network.graph import Network, Path
from speedwell.controller.policy.reads.mayflower_plus import Division, MayflowerPlus
from speedwell.controller.policy.reads.multi_replica import Subflow
from speedwell.controller.policy.reads.selection_request import Replica, SelectionRequest
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import three_tier
from tests.unit.policy.networks import join, network_with

MBPS = 1e6


def star(**capacities_bps: float) -> Network:
    """Hosts around one switch, each link of its own capacity in both directions."""
    network = Network()
    network.add_switch("s")
    for host, capacity_bps in capacities_bps.items():
        network.add_host(host)
        join(network, host, "s", capacity_bps)
    return network


def request(client: str, replicas: str, megabits: float = 100) -> SelectionRequest:
    return SelectionRequest(client, tuple(map(Replica, replicas.split())), megabits * 1e6)


def start(policy: MayflowerPlus, name: str, wanted: SelectionRequest, now: float,
          most_parts: int = 3) -> list[Subflow]:
    """Place a read as a carrier does; its flows are called `name.0`, `name.1`, ..."""
    parts = policy.select_parts(wanted, now, most_parts)
    policy.read_added(name, wanted, most_parts, now)
    for number, part in enumerate(parts):
        policy.flow_added(f"{name}.{number}", part.selection.path, part.size_bits, now, name)
    return parts


def sources(parts: Sequence[Subflow]) -> list[str]:
    return [part.selection.replica.host for part in parts]


def end(policy: MayflowerPlus, name: str, now: float) -> list[Division]:
    """End a read of one flow, and hear what follows."""
    policy.flow_dropped(f"{name}.0", now)
    policy.read_ended(name)
    return policy.revise(now)


def test_reads_take_what_is_free_in_the_order_in_which_they_came() -> None:
    """10 Mbit/s everywhere: reads 1 and 3 fill the clients' links, read 2 and 4 find nothing until these are free."""
    policy = MayflowerPlus(star(a=10e6, b=10e6, c=10e6, d=10e6))

    assert sources(start(policy, "1", request("c", "a b"), 0.0)) == ["a"]       # then c's own link is full
    assert start(policy, "2", request("d", "a"), 0.0) == []
    assert sources(start(policy, "3", request("d", "a b"), 0.0)) == ["b"]
    assert start(policy, "4", request("c", "b"), 1.0) == []
    assert policy.revise(1.0) == []

    assert end(policy, "1", 10.0) == []                                         # read 4 wants b, read 2 wants d
    second, fourth = end(policy, "3", 10.5)

    # a, b and d are free now. Read 2 is older and takes a and d, which leaves b and c to read 4.
    assert [part.selection.path.nodes for part in second.parts] == [("a", "s", "d")]
    assert [part.selection.path.nodes for part in fourth.parts] == [("b", "s", "c")]


def test_a_read_is_divided_so_that_its_parts_end_together() -> None:
    """a sends 4 Mbit/s and b 6, c takes 10: of 100 Mbit, 40 and 60, 10 seconds."""
    policy = MayflowerPlus(star(a=4e6, b=6e6, c=10e6))

    parts = start(policy, "1", request("c", "a b"), 0.0)

    assert [(part.selection.replica.host, part.size_bits / 1e6) for part in parts] == [("b", 60), ("a", 40)]
    assert [part.selection.estimated_bps / MBPS for part in parts] == [6, 4]
    assert [part.selection.cost_seconds for part in parts] == [10, 10]


def test_a_read_whose_parts_would_not_end_together_any_more_is_divided_anew() -> None:
    """Two polls show 4 Mbit/s of others on b's link, so that b's part gets 3: the 50 Mbit left are for 3 + 4."""
    policy = MayflowerPlus(star(a=4e6, b=6e6, c=10e6))
    start(policy, "1", request("c", "a b"), 0.0)
    policy.link_measured(("b", "s"), 6e6, 3.0)
    policy.link_measured(("b", "s"), 10e6, 4.0)
    assert policy.revise(4.0) == []

    policy.flow_measured("1.0", int(30e6 / 8), 5.0)
    policy.flow_measured("1.1", int(20e6 / 8), 5.0)
    policy.link_measured(("b", "s"), 10e6, 5.0)
    (division,) = policy.revise(5.0)

    assert [(part.flow_id, part.fraction) for part in division.parts] == [
        ("1.0", pytest.approx(3 / 7)), ("1.1", pytest.approx(4 / 7))]
    assert sum(part.size_bits for part in division.parts) == pytest.approx(50e6)
    policy.read_divided(division, [], 5.0)
    assert policy.revise(5.0) == []


def test_a_running_read_gets_a_part_on_what_has_become_free() -> None:
    """Read 1 holds b. Read 2 starts from a alone, at 4 of the 10 Mbit/s that d takes, and gets b's 6 at 5 s."""
    policy = MayflowerPlus(star(a=4e6, b=6e6, c=6e6, d=10e6))
    start(policy, "1", request("c", "b"), 0.0)
    assert sources(start(policy, "2", request("d", "a b"), 0.0)) == ["a"]

    (division,) = end(policy, "1", 5.0)

    assert [(part.flow_id, part.selection.replica.host) for part in division.parts] == [("2.0", "a"), (None, "b")]
    assert [part.size_bits / 1e6 for part in division.parts] == pytest.approx([32, 48])     # 80 are left
    assert [part.selection.cost_seconds for part in division.parts] == [8, 8]


def test_shares_are_exact_beyond_the_links_of_the_path() -> None:
    """d takes 2 Mbit/s. So of a's 10 read 1 leaves 8, and c's read finds these free."""
    policy = MayflowerPlus(star(a=10e6, c=10e6, d=2e6))
    start(policy, "1", request("d", "a"), 0.0)

    (part,) = start(policy, "2", request("c", "a"), 0.0)

    assert part.selection.estimated_bps == 8e6


def test_a_replica_that_does_not_deliver_is_not_given_again() -> None:
    """Read 1 reads from b and a until b fails. Then b has everything free, but read 1 wants it no more."""
    policy = MayflowerPlus(star(a=4e6, b=6e6, c=10e6))
    assert sources(start(policy, "1", request("c", "a b"), 0.0)) == ["b", "a"]
    policy.flow_dropped("1.0", 1.0)
    policy.read_narrowed("1", "b")
    assert policy.revise(1.0) == []

    policy.read_narrowed("1", "a")
    policy.flow_dropped("1.1", 2.0)
    assert policy.revise(100.0) == [], "no replica is left to it"


def test_a_waiting_read_that_no_replica_reaches_any_more_waits_on() -> None:
    network = star(a=10e6, c=10e6, d=10e6)
    policy = MayflowerPlus(network, patience=2)
    start(policy, "1", request("c", "a", megabits=1000), 0.0)
    assert start(policy, "2", request("d", "a"), 0.0) == []
    network.remove_link("s", "d")

    assert policy.revise(100.0) == []

    network.add_link("s", "d", 10e6)
    assert [division.read_id for division in policy.revise(100.0)] == ["2"]


def test_a_read_that_has_waited_long_starts_where_there_is_most_room() -> None:
    policy = MayflowerPlus(star(a=10e6, c=10e6, d=10e6), patience=2)
    start(policy, "1", request("c", "a", megabits=1000), 0.0)
    assert start(policy, "2", request("d", "a"), 0.0) == []

    assert policy.revise(19.9) == []
    (division,) = policy.revise(20.1)
    assert [(part.flow_id, part.selection.estimated_bps) for part in division.parts] == [(None, 5e6)]


def test_without_patience_no_read_waits() -> None:
    policy = MayflowerPlus(star(a=10e6, c=10e6, d=10e6), patience=0)
    start(policy, "1", request("c", "a"), 0.0)

    (part,) = start(policy, "2", request("d", "a"), 0.0)
    assert part.selection.estimated_bps == 5e6


def test_traffic_that_is_no_read_keeps_no_read_waiting() -> None:
    policy = MayflowerPlus(star(a=10e6, c=10e6))
    for now in (0.0, 1.0, 2.0):
        policy.link_measured(("a", "s"), 10e6, now)

    (part,) = policy.select_parts(request("c", "a"), 2.0, 1)
    assert part.selection.estimated_bps == 5e6


def test_what_one_poll_has_too_much_is_not_taken_for_traffic_from_elsewhere() -> None:
    policy = MayflowerPlus(star(a=10e6, c=10e6))
    for now, rate_bps in ((0.0, 0.0), (1.0, 6e6), (2.0, 0.0), (3.0, 6e6)):
        policy.link_measured(("a", "s"), rate_bps, now)

        (part,) = policy.select_parts(request("c", "a"), now, 1)
        assert part.selection.estimated_bps == 10e6


def test_a_read_that_ends_before_its_time_leaves_no_traffic_behind() -> None:
    """The 100 Mbit go over a's link in two polls; a share of 5 would have moved half of them only."""
    policy = MayflowerPlus(star(a=10e6, b=5e6, c=10e6))
    policy.link_measured(("a", "s"), 0.0, 0.0)
    start(policy, "1", request("b", "a"), 0.0)
    for now in (5.0, 10.0):
        end(policy, "1", now)
        policy.link_measured(("a", "s"), 100e6 / 5, now)
        start(policy, "1", request("b", "a"), now)
    end(policy, "1", 10.0)

    (part,) = policy.select_parts(request("c", "a"), 10.0, 1)
    assert part.selection.estimated_bps == 10e6


def test_a_replica_on_the_clients_own_host_is_read_at_once_and_alone() -> None:
    policy = MayflowerPlus(star(a=10e6, c=10e6))
    start(policy, "1", request("c", "a"), 0.0)

    (part,) = policy.select_parts(request("c", "a c"), 0.0, 2)
    assert part.selection.path == Path(("c",))
    assert part.size_bits == 100e6


def test_a_read_without_a_path_and_a_client_that_is_not_there_are_refused() -> None:
    policy = MayflowerPlus(network_with("s t", "a c", "a-s c-t"))
    with pytest.raises(NoPath):
        policy.select_parts(request("c", "a gone"), 0.0, 2)
    with pytest.raises(UnknownNode):
        policy.select(request("gone", "a"), 0.0)


def test_a_read_is_added_once() -> None:
    policy = MayflowerPlus(star(a=10e6, c=10e6))
    start(policy, "1", request("c", "a"), 0.0)
    with pytest.raises(DuplicateFlow):
        policy.read_added("1", request("c", "a"), 1, 0.0)


class Carrier:
    """Carries decisions out at once, and remembers what it did."""

    def __init__(self) -> None:
        self.network = network_of(three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, host_bps=10e6))
        self.policy = MayflowerPlus(self.network)
        self.requests: dict[str, SelectionRequest] = {}
        self.flows: dict[str, dict[str, str]] = {}          # of each read: flow, and where it reads from
        self.now = 0.0

    def ask(self, wanted: SelectionRequest, most_parts: int) -> None:
        before = self.known()
        parts = self.policy.select_parts(wanted, self.now, most_parts)
        assert self.known() == before
        assert len(parts) <= most_parts
        assert len(set(sources(parts))) == len(parts)
        if parts:
            assert sum(part.size_bits for part in parts) == pytest.approx(wanted.size_bits)
        name = str(len(self.requests))
        self.requests[name] = wanted
        self.flows[name] = dict(zip((f"{name}.{i}" for i in range(9)), sources(parts), strict=False))
        self.policy.read_added(name, wanted, most_parts, self.now)
        for flow, part in zip(self.flows[name], parts, strict=True):
            self.policy.flow_added(flow, part.selection.path, part.size_bits, self.now, name)

    def revise(self) -> None:
        before = self.known()
        divisions = self.policy.revise(self.now)
        assert self.known() == before
        assert len({division.read_id for division in divisions}) == len(divisions)
        for division in divisions:
            running = self.flows[division.read_id]
            assert {part.flow_id for part in division.parts} - {None} == set(running)
            opened = [part.selection.replica.host for part in division.parts if part.flow_id is None]
            assert len({*opened, *running.values()}) == len(opened) + len(running)
            assert sum(part.fraction for part in division.parts) == pytest.approx(1)
            left_bits = sum(self.known()[flow][0] for flow in running) or self.requests[division.read_id].size_bits
            assert sum(part.size_bits for part in division.parts) == pytest.approx(left_bits)
            names = [f"{division.read_id} at {self.now}.{i}" for i in range(len(opened))]
            self.policy.read_divided(division, names, self.now)
            running.update(zip(names, opened, strict=True))

    def end_flow(self, number: int) -> None:
        flows = [(read, flow) for read, own in self.flows.items() for flow in own]
        if flows:
            read, flow = flows[number % len(flows)]
            self.policy.flow_dropped(flow, self.now)
            del self.flows[read][flow]
            if not self.flows[read]:
                self.policy.read_ended(read)

    def poll(self, part: float, noise_bps: float) -> None:
        for flow, (left_bits, _, _) in self.known().items():
            self.policy.flow_measured(flow, int(part * left_bits / 8), self.now)
        for link in self.network.links:
            self.policy.link_measured(link, noise_bps, self.now)

    def known(self) -> dict[str, tuple[float, float, tuple[int, ...]]]:
        flows = self.policy._shares.flows_at(self.now)
        return {flow.flow_id: (flow.left_bits, flow.share_bps, flow.links) for flow in flows}

    def check_shares(self) -> None:
        used_bps: dict[int, float] = {}
        for left_bits, share_bps, links in self.known().values():
            assert left_bits >= 0
            assert share_bps > 0
            for link in links:
                used_bps[link] = used_bps.get(link, 0.0) + share_bps
        capacities_bps = self.network.capacities_bps()
        assert all(bps <= capacities_bps[link] * (1 + 1e-9) for link, bps in used_bps.items())


HOSTS = [f"p{pod}r{rack}h{host}" for pod in range(2) for rack in range(2) for host in range(2)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_after_any_history_shares_fit_and_decisions_leave_no_trace_and_name_the_known(data: st.DataObject) -> None:
    carrier = Carrier()
    for _ in range(data.draw(st.integers(1, 25))):
        carrier.now += data.draw(st.floats(0, 5))
        what = data.draw(st.sampled_from(["ask", "ask", "end", "poll", "revise"]))
        if what == "ask":
            client, *replicas = data.draw(st.lists(st.sampled_from(HOSTS), min_size=2, max_size=4, unique=True))
            megabits = data.draw(st.floats(1, 500))
            carrier.ask(request(client, " ".join(replicas), megabits), data.draw(st.integers(1, 3)))
        elif what == "end":
            carrier.end_flow(data.draw(st.integers(0, 50)))
        elif what == "poll":
            carrier.poll(data.draw(st.floats(0, 1)), data.draw(st.sampled_from([0.0, 1e6, 20e6])))
        carrier.revise()
        carrier.check_shares()


def test_each_part_says_what_every_replica_had_to_spare_when_it_was_opened() -> None:
    """Of 100 Mbit: b has 6 Mbit/s, a 4 of them; after b, the client has 4 left, and d nothing from the start."""
    policy = MayflowerPlus(star(a=4e6, b=6e6, c=10e6, d=5e6))
    policy.flow_added("other", Path(("d", "s", "a")), 1e12, 0.0, None)
    first, second = start(policy, "1", request("c", "a b d"), 0.0)
    assert [(replica.host, cost and round(cost, 3)) for replica, cost in first.selection.considered] == [
        ("a", 25.0), ("b", 16.667), ("d", 100.0)]
    assert first.selection.replica.host == "b"
    assert {replica.host for replica, _ in second.selection.considered} == {"a", "d"}
    assert min((cost, replica.host) for replica, cost in second.selection.considered if cost)[1] == (
        second.selection.replica.host)


def test_a_replica_that_has_nothing_to_spare_has_no_cost() -> None:
    policy = MayflowerPlus(star(a=4e6, b=6e6, c=10e6, e=4e6))
    policy.flow_added("other", Path(("a", "s", "e")), 1e12, 0.0, None)
    [only] = start(policy, "1", request("c", "a b"), 0.0)
    assert dict(only.selection.considered)[Replica("a")] is None
