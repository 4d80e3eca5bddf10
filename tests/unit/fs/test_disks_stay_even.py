"""Over a long run of writes that keep off busy links, disks are filled evenly, by the functions that place files."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.controller.policy.placements import request as policy
from speedwell.controller.policy.placements.sinbad import Sinbad
from speedwell.fs.nameserver.replicas.placement import EVEN_WITHIN, Candidate, evenly_filled, place
from speedwell.sim.fabric_network import network_of
from speedwell.topo.fabric import three_tier

RATE_BPS = 1e9
FILES, REPLICATION, FULL_PART = 1500, 3, 0.7
LARGEST_BYTES = 256e6
MOST_DEVIATION = 0.10
"""Of the capacity: section 7.4, beyond it a cluster would be balanced."""
FABRIC = three_tier(pods=2, racks_per_pod=2, hosts_per_rack=4, host_bps=RATE_BPS)
CAPACITY_BYTES = FILES * REPLICATION * LARGEST_BYTES / 2 / len(FABRIC.hosts) / FULL_PART

Filter = Callable[[Sequence[Candidate], int], Sequence[Candidate]]


def worst_deviation(busy_rack: Callable[[int], str], offered: Filter) -> float:
    """The largest standard deviation of the disks' use, in parts of their capacity, while FILES files come."""
    network, chance = network_of(FABRIC), random.Random(4)
    sinbad = Sinbad(network, chance)
    used = dict.fromkeys((host.name for host in FABRIC.hosts), 0.0)
    worst = now = 0.0
    for number in range(FILES):
        now += 1.0
        busy = busy_rack(number)
        for link in network.links:
            load = 0.9 if any(end in (f"edge-{busy}", *busy_hosts(busy)) for end in link) else 0.1
            sinbad.link_measured(link, load * network.capacity_bps(link), now)
        size_bytes = chance.uniform(1e6, LARGEST_BYTES)
        candidates = [Candidate(index, host.name, host.rack, int(CAPACITY_BYTES - used[host.name]),
                                used[host.name] / CAPACITY_BYTES) for index, host in enumerate(FABRIC.hosts)]
        placed = sinbad.place(number, policy.PlacementRequest(
            chance.choice(FABRIC.hosts).name, 8 * size_bytes, tuple(
                policy.Candidate(each.host, each.rack, "", each.free_bytes or 0)
                for each in offered(candidates, REPLICATION))), now)
        for destination in placed.destinations:
            used[destination.host] += size_bytes
        worst = max(worst, statistics.pstdev(used.values()) / CAPACITY_BYTES)
    return worst


def busy_hosts(rack: str) -> list[str]:
    return [host.name for host in FABRIC.hosts if host.rack == rack]


def always(number: int) -> str:
    return "p1r1"


def in_turn(number: int) -> str:
    return f"p{number // 50 % 2}r{number // 100 % 2}"


@pytest.mark.parametrize("busy_rack", [always, in_turn])
def test_the_standard_deviation_of_use_stays_below_a_tenth_of_the_capacity(busy_rack: Callable[[int], str]) -> None:
    assert worst_deviation(busy_rack, evenly_filled) < MOST_DEVIATION


def test_a_rack_that_is_always_busy_would_stay_empty_if_all_were_offered() -> None:
    assert worst_deviation(always, lambda candidates, replication: candidates) > MOST_DEVIATION


parts = st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1)), max_size=12)


@given(parts, st.integers(1, 4))
def test_enough_are_always_offered_and_the_fuller_ones_last(disks: list[tuple[int, float]], replication: int) -> None:
    candidates = [Candidate(number, f"h{number}", f"r{rack}", None, used)
                  for number, (rack, used) in enumerate(disks)]
    offered = evenly_filled(candidates, replication)
    assert len(offered) >= min(replication, len(candidates))
    assert len({each.rack for each in offered}) >= min(2, replication, len({each.rack for each in candidates}))
    assert len(place(offered, replication, "", random.Random(1))) == min(replication, len(candidates))
    if len(offered) < len(candidates):
        mean = sum(used for _, used in disks) / len(disks)
        assert max(each.used_part for each in offered) <= mean + EVEN_WITHIN
