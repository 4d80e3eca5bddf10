"""Parts of a read in whole bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedwell.controller.reads.byte_ranges import ALIGNMENT_BYTES, byte_ranges

SIZES = st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=8)


@given(size_bytes=st.integers(1, 1 << 50), wanted=SIZES)
def test_parts_follow_each_other_and_add_up_exactly(size_bytes: int, wanted: list[float]) -> None:
    parts = byte_ranges(size_bytes, wanted)
    assert len(parts) == len(wanted)
    reached = 0
    for offset, size in parts:
        assert offset == reached and size >= 0
        reached += size
    assert reached == size_bytes


@given(size_bytes=st.integers(1, 1 << 50), wanted=SIZES)
def test_cuts_are_aligned_and_as_near_as_that_allows(size_bytes: int, wanted: list[float]) -> None:
    reached = 0.0
    for share, (offset, size) in zip(wanted[:-1], byte_ranges(size_bytes, wanted), strict=False):
        reached += share
        exact = size_bytes * (reached / sum(wanted))
        assert (offset + size) % ALIGNMENT_BYTES == 0 or offset + size == size_bytes
        assert abs(offset + size - exact) <= ALIGNMENT_BYTES / 2 + 1e-6 * size_bytes


@pytest.mark.parametrize(("size_bytes", "wanted", "expected"), [
    (1 << 20, [1.0], [(0, 1 << 20)]),
    (1 << 20, [3.0, 1.0], [(0, 786432), (786432, 262144)]),
    ((1 << 20) + 1, [1.0, 1.0], [(0, 524288), (524288, 524289)]),
    (1000, [1.0, 1.0], [(0, 0), (0, 1000)]),
    (60_000, [10.0, 1.0], [(0, 60_000), (60_000, 0)]),
])
def test_examples(size_bytes: int, wanted: list[float], expected: list[tuple[int, int]]) -> None:
    assert byte_ranges(size_bytes, wanted) == expected
