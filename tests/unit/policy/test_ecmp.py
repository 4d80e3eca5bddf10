"""ECMP: the same flow always takes the same path, and flows spread."""

from collections import Counter

import pytest

from speedwell.controller.policy.errors import NoPath
from speedwell.controller.policy.network.ecmp import ecmp_path
from speedwell.controller.policy.network.five_tuple import TCP, FiveTuple
from speedwell.controller.policy.network.graph import Path

PATHS = tuple(Path(("a", f"s{number}", "b")) for number in range(8))


def flow(source_port: int, destination_port: int = 40000) -> FiveTuple:
    return FiveTuple("10.0.0.1", "10.1.0.1", TCP, source_port, destination_port)


def test_a_flow_keeps_its_path_across_processes_and_releases() -> None:
    chosen = [PATHS.index(ecmp_path(PATHS, flow(port))) for port in range(7000, 7010)]
    assert chosen == [5, 3, 0, 2, 6, 6, 1, 4, 0, 0]


def test_flows_that_differ_in_a_port_spread_evenly() -> None:
    counts = Counter(ecmp_path(PATHS, flow(7000, port)) for port in range(30000, 38000))
    assert set(counts) == set(PATHS)
    assert max(counts.values()) < 1.15 * 1000
    assert min(counts.values()) > 0.85 * 1000


def test_every_field_of_the_five_tuple_counts() -> None:
    base = FiveTuple("10.0.0.1", "10.1.0.1", TCP, 1, 2)
    others = [
        [FiveTuple(f"10.0.0.{n}", "10.1.0.1", TCP, 1, 2) for n in range(2, 40)],
        [FiveTuple("10.0.0.1", f"10.1.0.{n}", TCP, 1, 2) for n in range(2, 40)],
        [FiveTuple("10.0.0.1", "10.1.0.1", n, 1, 2) for n in range(7, 40)],
        [FiveTuple("10.0.0.1", "10.1.0.1", TCP, n, 2) for n in range(2, 40)],
        [FiveTuple("10.0.0.1", "10.1.0.1", TCP, 1, n) for n in range(3, 40)],
    ]
    for varied in others:
        assert {ecmp_path(PATHS, five_tuple) for five_tuple in varied} > {ecmp_path(PATHS, base)}


def test_losing_the_last_of_n_paths_moves_at_most_half_of_the_flows() -> None:
    flows = [flow(7000, port) for port in range(30000, 34000)]
    moved = sum(ecmp_path(PATHS, five_tuple) != ecmp_path(PATHS[:-1], five_tuple) for five_tuple in flows)
    # RFC 2992, section 3: between 1/4 and 1/2 of the flows change with hash-threshold.
    assert moved <= 0.55 * len(flows)


def test_no_path_is_an_error() -> None:
    with pytest.raises(NoPath):
        ecmp_path((), flow(1))
