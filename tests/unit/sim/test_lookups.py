"""What each method of the emulated experiments asks whom, without a fabric."""

from __future__ import annotations

from collections import Counter

import pytest

from speedwell.controller.policy.metadata.blocks import SPACE, size
from speedwell.evaluation.lookups.load import Load, _due
from speedwell.evaluation.lookups.server import Processor, equal_part, next_asked, owner_of
from speedwell.fs.metadata_store.addresses import address_of, block_of


@pytest.mark.parametrize("servers", [1, 3, 4, 7, 16])
def test_equal_parts_are_whole_and_have_the_keys_whose_owners_they_are(servers: int) -> None:
    parts = [equal_part(number, servers) for number in range(servers)]
    assert sum(block.num_addresses for part in parts for block in part) == size(SPACE)
    for number in range(500):
        key = b"%d" % number
        assert block_of(address_of(key), parts[owner_of(key, servers)]) is not None


@pytest.mark.parametrize("servers", [2, 5, 16])
def test_chord_comes_to_the_owner_by_as_many_hops_as_the_distance_has_ones(servers: int) -> None:
    for start in range(servers):
        for owner in range(servers):
            at, hops = start, 0
            while at != owner:
                at, hops = next_asked(at, owner, servers), hops + 1
            assert hops == ((owner - start) % servers).bit_count()


def test_a_processor_does_one_thing_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", slept.append)
    processor = Processor(10.0)
    for _ in range(3):
        processor.spend(2.0)
    assert slept == pytest.approx([0.2, 0.4, 0.6])
    now[0] = 200.0
    processor.spend(1.0)
    assert slept[-1] == pytest.approx(0.1)


def test_arrivals_at_random_have_the_rate_that_was_asked_for() -> None:
    load = Load("Chord", (), 1, 7, 50.0, 200.0, per_second=20.0)
    arrivals = list(_due(load))
    assert len(arrivals) == pytest.approx(4000, rel=0.1) and arrivals == sorted(arrivals)
    seconds = Counter(int(at) for at in arrivals)
    assert max(seconds.values()) > 25       # not evenly spread
