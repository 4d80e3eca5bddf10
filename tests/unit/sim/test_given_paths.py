"""Reads over given paths take what max-min sharing of the links makes of them."""

import pytest

from speedwell.sim.given_paths import completion_seconds
from speedwell.sim.workload import Read
from speedwell.topo.fabric import spine_leaf

FABRIC = spine_leaf(leaves=2, spines=2, hosts_per_leaf=2, host_bps=10e6, oversubscription=1.0)
ACROSS = ["r0h0", "leaf0", "spine0", "leaf1", "r1h0"]
OTHER_REPLICA = ["r0h1", "leaf0", "spine0", "leaf1", "r1h0"]
ELSEWHERE = ["r0h0", "leaf0", "spine1", "leaf1", "r1h1"]
BESIDE = ["r0h1", "leaf0", "spine0", "leaf1", "r1h1"]


def read(arrival: float, size_bits: float = 10e6) -> Read:
    return Read(arrival, "r1h0", ("r0h0",), size_bits)


def test_a_read_alone_has_the_whole_link() -> None:
    assert completion_seconds(FABRIC, [read(1.0)], [[ACROSS]], 0.25) == pytest.approx([1.25])


def test_reads_that_share_a_link_have_equal_shares_for_as_long_as_both_run() -> None:
    assert completion_seconds(FABRIC, [read(0.0), read(0.5)], [[ACROSS], [BESIDE]]) == pytest.approx([1.5, 1.5])


def test_the_parts_of_a_read_end_together_however_unequal_their_rates() -> None:
    # Two others leave the first part a third of its replica's link, the second has the rest of the reader's.
    others = [read(0.0, 50e6), read(0.0, 50e6)]
    paths = [[ELSEWHERE], [ELSEWHERE], [ACROSS, OTHER_REPLICA]]
    times = completion_seconds(FABRIC, [*others, read(0.0, 20e6)], paths)
    assert times[2] == pytest.approx(2.0, abs=1e-5)


def test_a_replica_on_the_readers_own_host_takes_no_time() -> None:
    assert completion_seconds(FABRIC, [read(0.0), read(0.0)], [[["r1h0"]], [ACROSS]]) == pytest.approx([0.0, 1.0])
