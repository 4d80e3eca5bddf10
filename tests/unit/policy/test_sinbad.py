"""Sinbad: which links count, which constraints hold, how long a placement is expected to last."""

import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.controller.policy.errors import ImpossiblePlacement, InvalidMeasurement, InvalidRequest
from speedwell.controller.policy.network.graph import Network
from speedwell.controller.policy.network.link_estimate import SMOOTHING, LinkEstimate
from speedwell.controller.policy.placements.request import Candidate, Placement, PlacementRequest, place_batch
from speedwell.controller.policy.placements.sinbad import MeasuredBy, Sinbad
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import Fabric, three_tier

RATE_BPS = 10e6
BLOCK_BITS = 8 * 1e6


@pytest.fixture
def fabric() -> Fabric:
    """2 pods of 2 racks of 4 hosts at 10 Mbit/s."""
    return three_tier(pods=2, racks_per_pod=2, hosts_per_rack=4, host_bps=RATE_BPS)


@pytest.fixture
def network(fabric: Fabric) -> Network:
    return network_of(fabric)


def candidates_of(fabric: Fabric, free_bytes: float = math.inf, disk_bps: float = math.inf) -> tuple[Candidate, ...]:
    return tuple(Candidate(host.name, host.rack, host.pod, free_bytes, disk_bps) for host in fabric.hosts)


def rack_of(fabric: Fabric, name: str) -> str:
    return fabric.host(name).rack


# --- the estimate of a link ---


def test_a_link_is_a_moving_average_and_a_placement_a_ramp_above_it_for_its_duration() -> None:
    estimate = LinkEstimate()
    estimate.measured(2e6, 0.0)
    estimate.placed_for_duration("transfer", 4e6, 10.0, 1.0)
    assert estimate.expected_bps(1.0) == pytest.approx(6e6)         # v_old + S/D
    assert estimate.expected_bps(6.0) == pytest.approx(4e6)         # half of it is through
    assert estimate.expected_bps(11.0) == pytest.approx(2e6)        # T = D
    assert estimate.placements(11.0) == 0


def test_a_measurement_does_not_end_what_a_placement_expects_and_the_larger_of_both_counts() -> None:
    estimate = LinkEstimate()
    estimate.measured(0.0, 0.0)
    estimate.placed_for_duration("transfer", 4e6, 10.0, 0.0)
    estimate.measured(0.0, 1.0)
    assert estimate.expected_bps(1.0) == pytest.approx(3.6e6)
    estimate.measured(100e6, 2.0)
    assert estimate.expected_bps(2.0) == pytest.approx(SMOOTHING * 100e6)


def test_placements_on_one_link_add_up_and_the_end_of_one_takes_its_part_alone() -> None:
    estimate = LinkEstimate()
    estimate.placed_for_duration("first", 4e6, 10.0, 0.0)
    estimate.placed_for_duration("second", 2e6, 10.0, 0.0)
    assert estimate.expected_bps(0.0) == pytest.approx(6e6)
    estimate.forget("first")
    assert estimate.expected_bps(0.0) == pytest.approx(2e6)
    estimate.forget("second")
    assert estimate.expected_bps(0.0) == 0.0


def test_late_measurements_change_nothing_and_impossible_ones_are_refused() -> None:
    estimate = LinkEstimate()
    assert estimate.measured(3e6, 5.0)
    assert not estimate.measured(9e6, 4.0)
    assert estimate.expected_bps(5.0) == 3e6
    for absurd in (-1.0, math.inf, math.nan):
        with pytest.raises(InvalidMeasurement):
            estimate.measured(absurd, 6.0)
    assert estimate.expected_bps(6.0) == 3e6


# --- where replicas go ---


@pytest.mark.parametrize("measured_by", list(MeasuredBy))
def test_the_first_replica_is_the_writers_own_and_the_others_avoid_busy_links(
        fabric: Fabric, network: Network, measured_by: MeasuredBy) -> None:
    sinbad = Sinbad(network, Random(1), measured_by)
    for host in fabric.hosts:
        if host.name not in ("p0r0h1", "p1r0h2"):
            sinbad.link_measured((f"edge-{host.rack}", host.name), 1e6, 0.0)
    request = PlacementRequest("p0r0h0", BLOCK_BITS, candidates_of(fabric))
    placement = sinbad.place("file", request, 0.0)
    hosts = [destination.host for destination in placement.destinations]
    assert hosts[0] == "p0r0h0"
    assert len({rack_of(fabric, host) for host in hosts}) >= 2
    assert set(placement.passed_over) == {host.name for host in fabric.hosts} - set(hosts)


def test_what_leads_into_a_rack_counts_as_well_as_what_leads_to_the_host(fabric: Fabric, network: Network) -> None:
    sinbad = Sinbad(network, Random(1))
    for aggregation in (node for node in network.neighbours("edge-p1r0") if not network.is_host(node)):
        sinbad.link_measured((aggregation, "edge-p1r0"), network.capacity_bps((aggregation, "edge-p1r0")), 0.0)
    for number in range(20):
        request = PlacementRequest("p0r0h0", BLOCK_BITS, candidates_of(fabric), least_racks=3)
        hosts = [one.host for one in sinbad.place(number, request, 100.0 * number).destinations]
        assert "p1r0" not in {rack_of(fabric, host) for host in hosts}


def test_a_chain_stays_in_a_rack_whose_way_up_is_busy(fabric: Fabric, network: Network) -> None:
    sinbad = Sinbad(network, Random(1))
    for other in network.neighbours("edge-p1r0"):
        if not network.is_host(other):
            sinbad.link_measured(("edge-p1r0", other), 0.9 * network.capacity_bps(("edge-p1r0", other)), 0.0)
        elif other != "p1r0h0":
            sinbad.link_measured(("edge-p1r0", other), 0.2 * RATE_BPS, 0.0)
    request = PlacementRequest("p1r0h0", BLOCK_BITS, candidates_of(fabric), least_racks=2)
    racks = [rack_of(fabric, one.host) for one in sinbad.place("file", request, 0.0).destinations]
    assert racks[:2] == ["p1r0", "p1r0"], "a copy that leaves the rack crosses what is full"
    assert racks[2] != "p1r0", "and one has to"


def test_the_heartbeats_of_hosts_stand_for_the_links_above_them(fabric: Fabric, network: Network) -> None:
    sinbad = Sinbad(network, Random(1), MeasuredBy.HOSTS)
    for host in fabric.hosts:
        if host.rack == "p1r0":
            rate_bps = 0.0 if host.name == "p1r0h0" else 0.8 * RATE_BPS
            sinbad.link_measured((f"edge-{host.rack}", host.name), rate_bps, 0.0)
    request = PlacementRequest("p0r0h0", BLOCK_BITS, candidates_of(fabric), replicas=2)
    assert {rack_of(fabric, sinbad.place(number, request, 1000.0 * (1 + number)).destinations[1].host)
            for number in range(30)}.isdisjoint({"p1r0"}), "p1r0h0's own link is idle, but its rack is busy"


def test_a_chain_has_one_rate_that_all_of_its_hops_share(fabric: Fabric, network: Network) -> None:
    sinbad = Sinbad(network, Random(1))
    slow = tuple(Candidate(host.name, host.rack, host.pod, disk_bps=2e6 if host.name == "p0r0h0" else math.inf)
                 for host in fabric.hosts)
    placement = sinbad.place("file", PlacementRequest("p0r0h0", BLOCK_BITS, slow), 0.0)
    assert placement.rate_bps == 2e6
    assert placement.duration_seconds == pytest.approx(BLOCK_BITS / 2e6)


def test_a_placement_is_expected_for_its_duration_and_for_no_longer(fabric: Fabric, network: Network) -> None:
    sinbad = Sinbad(network, Random(1))
    placement = sinbad.place("file", PlacementRequest("p0r0h0", BLOCK_BITS, candidates_of(fabric)), 0.0)
    assert sinbad.reserved(placement.duration_seconds / 2) == 1
    assert sinbad.reserved(placement.duration_seconds) == 0


def test_a_transfer_that_has_ended_is_expected_no_more(fabric: Fabric, network: Network) -> None:
    sinbad = Sinbad(network, Random(1))
    sinbad.place("file", PlacementRequest("p0r0h0", BLOCK_BITS, candidates_of(fabric)), 0.0)
    sinbad.transfer_ended("file")
    sinbad.transfer_ended("never begun")
    assert sinbad.reserved(0.0) == 0


def test_a_batch_is_placed_smallest_first(fabric: Fabric, network: Network) -> None:
    sinbad = Sinbad(network, Random(1))
    wanted = [(size, PlacementRequest("p0r0h0", size * BLOCK_BITS, candidates_of(fabric))) for size in (3, 1, 2)]
    assert list(place_batch(sinbad, wanted, 0.0)) == [1, 2, 3]


def test_a_batch_says_why_a_request_of_it_cannot_be_placed(fabric: Fabric, network: Network) -> None:
    good, bad = (PlacementRequest("p0r0h0", BLOCK_BITS, candidates_of(fabric, free_bytes=free_bytes))
                 for free_bytes in (math.inf, 0.0))
    outcomes = place_batch(Sinbad(network, Random(1)), [("good", good), ("bad", bad)], 0.0)
    assert isinstance(outcomes["good"], Placement)
    assert isinstance(outcomes["bad"], ImpossiblePlacement) and outcomes["bad"].constraint == "space"


@pytest.mark.parametrize("seed", range(5))
def test_fifty_files_at_once_keep_off_a_busy_rack(seed: int) -> None:
    fabric = three_tier(pods=4, racks_per_pod=4, hosts_per_rack=4, host_bps=RATE_BPS)
    network = network_of(fabric)
    sinbad = Sinbad(network, Random(seed))
    for link in list(network.links):
        if "edge-p2r1" in link:
            for now in (0.0, 1.0):
                sinbad.link_measured(link, 0.9 * network.capacity_bps(link), now)
    elsewhere = [host.name for host in fabric.hosts if host.rack != "p2r1"]
    taken: Counter[str] = Counter()
    for number, writer in enumerate(Random(seed).sample(elsewhere, k=50)):
        request = PlacementRequest(writer, 8 * 32e6, candidates_of(fabric))
        taken.update(one.host for one in sinbad.place(number, request, 1.0 + 0.002 * number).destinations)
    assert sum(count for host, count in taken.items() if rack_of(fabric, host) == "p2r1") <= 0.05 * taken.total()
    assert max(taken.values()) <= 2 * taken.total() / len(fabric.hosts)


# --- constraints ---


def test_impossible_constraints_are_refused_by_the_one_that_fails(fabric: Fabric, network: Network) -> None:
    sinbad = Sinbad(network, Random(1))
    one_rack = tuple(candidate for candidate in candidates_of(fabric) if candidate.rack == "p0r0")
    one_pod = tuple(candidate for candidate in candidates_of(fabric) if candidate.pod == "p0")
    for constraint, request in (
            ("space", PlacementRequest("p0r0h0", BLOCK_BITS, candidates_of(fabric, free_bytes=BLOCK_BITS / 8 - 1))),
            ("space", PlacementRequest("p0r0h0", BLOCK_BITS, (*one_rack, Candidate("p0r1h0", "p0r1", "p0", 7.0)))),
            ("hosts", PlacementRequest("p0r0h0", BLOCK_BITS, one_rack[:2])),
            ("hosts", PlacementRequest("p0r0h0", BLOCK_BITS, (Candidate("nowhere", "p0r0"),), 1, 1)),
            ("racks", PlacementRequest("p0r0h0", BLOCK_BITS, one_rack)),
            ("pods", PlacementRequest("p0r0h0", BLOCK_BITS, one_pod, least_pods=2))):
        with pytest.raises(ImpossiblePlacement) as refused:
            sinbad.place("file", request, 0.0)
        assert refused.value.constraint == constraint
        assert sinbad.reserved(0.0) == 0


@pytest.mark.parametrize("given_wrongly", [
    {"replicas": 0}, {"least_racks": 4}, {"least_racks": 1, "least_pods": 2}, {"size_bits": math.nan},
    {"size_bits": -1.0}, {"candidates": (Candidate("p0r0h0", "p0r0"), Candidate("p0r0h0", "p0r0"))},
    {"candidates": (Candidate("p0r0h0", "p0r0", disk_bps=0.0),)},
])
def test_requests_that_mean_nothing_are_refused(fabric: Fabric, given_wrongly: dict[str, object]) -> None:
    wanted: dict[str, object] = {"writer": "p0r0h0", "size_bits": BLOCK_BITS, "candidates": candidates_of(fabric)}
    with pytest.raises(InvalidRequest):
        PlacementRequest(**wanted | given_wrongly)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_whatever_is_measured_and_placed_constraints_hold_and_expectations_end(data: st.DataObject) -> None:
    fabric = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=2, host_bps=RATE_BPS)
    network = network_of(fabric)
    sinbad = Sinbad(network, Random(data.draw(st.integers(0, 2**32))), data.draw(st.sampled_from(MeasuredBy)))
    links = sorted(network.links)
    now = 0.0
    for number in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.floats(0, 5))
        for link in data.draw(st.lists(st.sampled_from(links), max_size=4)):
            sinbad.link_measured(link, data.draw(st.floats(0, 2 * RATE_BPS)), now)
        replicas = data.draw(st.integers(1, 4))
        least_racks = data.draw(st.integers(1, replicas))
        request = PlacementRequest(data.draw(st.sampled_from(fabric.hosts)).name, data.draw(st.floats(0, 1e9)),
                                   candidates_of(fabric, disk_bps=data.draw(st.sampled_from([4e6, math.inf]))),
                                   replicas, least_racks, data.draw(st.integers(1, min(2, least_racks))))
        placement = sinbad.place(number, request, now)
        hosts = [one.host for one in placement.destinations]
        assert len(set(hosts)) == replicas
        assert len({rack_of(fabric, host) for host in hosts}) >= request.least_racks
        assert len({fabric.host(host).pod for host in hosts}) >= request.least_pods
        assert placement.rate_bps > 0
    assert sinbad.reserved(now + 1e9) == 0


def expected_by_all(ramps: list[list[float]], measured_bps: float, now: float) -> float:
    """The estimate by its definition: the highest of all ramps that are not over."""
    return max([measured_bps, *(before_bps + rate_bps * (1 - (now - begin) / seconds)
                                for _, before_bps, rate_bps, begin, seconds in ramps if now - begin < seconds)])


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["place", "forget", "measure", "wait"]), st.integers(1, 9),
                          st.integers(1, 9)), max_size=40))
def test_the_estimate_of_a_link_is_the_highest_of_all_ramps(events: list[tuple[str, int, int]]) -> None:
    estimate, ramps, now, measured_bps = LinkEstimate(), list[list[float]](), 0.0, 0.0
    for kind, first, second in events:
        if kind == "place":
            ramps.append([first, expected_by_all(ramps, measured_bps, now), float(second), now, float(first)])
            estimate.placed_for_duration(first, float(second), float(first), now)
        elif kind == "forget":
            lower_bps, kept = 0.0, []
            for ramp in ramps:
                if ramp[0] == first:
                    lower_bps += ramp[2]
                else:
                    kept.append([ramp[0], max(ramp[1] - lower_bps, 0.0), *ramp[2:]])
            ramps = kept
            estimate.forget(first)
        elif kind == "measure":
            estimate.measured(float(first), now)
            measured_bps = estimate.measured_bps
        else:
            now += second / 4
        ramps = [ramp for ramp in ramps if now - ramp[3] < ramp[4]]
        assert estimate.expected_bps(now) == pytest.approx(expected_by_all(ramps, measured_bps, now))
        assert estimate.placements(now) == len(ramps)


def test_a_placement_that_is_over_is_forgotten_when_its_link_is_measured() -> None:
    estimate = LinkEstimate()
    estimate.placed_for_duration("a", 1e6, 1.0, 0.0)
    estimate.measured(0.0, 2.0)
    assert estimate._ramps == []
