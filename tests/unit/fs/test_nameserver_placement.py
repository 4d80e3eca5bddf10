"""Rack-aware placement, as section 5 of the Mayflower paper describes it."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from speedwell.fs.nameserver.replicas.placement import Candidate, place, with_room

racks = st.lists(st.integers(0, 4), max_size=20)


def servers(rack_numbers: list[int]) -> list[Candidate]:
    return [Candidate(number, f"10.0.{rack}.{number}", f"r{rack}") for number, rack in enumerate(rack_numbers)]


@given(rack_numbers=racks, replication=st.integers(1, 8), seed=st.integers(0, 1000), writer=st.integers(0, 25))
def test_placement_keeps_its_rules_on_every_cluster(rack_numbers: list[int], replication: int, seed: int,
                                                    writer: int) -> None:
    candidates = servers(rack_numbers)
    writer_host = candidates[writer].host if writer < len(candidates) else "10.9.9.9"
    chosen = place(candidates, replication, writer_host, random.Random(seed))
    assert len(chosen) == min(replication, len(candidates))
    assert len(set(chosen)) == len(chosen)
    if not chosen:
        return
    primary = chosen[0]
    if writer < len(candidates):
        assert primary.host == writer_host
    population = Counter(candidate.rack for candidate in candidates)
    if len(chosen) > 1 and population[primary.rack] > 1:
        assert chosen[1].rack == primary.rack
    # Every further replica opens a new rack as long as there is one without.
    for position in range(2, len(chosen)):
        before = {candidate.rack for candidate in chosen[:position]}
        if set(population) - before:
            assert chosen[position].rack not in before


def test_the_same_generator_gives_the_same_placement() -> None:
    candidates = servers([0, 0, 1, 1, 2, 2])
    assert (place(candidates, 3, "", random.Random(5)) == place(candidates, 3, "", random.Random(5)))


def test_every_dataserver_gets_its_share_of_primaries_and_racks_of_further_replicas() -> None:
    candidates = servers([0] * 4 + [1] * 4 + [2] * 4)
    generator = random.Random(1)
    placements = [place(candidates, 3, "", generator) for _ in range(3000)]
    primaries = Counter(placement[0].number for placement in placements)
    assert min(primaries.values()) > 150  # 250 expected of each
    third_racks = Counter((placement[0].rack, placement[2].rack) for placement in placements)
    assert len(third_racks) == 6
    assert min(third_racks.values()) > 350  # 500 expected of each


def test_a_server_with_more_room_gets_more_files_but_not_all() -> None:
    candidates = [Candidate(number, f"10.0.0.{number}", "r", 1000 if number == 4 else 100) for number in range(5)]
    generator = random.Random(1)
    primaries = Counter(place(candidates, 1, "", generator)[0].number for _ in range(2000))
    assert 1.6 * 400 < primaries[4] < 2.4 * 400
    assert min(primaries.values()) > 200


def test_servers_that_are_about_equally_free_get_equal_parts() -> None:
    candidates = [Candidate(number, f"10.0.0.{number}", "r", 1000 + number) for number in range(5)]
    generator = random.Random(1)
    primaries = Counter(place(candidates, 1, "", generator)[0].number for _ in range(2000))
    assert max(primaries.values()) < 500


def test_a_file_goes_where_it_fits_as_long_as_that_is_enough_for_its_replicas() -> None:
    small, unknown, large = (Candidate(number, "10.0.0.1", "r", free) for number, free in enumerate((10, None, 1000)))
    candidates = [small, unknown, large]
    assert with_room(candidates, 100, 2) == [unknown, large]
    assert with_room(candidates, 100, 3) == candidates
    assert with_room([large], 100, 3) == [large]


def test_without_a_candidate_there_is_no_replica() -> None:
    assert place([], 3, "h", random.Random(1)) == []
