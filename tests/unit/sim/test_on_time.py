"""The bound on a percentile: by hand, and below what any order of service reaches."""

from itertools import permutations
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedwell.sim.on_time import clairvoyant_percentile_seconds
from speedwell.sim.workload import Read

HOSTS = ("a", "b", "c")


def test_reads_of_one_client_share_its_link() -> None:
    """21 reads of a second each, at once: the 20th ends after 20 s at best, and the 95th percentile is the 20th."""
    reads = [Read(0.0, "x", (f"{number}",), 1e9) for number in range(21)]
    assert clairvoyant_percentile_seconds(reads, 1e9) == pytest.approx(20.0, rel=1e-5)


def test_reads_of_the_same_hosts_share_their_links() -> None:
    """21 seconds of work on three links: 20 of them take 20 / 3 s."""
    reads = [Read(0.0, f"{number}", HOSTS, 1e9) for number in range(21)]
    assert clairvoyant_percentile_seconds(reads, 1e9) == pytest.approx(20 / 3, rel=1e-5)


def test_reads_that_share_nothing_take_their_own_time() -> None:
    reads = [Read(0.0, f"{number}", (f"s{number}",), 2e9) for number in range(21)]
    assert clairvoyant_percentile_seconds(reads, 1e9) == pytest.approx(2.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([50.0, 80.0, 95.0]))
def test_no_order_of_service_on_one_link_is_better(seed: int, percentile: float) -> None:
    chance = Random(seed)
    reads = [Read(chance.uniform(0, 4), "x", (f"{number}",), chance.choice([1e9, 1e9, 2e9])) for number in range(6)]
    bound = clairvoyant_percentile_seconds(reads, 1e9, percentile)
    for order in permutations(reads):
        now, times = 0.0, []
        for read in order:
            now = max(now, read.arrival) + read.size_bits / 1e9
            times.append(now - read.arrival)
        assert bound <= float(np.percentile(times, percentile)) + 1e-9
